//! Many subscribers of one publisher: a logical slot and a walsender for each, beside a relay that
//! receives WAL once.
//!
//! ```text
//! stock:  publisher --walsender, ...--> subscribers
//! relay:  publisher --one walsender--> pgsluice relay --> subscribers
//! ```
//! | file | measures |
//! | --- | --- |
//! | `slots` | CPU seconds of slots whose subscribers only drain, idle or with everything published |
//! | `share` | what the relay's own walsender costs, with few and many subscribers |
//! | `subscribers` | the same load for real subscriptions of stock servers |
//! | `stalled` | what others notice of one subscriber that stops reading |
//! | `restart` | how soon all are level after a restart of the relay |
//! | `fan` | one run with receivers that drain |
//! | `load`, `goals` | what is written, and goals that several files have |
//!
//! The servers of today decode everything for each slot, and that is what a run without the relay
//! shows. They do not contend for a spinlock any more, as those in the message did.

mod fan;
mod goals;
mod load;
mod restart;
mod share;
mod slots;
mod stalled;
mod subscribers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testkit::{Cluster, Major};

use crate::lab::backlog::MARK;
use crate::lab::drain::{Mark, Reading};
use crate::lab::relay::Relay;
use crate::lab::rig::{DB, NAME, Rig, first};
use crate::options::MAX_SUBSCRIBERS;
use crate::report::{Case, Stock};
use crate::{Options, Say};
use load::{Load, SCHEMA};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "Native: a logical slot and a walsender on the publisher for each subscriber.",
        "pgsluice: `pgsluice relay` with its defaults, in front of the publisher. The subscribers' slots are the \
         relay's.",
        "Both servers of a run also have `max_wal_senders` and `max_replication_slots` for all subscribers.",
        "Receivers that drain are part of the benchmark, and are the same on both sides. They confirm what they \
         have received and keep a hash of it. They read rarely and much at a time, which costs a walsender \
         least.",
    ],
    columns: &[
        "The number in a case's name is that of subscribers.",
        "`idle-`: the rows are written in another database than that of the slots. `published-`: every \
         subscriber gets every row, and drains. `subscribers-`: the same with subscriptions of a stock server, \
         one in a database of its own each.",
        "CPU s: CPU seconds of all walsenders and of the relay, until all subscribers have everything. \
         Walsenders are read from `/proc/PID/schedstat`. Neither the session that writes the load nor receivers \
         count.",
        "\"native s\" and \"pgsluice s\" of these cases: the load's own wall time.",
        "`share-`: CPU seconds of the relay's one walsender with one subscriber, beside those with as many as \
         the name says.",
        "`stalled-`: p99 of the time from the answer to a small transaction's COMMIT until a receiver has it. \
         One receiver stops reading, and the others count. They take each message as it comes. The goal is the \
         baseline plus 5 ms.",
        "`restart-`: the time from the first accepted START_REPLICATION of a restarted relay until all have the \
         last row, with one subscriber beside as many as the name says. The goal is 1.3 times one subscriber's.",
        "\"Equal\": in every run all receivers got the same messages with the same content, and so did those of \
         the other side in that repeat. For real subscriptions, all databases held the publisher's rows.",
    ],
};

/// The database that no subscriber is about.
const OTHER: &str = "other";
/// WAL of a run, in megabytes.
const WAL_MB: u64 = 1_000;
const WAL_MB_QUICK: u64 = 100;
/// Numbers of subscribers.
const COUNTS: [usize; 5] = [1, 5, 10, 20, 40];
const COUNTS_QUICK: [usize; 3] = [1, 5, 20];
/// The number that most goals are about.
const MANY: usize = 20;
/// The mark before a load, and the one behind it.
const FIRST: Mark = 1;
const LAST: Mark = 2_000_000_000;
/// A run that takes longer does not replicate.
const RUN_BOUND: Duration = Duration::from_secs(3_600);
/// Longest time for walsenders of sessions that have ended to go.
const SENDERS_MAX: Duration = Duration::from_secs(20);
/// Between two looks at what is there.
const PACE: Duration = Duration::from_millis(20);

