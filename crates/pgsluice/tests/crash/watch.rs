//! The checkers, apart from what they check.
//!
//! [`look`] reads one state of the target and says whether the source was ever in it. [`Watch`]
//! does so all the time, as any reader of the target might. It starts at the first moment at which
//! `status` says that the states are the source's. No kill after that moment takes the claim back.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::SubscriptionName;
use engine::StatusSnapshot;
use operate::control::{self, Request};
use tokio::runtime::Runtime;

use crate::conn::Conn;
use crate::load::{MONEY, OPENING};

/// One statement, so one snapshot: money, accounts that have not what their
/// entries in the journal say, the clock, the ledger's rows, largest number and
/// different numbers, and what workers say they committed.
fn state() -> String {
    format!(
        "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM saving), \
         (SELECT count(*) FROM (SELECT false AS saving, * FROM checking UNION ALL SELECT true, * FROM saving) a \
            LEFT JOIN (SELECT saving, account, sum(amount) FROM journal GROUP BY 1, 2) j \
              ON j.saving = a.saving AND j.account = a.id WHERE a.balance <> {OPENING} + coalesce(j.sum, 0)), \
         (SELECT n FROM clock), \
         count(*), max(at), count(DISTINCT at), (SELECT sum(n) FROM tally), count(DISTINCT (worker, seq)) FROM ledger"
    )
}

/// The same where transactions may overtake: whatever is there, each worker's
/// transactions came in their order, because each writes its tally.
fn relaxed_state() -> String {
    format!(
        "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM saving), \
         (SELECT count(*) FROM (SELECT false AS saving, * FROM checking UNION ALL SELECT true, * FROM saving) a \
            LEFT JOIN (SELECT saving, account, sum(amount) FROM journal GROUP BY 1, 2) j \
              ON j.saving = a.saving AND j.account = a.id WHERE a.balance <> {OPENING} + coalesce(j.sum, 0)), \
         (SELECT sum(n) FROM tally), \
         (SELECT count(*) FROM tally t LEFT JOIN \
            (SELECT worker, count(*) AS rows, max(seq) AS last, count(DISTINCT seq) AS seqs FROM ledger GROUP BY 1) l \
              ON l.worker = t.worker WHERE (t.n, t.n, t.n) IS DISTINCT FROM \
                (coalesce(l.rows, 0), coalesce(l.last, 0), coalesce(l.seqs, 0))), \
         count(*), count(DISTINCT at) FROM ledger"
    )
}

fn look_relaxed(conn: &mut Conn) -> anyhow::Result<Result<u64, String>> {
    let state = conn.numbers(&relaxed_state())?;
    let [money, accounts, committed, workers, rows, numbers] = state[..] else {
        anyhow::bail!("six figures");
    };
    if money == MONEY && accounts == 0 && workers == 0 && rows == committed && numbers == committed {
        return Ok(Ok(committed.unsigned_abs()));
    }
    Ok(Err(format!(
        "no transactions of the source: money {money} (is {MONEY}), accounts that differ from the journal {accounts}, \
         tallies {committed}, ledger rows {rows}, different {numbers}, workers whose transactions are not a row each \
         from the first to the last {workers}"
    )))
}

/// Reads one state; `Ok` is how many transactions it has.
pub(crate) fn look(conn: &mut Conn, relaxed: bool) -> anyhow::Result<Result<u64, String>> {
    if relaxed {
        return look_relaxed(conn);
    }
    let state = conn.numbers(&state())?;
    anyhow::ensure!(state.len() == 8, "eight figures");
    let clock = state[2];
    // Every transaction moved the clock by one and left one row: anything but
    // a prefix of the commit order breaks one of these.
    if state[0] == MONEY && state[1] == 0 && state[3..].iter().all(|figure| *figure == clock) {
        return Ok(Ok(clock.unsigned_abs()));
    }
    Ok(Err(format!(
        "no state of the source: money {} (is {MONEY}), accounts that differ from the journal {}, clock {clock}, \
         ledger rows {}, largest {}, different {}, tallies {}, different by worker {}",
        state[0], state[1], state[3], state[4], state[5], state[6], state[7]
    )))
}

/// Between two looks, at least.
const PAUSE: Duration = Duration::from_millis(25);
/// How much longer than a look its pause is: the reader is not what the machine is busy with.
const SHARE: u32 = 3;

/// Between two questions for the phase: a claim is believed as soon as it is made.
const ASK: Duration = Duration::from_millis(5);

/// The status of the process that runs the subscription.
pub(crate) struct Claim {
    runtime: Runtime,
    state_dir: PathBuf,
    name: SubscriptionName,
}

impl Claim {
    pub(crate) fn of(state_dir: PathBuf, name: &str) -> Claim {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let name = name.parse().expect("a name");
        Claim { runtime: runtime.expect("a runtime"), state_dir, name }
    }

    /// Whether the process claims that every state of the target is one of the source's. Without a
    /// process there is no claim.
    fn is_made(&self) -> bool {
        self.status().is_some_and(|status| status.phase == "streaming")
    }

    /// The status; `None` while no process answers.
    pub(crate) fn status(&self) -> Option<Box<StatusSnapshot>> {
        let answer = self.runtime.block_on(control::ask(&self.state_dir, &self.name, &Request::Status));
        answer.ok()?.status
    }
}

/// What a [`Watch`] saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// States looked at.
    pub(crate) states: u64,
    /// Commits that were visible and gone after a crash of the target.
    pub(crate) lost: u64,
    pub(crate) violations: Vec<String>,
}

/// A reader of the target.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(url: String, relaxed: bool, claim: Claim) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let thread = std::thread::spawn({
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            move || {
                let mut conn = Conn::new(url);
                // Connected before: the first look is at what there was when it was said.
                let _ = conn.run("SELECT");
                while !claim.is_made() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Between two looks at a condition that has a bound.
                    std::thread::sleep(ASK);
                }
                watch(&mut conn, relaxed, &stop, &seen);
            }
        });
        Watch { stop, seen, thread }
    }

    /// What was wrong so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.seen.lock().expect("the reader does not panic").violations.clone()
    }

    pub(crate) fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the reader does not panic");
        std::mem::take(&mut self.seen.lock().expect("the reader does not panic"))
    }
}

fn watch(conn: &mut Conn, relaxed: bool, stop: &AtomicBool, seen: &Mutex<Seen>) {
    let (mut clock_before, mut cut_off) = (0_u64, false);
    let mut pause = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        // The pace of a load; no test waits for it.
        std::thread::sleep(pause);
        let began = Instant::now();
        let looked = look(conn, relaxed);
        pause = PAUSE.max(began.elapsed() * SHARE);
        // A server that is down is no state.
        let Ok(state) = looked else {
            cut_off = true;
            continue;
        };
        let mut seen = seen.lock().expect("the test does not panic with the lock");
        seen.states += 1;
        match state {
            Ok(clock) => {
                // A crash loses commits that were not flushed, and always
                // this connection too.
                let gone = clock_before.saturating_sub(clock);
                seen.lost += gone;
                if gone > 0 && !cut_off {
                    seen.violations.push(format!("the clock went from {clock_before} back to {clock}"));
                }
                (clock_before, cut_off) = (clock, false);
            }
            Err(violation) => seen.violations.push(violation),
        }
    }
}
