//! A proxy between a client and its server. It notes each simple query with the end of WAL before
//! handing it over, so that a record can be traced to the statement that wrote it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base::Lsn;
use testkit::Cluster;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::stage::{DB, runtime};

/// A query, and the end of WAL before it.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) at: Lsn,
    pub(super) sql: String,
}

pub(super) struct Tap {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: u16,
    statements: Mutex<Vec<Statement>>,
    /// Asks for the end of WAL, in another database.
    aside: Mutex<Aside>,
    ended: AtomicBool,
}

struct Aside {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Tap {
    pub(super) fn to(cluster: &Cluster) -> Tap {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let runtime = runtime();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&cluster.url(DB), NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        let shared = Arc::new(Shared {
            server: cluster.port(),
            statements: Mutex::default(),
            aside: Mutex::new(Aside { client, runtime }),
            ended: AtomicBool::new(false),
        });
        std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Tap { port, shared }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The statements since the last call.
    pub(super) fn take(&self) -> Vec<Statement> {
        std::mem::take(&mut self.shared.statements.lock().unwrap())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the listener, which then ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", shared.server))) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = io::copy(&mut from_server, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            // The end of this loop is the end of the connection, whatever the reason.
            let _ = listen(&client, &server, &shared);
            let _ = server.shutdown(Shutdown::Both);
        });
    }
}

/// Reads message by message. The first has no kind, but a length like all others.
fn listen(mut client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut kind = None;
    loop {
        let mut message: Vec<u8> = kind.into_iter().collect();
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        message.extend_from_slice(&length);
        let rest = u64::from(u32::from_be_bytes(length)).saturating_sub(4);
        let body = message.len();
        client.take(rest).read_to_end(&mut message)?;
        if kind == Some(b'Q') {
            let sql = String::from_utf8_lossy(&message[body..]).trim_end_matches('\0').to_owned();
            let at = shared.wal_end();
            shared.statements.lock().unwrap().push(Statement { at, sql });
        }
        server.write_all(&message)?;
        let mut next = [0];
        client.read_exact(&mut next)?;
        kind = Some(next[0]);
    }
}

impl Shared {
    fn wal_end(&self) -> Lsn {
        let aside = self.aside.lock().unwrap();
        let asked = aside.client.simple_query("SELECT pg_current_wal_insert_lsn()");
        let rows = aside.runtime.block_on(asked).unwrap();
        let row = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        row.expect("one value").parse().expect("a position")
    }
}
