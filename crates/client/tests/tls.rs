//! TLS with certificates of our own making, every `sslmode` against every kind of server.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use client::{Error, Replication, Wire, connect};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;
use testkit::{Cluster, Major, wait_for};

mod support;
use support::{keys_of, over_tcp, run};

type Authority = CertifiedIssuer<'static, KeyPair>;

const HBA: &str = "\
local all all trust
host all postgres 127.0.0.1/32 trust
hostssl all encrypted 127.0.0.1/32 scram-sha-256
hostnossl all clear 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
";

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key in PEM.
fn issue(
    authority: &Authority,
    common_name: &str,
    names: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// Gives the server a certificate, a key and the authority of its clients.
fn encrypt(cluster: &Cluster, certificate: &str, key: &str, clients: &str) {
    let data = cluster.data_dir();
    let owner = std::fs::metadata(&data).unwrap();
    for (name, text) in [("server.crt", certificate), ("server.key", key), ("clients.crt", clients)] {
        let path = data.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    for setting in ["ssl_ca_file = 'clients.crt'", "ssl = on"] {
        cluster.sql("postgres", &format!("ALTER SYSTEM SET {setting}")).unwrap();
    }
    cluster.sql("postgres", "SELECT pg_reload_conf()").unwrap();
    wait_for("ssl = on", Duration::from_secs(20), || Ok(cluster.one("postgres", "SHOW ssl") == "on"))
        .unwrap();
}

struct Setup {
    cluster: Cluster,
    files: TempDir,
    authority: Authority,
}

impl Setup {
    fn new(major: Major) -> Setup {
        let cluster = Cluster::builder(major).hba(HBA).start().unwrap();
        cluster
            .sql(
                "postgres",
                "CREATE ROLE encrypted LOGIN PASSWORD 'geheim'; CREATE ROLE clear LOGIN PASSWORD 'geheim';
                 CREATE ROLE certified LOGIN",
            )
            .unwrap();
        let authority = authority("ours");
        let setup = Setup { cluster, files: tempfile::tempdir().unwrap(), authority };
        setup.write("root.crt", &setup.authority.pem());
        setup.write("other.crt", &self::authority("theirs").pem());
        setup
    }

    fn serve(&self, common_name: &str, names: &[&str]) {
        let (certificate, key) =
            issue(&self.authority, common_name, names, ExtendedKeyUsagePurpose::ServerAuth);
        encrypt(&self.cluster, &certificate, &key, &self.authority.pem());
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.files.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// Whether both kinds of connection are encrypted, or why not connected.
    fn attempt(&self, text: &str) -> Result<bool, Error> {
        let text = text.replace("FILES", &self.files.path().display().to_string());
        let info = over_tcp(&self.cluster, &text);
        let sql = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        run(&text, async {
            let mut wire = Wire::connect(&info, "", Replication::Off, &[]).await?;
            let session = connect(&info, "", &[]).await?;
            let seen = session.query_one(sql, &[]).await?.get::<_, String>(0);
            assert_eq!(wire.query(sql).await?, [[Some(seen.clone())]]);
            Ok(seen == "true")
        })
    }

    #[track_caller]
    fn refused(&self, text: &str, part: &str) -> Error {
        let error = self.attempt(text).expect_err(text);
        assert!(error.to_string().contains(part), "{text}: {error}");
        assert!(!error.is_connection_lost(), "{text}: {error:?}");
        error
    }
}

#[test]
fn modes_roots_and_names() {
    for major in Major::under_test() {
        let setup = Setup::new(major);
        setup.serve("somebody", &["db.example", "*.wild.example", "127.0.0.1"]);
        let encrypted = |text: &str| setup.attempt(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for (text, expected) in [
            ("user=postgres", true),
            ("user=postgres sslmode=disable", false),
            ("user=postgres sslmode=allow", false),
            ("user=postgres sslmode=require", true),
            ("user=postgres sslmode=verify-ca sslrootcert=FILES/root.crt", true),
            ("user=postgres sslmode=verify-full sslrootcert=FILES/root.crt", true),
            (
                "user=postgres sslmode=verify-full sslrootcert=FILES/root.crt host=db.example hostaddr=127.0.0.1",
                true,
            ),
            (
                "user=postgres sslmode=verify-full sslrootcert=FILES/root.crt host=a.wild.example hostaddr=127.0.0.1",
                true,
            ),
            (
                "user=postgres sslmode=verify-ca sslrootcert=FILES/root.crt host=no.example hostaddr=127.0.0.1",
                true,
            ),
            ("user=postgres sslmode=require sslrootcert=FILES/absent.crt", true),
            ("user=postgres sslmode=prefer sslrootcert=FILES/other.crt", false),
            ("user=postgres sslmode=require ssl_max_protocol_version=TLSv1.2", true),
            ("user=postgres sslmode=require ssl_min_protocol_version=TLSv1.3", true),
            ("user=postgres sslmode=require sslsni=0 host=db.example hostaddr=127.0.0.1", true),
            // pg_hba.conf decides by encryption: allow and prefer try the other way.
            ("user=encrypted password=geheim sslmode=allow", true),
            ("user=clear password=geheim sslmode=prefer", false),
            ("user=encrypted password=geheim sslmode=require channel_binding=require", true),
            ("user=encrypted password=geheim sslmode=require channel_binding=disable", true),
            ("user=encrypted password=geheim sslmode=require ssl_max_protocol_version=TLSv1.2", true),
        ] {
            assert_eq!(encrypted(text), expected, "{text} on {major}");
        }
        let keys = keys_of(&setup.cluster, "encrypted", "geheim");
        let bound = format!("user=encrypted {keys} sslmode=require channel_binding=require");
        assert!(encrypted(&bound), "keys on {major}");
        setup.refused(
            "user=postgres sslmode=verify-ca sslrootcert=FILES/other.crt",
            "not signed by an authority in",
        );
        setup.refused("user=postgres sslmode=require sslrootcert=FILES/other.crt", "other.crt");
        let name = "user=postgres sslmode=verify-full sslrootcert=FILES/root.crt hostaddr=127.0.0.1";
        let error = setup.refused(&format!("{name} host=no.example"), "not for host no.example");
        assert!(error.is_tls() && error.to_string().contains("db.example"), "{error}");
        setup.refused(&format!("{name} host=a.b.wild.example"), "not for host");
        assert!(setup.refused(&format!("{name} host="), "needs a host name").is_configuration());
        setup.refused("user=postgres sslmode=verify-full sslrootcert=FILES/absent.crt", "sslrootcert=system");
        setup.refused("user=postgres sslmode=verify-full sslrootcert=system", "the system's trusted roots");
        setup.write("empty.crt", "");
        let empty = setup.refused("user=postgres sslmode=require sslrootcert=FILES/empty.crt", "empty.crt");
        assert!(empty.is_configuration());
        setup.refused("user=clear password=geheim sslmode=require", "no pg_hba.conf entry");
        setup.refused("user=encrypted password=falsch sslmode=prefer", "password authentication failed");
        if major.number() >= 17 {
            assert!(encrypted("user=postgres sslmode=require sslnegotiation=direct"));
        } else {
            setup.attempt("user=postgres sslmode=require sslnegotiation=direct").unwrap_err();
        }
    }
}

#[test]
fn common_names_count_without_others_and_roots_vouch_for_themselves() {
    let setup = Setup::new(Major::V15);
    setup.serve("db.example", &[]);
    let full = "user=postgres sslmode=verify-full hostaddr=127.0.0.1";
    assert!(setup.attempt(&format!("{full} sslrootcert=FILES/root.crt host=db.example")).unwrap());
    setup.refused(&format!("{full} sslrootcert=FILES/root.crt host=no.example"), "not for host");

    // Alternative names, where there are any, are the only ones.
    setup.serve("db.example", &["other.example"]);
    // The server takes new files for new connections once it has read them.
    wait_for("the new certificate", Duration::from_secs(20), || {
        Ok(setup.attempt(&format!("{full} sslrootcert=FILES/root.crt host=other.example")).is_ok())
    })
    .unwrap();
    setup.refused(&format!("{full} sslrootcert=FILES/root.crt host=db.example"), "not for host");

    // What `openssl req -x509` makes: an authority that serves its own certificate.
    let mut params = CertificateParams::new(vec!["db.example".into()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let own = params.self_signed(&key).unwrap();
    setup.write("own.crt", &own.pem());
    encrypt(&setup.cluster, &own.pem(), &key.serialize_pem(), &setup.authority.pem());
    wait_for("the self-signed certificate", Duration::from_secs(20), || {
        Ok(setup.attempt(&format!("{full} sslrootcert=FILES/own.crt host=db.example")).is_ok())
    })
    .unwrap();
    setup.refused(&format!("{full} sslrootcert=FILES/own.crt host=no.example"), "not for host");
    setup.refused(&format!("{full} sslrootcert=FILES/root.crt host=db.example"), "certificate");
    assert!(setup.attempt("user=postgres sslmode=require").unwrap(), "accepted unseen");
}

#[test]
fn our_own_certificate_lets_us_in() {
    let setup = Setup::new(Major::V15);
    setup.serve("db", &["127.0.0.1"]);
    let (certificate, key) = issue(&setup.authority, "certified", &[], ExtendedKeyUsagePurpose::ClientAuth);
    setup.write("client.crt", &certificate);
    setup.write("client.key", &key);
    let text = "user=certified sslmode=require sslcert=FILES/client.crt sslkey=FILES/client.key";
    assert!(setup.attempt(text).unwrap());
    assert!(setup.attempt(&format!("{text} ssl_max_protocol_version=TLSv1.2")).unwrap());
    setup.refused(&format!("{text} sslcertmode=disable"), "certificate");
    setup.refused("user=certified sslmode=require sslcert=FILES/client.crt sslkey=FILES/absent", "absent");
    let (stranger, key) = issue(&authority("theirs"), "certified", &[], ExtendedKeyUsagePurpose::ClientAuth);
    setup.write("stranger.crt", &stranger);
    setup.write("stranger.key", &key);
    setup.refused(
        "user=certified sslmode=require sslcert=FILES/stranger.crt sslkey=FILES/stranger.key",
        "server's log",
    );

    let open = Path::new(&setup.file("client.key")).to_owned();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = setup.refused(text, "chmod 0600");
    assert!(error.is_configuration() && error.to_string().contains("client.key"), "{error}");
}

#[test]
fn a_cancel_request_is_encrypted_too() {
    let setup = Setup::new(Major::V18);
    setup.serve("db", &["127.0.0.1"]);
    let root = setup.file("root.crt");
    let info = over_tcp(&setup.cluster, &format!("user=postgres sslmode=verify-full sslrootcert={root}"));
    run("cancel", async {
        let session = connect(&info, "", &[]).await.unwrap();
        let canceller = session.canceller();
        let asking = async {
            loop {
                canceller.cancel().await.unwrap();
                // Between two requests, which are repeated until one counts.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let error = tokio::select! {
            result = session.batch_execute("SELECT pg_sleep(50)") => session.error(result.unwrap_err()),
            () = asking => unreachable!(),
        };
        assert_eq!(error.sqlstate(), Some("57014"));
    });
}
