//! Encryption, and verification of the server.
//!
//! What is verified follows libpq: nothing without a root certificate, the chain as soon as there
//! is one (whatever the `sslmode`), the host's name with `verify-full` only. A certificate that is
//! accepted unverified must still belong to the peer: the signatures of the handshake are always
//! checked.
//!
//! rustls verifies. Which check an `sslmode` asks for is libpq's policy, and no
//! crate has it.
//!
//! | | no root certificate | root certificate |
//! |---|---|---|
//! | allow, prefer, require | anyone | chain |
//! | verify-ca | refused | chain |
//! | verify-full | refused | chain and name |
//!
//! A certificate that is itself among the roots is trusted directly. That includes a self-signed
//! one with the marks of an authority, as `openssl req -x509` makes it. The subject's common name
//! counts as host name only if there are no alternative names. Certificates of version 1 have no
//! extensions and cannot be verified here, only accepted unseen.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Error;
use crate::conninfo::{Address, Host, RootCert, Settings, Ssl, SslMode, TlsVersion};
use crate::denial::Tls;
use crate::error::Kind;
use crate::stream::Stream;
use crate::x509::{Certificate, SignatureHash, name_matches};

/// The protocol's name in ALPN, as PostgreSQL 17 registered it.
const ALPN: &[u8] = b"postgresql";

/// Encrypts `stream`, which is at the point of the handshake.
pub(crate) async fn connect(stream: TcpStream, settings: &Settings, host: &Host) -> Result<Stream, Error> {
    let ssl = &settings.ssl;
    let name = server_name(ssl, host)?;
    let roots = roots(ssl)?;
    let source = roots.as_ref().map(|roots| roots.source.clone());
    let config = config(ssl, roots, host)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match cause {
            Some(cause) => failed(explain(cause, host, source.as_deref())),
            None => Error::new(Kind::Handshake(error)),
        }
    })?;
    if ssl.direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(failed(Tls::NotDirect));
    }
    Ok(Stream::Tls(Box::new(stream)))
}

/// The hash of the server's certificate that binds SCRAM to this session
/// (`tls-server-end-point`), if the certificate's algorithm defines one.
pub(crate) fn server_end_point(session: &ClientConnection) -> Option<Vec<u8>> {
    end_point_hash(session.peer_certificates()?.first()?)
}

/// The hash of a server's certificate (DER) that binds SCRAM to a TLS session
/// (`tls-server-end-point`, RFC 5929); `None` if the certificate's algorithm defines none.
#[must_use]
pub fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(match Certificate::parse(certificate)?.signature_hash? {
        SignatureHash::Sha256 => Sha256::digest(certificate).to_vec(),
        SignatureHash::Sha384 => Sha384::digest(certificate).to_vec(),
        SignatureHash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// The common name of a certificate (DER), if it has one in ASCII or UTF-8.
#[must_use]
pub fn common_name(certificate: &[u8]) -> Option<String> {
    Certificate::parse(certificate)?.common_name.map(str::to_owned)
}

fn failed(why: Tls) -> Error {
    Error::new(Kind::Tls(why))
}

/// Why a handshake failed.
pub(crate) fn explain(error: &rustls::Error, host: &Host, roots: Option<&str>) -> Tls {
    let roots = || roots.unwrap_or("no root certificates").to_owned();
    let rustls::Error::InvalidCertificate(reason) = error else {
        return Tls::Handshake(error.clone());
    };
    let error = error.clone();
    match reason {
        CertificateError::UnknownIssuer => Tls::UnknownAuthority { roots: roots() },
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Tls::WrongName { host: host.to_string(), error }
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => Tls::OutOfTime(error),
        CertificateError::Other(other) if is_version_1(&*other.0) => Tls::Version1,
        _ => Tls::NotAccepted { error, roots: roots() },
    }
}

fn is_version_1(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref::<webpki::Error>(), Some(webpki::Error::UnsupportedCertVersion))
}

/// The name for SNI and for `verify-full`.
fn server_name(ssl: &Ssl, host: &Host) -> Result<ServerName<'static>, Error> {
    let Address::Tcp { name, hostaddr } = &host.address else {
        return Err(Error::protocol("TLS was asked for on a Unix socket"));
    };
    match name {
        Some(name) => match ServerName::try_from(name.clone()) {
            Ok(name) => Ok(name),
            Err(_) if ssl.mode == SslMode::VerifyFull => Err(Error::configuration(format!(
                "\"{name}\" is not a host name a certificate could have; sslmode=verify-full needs one"
            ))),
            // Not sent: see `config`.
            Err(_) => Ok(ServerName::from(std::net::IpAddr::from([0, 0, 0, 0]))),
        },
        None if ssl.mode == SslMode::VerifyFull => Err(Error::configuration(
            "sslmode=verify-full needs a host name to compare with the certificate; give host besides hostaddr",
        )),
        None => Ok(ServerName::from(hostaddr.unwrap_or_else(|| [0, 0, 0, 0].into()))),
    }
}

