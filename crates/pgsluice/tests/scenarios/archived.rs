//! `source_mode = wal` with `wal_stream = off`: no slot, no stream, and all WAL from a directory
//! that grows. The other scenarios prove that the rows are the same as with a stream, if
//! `PGSLUICE_TEST_SOURCE_MODE=archive` is set.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::{Archive, Builder, StopMode, wait_for};

use crate::support::{BOUND, DECODED, Scenario, scenario_alone};

const ONE: &[&[&str]] = &[DECODED];
const OFTEN: &[&[&str]] = &[&["--source-mode", "wal", "--refresh-interval", "200ms"]];

/// Keeps the WAL that is not in the archive yet, and the WAL that a promoted standby has no slot
/// for. Nothing else keeps it.
pub(crate) fn keeps(source: Builder) -> Builder {
    source.setting("wal_keep_size", "1GB")
}

/// Has everybody follow `archive`.
pub(crate) fn from(s: &mut Scenario, archive: &Path) {
    s.run_with(|command| {
        command.env("PGSLUICE_WAL_ARCHIVE", archive).env("PGSLUICE_WAL_STREAM", "off");
    });
}

/// What the source has of ours: slots, and walsenders that stream.
fn held(s: &Scenario) -> String {
    s.source_one(
        "SELECT (SELECT count(*) FROM pg_replication_slots) || ' ' || \
                (SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE 'pgsluice%')",
    )
}

/// Ended with 1, it said this.
fn refused(s: &Scenario, archive: &Path, said: &str) {
    let mut command = s.command(0, &["run", "--publication", "p", "--source-mode", "wal"]);
    command.env("PGSLUICE_WAL_ARCHIVE", archive).env("PGSLUICE_WAL_STREAM", "off");
    let mut run = testkit::Sluice::start(command).unwrap();
    let ended = run.wait(BOUND).unwrap().expect("an end");
    assert!(ended.code() == Some(1) && run.stderr().contains(said), "{said}: {}", run.stderr());
}

fn write(s: &Scenario, rows: u32) {
    s.source(&format!(
        "INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series((SELECT max(id) FROM t) + 1, (SELECT max(id) FROM t) + {rows}) i"
    ));
    s.source("UPDATE t SET v = v || 'y' WHERE id % 97 = 0; DELETE FROM t WHERE id % 89 = 0 AND id > 0");
}

