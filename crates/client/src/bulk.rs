//! Reads rarely and much at a time, from a server that sends small messages often.
//!
//! A walsender hands every message to the kernel by itself. A reader that waits for each message
//! makes each a segment of its own, with a wake-up here and an acknowledgement back. That takes
//! more than half of the walsender's time. If the reader pauses, our receive buffer fills and the
//! window closes. The server's messages then pile up in its own kernel as large segments, at the
//! price of a copy. So while nobody waits for the newest message, the reader pauses whenever it has
//! emptied the socket, and the receive buffer is kept small, for the window to close soon.
//!
//! A pause that brings little was useless. Either the server has no more to send, or the overhead
//! of many small segments has filled the buffer. The reader then reads without pauses for a while
//! before it tries another one.
//!
//! 200,000 transactions of one 1 KB update each, PostgreSQL 15, loopback,
//! nothing else running: 5.0 to 5.6 s read at once, 1.9 to 2.2 s with pauses
//! of 3 to 5 ms and this buffer. With a buffer as the kernel sizes it pauses
//! alone gave 1.9 to 4.5 s: mostly the window never closed.

use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::Error;
use crate::wire::Wire;

/// The buffer size that the kernel is asked for; it takes twice as much, for its own overhead.
const RECEIVE_BUFFER: usize = 60_000;
/// The longest round trip of a short path: the buffer then carries 120 MB/s, which is more than a
/// walsender decodes.
const SHORT: Duration = Duration::from_micros(500);
/// Number of round trips that are tried, to find one that nothing else delayed.
const ROUND_TRIPS: usize = 3;

/// How long the reader pauses after it emptied the socket.
const PAUSE: Duration = Duration::from_millis(5);
/// Less than this in one read means that the socket was emptied.
const EMPTIED_BELOW: usize = 32 << 10;
/// Reads without a pause after one that brought little; doubled each time.
const SKIP_MIN: u32 = 8;
const SKIP_MAX: u32 = 256;

impl Wire {
    /// Prepares an idle connection for reading seldom and much at a time: its
    /// receive buffer is kept small. `None`, and nothing is done, where that
    /// would not help (Unix sockets never coalesce) or harm: a long path needs
    /// a window that grows with its length.
    ///
    /// # Errors
    /// A lost connection, or one that is not idle.
    pub async fn read_in_bulk(&mut self) -> Result<Option<Pauses>, Error> {
        let mut round_trip = Duration::MAX;
        for _ in 0..ROUND_TRIPS {
            let asked = Instant::now();
            self.query("SHOW server_version").await?;
            round_trip = round_trip.min(asked.elapsed());
        }
        Ok((round_trip <= SHORT && self.keep_receive_buffer_small()).then(Pauses::default))
    }

    /// Keeps the receive buffer small, as [`Pauses`] wants it on a short path. Returns whether that
    /// can be done. It sends nothing.
    pub fn keep_receive_buffer_small(&self) -> bool {
        let tcp = self.link.stream().tcp();
        tcp.is_some_and(|tcp| SockRef::from(tcp).set_recv_buffer_size(RECEIVE_BUFFER).is_ok())
    }
}

/// Decides when the reader pauses.
#[derive(Debug, Default)]
pub struct Pauses {
    /// The last read followed a pause.
    paused: bool,
    skip: u32,
    back_off: u32,
}

impl Pauses {
    /// The pause to make after a read that brought `bytes`, if any.
    pub fn after(&mut self, bytes: usize) -> Option<Duration> {
        let paused = std::mem::take(&mut self.paused);
        if bytes >= EMPTIED_BELOW {
            self.back_off = 0;
            return None;
        }
        if paused {
            self.back_off = (self.back_off * 2).clamp(SKIP_MIN, SKIP_MAX);
            self.skip = self.back_off;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.paused = true;
        Some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_that_bring_much_go_on() {
        let mut pauses = Pauses::default();
        let reads = [60_000, 50_000, 200].into_iter().cycle().take(300);
        assert_eq!(reads.filter(|&bytes| pauses.after(bytes).is_some()).count(), 100);
    }

    #[test]
    fn pauses_that_bring_little_become_rare() {
        let mut pauses = Pauses::default();
        let made = (0..10_000).filter(|_| pauses.after(14_000).is_some()).count();
        assert!((10..60).contains(&made), "{made}");
        assert_eq!(pauses.after(40_000), None);
        // They are tried again after what was still to be skipped.
        assert!((0..SKIP_MAX).any(|_| pauses.after(14_000).is_some()));
    }
}
