//! Rewrites a table of the source again and again while the first copy runs.
//!
//! pgsluice does not copy files that are not the snapshot's under it. So the table comes under a
//! later snapshot than the rest, and the target is at no commit of the source before the stream has
//! passed that snapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::conn::Conn;

/// The table has a row of every transaction, and is small: its turn comes last.
pub(crate) const TABLE: &str = "ledger";
/// Longer than its copy takes under a snapshot of its own, or it would never be copied.
const PAUSE_MS: std::ops::Range<u64> = 300..900;

/// Until stopped.
pub(crate) struct Rewriter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Rewriter {
    pub(crate) fn start(url: String, seed: u64) -> Rewriter {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let (mut conn, mut random) = (Conn::new(url), StdRng::seed_from_u64(seed.rotate_left(7)));
                while !stop.load(Ordering::Relaxed) {
                    // The pace of a load; no test waits for it.
                    std::thread::sleep(Duration::from_millis(random.random_range(PAUSE_MS)));
                    // The source may be down.
                    let _ = conn.run(&format!("VACUUM FULL {TABLE}"));
                }
            }
        });
        Rewriter { stop, thread }
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("who writes a table anew does not panic");
    }
}