/// Trusted roots and where they came from.
struct Roots {
    certificates: Vec<CertificateDer<'static>>,
    source: String,
}

/// `None`: there are none and none are needed.
fn roots(ssl: &Ssl) -> Result<Option<Roots>, Error> {
    let needed = ssl.mode >= SslMode::VerifyCa;
    match &ssl.root_cert {
        RootCert::System => {
            let found = rustls_native_certs::load_native_certs();
            if found.certs.is_empty() {
                return Err(Error::configuration(
                    "sslrootcert=system, but the system has no trusted certificates; install ca-certificates",
                ));
            }
            Ok(Some(Roots { certificates: found.certs, source: "the system's trusted roots".into() }))
        }
        RootCert::File(path) if path.exists() => {
            let certificates = pem_items::<CertificateDer<'static>>("root certificate", path)?;
            Ok(Some(Roots { certificates, source: path.display().to_string() }))
        }
        RootCert::File(path) if needed => Err(Error::configuration(format!(
            "root certificate {} does not exist; give the file with sslrootcert, trust the system's roots with \
             sslrootcert=system, or use an sslmode that verifies nothing",
            path.display()
        ))),
        RootCert::None if needed => Err(Error::configuration(
            "no home directory to look for root.crt in; give the file with sslrootcert",
        )),
        RootCert::File(_) | RootCert::None => Ok(None),
    }
}

fn pem_items<T: PemObject>(what: &str, path: &Path) -> Result<Vec<T>, Error> {
    let unusable = |why: String| Error::configuration(format!("{what} {}: {why}", path.display()));
    let items: Vec<T> = T::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(format!("cannot be read: {error}")))?;
    if items.is_empty() {
        return Err(unusable("the file has none in PEM form".into()));
    }
    Ok(items)
}

fn config(ssl: &Ssl, roots: Option<Roots>, host: &Host) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: &[&SupportedProtocolVersion] = match (ssl.version_min, ssl.version_max) {
        (TlsVersion::V1_3, _) => &[&rustls::version::TLS13],
        (_, TlsVersion::V1_2) => &[&rustls::version::TLS12],
        _ => &[&rustls::version::TLS12, &rustls::version::TLS13],
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| failed(Tls::Handshake(error)))?;
    let verifier = Arc::new(Verifier::new(&provider, ssl, roots, host)?);
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match identity(ssl)? {
        Some((chain, key, path)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            Error::configuration(format!("client certificate {} and its key: {error}", path.display()))
        })?,
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = ssl.sni;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, PathBuf);

/// Our certificate and key. As in libpq a certificate that does not exist is
/// none, a key that does not exist beside one is an error.
fn identity(ssl: &Ssl) -> Result<Option<Identity>, Error> {
    let Some((certificate, key)) = ssl.identity.as_ref().filter(|(certificate, _)| certificate.exists())
    else {
        return Ok(None);
    };
    let key_read = private_key(key)
        .map_err(|why| Error::configuration(format!("private key {}: {why}", key.display())))?;
    let chain = pem_items("client certificate", certificate)?;
    Ok(Some((chain, key_read, certificate.clone())))
}

/// Reads a private key in PEM form, which only its owner may read.
///
/// # Errors
/// Why the file cannot be used, without its name.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let metadata = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    // Root may lend its key to a group, others may not.
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.permissions().mode() & forbidden != 0 {
        return Err("others may read it; `chmod 0600` it (0640 if it belongs to root)".to_owned());
    }
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error| format!("cannot be used: {error}; it must be PEM without a password"))
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    chain: Option<Chain>,
}

#[derive(Debug)]
struct Chain {
    verifier: Arc<WebPkiServerVerifier>,
    /// The roots themselves, for servers that show one of them.
    trusted: Vec<CertificateDer<'static>>,
    /// With `verify-full`, the name the certificate must have.
    host: Option<String>,
}

