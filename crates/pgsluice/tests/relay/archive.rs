//! WAL that the publisher or the relay has removed comes from the publisher's archive.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use testkit::{Builder, Cluster, Major, StopMode, assert_same_rows, wait_for};

use crate::{BOUND, DB, HBA, Relaying, call, configure, fill, free_port, level, start};

/// While there is a file of this name in the archive, nothing is archived.
const STOP: &str = "stop";
/// While there is one of this name, what is archived is damaged in its middle.
const DAMAGE: &str = "damage";
const PLAIN: &str = "cp %p $d/new && if [ -e $d/damage ]; then printf damage | \
                     dd of=$d/new bs=1 seek=5000000 conv=notrunc status=none; fi && mv $d/new $d/%f";
const GZIP: &str = "gzip -1 -c %p > $d/new && mv $d/new $d/%f.gz";

/// A publisher that archives, a relay, and its subscriber. The relay runs unless it was stopped.
struct Stage {
    publisher: Cluster,
    subscriber: Cluster,
    relaying: Option<Relaying>,
    port: u16,
    config: PathBuf,
    archive: PathBuf,
    dir: tempfile::TempDir,
}

/// Has the server archive into `archive`, and keep little WAL.
fn archiving(builder: Builder, archive: &Path, how: &str) -> Builder {
    let command = format!("d={} && test ! -e $d/{STOP} && {how}", archive.display());
    builder
        .setting("archive_mode", "on")
        .setting("archive_command", &command)
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB")
}

impl Stage {
    fn new(major: Major, how: &str, set: impl FnOnce(Builder) -> Builder) -> Stage {
        let dir = tempfile::Builder::new().prefix("pgsluice-relay-archive-").tempdir().unwrap();
        let archive = dir.path().join("archive");
        fs::create_dir(&archive).unwrap();
        // The server is another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&archive, fs::Permissions::from_mode(0o777)).unwrap();
        let builder = set(Cluster::builder(major).hba(HBA));
        let publisher = archiving(builder, &archive, how).start().unwrap();
        fill(&publisher);
        let port = free_port();
        let config = configure(dir.path(), &publisher.url(DB), port);
        let path = config.to_str().unwrap();
        call(&["user", "add", "sub", "--from-source", "--config", path], "").expect_success();
        let relaying = Some(start(&config, port));
        let subscriber =
            Cluster::builder(major).setting("wal_retrieve_retry_interval", "200ms").start().unwrap();
        subscriber.sql(DB, "CREATE TABLE t (id serial PRIMARY KEY, v text)").unwrap();
        let stage = Stage { publisher, subscriber, relaying, port, config, archive, dir };
        let place = format!("host=127.0.0.1 port={port} user=sub password=geheim dbname={DB}");
        let subscribe = format!("CREATE SUBSCRIPTION s CONNECTION '{place}' PUBLICATION p");
        stage.subscriber.sql(DB, &subscribe).unwrap_or_else(|error| panic!("{error}\n{}", stage.stderr()));
        level(&stage.publisher, &stage.subscriber);
        stage
    }

    fn relaying(&self) -> &Relaying {
        self.relaying.as_ref().unwrap()
    }

    fn stderr(&self) -> String {
        self.relaying().sluice.stderr()
    }

    fn stop(&mut self) {
        let status = self.relaying.as_mut().unwrap().sluice.terminate(BOUND).unwrap();
        assert!(status.success(), "{status}: {}", self.stderr());
        self.relaying = None;
    }

    fn kill(&mut self) {
        self.relaying.as_mut().unwrap().sluice.kill9();
        self.relaying = None;
    }

    /// Starts the relay with the archive and more settings.
    fn start(&mut self, more: &str) {
        let config = self.dir.path().join("with_archive.toml");
        let text = fs::read_to_string(&self.config).unwrap();
        let text = format!("{text}wal_archive = '{}'\n{more}", self.archive.display());
        fs::write(&config, text).unwrap();
        self.relaying = Some(start(&config, self.port));
    }

    /// Waits until the relay's log says this.
    fn waits_for(&self, said: &str) {
        wait_for(said, BOUND, || Ok(self.stderr().contains(said)))
            .unwrap_or_else(|error| panic!("{error}\n{}", self.stderr()));
    }

    fn level(&self) {
        publish(&self.publisher, 1);
        level(&self.publisher, &self.subscriber);
    }

    /// Names of complete segments in the relay's directory, in order.
    fn kept(&self) -> Vec<String> {
        let mut names = names(&self.dir.path().join("data/wal"));
        names.retain(|name| name.len() == 24);
        names
    }

    /// What is archived of segments, in order.
    fn archived(&self) -> Vec<String> {
        let mut names = names(&self.archive);
        names.retain(|name| name.starts_with("00000001") && !name.contains(".history"));
        names
    }

