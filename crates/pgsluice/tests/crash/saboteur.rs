//! A session that writes to the target behind pgsluice's back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::conn::Conn;

/// Deletes rows on the target that the source will still write to.
pub(crate) struct Saboteur {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Saboteur {
    pub(crate) fn start(url: String) -> Saboteur {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let (mut conn, mut deleted) = (Conn::new(url), 0);
                while !stop.load(Ordering::Relaxed) {
                    // The pace of a load; no test waits for it.
                    std::thread::sleep(Duration::from_millis(300));
                    // Only one row: it waits for one lock and holds none.
                    let sql = "WITH gone AS (DELETE FROM victim WHERE id = (SELECT id FROM victim ORDER BY id DESC \
                               OFFSET 15 LIMIT 1) RETURNING 1) SELECT count(*) FROM gone";
                    deleted += conn.numbers(sql).map_or(0, |row| row[0].unsigned_abs());
                }
                deleted
            }
        });
        Saboteur { stop, thread }
    }

    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the saboteur does not panic")
    }
}
