//! Each arrow of the machine, and each hazard, alone.

use super::*;
use crate::publisher::{By, Doing, Holder, Session};

const PRIMARY: Publisher = Publisher { system_id: 1, timeline: 1, is_primary: true };
const TIME: PgTimestamp = PgTimestamp(1000);
const OF: Candidate = Candidate { lsn: Lsn::new(500), time: TIME };
const SEGMENT: u64 = 16 << 20;

fn ms(ms: u64) -> Moment {
    Duration::from_millis(ms)
}

/// A horizon, the time, and the questions that it asked.
struct Test {
    horizon: Horizon,
    now: Moment,
}

impl Test {
    fn new() -> Test {
        let settings = Settings {
            status_interval: Duration::from_secs(10),
            duration_max: None,
            interval: None,
            segment_size: SEGMENT,
        };
        Test { horizon: Horizon::new(&settings, Moment::ZERO), now: Moment::ZERO }
    }

    /// One that has a candidate and asks about the publisher.
    fn at_clock() -> Test {
        let mut test = Test::new();
        test.wait();
        test.reply(Reply::Candidate(Some(OF)));
        assert_eq!(test.ask(), Ask::Activity);
        test
    }

    fn ask(&self) -> Ask {
        self.horizon.question().ask
    }

    /// Lets the time come that the horizon waits for; how long that was.
    fn wait(&mut self) -> Duration {
        let Ask::Wait(until) = self.ask() else { panic!("{:?}", self.ask()) };
        let waited = until - self.now;
        self.now = until;
        self.horizon.tell(HorizonEvent::Timer, self.now);
        waited
    }

    fn reply(&mut self, reply: Reply<'_>) {
        self.horizon.answer(self.horizon.question().number, reply, self.now);
    }

    /// Answers about the publisher, after the pause.
    fn activity(&mut self, activity: &Activity) {
        if let Ask::Wait(_) = self.ask() {
            self.wait();
        }
        assert_eq!(self.ask(), Ask::Activity);
        self.reply(Reply::Activity(activity));
    }

    fn position(&mut self, lsn: u64) {
        assert_eq!(self.ask(), Ask::Position);
        self.reply(Reply::Position { publisher: PRIMARY, insert_lsn: Lsn::new(lsn) });
    }

    fn flushed(&mut self, lsn: u64, is_joining: bool) -> Option<Candidate> {
        self.horizon.tell(HorizonEvent::Flushed { lsn: Lsn::new(lsn), is_joining }, self.now)
    }
}

fn session(pid: u32, doing: Doing) -> Session {
    Session { pid, doing }
}

fn running(xid: u32, doing: Doing) -> Holder {
    Holder { xid: Xid(xid), by: By::Session(session(xid, doing)) }
}

fn prepared(xid: u32) -> Holder {
    Holder { xid: Xid(xid), by: By::Prepared }
}

fn statement(begun: i64) -> Doing {
    Doing::Statement { begun: PgTimestamp(begun) }
}

fn activity(clock: i64, holders: &[Holder]) -> Activity {
    Activity {
        publisher: PRIMARY,
        clock: PgTimestamp(clock),
        holders: holders.to_vec(),
        finishers: Vec::new(),
    }
}

#[test]
fn d2_a_round_without_obstacles() {
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[]));
    test.position(7000);
    assert_eq!(test.ask(), Ask::Flushed(Lsn::new(7000)));
    assert_eq!(test.flushed(6999, false), None);
    assert_eq!(test.flushed(7000, false), Some(OF));
    assert_eq!(test.wait(), ms(100));
    assert_eq!(test.ask(), Ask::Candidate);
    assert_eq!(test.horizon.progress(), Progress { advanced: 1, ..Progress::default() });
}