    /// Writes until the publisher has removed the segment that it is in now. Returns its name.
    fn lose_wal(&self) -> String {
        let needed = self.publisher.one(DB, "SELECT pg_walfile_name(pg_current_wal_lsn())");
        publish(&self.publisher, 3);
        self.is_removed(&needed);
        needed
    }

    fn is_removed(&self, needed: &str) {
        let path = self.publisher.data_dir().join("pg_wal").join(needed);
        wait_for("the publisher to remove WAL", BOUND, || {
            self.publisher.sql(DB, "SELECT pg_switch_wal()")?;
            self.publisher.sql(DB, "CHECKPOINT")?;
            Ok(!path.exists())
        })
        .unwrap();
    }

    fn drop_slot(&self) {
        // The walsender of a relay that was stopped may still be there.
        let active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'pgsluice_relay'";
        wait_for("the slot to be free", BOUND, || Ok(self.publisher.one(DB, active) == "f")).unwrap();
        self.publisher.sql(DB, "SELECT pg_drop_replication_slot('pgsluice_relay')").unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Changes rows in some segments. Records go from one segment into the next, and some end early.
fn publish(publisher: &Cluster, segments: u32) {
    for _ in 0..segments {
        publisher
            .sql(
                DB,
                "INSERT INTO t (v) SELECT 'more' FROM generate_series(1, 200);
                 UPDATE t SET v = v || '!' WHERE id % 17 = 0;
                 DELETE FROM t WHERE id % 101 = 0;
                 SELECT pg_logical_emit_message(false, 'x', repeat('y', 9000000));
                 SELECT pg_logical_emit_message(false, 'x', repeat('y', 9000000));
                 SELECT pg_switch_wal()",
            )
            .unwrap();
    }
}

#[test]
fn what_the_publisher_has_removed_comes_from_its_archive() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let mut stage = Stage::new(major, PLAIN, |builder| builder);
        stage.stop();
        stage.drop_slot();
        stage.lose_wal();
        let without = call(&["relay", "--config", stage.config.to_str().unwrap()], "");
        let said = |words: &str| without.stderr.contains(words);
        assert!(
            without.status.code() == Some(1) && said("does not have it any more") && said("wal_archive"),
            "{without:?}"
        );
        stage.start("");
        stage.level();
        assert!(stage.stderr().contains("reading it up to"), "{}", stage.stderr());
        // The slot is where WAL is durable here, and what is here is the publisher's.
        for name in stage.kept() {
            // One that nobody needs may have gone since.
            let Ok(own) = fs::read(stage.dir.path().join("data/wal").join(&name)) else { continue };
            let archived = fs::read(stage.archive.join(&name)).unwrap_or_default();
            assert!(archived.is_empty() || archived == own, "{name} differs");
        }
        stage.stop();
        stage.start("");
        stage.level();
        stage.stop();
    });
}

/// The server has given the slot up, and the archive is compressed.
#[test]
fn a_slot_that_was_lost_is_made_anew_beside_a_compressed_archive() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let mut stage = Stage::new(major, GZIP, |builder| builder.setting("max_slot_wal_keep_size", "16MB"));
        stage.stop();
        stage.lose_wal();
        let sql = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'pgsluice_relay'";
        assert_eq!(stage.publisher.one(DB, sql), "lost");
        stage.start("");
        stage.level();
        assert!(stage.stderr().contains("has lost WAL, and is made anew"), "{}", stage.stderr());
        assert!(stage.stderr().contains("reading it up to"), "{}", stage.stderr());
        assert_ne!(stage.publisher.one(DB, sql), "lost");
        stage.stop();
    });
}

#[test]
fn l2_a_segment_that_the_archive_lacks_is_named_and_nothing_is_lost_when_it_comes() {
    let major = *Major::under_test().last().unwrap();
    let mut stage = Stage::new(major, PLAIN, |builder| builder);
    stage.stop();
    stage.drop_slot();
    let needed = stage.lose_wal();
    let archived = stage.archived();
    let first = archived.iter().position(|name| *name == needed).unwrap();
    let late = stage.archive.join(&archived[first + 2]);
    let hidden = stage.dir.path().join("hidden");
    fs::rename(&late, &hidden).unwrap();
    stage.start("");
    stage.waits_for(&format!("segment {}, which has", archived[first + 2]));
    stage.waits_for("bring the segment back");
    // The process ends in the middle, and what it had copied stays.
    stage.kill();
    assert!(stage.kept().contains(&archived[first]), "{:?}", stage.kept());
    assert!(!stage.kept().contains(&archived[first + 2]), "{:?}", stage.kept());
    // A file of the right name and length is not believed.
    fs::copy(&hidden, &late).unwrap();
    fs::File::options().write(true).open(&late).unwrap().write_all_at(b"damage", 5_000_000).unwrap();
    stage.start("");
    stage.waits_for(&format!("{} has other WAL than must come", late.display()));
    fs::rename(&hidden, &late).unwrap();
    // The time of the file's last change is older than any patience.
    stage.level();
    // Nor is a segment that was cut short.
    stage.stop();
    stage.drop_slot();
    let needed = stage.lose_wal();
    let whole = fs::read(stage.archive.join(&needed)).unwrap();
    fs::write(stage.archive.join(&needed), &whole[..6_000_000]).unwrap();
    stage.start("");
    stage.waits_for("has 6000000 bytes of the 16777216 of a segment");
    stage.kill();
    fs::write(stage.archive.join(&needed), &whole).unwrap();
    stage.start("");
    stage.level();
    stage.stop();
}

