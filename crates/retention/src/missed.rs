//! What became of rows that UPDATEs did not find: one fence for all of them, then the memory.
//!
//! Every wait is bounded. What is not known by then is not covered. The applier counts that
//! ([`Retention::exceeded`]), once the transaction has committed or is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Lsn, Oid, PgTimestamp};
use client::Session;
use deletions::{Answer, RowKey};
use futures_util::FutureExt;

use crate::asking::{AskedTable, look_up_table};
use crate::condition::Condition;
use crate::error::Error;
use crate::fence::fence;
use crate::handle::Retention;

/// How long a look-up waits for capture. A fence takes milliseconds as a rule. While capture does
/// not run, all look-ups together wait for so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A row that an UPDATE did not find.
#[derive(Debug, Clone)]
pub struct Missed {
    /// Its key.
    pub key: RowKey,
    /// When the UPDATE committed on its publisher.
    pub time: PgTimestamp,
}

impl Retention {
    /// How rows of a table of the target are named; `None` if the memory cannot know them: the
    /// table, or its partitions, have no identity, or one that only the server compares. `mapping`
    /// is another number when the table may have changed.
    pub async fn table(&self, table: Oid, mapping: u64) -> Option<Arc<AskedTable>> {
        let mut asking = self.asking().lock().await;
        if let Some((_, known)) = asking.tables.get(&table).filter(|(of, _)| *of == mapping) {
            return known.clone();
        }
        let named = asking.learn(self.settings(), move |session| look_up_table(session, table).boxed());
        match tokio::time::timeout(PATIENCE, named).await {
            Ok(Ok(found)) => {
                let found = found.map(Arc::new);
                asking.tables.insert(table, (mapping, found.clone()));
                found
            }
            Ok(Err(error)) => {
                warn(&error);
                None
            }
            Err(_) => None,
        }
    }

    /// What is known of rows that were missed before this call. Takes one fence for all of them.
    pub async fn ask(&self, missed: &[Missed]) -> Vec<Answer> {
        let (patience, since) = (self.patience(), Instant::now());
        let asked = tokio::time::timeout(patience, self.fenced(missed, patience)).await;
        let answers = match asked {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => {
                warn(&error);
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        if answers.len() == missed.len() {
            self.lookups().note(since.elapsed());
            return answers;
        }
        vec![Answer::NotCovered; missed.len()]
    }

    /// A fence behind everything that had committed before this call, once capture has passed it.
    /// `None` if that takes too long.
    pub async fn passed_fence(&self) -> Option<Lsn> {
        let (patience, since) = (self.patience(), Instant::now());
        match tokio::time::timeout(patience, self.fence()).await {
            Ok(Ok(fence)) => {
                let passed = self.passes(fence, patience).await;
                self.lookups().note(since.elapsed());
                passed.then_some(fence)
            }
            Ok(Err(error)) => {
                warn(&error);
                None
            }
            Err(_) => None,
        }
    }

    /// What is known of rows that were missed before `fence`, which capture has passed. Does not
    /// wait, and knows deletions that came later, too.
    #[must_use]
    pub fn known_since(&self, missed: &[Missed], fence: Lsn) -> Vec<Answer> {
        let rows = missed.iter().map(|missed| (&missed.key, missed.time));
        self.known(rows, fence).unwrap_or_else(|error| {
            warn(&error);
            vec![Answer::NotCovered; missed.len()]
        })
    }

    fn patience(&self) -> Duration {
        match self.condition() {
            Condition::Capturing => PATIENCE,
            Condition::Unfit(_) => Duration::ZERO,
            _ => PATIENCE.saturating_sub(self.away_for()),
        }
    }

    async fn fence(&self) -> Result<Lsn, Error> {
        let mut asking = self.asking().lock().await;
        let (fence, took) = asking.learn(self.settings(), |session| timed_fence(session).boxed()).await?;
        let started = asking.started;
        drop(asking);
        self.fences().note(took);
        // During a failover, capture may still hang on the server of before.
        self.reads_from(started).await;
        Ok(fence)
    }

    async fn fenced(&self, missed: &[Missed], patience: Duration) -> Result<Vec<Answer>, Error> {
        let fence = self.fence().await?;
        let rows: Vec<_> = missed.iter().map(|missed| (missed.key.clone(), missed.time)).collect();
        self.look_up(&rows, fence, patience).await
    }
}

/// A fence, and how long it took.
async fn timed_fence(session: &Session) -> Result<(Lsn, Duration), Error> {
    let since = Instant::now();
    Ok((fence(session).await?, since.elapsed()))
}

fn warn(error: &Error) {
    tracing::warn!("asking what became of a missing row: {}", base::with_causes(error));
}