#[test]
fn the_interval_doubles_while_there_is_nothing_and_a_deletion_ends_that() {
    let mut test = Test::new();
    for expected in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        assert_eq!(test.wait(), ms(expected));
        test.reply(Reply::Candidate(None));
    }
    test.horizon.tell(HorizonEvent::Deletion, test.now);
    assert_eq!(test.wait(), ms(100));
    test.reply(Reply::Candidate(Some(OF)));
    assert_eq!(test.ask(), Ask::Activity);
}

#[test]
fn d2_the_publishers_clock_must_pass_the_deletion() {
    let mut test = Test::at_clock();
    test.activity(&activity(1000, &[]));
    assert_eq!(test.horizon.waiting(), Waiting::Clock(Some(Duration::from_micros(1))));
    assert_eq!(test.wait(), ms(10));
    test.activity(&activity(-500_000_000, &[]));
    assert_eq!(test.wait(), ms(1000));
    test.activity(&activity(1001, &[]));
    assert_eq!(test.ask(), Ask::Position);
    assert_eq!(test.horizon.progress().clock_waits, 2);
}

#[test]
fn d2_who_may_be_in_commit_is_waited_for_until_it_leaves() {
    let mut test = Test::at_clock();
    let both = [running(1, statement(1000)), running(2, Doing::Unknown)];
    test.activity(&activity(1001, &both));
    assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(1), Xid(2)]));
    test.activity(&activity(1002, &both[1..]));
    assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(2)]));
    // One that came later is not waited for.
    test.activity(&activity(1003, &[running(3, statement(900))]));
    assert_eq!(test.ask(), Ask::Position);
}

#[test]
fn d2_who_was_seen_outside_of_its_commit_is_not_waited_for() {
    for doing in [statement(1001), Doing::BetweenStatements, Doing::WaitingForStandby, Doing::Applying] {
        let mut test = Test::at_clock();
        test.activity(&activity(1001, &[running(1, doing)]));
        assert_eq!(test.ask(), Ask::Position, "{doing:?} at first");
        let mut test = Test::at_clock();
        test.activity(&activity(1001, &[running(1, statement(1000))]));
        test.activity(&activity(1002, &[running(1, doing)]));
        assert_eq!(test.ask(), Ask::Position, "{doing:?} later");
    }
}

#[test]
fn d2_a_dormant_prepared_transaction_is_not_waited_for() {
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[prepared(1)]));
    assert_eq!(test.ask(), Ask::Position);
    // Nor is it when the COMMIT PREPARED began later.
    let mut test = Test::at_clock();
    let later = session(9, statement(1001));
    test.activity(&Activity { finishers: vec![later], ..activity(1001, &[prepared(1)]) });
    assert_eq!(test.ask(), Ask::Position);
}

#[test]
fn d2_a_commit_prepared_that_runs_is_waited_for() {
    let at_it = session(9, statement(1000));
    let busy = |holders: &[Holder]| Activity { finishers: vec![at_it], ..activity(1001, holders) };
    let start = || {
        let mut test = Test::at_clock();
        test.activity(&busy(&[prepared(1), prepared(2)]));
        assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(1), Xid(2)]));
        test
    };
    let mut test = start();
    test.activity(&busy(&[prepared(2)]));
    assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(2)]), "one was committed");
    test.activity(&activity(1002, &[prepared(2)]));
    assert_eq!(test.ask(), Ask::Position, "nobody commits the other one");
    for doing in [statement(1002), Doing::WaitingForStandby] {
        let mut test = start();
        let finishers = vec![session(9, doing)];
        test.activity(&Activity { finishers, ..activity(1002, &[prepared(1), prepared(2)]) });
        assert_eq!(test.ask(), Ask::Position, "{doing:?}");
    }
}

#[test]
fn d2_a_transaction_that_was_prepared_meanwhile_commits_later() {
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[running(1, statement(1000))]));
    test.activity(&activity(1002, &[prepared(1)]));
    assert_eq!(test.ask(), Ask::Position);
}

