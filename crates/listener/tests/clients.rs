//! psql with the libpq of every major, and clients that mean no good.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use listener::{
    AccessTable, Arrival, CertificateMaps, Client, Door, Limits, Rules, Socket, Tls, TlsFiles, Users,
};
use postgres_protocol::password::scram_sha_256;
use proto::backend::{self, Field, TransactionStatus};
use proto::scram::Verifier;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;
use testkit::{Major, server_dir};
use tokio::runtime::Runtime;

const PASSWORD: &str = "geheim";
const QUERY_SIZE_MAX: usize = 1 << 16;

/// Lets clients in, and answers every query with the client's name, database and place.
struct Server {
    door: Arc<Door>,
    port: u16,
    files: TempDir,
    /// What was refused, and who wanted to cancel what.
    events: Arc<Mutex<Vec<String>>>,
    _runtime: Runtime,
}

impl Server {
    fn start(table: &str, limits: Limits) -> Server {
        let files = tempfile::tempdir().unwrap();
        let tls = certificates(files.path());
        let door = Arc::new(Door::new(rules(table), Some(tls), limits));
        let runtime = Runtime::new().unwrap();
        let socket = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let events: Arc<Mutex<Vec<String>>> = Arc::default();
        let (let_in, seen) = (Arc::clone(&door), Arc::clone(&events));
        runtime.spawn(async move {
            while let Ok((stream, from)) = socket.accept().await {
                let (door, seen) = (Arc::clone(&let_in), Arc::clone(&seen));
                tokio::spawn(async move {
                    let event = match door.open(Socket::Tcp(stream, from.ip())).await {
                        Ok(Arrival::Client(client)) => return serve(*client).await,
                        Ok(Arrival::Cancel { pid, key }) => format!("cancel {pid} {}", key.len()),
                        Err(refused) => refused.to_string(),
                    };
                    seen.lock().unwrap().push(event);
                });
            }
        });
        Server { door, port, files, events, _runtime: runtime }
    }