/// The directory's segments, the oldest first.
fn segments(archive: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(archive).unwrap().map(|file| file.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn without_a_slot_all_comes_from_the_archive() {
    scenario_alone(
        ONE,
        keeps,
        |target| target,
        |s| {
            let archive = Archive::start(&s.pair().source.data_dir()).unwrap();
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t SELECT i, 'before' FROM generate_series(0, 1000) i");
            s.publish("FOR TABLE t, mark");
            // What cannot be followed.
            refused(s, &s.pair().source.data_dir().join("pg_wal"), "is the pg_wal of a server");
            let other = testkit::Cluster::start(s.pair().source.major()).unwrap();
            let others = Archive::start(&other.data_dir()).unwrap();
            wait_for("another's WAL", BOUND, || Ok(!segments(others.path()).is_empty())).unwrap();
            refused(s, others.path(), "has WAL of the cluster with the system identifier");
            drop((others, other));
            assert_eq!(s.left_behind().iter().filter(|left| left.starts_with("slot")).count(), 0);
            from(s, archive.path());
            s.wait_for_copy();
            s.catch_up();
            s.same();
            assert_eq!(held(s), "0 0");
            // More than a segment at once, with a switch in the middle of one, and a transaction
            // that is open all the time.
            s.source_in("open", "BEGIN; INSERT INTO t VALUES (-1, 'open')");
            for _ in 0..3 {
                write(s, 40_000);
                s.source("SELECT pg_switch_wal()");
            }
            s.catch_up();
            s.same();
            s.kill();
            write(s, 1_000);
            s.source_in("open", "INSERT INTO t VALUES (-2, 'open'); COMMIT");
            from(s, archive.path());
            s.catch_up();
            s.same();
            // The source may be away; its WAL goes on after it in the same directory.
            s.pair_mut().source.restart(StopMode::Immediate).unwrap();
            write(s, 1_000);
            s.catch_up();
            s.same();
            assert_eq!(held(s), "0 0");
            // What is not needed any more may be removed.
            let needed =
                |s: &Scenario| s.status(0)["decoded"]["needed_from_segment"].as_str().map(str::to_owned);
            let oldest = segments(archive.path())[1].file_name().unwrap().to_str().unwrap().to_owned();
            wait_for("WAL that is not needed any more", BOUND, || {
                write(s, 1_000);
                s.source("CHECKPOINT");
                // Between two looks at a condition that has a bound.
                std::thread::sleep(Duration::from_millis(300));
                Ok(needed(s).is_some_and(|needed| needed > oldest))
            })
            .unwrap();
            let needed = needed(s).unwrap();
            assert!(s.call(0, &["status"]).stdout.contains(&format!("on, in {needed}")));
            s.kill();
            let before: Vec<_> = segments(archive.path())
                .into_iter()
                .filter(|file| file.file_name().unwrap() < &*needed)
                .collect();
            assert!(before.len() >= 2, "{before:?}");
            before.iter().for_each(|file| std::fs::remove_file(file).unwrap());
            from(s, archive.path());
            s.catch_up();
            s.same();
            // Once it has what it needs, it lets go of the archive, and takes it up again.
            s.stop();
            write(s, 1_000);
            s.run_with(|command| {
                command.env("PGSLUICE_WAL_ARCHIVE", archive.path());
            });
            s.catch_up();
            s.same();
            assert_eq!(held(s), "1 1");
            s.stop();
            write(s, 1_000);
            from(s, archive.path());
            s.wait_for_log("dropped replication slot");
            s.catch_up();
            s.same();
            assert_eq!(held(s), "0 0");
            s.stop();
            let check = {
                let mut command = s.command(0, &["check", "--publication", "p", "--source-mode", "wal"]);
                command.env("PGSLUICE_WAL_ARCHIVE", archive.path()).env("PGSLUICE_WAL_STREAM", "off");
                let mut check = testkit::Sluice::start(command).unwrap();
                check.wait(BOUND).unwrap().expect("an end");
                check.stdout()
            };
            assert!(check.contains("no slot is made, and no stream begun"), "{check}");
            s.call(0, &["drop"]).expect_success();
            assert_eq!(s.left_behind(), Vec::<String>::new());
        },
    );
}

/// A copy that is under way, and damage.
#[test]
fn a_segment_of_the_archive_counts_as_far_as_its_records_are_whole() {
    scenario_alone(
        ONE,
        keeps,
        |target| target,
        |s| {
            let archive = Archive::start(&s.pair().source.data_dir()).unwrap();
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t VALUES (0, '')");
            s.publish("FOR TABLE t, mark");
            from(s, archive.path());
            s.wait_for_copy();
            s.catch_up();
            let needed = s.status(0)["decoded"]["needed_from_segment"].as_str().unwrap().to_owned();
            s.stop();
            // Records across segments, one of several pieces, switches with little and with much
            // behind them.
            for round in 0..3 {
                write(s, 60_000);
                s.source("SELECT pg_logical_emit_message(false, 'large', repeat('z', 3000000))");
                write(s, if round == 1 { 10_000 } else { 10 });
                s.source("SELECT pg_switch_wal()");
            }
            write(s, 10);
            let whole = || -> Vec<_> {
                segments(archive.path()).into_iter().filter(|file| file.extension().is_none()).collect()
            };
            let last = s.source_one("SELECT pg_walfile_name(pg_switch_wal())");
            write(s, 10);
            wait_for("whole segments", BOUND, || {
                Ok(whole().last().is_some_and(|file| file.ends_with(&last)))
            })
            .unwrap();
            let all = whole();
            let begin = all.iter().position(|file| file.ends_with(&needed)).unwrap();
            assert!(all.len() - begin >= 8, "{needed}, {all:?}");
            let dir = tempfile::Builder::new().prefix("pgsluice-archive-").tempdir().unwrap();
            let to = |from: &Path| dir.path().join(from.file_name().unwrap());
            std::fs::copy(&all[begin], to(&all[begin])).unwrap();
            from(s, dir.path());
            s.wait_for_log("following WAL");
            // In pieces, with a look between any two of them: cut off, with zeros or something else
            // behind, and shorter again.
            let seed = rand::random();
            eprintln!("pieces of seed {seed}");
            let mut rng = StdRng::seed_from_u64(seed);
            for file in &all[begin + 1..] {
                let bytes = std::fs::read(file).unwrap();
                let mut ends: Vec<usize> = (0..6).map(|_| rng.random_range(0..bytes.len())).collect();
                ends.extend([7 * 8192 + 5, 6 << 20]);
                ends[2..].sort_unstable();
                for (number, end) in ends.into_iter().enumerate() {
                    let mut piece = bytes.clone();
                    match number % 3 {
                        0 => piece.truncate(end),
                        1 => piece[end..].fill(0),
                        _ => piece[end..].fill(0xaa),
                    }
                    std::fs::write(to(file), piece).unwrap();
                    // A file that grows in steps, slowly enough to be looked at in between.
                    std::thread::sleep(Duration::from_millis(80));
                }
                std::fs::write(to(file), bytes).unwrap();
            }
            let (name, size) = (all.last().unwrap().file_name().unwrap().to_str().unwrap(), 16_u64 << 20);
            let number = u64::from_str_radix(&name[16..], 16).unwrap();
            wait_for("all of it", BOUND, || Ok(s.applied(0) >= (number + 1) * size)).unwrap();
            s.stop();
            from(s, archive.path());
            s.catch_up();
            s.same();
            // The same damage with others behind it is no copy that is under way.
            s.stop();
            let passed = s.source_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
            let newest = || whole().pop().filter(|file| *file > archive.path().join(&passed));
            for _ in 0..3 {
                write(s, 35_000);
            }
            wait_for("a whole segment more", BOUND, || Ok(newest().is_some())).unwrap();
            let file = newest().unwrap();
            wait_for("one behind it", BOUND, || Ok(segments(archive.path()).last() > Some(&file))).unwrap();
            let good = damage(&file);
            from(s, archive.path());
            let awaited = |s: &Scenario| s.status(0)["decoded"]["awaited"].as_str().map(str::to_owned);
            wait_for("the damage to be told", BOUND, || Ok(awaited(s).is_some())).unwrap();
            std::fs::write(&file, good).unwrap();
            s.catch_up();
            s.same();
            assert_eq!(awaited(s), None);
            // Nobody repairs it.
            s.stop();
            for _ in 0..3 {
                write(s, 35_000);
            }
            let last = || segments(archive.path()).pop();
            let file = archive.path().join(s.source_one("SELECT pg_walfile_name(pg_switch_wal())"));
            write(s, 10);
            wait_for("all of it", BOUND, || {
                Ok(whole().last() >= Some(&file) && last().as_ref() > Some(&file))
            })
            .unwrap();
            let good = damage(&file);
            s.run_with(|command| {
                command.env("PGSLUICE_WAL_ARCHIVE", archive.path()).env("PGSLUICE_WAL_STREAM", "off");
                command.env("PGSLUICE_WAL_RECEIVER_TIMEOUT", "3s");
            });
            let ended = s.ended();
            assert!(ended.iter().all(|(code, said)| *code == 1 && said.contains("WAL")), "{ended:?}");
            std::fs::write(&file, good).unwrap();
            from(s, archive.path());
            s.catch_up();
            s.same();
        },
    );
}

/// Alters a record that begins a page or two into the file; what it was like.
fn damage(segment: &Path) -> Vec<u8> {
    let good = std::fs::read(segment).unwrap();
    let mut damaged = good.clone();
    // More than what is between two records, which no checksum is of.
    damaged[12_000..12_016].iter_mut().for_each(|byte| *byte ^= 0x40);
    std::fs::write(segment, damaged).unwrap();
    good
}

/// A program that does not outlive this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `pg_receivewal` and its own files, plain and compressed; it is of one major here.
#[test]
fn what_pg_receivewal_writes_is_followed() {
    let program = Path::new("/usr/lib/postgresql/15/bin/pg_receivewal");
    scenario_alone(
        OFTEN,
        keeps,
        |target| target,
        |s| {
            if s.major() != 15 || !program.exists() {
                eprintln!("skipped: {} is not of {}", program.display(), s.major());
                return;
            }
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t VALUES (0, '')");
            s.publish("FOR TABLE t, mark");
            for compress in
                [&[][..], &["--compress=gzip:1", "--synchronous"], &["--compress=lz4", "--synchronous"]]
            {
                let dir = tempfile::Builder::new().prefix("pgsluice-archive-").tempdir().unwrap();
                let url = s.source_url();
                let mut command = Command::new(program);
                command.args(["--dbname", &url, "--no-loop", "--directory"]).arg(dir.path()).args(compress);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                let receiver = Killed(command.spawn().unwrap());
                wait_for("pg_receivewal", BOUND, || Ok(!segments(dir.path()).is_empty())).unwrap();
                s.source("CHECKPOINT");
                from(s, dir.path());
                s.wait_for_copy();
                write(s, 40_000);
                s.catch_up();
                s.same();
                write(s, 10);
                s.catch_up();
                s.same();
                assert_eq!(held(s), "0 0");
                s.stop();
                drop(receiver);
                s.call(0, &["drop"]).expect_success();
                s.target("TRUNCATE t, mark");
            }
        },
    );
}
