//! The pgsluices of a scenario: started, waited for, asked, stopped.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::{Output, Sluice, wait_for};

use super::{BOUND, STOP, Scenario};

/// One pgsluice and the database it follows into.
pub(super) struct Follower {
    pub(super) name: String,
    pub(super) db: String,
    pub(super) args: Vec<String>,
    pub(super) sluice: Option<Sluice>,
    /// Standard error of earlier runs.
    pub(super) log: String,
}

impl Scenario {
    /// The command of follower `number`, not started.
    pub(crate) fn command(&self, number: usize, args: &[&str]) -> Command {
        let mut command = Sluice::command_of(program(), self.pair(), args);
        command.env("PGSLUICE_SOURCE", self.source_url());
        command.env("PGSLUICE_TARGET", self.target_url(number));
        command.env("PGSLUICE_SUBSCRIPTION", self.name(number));
        if let Some(mode) = self.source_mode {
            command.env("PGSLUICE_SOURCE_MODE", mode);
        }
        command
    }

    /// Starts every pgsluice that does not run, and publishes all tables if nothing was published
    /// before.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.run_with(|_| ());
    }

    /// [`Scenario::run`], after `change` was made to the command.
    #[track_caller]
    pub(crate) fn run_with(&mut self, change: impl Fn(&mut Command)) {
        if self.publication.is_none() {
            self.publish("FOR ALL TABLES");
        }
        for number in 0..self.followers.len() {
            if self.followers[number].sluice.is_some() {
                continue;
            }
            let own = self.followers[number].args.clone();
            let (environment, own): (Vec<_>, Vec<_>) = own.iter().partition(|word| is_assignment(word));
            let mut args = vec!["run", "--publication", "p", "--wal-retrieve-retry-interval", "200ms"];
            args.extend(own.into_iter().map(String::as_str));
            let mut command = self.command(number, &args);
            command.envs(environment.into_iter().filter_map(|word| word.split_once('=')));
            change(&mut command);
            self.followers[number].sluice = Some(Sluice::start(command).expect("pgsluice"));
        }
    }

    /// [`Scenario::run`], and waits until all that is on the source is on the targets.
    #[track_caller]
    pub(crate) fn follow(&mut self) {
        self.run();
        self.wait_for_copy();
        self.catch_up();
    }

    /// Waits until every table has been copied: a mark may be among what is copied.
    #[track_caller]
    pub(crate) fn wait_for_copy(&mut self) {
        for number in 0..self.followers.len() {
            let url = self.target_url(number);
            self.wait_for_follower(number, "the first copy", |s| {
                s.assert_running(number);
                let finished = s.at(&url, "SELECT bool_and(finished)::text FROM pgsluice.copied_table");
                Ok(finished.is_ok_and(|rows| rows[0][0].as_deref() == Some("true")))
            });
        }
    }

    /// Waits until every commit of the source so far is on the targets. Where commit order is kept,
    /// a row that is written last arrives last. Otherwise `status` says when everything before it
    /// has arrived.
    #[track_caller]
    pub(crate) fn catch_up(&mut self) {
        let id = self.mark();
        self.wait_for_mark(id);
    }

    /// Writes the row that [`Scenario::wait_for_mark`] waits for.
    #[track_caller]
    pub(crate) fn mark(&mut self) -> u32 {
        self.marks.push(self.source_position());
        let id = u32::try_from(self.marks.len()).expect("a few");
        self.source(&format!("INSERT INTO mark VALUES ({id})"));
        id
    }

    #[track_caller]
    pub(crate) fn wait_for_mark(&mut self, id: u32) {
        (0..self.followers.len()).for_each(|number| self.wait_for_mark_of(number, id));
    }

    /// [`Scenario::wait_for_mark`] for one follower.
    #[track_caller]
    pub(crate) fn wait_for_mark_of(&mut self, number: usize, id: u32) {
        let url = self.target_url(number);
        self.wait_for_follower(number, "the target to be level", |s| {
            let there = s.at(&url, &format!("SELECT count(*) FROM mark WHERE id = {id}"));
            s.assert_running(number);
            let there = there.is_ok_and(|rows| rows[0][0].as_deref() == Some("1"));
            Ok(there && (!s.is_relaxed(number) || s.applied(number) > s.marks[id as usize - 1]))
        });
    }

    fn is_relaxed(&self, number: usize) -> bool {
        self.followers[number].args.iter().any(|word| word.ends_with("relaxed"))
    }

    /// The position that `status` reports as applied, with all before it; 0 without an answer.
    pub(crate) fn applied(&self, number: usize) -> u64 {
        self.position(number, "applied")
    }

    /// One of `status`'s positions; 0 without an answer.
    pub(crate) fn position(&self, number: usize, which: &str) -> u64 {
        let output = self.call(number, &["status", "--json"]);
        let status: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        status[which].as_str().map_or(0, position)
    }

    /// Where the source stands.
    #[track_caller]
    pub(crate) fn source_position(&self) -> u64 {
        position(&self.source_one("SELECT pg_current_wal_lsn()"))
    }

    #[track_caller]
    fn assert_running(&mut self, number: usize) {
        let runs = self.followers[number].sluice.as_mut().is_some_and(Sluice::is_running);
        assert!(runs, "pgsluice ended: {}\n{}", self.told(number), self.short_log(number));
    }

    /// Waits until every pgsluice has logged what it is about to do. Before that, a signal ends it
    /// like any program.
    #[track_caller]
    pub(crate) fn wait_until_started(&mut self) {
        for number in 0..self.followers.len() {
            if self.followers[number].sluice.is_none() {
                continue;
            }
            self.wait_for_follower(number, "pgsluice to start", |s| {
                Ok(s.sluice(number).stderr().contains("replicating from"))
            });
        }
    }

    /// SIGTERM to every pgsluice; each must end well and in time.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.stop_from(0);
    }

    /// [`Scenario::stop`], but followers before `first` go on.
    #[track_caller]
    pub(crate) fn stop_from(&mut self, first: usize) {
        self.wait_until_started();
        for follower in &mut self.followers[first..] {
            let Some(mut sluice) = follower.sluice.take() else { continue };
            let (name, args) = (&follower.name, &follower.args);
            let status = sluice.terminate(STOP);
            let status = status.unwrap_or_else(|error| panic!("follower {name} {args:?}: {error:#}"));
            follower.log.push_str(&sluice.stderr());
            assert!(status.success(), "follower {name} {args:?}: {status}\n{}", follower.log);
        }
    }

    /// SIGKILL to every pgsluice.
    pub(crate) fn kill(&mut self) {
        for follower in &mut self.followers {
            let Some(mut sluice) = follower.sluice.take() else { continue };
            sluice.kill9();
            follower.log.push_str(&sluice.stderr());
        }
    }

    /// The process of follower `number`.
    pub(crate) fn sluice(&mut self, number: usize) -> &mut Sluice {
        self.followers[number].sluice.as_mut().expect("it runs")
    }

    /// Waits for every pgsluice to end by itself; its exit code and everything it logged.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> Vec<(i32, String)> {
        let mut ends = Vec::new();
        for follower in &mut self.followers {
            let mut sluice = follower.sluice.take().expect("it runs");
            let status = sluice.wait(BOUND).unwrap();
            follower.log.push_str(&sluice.stderr());
            let (name, args) = (&follower.name, &follower.args);
            let status =
                status.unwrap_or_else(|| panic!("follower {name} {args:?} still runs:\n{}", follower.log));
            ends.push((status.code().unwrap_or(-1), follower.log.clone()));
        }
        ends
    }

    /// Everything follower `number` logged.
    pub(crate) fn log(&self, number: usize) -> String {
        let follower = &self.followers[number];
        follower.log.clone() + &follower.sluice.as_ref().map(Sluice::stderr).unwrap_or_default()
    }

    /// The beginning and the end of [`Scenario::log`], to be printed.
    pub(super) fn short_log(&self, number: usize) -> String {
        let log = self.log(number);
        let lines: Vec<&str> = log.lines().collect();
        match lines.len() {
            ..30 => log,
            count => [&lines[..12], &["..."], &lines[count - 12..]].concat().join("\n"),
        }
    }

    /// Waits until every follower has logged `words`.
    #[track_caller]
    pub(crate) fn wait_for_log(&mut self, words: &str) {
        for number in 0..self.followers.len() {
            self.wait_for_follower(number, words, |s| Ok(s.log(number).contains(words)));
        }
    }

    /// Another command for follower `number`.
    #[track_caller]
    pub(crate) fn call(&self, number: usize, args: &[&str]) -> Output {
        let mut running = Sluice::start(self.command(number, args)).expect("pgsluice");
        let status = running.wait(BOUND).unwrap().unwrap_or_else(|| panic!("{args:?} takes too long"));
        Output { status, stdout: running.stdout(), stderr: running.stderr() }
    }

    /// `pgsluice status --json`.
    #[track_caller]
    pub(crate) fn status(&self, number: usize) -> Value {
        let mut output = self.call(number, &["status", "--json"]);
        // A process that gets no share of a busy machine answers late.
        let answers = || {
            if output.stderr.contains("no answer within") {
                output = self.call(number, &["status", "--json"]);
            }
            Ok(!output.stderr.contains("no answer within"))
        };
        let answered = wait_for("an answer", BOUND, answers);
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{answered:?}, {error}: {output:?}"))
    }

    /// A figure of `status`'s totals, the same in all strategies.
    #[track_caller]
    pub(crate) fn conflicts(&self, kind: &str) -> u64 {
        let count = |number| self.status(number)["totals"]["conflicts"][kind].as_u64().expect(kind);
        let first = count(0);
        (1..self.followers.len())
            .for_each(|number| assert_eq!(count(number), first, "{kind}, strategy {number}"));
        first
    }
}

/// `16/B374D848` as a number.
pub(crate) fn position(lsn: &str) -> u64 {
    let (high, low) = lsn.split_once('/').expect("a position");
    let part = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
    part(high) << 32 | part(low)
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pgsluice"))
}

fn is_assignment(word: &str) -> bool {
    let named = |(name, _): (&str, &str)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    word.split_once('=').is_some_and(named)
}
