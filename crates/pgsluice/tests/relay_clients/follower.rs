//! `pgsluice run` with the relay as its source: it copies and follows what the publisher has.

use testkit::{Cluster, Major, Output, Sluice, assert_same_rows, wait_for};

use crate::stage::{BOUND, End, Stage, pgsluice, run};

const DB: &str = "follower";
const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v text, large text); CREATE TABLE bag (v text)";

/// What every command of the subscription is given.
struct Follower<'a> {
    stage: &'a Stage,
    target: Cluster,
    state: tempfile::TempDir,
}

impl Follower<'_> {
    fn command(&self, command: &str, more: &[&str]) -> std::process::Command {
        let source = self.stage.conninfo(End::Relay, DB);
        let (target, state) = (self.target.url(DB), self.state.path().to_str().unwrap());
        let args = ["--source", &source, "--target", &target, "--state-dir", state];
        pgsluice(&[&[command][..], &args, more].concat())
    }

    fn call(&self, command: &str, more: &[&str]) -> Output {
        run(self.command(command, more))
    }

    fn run(&self) -> Sluice {
        Sluice::start(self.command("run", &["--source-mode", "logical", "--publication", "p"])).unwrap()
    }

    fn level(&self, sluice: &mut Sluice) {
        let publisher = &self.stage.publisher;
        publisher.sql(DB, "INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), 'the end')").unwrap();
        let end = "SELECT count(*) || ' ' || coalesce(max(id), 0) FROM t";
        let expected = publisher.one(DB, end);
        wait_for("the target to be level", BOUND, || {
            assert!(sluice.is_running(), "{}\n{}", sluice.stderr(), self.stage.relay_log());
            Ok(self.target.one(DB, end) == expected)
        })
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", sluice.stderr(), self.stage.relay_log()));
        for table in ["t", "bag"] {
            assert_same_rows(publisher, &self.target, DB, table);
        }
    }
}

#[test]
fn pgsluice_copies_and_follows_through_the_relay() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stage = Stage::of(major);
        let publisher = &stage.publisher;
        stage.database(DB, &format!("{SCHEMA}; ALTER TABLE bag REPLICA IDENTITY FULL"));
        publisher
            .sql(
                DB,
                "INSERT INTO t SELECT n, 'before', repeat(md5(n::text), 100) FROM generate_series(1, 2000) n;
                 INSERT INTO bag SELECT n % 5 FROM generate_series(1, 50) n; CREATE PUBLICATION p FOR ALL TABLES",
            )
            .unwrap();
        let target = Cluster::start(major).unwrap();
        target.sql("postgres", &format!("CREATE DATABASE {DB}")).unwrap();
        target.sql(DB, SCHEMA).unwrap();
        let follower = Follower { stage: &stage, target, state: tempfile::tempdir().unwrap() };
        let write = || {
            for sql in [
                "UPDATE t SET v = v || '!' WHERE id % 7 = 0; DELETE FROM t WHERE id % 101 = 0",
                "INSERT INTO bag SELECT 'more' FROM generate_series(1, 10); DELETE FROM bag WHERE v = '3'",
                "UPDATE t SET id = id + 10 WHERE id = (SELECT max(id) FROM t)",
            ] {
                publisher.sql(DB, sql).unwrap();
            }
        };
        let mut sluice = follower.run();
        follower.level(&mut sluice);
        write();
        follower.level(&mut sluice);
        let status = sluice.terminate(BOUND).unwrap();
        assert!(status.success(), "{status}: {}", sluice.stderr());
        write();
        let mut sluice = follower.run();
        follower.level(&mut sluice);
        assert_eq!(stage.slots_of_the_relay(DB), "", "{major}: the publisher has no logical slot");
        assert!(sluice.terminate(BOUND).unwrap().success());
        follower.call("drop", &["--subscription", "p"]).expect_success();
    });
}