/// Every case on every major.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    type Measure = fn(&Options, &Say, Major) -> Result<Vec<Case>>;
    let kinds: [(&[&str], Measure); 5] = [
        (&slots::NAMES, slots::run),
        (&[share::NAME], share::run),
        (&[subscribers::NAME], subscribers::run),
        (&[stalled::NAME], stalled::run),
        (&restart::NAMES, restart::run),
    ];
    let mut cases = Vec::new();
    for major in options.majors() {
        for (names, measure) in &kinds {
            if names.iter().any(|name| options.wants(name)) {
                let measured = measure(options, say, major);
                cases.extend(measured.with_context(|| format!("{} on {major}", names.join(", ")))?);
            }
        }
    }
    Ok(cases)
}

/// The numbers of subscribers that are compared.
fn counts(options: &Options) -> Vec<usize> {
    match (options.subscribers.as_slice(), options.quick) {
        ([], false) => COUNTS.to_vec(),
        ([], true) => COUNTS_QUICK.to_vec(),
        (own, _) => own.iter().map(|count| *count as usize).collect(),
    }
}

/// The number of subscribers where there is only one.
fn many(options: &Options) -> usize {
    options.subscribers.last().map_or(MANY, |count| *count as usize)
}

/// One part in `parts` of the WAL of a run, in bytes.
fn wal_bytes(options: &Options, parts: u64) -> u64 {
    let whole = options.wal_mb.unwrap_or(if options.quick { WAL_MB_QUICK } else { WAL_MB });
    whole * 1_000_000 / parts
}

/// The names of `count` slots.
fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

/// A publisher with two databases, and a stock server for subscriptions.
struct Stage {
    rig: Rig,
    mark_table: u32,
}

impl Stage {
    fn prepare(options: &Options, major: Major) -> Result<Stage> {
        // As many again for connections that only just end, and for the relay.
        let room = (MAX_SUBSCRIBERS * 2).to_string();
        let mut settings = vec![
            ("max_wal_senders", room.clone()),
            ("max_replication_slots", room.clone()),
            ("wal_retrieve_retry_interval", "200ms".to_owned()),
        ];
        if major >= Major::V18 {
            settings.push(("max_active_replication_origins", room));
        }
        let rig = Rig::with(major, options.connections, &settings)?;
        let source = &rig.pair.source;
        source.sql(DB, &format!("CREATE DATABASE {OTHER}"))?;
        source.sql(DB, &format!("{MARK}{SCHEMA}"))?;
        source.sql(OTHER, SCHEMA)?;
        source.sql(DB, &format!("CREATE PUBLICATION {NAME} FOR TABLE mark, t"))?;
        let mark_table = first(source.sql(DB, "SELECT 'mark'::regclass::oid")?).parse()?;
        Ok(Stage { rig, mark_table })
    }

    fn source(&self) -> &Cluster {
        &self.rig.pair.source
    }

    /// No slots, no rows, and nothing on its way to the disk.
    fn reset(&self, load: Option<&Load>) -> Result<()> {
        self.rig.drop_slots()?;
        self.source().sql(DB, "TRUNCATE mark")?;
        load.map_or(Ok(()), |load| load.clear(&self.rig))?;
        self.source().sql(DB, "CHECKPOINT")?;
        self.rig.settle()
    }

    /// How receivers read that are not in a hurry.
    fn reading(&self) -> Reading<'static> {
        Reading { publication: NAME, mark_table: self.mark_table, binary: false, prompt: false }
    }

    /// Where subscribers connect.
    fn url(&self, relay: Option<&Relay>) -> String {
        relay.map_or_else(|| self.source().url(DB), |relay| relay.url(DB))
    }

    /// Writes a mark, and flushes it and everything before: only that is sent at once.
    fn write_mark(&self, mark: Mark) -> Result<()> {
        let sql = format!("SET synchronous_commit = on; INSERT INTO mark VALUES ({mark})");
        self.source().sql(DB, &sql)?;
        Ok(())
    }

    /// The process IDs of all walsenders. Waits a while for as many as `expected`.
    fn senders(&self, expected: usize) -> Result<Vec<u32>> {
        let all = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' ORDER BY pid";
        let begun = Instant::now();
        loop {
            let rows = self.source().sql(DB, all)?;
            let pids = rows.iter().filter_map(|row| row.first()?.as_deref()?.parse().ok());
            let senders: Vec<u32> = pids.collect();
            if senders.len() == expected || begun.elapsed() > SENDERS_MAX {
                return Ok(senders);
            }
            std::thread::sleep(PACE);
        }
    }
}

/// For the description of a small run.
fn quick(options: &Options) -> &'static str {
    if options.quick { "; a quick run, not a result of record" } else { "" }
}
