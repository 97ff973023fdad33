//! Encryption of connections from clients.
//!
//! rustls refuses a client that sends something as the server's name that no host can have. libpq
//! does that where a directory stands as the host beside an address (`host=/run
//! hostaddr=10.0.0.1`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The protocol's name in ALPN, as PostgreSQL 17 registered it.
pub(crate) const ALPN: &[u8] = b"postgresql";

/// Files of a server's TLS, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its root (`ssl_cert_file`).
    pub certificate: PathBuf,
    /// Its key, without a password (`ssl_key_file`).
    pub key: PathBuf,
    /// The roots of clients' certificates (`ssl_ca_file`). Without it, clients need not show any.
    pub client_roots: Option<PathBuf>,
}

/// A file that cannot be used.
#[derive(Debug)]
pub struct TlsError {
    what: &'static str,
    path: PathBuf,
    why: String,
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.what, self.path.display(), self.why)
    }
}

impl std::error::Error for TlsError {}

/// What encrypts connections.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// What SCRAM is bound to, if the certificate's algorithm defines it.
    pub(crate) end_point: Option<Arc<[u8]>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be; others may read the key.
    pub fn load(files: &TlsFiles) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let failed = |why: &dyn std::fmt::Display| TlsError {
            what: "certificate",
            path: files.certificate.clone(),
            why: why.to_string(),
        };
        let chain = certificates("certificate", &files.certificate)?;
        let key = client::private_key(&files.key).map_err(|why| TlsError {
            what: "private key",
            path: files.key.clone(),
            why,
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?;
        let builder = match &files.client_roots {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let wrong = |why: String| TlsError { what: "root certificate", path: path.clone(), why };
                let mut roots = RootCertStore::empty();
                let (added, _) = roots.add_parsable_certificates(certificates("root certificate", path)?);
                if added == 0 {
                    return Err(wrong("none of its certificates can be used".to_owned()));
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| wrong(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let end_point = client::end_point_hash(&chain[0]).map(Arc::from);
        let mut config = builder.with_single_cert(chain, key).map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), end_point })
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |why: String| TlsError { what, path: path.to_owned(), why };
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed(format!("cannot be read: {error}")))?;
    if found.is_empty() {
        return Err(failed("the file has none in PEM form".to_owned()));
    }
    Ok(found)
}