impl Verifier {
    fn new(
        provider: &Arc<CryptoProvider>,
        ssl: &Ssl,
        roots: Option<Roots>,
        host: &Host,
    ) -> Result<Verifier, Error> {
        let algorithms = provider.signature_verification_algorithms;
        let Some(Roots { certificates, source }) = roots else {
            return Ok(Verifier { algorithms, chain: None });
        };
        let unusable = |why: String| Error::configuration(format!("root certificates of {source}: {why}"));
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(certificates.iter().cloned());
        if added == 0 {
            return Err(unusable("none of them can be used".into()));
        }
        let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider));
        if let Some(path) = &ssl.revocations {
            let lists = pem_items::<CertificateRevocationListDer<'static>>("revocation list", path)?;
            builder = builder.with_crls(lists).enforce_revocation_expiration();
        }
        let verifier = builder.build().map_err(|error| unusable(error.to_string()))?;
        let name = match &host.address {
            Address::Tcp { name, .. } => name.clone(),
            Address::Unix(_) => None,
        };
        let host = name.filter(|_| ssl.mode == SslMode::VerifyFull);
        Ok(Verifier { algorithms, chain: Some(Chain { verifier, trusted: certificates, host }) })
    }
}

impl Chain {
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verified = if self.trusted.contains(certificate) {
            trusted_directly(certificate, name, now)
        } else {
            self.verifier.verify_server_cert(certificate, intermediates, name, &[], now).map(|_| ())
        };
        match verified {
            // The chain has been verified before names are compared.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.name_is_unwanted_or_common(certificate) => Ok(()),
            verified => verified,
        }
    }

    fn name_is_unwanted_or_common(&self, certificate: &[u8]) -> bool {
        let Some(host) = &self.host else { return true };
        Certificate::parse(certificate)
            .filter(|certificate| !certificate.has_alt_names)
            .and_then(|certificate| certificate.common_name)
            .is_some_and(|common| name_matches(common, host))
    }
}

/// Time and name of a certificate that needs no signature: it is one of the
/// roots, byte by byte.
fn trusted_directly(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let invalid = rustls::Error::InvalidCertificate;
    let (not_before, not_after) =
        Certificate::parse(certificate).ok_or(invalid(CertificateError::BadEncoding))?.validity;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < not_before {
        return Err(invalid(CertificateError::NotValidYet));
    }
    if now > not_after {
        return Err(invalid(CertificateError::Expired));
    }
    rustls::client::verify_server_name(&rustls::server::ParsedCertificate::try_from(certificate)?, name)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(chain) = &self.chain {
            chain.verify(end_entity, intermediates, server_name, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    /// By the bare key: rustls's own would refuse certificates of version 1,
    /// which many servers have and nobody asked to verify.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = public_key(cert)?;
        let bad = || rustls::Error::InvalidCertificate(CertificateError::BadSignature);
        let entity = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
        // TLS 1.2 does not tie the curve to the scheme: several may fit.
        let candidates = self.algorithms.mapping.iter().filter(|(scheme, _)| *scheme == dss.scheme);
        candidates
            .flat_map(|(_, algorithms)| algorithms.iter())
            .find(|algorithm| entity.verify_signature(**algorithm, message, dss.signature()).is_ok())
            .map(|_| HandshakeSignatureValid::assertion())
            .ok_or_else(bad)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &public_key(cert)?, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'a>, rustls::Error> {
    Certificate::parse(certificate)
        .map(|certificate| SubjectPublicKeyInfoDer::from(certificate.public_key))
        .ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_fits_the_certificate() {
        let info = crate::ConnInfo::parse_with("host=db.example user=u", &|_| None).unwrap();
        let host = &info.settings().hosts[0];
        let other = rustls::OtherError(Arc::new(webpki::Error::UnsupportedCertVersion));
        for (reason, part) in [
            (CertificateError::Other(other), "subjectAltName"),
            (CertificateError::UnknownIssuer, "authority in roots.pem"),
            (CertificateError::NotValidForName, "hostaddr"),
            (CertificateError::Expired, "renew"),
            (CertificateError::Revoked, "roots.pem"),
        ] {
            let message = explain(&rustls::Error::InvalidCertificate(reason), host, Some("roots.pem"));
            let message = message.to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