#[test]
fn d2_a_joining_table_holds_the_horizon() {
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[]));
    test.position(7000);
    assert_eq!(test.flushed(8000, true), None);
    assert_eq!(test.flushed(8000, false), Some(OF));
}

#[test]
fn d2_a_candidate_is_dropped_wherever_it_is() {
    let steps: [fn(&mut Test); 4] = [
        |_| {},
        |test| test.activity(&activity(1001, &[running(1, statement(1000))])),
        |test| test.activity(&activity(1001, &[])),
        |test| {
            test.activity(&activity(1001, &[]));
            test.position(7000);
        },
    ];
    for step in steps {
        for why in [Dropped::Reconnected, Dropped::Timeline, Dropped::NewPipeline, Dropped::NewTable] {
            let mut test = Test::at_clock();
            step(&mut test);
            assert_eq!(test.horizon.tell(HorizonEvent::Dropped(why), test.now), None);
            assert_eq!(test.flushed(u64::MAX, false), None);
            assert_eq!(test.wait(), ms(100));
            assert_eq!((test.ask(), test.horizon.progress().dropped), (Ask::Candidate, 1));
        }
    }
}

#[test]
fn d2_another_server_does_not_answer_for_the_first() {
    let promoted = Publisher { timeline: 2, ..PRIMARY };
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[running(1, statement(1000))]));
    test.activity(&Activity { publisher: promoted, ..activity(1002, &[]) });
    assert_eq!(test.horizon.progress().dropped, 1);
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[]));
    test.reply(Reply::Position { publisher: promoted, insert_lsn: Lsn::new(7000) });
    assert_eq!(test.horizon.progress().dropped, 1);
}

#[test]
fn d2_a_standby_is_no_answer() {
    let standby = Publisher { is_primary: false, ..PRIMARY };
    let mut test = Test::at_clock();
    test.activity(&Activity { publisher: standby, ..activity(5000, &[]) });
    assert_eq!(test.wait(), ms(1000));
    assert_eq!((test.ask(), test.horizon.progress().not_primary), (Ask::Activity, 1));
}

#[test]
fn d2_a_clock_that_is_set_back_begins_the_wait_anew() {
    let mut test = Test::at_clock();
    test.activity(&activity(1001, &[running(1, statement(1000))]));
    test.activity(&activity(900, &[]));
    assert_eq!(test.horizon.progress().clock_steps, 1);
    // A transaction that has taken a time since is waited for now.
    test.activity(&activity(1001, &[running(2, statement(950))]));
    assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(2)]));
}

#[test]
fn a_late_answer_is_not_taken() {
    let mut test = Test::at_clock();
    let old = test.horizon.question().number;
    test.activity(&activity(1001, &[running(1, statement(1000))]));
    test.wait();
    test.horizon.answer(old, Reply::Activity(&activity(1001, &[])), test.now);
    assert_eq!(test.horizon.waiting(), Waiting::Transactions(vec![Xid(1)]));
    test.activity(&activity(1002, &[]));
    let reply = Reply::Position { publisher: PRIMARY, insert_lsn: Lsn::new(1) };
    test.horizon.answer(old, reply, test.now);
    assert_eq!(test.ask(), Ask::Position);
}

#[test]
fn pauses_grow_and_are_bounded() {
    let mut test = Test::at_clock();
    let busy = activity(1001, &[running(1, statement(1000))]);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        test.reply(Reply::Activity(&busy));
        pauses.push(test.wait().as_millis());
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
}

#[test]
fn d2_an_idle_publishers_wal_ends_where_its_last_record_does() {
    let end = |lsn: u64| end_of_record(Lsn::new(lsn), SEGMENT).as_u64();
    assert_eq!(end(8192 + 24), 8192);
    assert_eq!(end(SEGMENT + 40), SEGMENT);
    assert_eq!(end(8192 + 40), 8192 + 40, "a long header begins a segment only");
    assert_eq!(end(8192), 8192);
    assert_eq!(end(8192 + 48), 8192 + 48);
}
