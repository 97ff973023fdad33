//! Sessions that make slots at the same time share a point and its snapshot.
//!
//! ```text
//! asks --free place?--> leads: makes the temporary slot at the publisher, and has a place meanwhile
//!         '---none----> waits --next leader of that database--> takes point and snapshot over
//!                          '----a place becomes free----------> leads, for all that wait with it
//! ```
//! A temporary slot waits for the transactions that are open at the publisher. So only a few are
//! made at the same time. To share makes nobody wait longer: each would wait for a place anyway.
//!
//! Nobody takes over the point of a slot whose making had begun before they asked. It could lie
//! before what the client has seen committed: a table that was just published would be missing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Lsn, Oid};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};

use crate::create::SnapshotWish;

/// How long a leader keeps its snapshot for the others. Each takes it over with one statement.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);

/// What was made: a consistent point, and its snapshot if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    /// All commits below it are in the snapshot.
    pub lsn: Lsn,
    /// The name under which the snapshot is exported.
    pub snapshot: Option<String>,
}

/// A point that another session has made. Its snapshot is there until this is dropped, or for ten
/// seconds.
#[derive(Debug)]
pub(crate) struct Shared {
    /// What the other session has made.
    pub point: Point,
    _taken_over: mpsc::Sender<()>,
}

/// Whose turn it is.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// This session makes the slot.
    Leads(Leader<'a>),
    /// Another session has made one after this one had asked.
    Shares(Shared),
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    wish: SnapshotWish,
    tell: oneshot::Sender<Shared>,
}

#[derive(Debug, Default)]
struct Queue {
    last: u64,
    waiting: HashMap<Oid, Vec<Waiting>>,
}

/// The sessions that make slots.
#[derive(Debug)]
pub(crate) struct Together {
    places: Semaphore,
    queue: Mutex<Queue>,
}

/// Makes a slot, for itself and for others. If it is dropped, the others ask again.
#[derive(Debug)]
pub(crate) struct Leader<'a> {
    place: SemaphorePermit<'a>,
    others: Vec<Waiting>,
}

impl Together {
    /// At most `places` slots are made at the same time.
    pub(crate) fn new(places: usize) -> Together {
        Together { places: Semaphore::new(places), queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, or for what another session makes meanwhile in the same database. With
    /// `may_share` off, only for a place.
    pub(crate) async fn turn(&self, database: Oid, wish: SnapshotWish, may_share: bool) -> Turn<'_> {
        loop {
            if !may_share {
                let place = self.place().await;
                return Turn::Leads(Leader { place, others: self.queue().take(database, wish) });
            }
            let (tell, mut told) = oneshot::channel();
            let listed = self.list(database, wish, tell);
            tokio::select! {
                biased;
                shared = &mut told => {
                    if let Ok(shared) = shared {
                        return Turn::Shares(shared);
                    }
                }
                place = self.place() => {
                    // At once: of two that have a place now, one takes the other along.
                    let others = {
                        let mut queue = self.queue();
                        queue.leave(database, listed.number).then(|| queue.take(database, wish))
                    };
                    if let Some(others) = others {
                        return Turn::Leads(Leader { place, others });
                    }
                    // A leader has taken this one along meanwhile.
                    drop(place);
                    if let Ok(shared) = told.await {
                        return Turn::Shares(shared);
                    }
                }
            }
        }
    }

    async fn place(&self) -> SemaphorePermit<'_> {
        self.places.acquire().await.expect("it is never closed")
    }

    fn list(&self, database: Oid, wish: SnapshotWish, tell: oneshot::Sender<Shared>) -> Listed<'_> {
        let mut queue = self.queue();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.entry(database).or_default().push(Waiting { number, wish, tell });
        Listed { together: self, database, number }
    }
}

impl Queue {
    /// Takes those that wait, as far as they can use what a session with this wish makes.
    fn take(&mut self, database: Oid, wish: SnapshotWish) -> Vec<Waiting> {
        let waiting = self.waiting.remove(&database).unwrap_or_default();
        let (others, left): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|other| wish != SnapshotWish::Nothing || other.wish == SnapshotWish::Nothing);
        if !left.is_empty() {
            self.waiting.insert(database, left);
        }
        others
    }

    /// Takes one out. Returns whether it was there.
    fn leave(&mut self, database: Oid, number: u64) -> bool {
        let Some(waiting) = self.waiting.get_mut(&database) else { return false };
        let before = waiting.len();
        waiting.retain(|other| other.number != number);
        let was_there = waiting.len() < before;
        if waiting.is_empty() {
            self.waiting.remove(&database);
        }
        was_there
    }
}

/// A session in the queue. Dropped, it is no longer there.
struct Listed<'a> {
    together: &'a Together,
    database: Oid,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.together.queue().leave(self.database, self.number);
    }
}

