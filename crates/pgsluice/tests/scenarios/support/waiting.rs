//! Waits for a follower as long as it moves. If it does not move, the test names it and prints what
//! it was doing.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use testkit::{Rows, Sluice, wait_while_it_moves};

use super::{BOUND, Scenario};

/// Share of a processor that a follower uses if it does more than check the time while no counter
/// moves: it decodes, or reads what it will skip.
const BUSY: f64 = 0.05;

/// Beside a failure it helps to know what else took long.
const LONG: Duration = Duration::from_secs(5);

/// How far a follower is.
#[derive(Debug, PartialEq)]
struct Progress {
    applied: Value,
    /// What it has written, and of a first copy what has come.
    counters: [Value; 6],
    copied: Vec<Value>,
    /// Its open transactions on the target, each with its last message and the CPU seconds of its
    /// backend. Inside a transaction of thousands of rows, each a round trip, nothing else moves.
    transactions: Vec<(String, u64)>,
    /// How often it was found [`BUSY`].
    busy: usize,
}

/// What a follower has used, looked at from time to time.
struct Busy {
    looked: Instant,
    seconds: f64,
    found: usize,
}

impl Busy {
    fn since(&mut self, seconds: f64) -> usize {
        let rate = (seconds - self.seconds) / self.looked.elapsed().as_secs_f64().max(1e-3);
        self.found += usize::from(rate >= BUSY);
        (self.looked, self.seconds) = (Instant::now(), seconds);
        self.found
    }
}

impl Scenario {
    /// Waits for something that follower `number` is to do, as long as it gets on.
    ///
    /// # Panics
    /// When it stands still for [`BOUND`]: names the follower, its settings, its `status`, and what
    /// both servers say of it.
    #[track_caller]
    pub(crate) fn wait_for_follower(
        &mut self,
        number: usize,
        what: &str,
        condition: impl FnMut(&mut Scenario) -> Result<bool>,
    ) {
        self.wait_for_follower_within(BOUND, number, what, condition);
    }

    /// [`Scenario::wait_for_follower`] with another bound.
    #[track_caller]
    pub(crate) fn wait_for_follower_within(
        &mut self,
        bound: Duration,
        number: usize,
        what: &str,
        mut condition: impl FnMut(&mut Scenario) -> Result<bool>,
    ) {
        let began = Instant::now();
        // Both look at it, one after the other.
        let this = std::cell::RefCell::new(self);
        let mut busy = Busy { looked: began, seconds: this.borrow().cpu_seconds(number), found: 0 };
        let waited = wait_while_it_moves(
            what,
            bound,
            || condition(*this.borrow_mut()),
            || this.borrow().progress(number, &mut busy),
        );
        let this = this.into_inner();
        if let Err(error) = waited {
            panic!("{error:#}, for {}", this.report(number));
        }
        if began.elapsed() >= LONG {
            println!("waited {:.1?} for {what}, for {}", began.elapsed(), this.told(number));
        }
    }

    /// A follower's name and settings.
    pub(super) fn told(&self, number: usize) -> String {
        let follower = &self.followers[number];
        let mode = self.source_mode.map(|mode| format!(" --source-mode {mode}")).unwrap_or_default();
        let args =
            if follower.args.is_empty() { "as a user runs it".to_owned() } else { follower.args.join(" ") };
        format!(
            "follower {number} of {}, {}, on PostgreSQL {}: {args}{mode}",
            self.followers.len(),
            follower.name,
            self.major()
        )
    }

    fn progress(&self, number: usize, busy: &mut Busy) -> Progress {
        let output = self.call(number, &["status", "--json"]);
        let status: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        let total = |name: &str| status["totals"][name].clone();
        let tables = status["copy"]["tables"].as_array();
        Progress {
            applied: status["applied"].clone(),
            counters: ["inserts", "updates", "deletes", "truncates", "transactions", "rows_written"]
                .map(total),
            copied: tables.into_iter().flatten().map(|table| table["bytes"].clone()).collect(),
            transactions: self.transactions(number),
            busy: busy.since(self.cpu_seconds(number)),
        }
    }

    fn cpu_seconds(&self, number: usize) -> f64 {
        self.followers[number].sluice.as_ref().map_or(0.0, Sluice::cpu_seconds)
    }

    fn transactions(&self, number: usize) -> Vec<(String, u64)> {
        let sql = format!(
            "SELECT pid, concat_ws(' ', xact_start, state_change) FROM pg_stat_activity \
              WHERE datname = '{}' AND backend_type = 'client backend' AND xact_start IS NOT NULL ORDER BY pid",
            self.followers[number].db
        );
        let rows = self.pair().target.sql("postgres", &sql).unwrap_or_default();
        let transaction = |row: &Vec<Option<String>>| {
            let pid = row[0].as_ref()?.parse().ok()?;
            Some((format!("{pid} {}", row[1].as_ref()?), testkit::process::cpu_seconds(pid) as u64))
        };
        rows.iter().filter_map(transaction).collect()
    }

    /// All that is known of a follower that is late.
    fn report(&self, number: usize) -> String {
        let status = self.call(number, &["status"]);
        let db = &self.followers[number].db;
        let on_target = format!(
            "SELECT pid, application_name, state, coalesce(wait_event_type || '/' || wait_event, 'runs') AS waits, \
                    (now() - query_start)::interval(0) AS since, pg_blocking_pids(pid) AS blocked_by, \
                    left(regexp_replace(query, '\\s+', ' ', 'g'), 300) AS query \
               FROM pg_stat_activity WHERE datname = '{db}' AND pid <> pg_backend_pid() ORDER BY query_start"
        );
        let on_source = format!(
            "SELECT slot_name, active_pid, restart_lsn, confirmed_flush_lsn, r.state, r.sent_lsn, r.write_lsn, \
                    r.flush_lsn, pg_current_wal_lsn() AS source_end, \
                    coalesce(a.wait_event_type || '/' || a.wait_event, 'runs') AS waits \
               FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid \
               LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE slot_name LIKE '{}%'",
            self.slot(number)
        );
        let ask = |cluster: &testkit::Cluster, sql: &str| match cluster.sql("postgres", sql) {
            Ok(rows) => lines(&rows),
            Err(error) => format!("  {error:#}\n"),
        };
        format!(
            "{}\n--- its status:\n{}{}--- its sessions on the target:\n{}--- its slots on the source:\n{}--- its log:\n{}",
            self.told(number),
            status.stdout,
            status.stderr,
            ask(&self.pair().target, &on_target),
            ask(&self.pair().source, &on_source),
            self.short_log(number)
        )
    }
}

/// Rows for people, one a line.
fn lines(rows: &Rows) -> String {
    let cell = |cell: &Option<String>| cell.clone().unwrap_or_else(|| "-".to_owned());
    rows.iter().map(|row| format!("  {}\n", row.iter().map(cell).collect::<Vec<_>>().join(" | "))).collect()
}
