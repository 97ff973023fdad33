//! A TCP proxy before a server, which does to connections what networks do.
//!
//! It can leave connections open and deaf ([`Proxy::stall`]), cut them ([`Proxy::cut`]), or change
//! the bytes that the server sent ([`Proxy::alter`]). Each connection has two threads. Closing the
//! sockets ends a read that waits.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// What happens to a connection after its bytes were altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection continues.
    Forward,
    /// The proxy sends what it has, and closes both ends.
    Cut,
}

type Alter = Box<dyn FnMut(&mut Vec<u8>) -> Then + Send>;

/// Listens on a port of its own and forwards to one server.
pub struct Proxy {
    port: u16,
    server: u16,
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Vec<Arc<Connection>>>,
    alter: Mutex<Option<Alter>>,
    ended: AtomicBool,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    stalled: AtomicBool,
    closed: AtomicBool,
}

impl Proxy {
    /// A proxy before the server that listens on `port` of this machine, now or later.
    ///
    /// # Errors
    ///
    /// No port can be listened on.
    pub fn to(port: u16) -> Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a port for the proxy")?;
        let own = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            open: Mutex::default(),
            alter: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, port, &shared)
        });
        Ok(Proxy { port: own, server: port, shared })
    }

    /// Where it listens on this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `url`, changed to lead through the proxy.
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.server), &format!(":{}/", self.port))
    }

    /// Stops all traffic over the connections that are open now, in both directions, and tells
    /// neither end. Returns their number. New connections are forwarded.
    pub fn stall(&self) -> usize {
        let open = self.shared.open();
        open.iter().for_each(|connection| connection.stalled.store(true, Ordering::Relaxed));
        open.len()
    }

    /// Closes every connection on both ends.
    pub fn cut(&self) {
        self.shared.open().iter().for_each(|connection| connection.close());
    }

    /// Passes everything that the server sends to `alter`, in order and in pieces of any size, and
    /// `alter` may change it. An earlier `alter` is replaced.
    pub fn alter(&self, alter: impl FnMut(&mut Vec<u8>) -> Then + Send + 'static) {
        *self.shared.alter.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(alter));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listener, which then ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.closed.load(Ordering::Relaxed));
        open
    }

    fn altered(&self, bytes: &mut Vec<u8>) -> Then {
        let mut alter = self.alter.lock().unwrap_or_else(PoisonError::into_inner);
        alter.as_mut().map_or(Then::Forward, |alter| alter(bytes))
    }
}

impl Connection {
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, port: u16, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        // A server that is down refuses; so the client sees its connection closed.
        let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", port))) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (stalled, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let connection = Arc::new(Connection { client, server, stalled, closed });
        shared.open().push(Arc::clone(&connection));
        for from_server in [false, true] {
            let (connection, shared) = (Arc::clone(&connection), Arc::clone(shared));
            std::thread::spawn(move || {
                // When this returns, the connection has ended, for any reason.
                let _ = forward(&connection, &shared, from_server);
                connection.close();
            });
        }
    }
}

fn forward(connection: &Connection, shared: &Shared, from_server: bool) -> std::io::Result<()> {
    let (mut from, mut to) = match from_server {
        true => (&connection.server, &connection.client),
        false => (&connection.client, &connection.server),
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        while connection.stalled.load(Ordering::Relaxed) {
            if connection.closed.load(Ordering::Relaxed) {
                return Ok(());
            }
            // Until the proxy is told to go on, or closed.
            std::thread::sleep(Duration::from_millis(5));
        }
        if count == 0 {
            return Ok(());
        }
        let mut bytes = buffer[..count].to_vec();
        let then = if from_server { shared.altered(&mut bytes) } else { Then::Forward };
        to.write_all(&bytes)?;
        if then == Then::Cut {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it is sent.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        port
    }

    fn ask(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(words)?;
        let mut answer = vec![0; words.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn bytes_pass_are_altered_held_back_and_cut() {
        let proxy = Proxy::to(echo()).unwrap();
        let connect = || {
            let stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            stream
        };
        let mut first = connect();
        assert_eq!(ask(&mut first, b"one").unwrap(), b"one");
        assert_eq!(proxy.stall(), 1);
        assert_eq!(ask(&mut first, b"two").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let mut second = connect();
        proxy.alter(|bytes| {
            bytes.make_ascii_uppercase();
            if bytes.contains(&b'!') { Then::Cut } else { Then::Forward }
        });
        assert_eq!(ask(&mut second, b"three").unwrap(), b"THREE");
        assert_eq!(ask(&mut second, b"four!").unwrap(), b"FOUR!");
        assert!(ask(&mut second, b"five").is_err());
        proxy.cut();
        let mut rest = Vec::new();
        assert!(matches!(first.read_to_end(&mut rest), Ok(0) | Err(_)) && rest.is_empty());
    }
}