impl Leader<'_> {
    /// Whether others wait for the snapshot.
    pub(crate) fn is_to_export(&self) -> bool {
        self.others.iter().any(|other| other.wish != SnapshotWish::Nothing && !other.tell.is_closed())
    }

    /// Gives the others what was made, and waits until they have taken it over. Others may lead
    /// meanwhile.
    ///
    /// Returns how many there were.
    pub(crate) async fn share(self, point: &Point) -> usize {
        let Leader { place, others } = self;
        drop(place);
        let (sender, mut taken_over) = mpsc::channel(1);
        let mut given = 0;
        for other in others {
            let shared = Shared { point: point.clone(), _taken_over: sender.clone() };
            given += usize::from(other.tell.send(shared).is_ok());
        }
        drop(sender);
        let _ = tokio::time::timeout(TAKEN_OVER_WITHIN, taken_over.recv()).await;
        given
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const DATABASE: Oid = Oid(5);

    fn point(lsn: u64) -> Point {
        Point { lsn: Lsn::new(lsn), snapshot: Some(format!("snapshot {lsn}")) }
    }

    async fn leads(together: &Together, wish: SnapshotWish) -> Leader<'_> {
        match together.turn(DATABASE, wish, true).await {
            Turn::Leads(leader) => leader,
            Turn::Shares(shared) => panic!("{shared:?}"),
        }
    }

    fn asks(
        together: &Arc<Together>,
        database: Oid,
        wish: SnapshotWish,
        may_share: bool,
    ) -> tokio::task::JoinHandle<Option<Point>> {
        let together = Arc::clone(together);
        tokio::spawn(async move {
            match together.turn(database, wish, may_share).await {
                Turn::Leads(_) => None,
                Turn::Shares(shared) => Some(shared.point),
            }
        })
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// A session that asks after a leader has begun waits for the next one, whose point all share.
    #[tokio::test]
    async fn what_had_begun_before_is_not_shared() {
        let together = Arc::new(Together::new(1));
        let first = leads(&together, SnapshotWish::Use).await;
        let waiting: Vec<_> = (0..5).map(|_| asks(&together, DATABASE, SnapshotWish::Use, true)).collect();
        settle().await;
        assert_eq!(first.share(&point(1)).await, 0);
        // One of them leads, and drops its place here without having made anything. So each in turn
        // leads for itself.
        for asked in waiting {
            assert!(asked.await.unwrap().is_none());
        }
        let first = leads(&together, SnapshotWish::Use).await;
        let again = {
            let together = Arc::clone(&together);
            tokio::spawn(async move {
                let leader = leads(&together, SnapshotWish::Use).await;
                assert!(leader.is_to_export());
                leader.share(&point(2)).await
            })
        };
        settle().await;
        let waiting: Vec<_> = (0..5).map(|_| asks(&together, DATABASE, SnapshotWish::Use, true)).collect();
        settle().await;
        first.share(&point(1)).await;
        assert_eq!(again.await.unwrap(), 5);
        for asked in waiting {
            assert_eq!(asked.await.unwrap().unwrap().lsn, Lsn::new(2));
        }
    }

    /// A snapshot is good for its own database, and none comes from a session that makes none.
    #[tokio::test]
    async fn only_what_fits_is_shared() {
        let together = Arc::new(Together::new(1));
        let first = leads(&together, SnapshotWish::Use).await;
        let begun = Arc::clone(&together);
        let nothing = tokio::spawn(async move {
            let leader = leads(&begun, SnapshotWish::Nothing).await;
            assert!(!leader.is_to_export());
            leader.share(&point(2)).await
        });
        settle().await;
        let other_database = asks(&together, Oid(6), SnapshotWish::Nothing, true);
        let alone = asks(&together, DATABASE, SnapshotWish::Nothing, false);
        let uses = asks(&together, DATABASE, SnapshotWish::Use, true);
        let fits = asks(&together, DATABASE, SnapshotWish::Nothing, true);
        settle().await;
        drop(first);
        assert_eq!(nothing.await.unwrap(), 1);
        assert_eq!(fits.await.unwrap().unwrap().lsn, Lsn::new(2));
        for leads in [other_database, alone, uses] {
            assert!(leads.await.unwrap().is_none());
        }
        assert!(together.queue().waiting.is_empty());
    }

    /// The snapshot ends with its leader. So that one waits for everybody.
    #[tokio::test]
    async fn a_leader_waits_until_all_have_taken_over() {
        let together = Arc::new(Together::new(1));
        let first = leads(&together, SnapshotWish::Use).await;
        let taken = Arc::new(AtomicUsize::new(0));
        let begun = Arc::clone(&together);
        let leader = tokio::spawn(async move {
            let leader = leads(&begun, SnapshotWish::Use).await;
            leader.share(&point(2)).await
        });
        settle().await;
        let others: Vec<_> = (0..3)
            .map(|_| {
                let (together, taken) = (Arc::clone(&together), Arc::clone(&taken));
                tokio::spawn(async move {
                    let Turn::Shares(_shared) = together.turn(DATABASE, SnapshotWish::Use, true).await else {
                        panic!("it leads")
                    };
                    settle().await;
                    taken.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        settle().await;
        drop(first);
        assert_eq!(leader.await.unwrap(), 3);
        assert_eq!(taken.load(Ordering::Relaxed), 3);
        for other in others {
            other.await.unwrap();
        }
    }
}