    /// What psql with that major's libpq prints, or its error.
    fn psql(&self, major: Major, conninfo: &str) -> Result<String, String> {
        let conninfo = conninfo.replace("FILES", &self.files.path().display().to_string());
        let output = Command::new("psql")
            .args(["-XAt", "-c", "SELECT"])
            // Without a name, Debian's psql gives a directory as the host, and sends that in SNI.
            .arg(format!(
                "host=db.example hostaddr=127.0.0.1 port={} dbname=d connect_timeout=20 {conninfo}",
                self.port
            ))
            .env("LD_LIBRARY_PATH", server_dir(major).unwrap().join("lib"))
            .env("PGPASSWORD", PASSWORD)
            .env_remove("PGUSER")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
        if output.status.success() {
            return Ok(text(output.stdout));
        }
        Err(format!("{}\nhere: {:?}", text(output.stderr), self.events.lock().unwrap()))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn event(&self, part: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.events.lock().unwrap().iter().any(|event| event.contains(part)) {
            assert!(Instant::now() < until, "no event with {part}: {:?}", self.events.lock().unwrap());
            // Between two looks at a condition that has a bound.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

async fn serve(mut client: Client) {
    let out = &mut client.link.outbox;
    backend::authentication_ok(out);
    for (name, value) in
        [("server_version", "18.0"), ("client_encoding", "UTF8"), ("standard_conforming_strings", "on")]
    {
        backend::parameter_status(out, name, value);
    }
    let key = if client.startup.minor >= 2 { vec![7; 32] } else { vec![7; 4] };
    backend::backend_key_data(out, 4711, &key);
    backend::ready_for_query(out, TransactionStatus::Idle);
    loop {
        if client.link.flush().await.is_err() {
            return;
        }
        match client.link.frame(QUERY_SIZE_MAX).await {
            Ok(frame) if frame.tag == b'Q' => {}
            _ => return,
        }
        let text = Field { name: "c", type_oid: base::Oid(25), type_size: -1 };
        let values = [&client.startup.user, &client.startup.database].map(|value| Some(value.as_str()));
        let place = format!("{:?}", client.place);
        let keys = if client.keys.is_some() { "keys" } else { "no keys" };
        let out = &mut client.link.outbox;
        backend::row_description(out, &[text; 4]);
        backend::data_row(out, &[values[0], values[1], Some(keys), Some(&place)]);
        backend::command_complete(out, "SELECT 1");
        backend::ready_for_query(out, TransactionStatus::Idle);
    }
}

fn rules(table: &str) -> Rules {
    let mut users = Users::default();
    for user in ["u", "ümlaut"] {
        users.add(user, Verifier::parse(&scram_sha_256(PASSWORD.as_bytes())).unwrap()).unwrap();
    }
    let maps = CertificateMaps::parse("machines \"machine one\" mapped").unwrap();
    Rules { access: AccessTable::parse(table).unwrap(), users, maps }
}

/// Writes `server`, `machine` and `stranger` as certificates with keys, and the roots.
fn certificates(directory: &Path) -> Tls {
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    for (file, name, by, usage) in [
        ("server", "db.example", &ours, ExtendedKeyUsagePurpose::ServerAuth),
        ("machine", "machine one", &ours, ExtendedKeyUsagePurpose::ClientAuth),
        ("stranger", "machine one", &theirs, ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let names = if file == "server" { vec![name.to_owned()] } else { Vec::new() };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        write(&format!("{file}.crt"), &params.signed_by(&key, by).unwrap().pem());
        write(&format!("{file}.key"), &key.serialize_pem());
    }
    let roots = write("root.crt", &ours.pem());
    Tls::load(&TlsFiles {
        certificate: directory.join("server.crt"),
        key: directory.join("server.key"),
        client_roots: Some(roots),
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

const PASSWORDS: &str = "host all all all scram-sha-256";

#[test]
fn passwords_with_the_libpq_of_every_major() {
    let server = Server::start(PASSWORDS, Limits { failures: 100, ..Limits::default() });
    for major in Major::under_test() {
        let plain = server.psql(major, "user=u sslmode=disable").unwrap();
        assert_eq!(plain, "u|d|keys|Network { address: 127.0.0.1, tls: false }", "{major}");
        let encrypted = "sslmode=verify-full sslrootcert=FILES/root.crt channel_binding=require";
        let seen = server.psql(major, &format!("user=ümlaut {encrypted}")).unwrap();
        assert_eq!(seen, "ümlaut|d|keys|Network { address: 127.0.0.1, tls: true }", "{major}");
        for user in ["u", "nobody"] {
            let error =
                server.psql(major, &format!("user={user} password=wrong sslmode=disable")).unwrap_err();
            let told = format!("FATAL:  password authentication failed for user \"{user}\"");
            assert!(error.contains(&told), "{major}: {error}");
        }
    }
    for conninfo in ["sslmode=require sslnegotiation=direct", "sslmode=require max_protocol_version=latest"] {
        let seen = server.psql(Major::V18, &format!("user=u {conninfo}")).unwrap();
        assert!(seen.ends_with("tls: true }"), "{conninfo}: {seen}");
    }
}

#[test]
fn certificates_name_the_user() {
    let server = Server::start("hostssl all all all cert map=machines", Limits::default());
    let with = |file: &str, user: &str| {
        format!("user={user} sslmode=require sslcert=FILES/{file}.crt sslkey=FILES/{file}.key")
    };
    for major in Major::under_test() {
        let seen = server.psql(major, &with("machine", "mapped")).unwrap();
        assert_eq!(seen, "mapped|d|no keys|Network { address: 127.0.0.1, tls: true }", "{major}");
        let error = server.psql(major, &with("machine", "u")).unwrap_err();
        assert!(error.contains("certificate authentication failed for user \"u\""), "{major}: {error}");
        let error = server.psql(major, &with("none", "mapped")).unwrap_err();
        assert!(error.contains("connection requires a valid client certificate"), "{major}: {error}");
        server.psql(major, &with("stranger", "mapped")).unwrap_err();
        let error = server.psql(major, "user=mapped sslmode=disable").unwrap_err();
        let told =
            "no pg_hba.conf entry for host \"127.0.0.1\", user \"mapped\", database \"d\", no encryption";
        assert!(error.contains(told), "{major}: {error}");
    }
    server.event("TLS handshake failed");
}

#[test]
fn the_table_decides_and_can_be_replaced() {
    let table = "hostssl all all all reject\nhostnossl d u samehost trust";
    let server = Server::start(table, Limits::default());
    let error = server.psql(Major::V18, "user=u sslmode=require").unwrap_err();
    assert!(error.contains("pg_hba.conf rejects connection for host \"127.0.0.1\""), "{error}");
    // libpq tries again without encryption.
    let seen = server.psql(Major::V18, "user=u sslmode=prefer").unwrap();
    assert_eq!(seen, "u|d|no keys|Network { address: 127.0.0.1, tls: false }");
    server.door.reload(rules(PASSWORDS), None);
    let error = server.psql(Major::V18, "user=u sslmode=require").unwrap_err();
    assert!(error.contains("server does not support SSL"), "{error}");
    let seen = server.psql(Major::V18, "user=u sslmode=prefer").unwrap();
    assert!(seen.starts_with("u|d|keys|"), "{seen}");
}

#[test]
fn limits_are_told() {
    let limits = Limits { connections: 2, failures: 3, ..Limits::default() };
    let server = Server::start(PASSWORDS, limits);
    let held = [server.connect(), server.connect()];
    // Time to be accepted, which nothing shows to a client that says nothing.
    std::thread::sleep(Duration::from_millis(200));
    let error = server.psql(Major::V18, "user=u sslmode=disable").unwrap_err();
    assert!(error.contains("sorry, too many clients already"), "{error}");
    drop(held);
    server.event("the client closed the connection");
    for _ in 0..3 {
        server.psql(Major::V18, "user=u password=wrong sslmode=disable").unwrap_err();
    }
    let error = server.psql(Major::V18, "user=u sslmode=disable").unwrap_err();
    assert!(error.contains("too many failed logins from this address"), "{error}");
}

/// A first packet.
fn packet(code: u32, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 8).to_be_bytes()[..], &code.to_be_bytes(), body].concat()
}

const SSL: u32 = 80_877_103;
const CANCEL: u32 = 80_877_102;
const STARTUP: &[u8] = b"user\0u\0database\0d\0\0";

/// What comes until the connection is closed.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn hostile_clients_are_cut_off() {
    let limits = Limits { time_to_authenticate: Duration::from_secs(1), failures: 100, ..Limits::default() };
    let server = Server::start(PASSWORDS, limits);

    // A byte now and then, without an end.
    let mut trickle = server.connect();
    let begun = Instant::now();
    for byte in packet(3 << 16, STARTUP).iter().cycle() {
        if trickle.write_all(&[*byte]).is_err() || begun.elapsed() > Duration::from_secs(20) {
            break;
        }
        // The pace of a client that trickles.
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    server.event("it was not authenticated in time");

    // A length that is not believed.
    let mut large = server.connect();
    large.write_all(&[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0]).unwrap();
    assert!(rest(&large).is_empty());
    server.event("invalid length of startup packet");

    // Words that an attacker puts before the encryption of somebody else's connection.
    let mut smuggling = server.connect();
    smuggling.write_all(&[packet(SSL, b""), packet(3 << 16, STARTUP)].concat()).unwrap();
    assert_eq!(rest(&smuggling), b"S");
    server.event("received unencrypted data after SSL request");

    // An answer that is too long, and one of another kind.
    for (answer, event) in
        [(&b"p\x00\x10\x00\x00"[..], "at most 1029 are accepted"), (b"Q\0\0\0\x04", "got message type 81")]
    {
        let mut stream = server.connect();
        stream.write_all(&packet(3 << 16, STARTUP)).unwrap();
        let mut asked = [0; 1];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked, [b'R']);
        stream.write_all(answer).unwrap();
        rest(&stream);
        server.event(event);
    }

    // The same question again.
    let mut again = server.connect();
    again.write_all(&packet(80_877_104, b"")).unwrap();
    let mut no = [0; 1];
    again.read_exact(&mut no).unwrap();
    assert_eq!(no, [b'N']);
    again.write_all(&packet(80_877_104, b"")).unwrap();
    assert_eq!(rest(&again).first(), Some(&b'E'));

    // And honest clients are let in as before.
    server.psql(Major::V18, "user=u").unwrap();
}

#[test]
fn requests_to_cancel_are_handed_over() {
    let server = Server::start(PASSWORDS, Limits::default());
    for size in [4_usize, 32] {
        let mut stream = server.connect();
        stream.write_all(&packet(CANCEL, &[&4711_u32.to_be_bytes()[..], &vec![7; size]].concat())).unwrap();
        assert!(rest(&stream).is_empty(), "nothing is answered");
        server.event(&format!("cancel 4711 {size}"));
    }
}

#[test]
fn addresses_are_those_of_the_peer() {
    let server = Server::start("host all all 127.0.0.1/32 trust", Limits::default());
    assert_eq!(server.connect().peer_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 1]));
    let seen = server.psql(Major::under_test()[0], "user=anybody sslmode=disable").unwrap();
    assert!(seen.starts_with("anybody|d|no keys|"), "{seen}");
}