/// Kills at any moment of the filling.
#[test]
fn l2_a_relay_that_is_killed_while_it_fills_its_wal_goes_on() {
    let major = *Major::under_test().last().unwrap();
    let mut stage = Stage::new(major, PLAIN, |builder| builder);
    stage.stop();
    stage.drop_slot();
    stage.lose_wal();
    publish(&stage.publisher, 6);
    let last = stage.archived().last().cloned().unwrap();
    stage.is_removed(&last);
    for copied in 1..5 {
        let before = stage.kept().len();
        stage.start("");
        wait_for("a segment to be copied", BOUND, || Ok(stage.kept().len() >= before + copied % 2)).unwrap();
        stage.kill();
    }
    stage.start("");
    stage.level();
    stage.stop();
}

/// The subscriber is away, and its WAL is in the archive only.
#[test]
fn wal_beyond_its_bounds_is_read_in_the_archive() {
    let major = *Major::under_test().last().unwrap();
    let mut stage = Stage::new(major, PLAIN, |builder| builder);
    stage.stop();
    stage.start("wal_keep_size = '32MB'\n");
    let disable = "ALTER SUBSCRIPTION s DISABLE";
    stage.subscriber.sql(DB, disable).unwrap();
    let needed = stage.publisher.one(DB, "SELECT pg_walfile_name(pg_current_wal_lsn())");
    // What is not in the archive stays.
    fs::write(stage.archive.join(STOP), "").unwrap();
    publish(&stage.publisher, 8);
    let has = |stage: &Stage, name: &str| stage.kept().iter().any(|kept| kept == name);
    wait_for("WAL to come", BOUND, || Ok(stage.kept().len() >= 8)).unwrap();
    assert!(has(&stage, &needed), "{:?}", stage.kept());
    // Nor does it go if the archive has other bytes.
    fs::write(stage.archive.join(DAMAGE), "").unwrap();
    fs::remove_file(stage.archive.join(STOP)).unwrap();
    stage.waits_for("differs from the relay's own segment");
    assert!(has(&stage, &needed), "{:?}", stage.kept());
    // A file is there before the command that archives it has ended, and is damaged after that.
    let archived = "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver";
    wait_for("all to be archived", BOUND, || {
        let archived = stage.publisher.one(DB, archived);
        Ok(stage.kept().iter().all(|name| *name <= archived))
    })
    .unwrap();
    fs::remove_file(stage.archive.join(DAMAGE)).unwrap();
    for name in stage.kept() {
        fs::copy(stage.dir.path().join("data/wal").join(&name), stage.archive.join(&name)).unwrap();
    }
    let is_bounded = |stage: &Stage| {
        wait_for("WAL to go", BOUND, || Ok(stage.kept().len() <= 3))
            .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", stage.kept(), stage.stderr()));
        assert!(!has(stage, &needed) && stage.archive.join(&needed).exists());
    };
    is_bounded(&stage);
    let enable = "ALTER SUBSCRIPTION s ENABLE";
    stage.subscriber.sql(DB, enable).unwrap();
    stage.level();
    // By age, over a restart, with a segment that is missing when it is needed.
    stage.stop();
    stage.subscriber.sql(DB, disable).unwrap();
    stage.start("wal_keep_time = '3s'\n");
    let needed = stage.publisher.one(DB, "SELECT pg_walfile_name(pg_current_wal_lsn())");
    publish(&stage.publisher, 6);
    wait_for("WAL to go", BOUND, || Ok(stage.kept().len() <= 1 && stage.archive.join(&needed).exists()))
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", stage.kept(), stage.stderr()));
    stage.kill();
    let (late, hidden) = (stage.archive.join(&needed), stage.dir.path().join("hidden"));
    fs::rename(&late, &hidden).unwrap();
    stage.start("");
    stage.subscriber.sql(DB, enable).unwrap();
    wait_for("the subscriber to be told", BOUND, || {
        Ok(stage.subscriber.log().contains(&format!("segment {needed}, which has")))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", stage.subscriber.log(), stage.stderr()));
    fs::rename(&hidden, &late).unwrap();
    stage.level();
    stage.stop();
}

/// A publisher, a standby that archives into the same place, and a subscriber that is level. The
/// standby is down.
fn beside_a_standby(more: &str) -> (Stage, Cluster) {
    let major = Major::in_turn()[0];
    let mut stage = Stage::new(major, PLAIN, |builder| builder);
    stage.stop();
    let mut standby = stage.publisher.standby("standby").unwrap();
    let source = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname={DB} target_session_attrs=read-write",
        stage.publisher.port(),
        standby.port()
    );
    stage.config = configure(stage.dir.path(), &source, stage.port);
    stage.start(more);
    stage.level();
    // It confirms nothing that the standby lacks.
    stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s DISABLE").unwrap();
    let written = stage.publisher.one(DB, "SELECT pg_current_wal_flush_lsn()");
    let sql = format!("SELECT coalesce(pg_last_wal_receive_lsn(), '0/0') >= '{written}'");
    wait_for("the standby to have everything", BOUND, || Ok(standby.one(DB, &sql) == "t")).unwrap();
    standby.stop(StopMode::Fast).unwrap();
    (stage, standby)
}

impl Stage {
    /// The publisher goes, and the standby takes its place.
    fn fail_over(&mut self, standby: Cluster) {
        self.publisher.kill9();
        self.publisher = standby;
        self.publisher.start_again().unwrap();
        self.publisher.sql(DB, "SELECT pg_promote()").unwrap();
        wait_for("the promotion", BOUND, || Ok(self.publisher.one(DB, "SELECT pg_is_in_recovery()") == "f"))
            .unwrap();
    }

    /// Writes segments that the standby never gets.
    fn goes_on_alone(&self) {
        self.publisher.sql(DB, "INSERT INTO t (v) VALUES ('only here')").unwrap();
        publish(&self.publisher, 3);
        self.publisher.sql(DB, "SELECT pg_logical_emit_message(false, 'x', 'the last')").unwrap();
        let last = self.publisher.one(DB, "SELECT pg_walfile_name(pg_switch_wal())");
        wait_for("all to be archived", BOUND, || Ok(self.archive.join(&last).exists())).unwrap();
    }

    fn has_nothing_of_before(&self) {
        assert_same_rows(&self.publisher, &self.subscriber, DB, "t");
        assert_eq!(self.subscriber.one(DB, "SELECT count(*) FROM t WHERE v LIKE 'only here%'"), "0");
    }
}

/// The archive has more of the old timeline than the new one came from.
#[test]
fn l2_what_is_behind_a_fork_is_not_taken_from_the_archive() {
    let (mut stage, mut standby) = beside_a_standby("");
    // Some segments that both have, and the relay has not.
    stage.stop();
    standby.start_again().unwrap();
    let needed = stage.publisher.one(DB, "SELECT pg_walfile_name(pg_current_wal_lsn())");
    publish(&stage.publisher, 2);
    stage.publisher.sql(DB, "INSERT INTO t (v) VALUES ('both have it')").unwrap();
    let written = stage.publisher.one(DB, "SELECT pg_current_wal_flush_lsn()");
    let sql = format!("SELECT coalesce(pg_last_wal_replay_lsn(), '0/0') >= '{written}'");
    wait_for("the standby to have everything", BOUND, || Ok(standby.one(DB, &sql) == "t")).unwrap();
    standby.stop(StopMode::Fast).unwrap();
    stage.goes_on_alone();
    stage.fail_over(standby);
    publish(&stage.publisher, 3);
    stage.is_removed(&needed);
    stage.start("");
    stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
    stage.level();
    stage.has_nothing_of_before();
    assert!(stage.stderr().contains("reading it up to"), "{}", stage.stderr());
    assert!(names(&stage.dir.path().join("data/wal")).contains(&"00000002.history".to_owned()));
    stage.stop();
}

/// The relay has received more than the standby has, and keeps only the end of it.
#[test]
fn l2_a_fork_before_all_wal_that_is_kept_is_followed() {
    let (mut stage, standby) = beside_a_standby("wal_keep_size = '0'\n");
    let needed = stage.publisher.one(DB, "SELECT pg_walfile_name(pg_current_wal_lsn())");
    stage.goes_on_alone();
    let is_away = |stage: &Stage| stage.kept().first().is_none_or(|oldest| *oldest > needed);
    wait_for("WAL to go", BOUND, || Ok(is_away(&stage))).unwrap();
    stage.fail_over(standby);
    stage.waits_for("the relay takes it back");
    stage.subscriber.sql(DB, "ALTER SUBSCRIPTION s ENABLE").unwrap();
    stage.level();
    stage.has_nothing_of_before();
    stage.stop();
}
