//! A crash in the middle of a record, and the timeline that a promotion starts.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::Lsn;
use testkit::{Cluster, Major, StopMode, wait_for};
use wal::{Error, Reader, Rmgr, Start};

use crate::server::{bytes, position};

/// Resource manager, info and LSN of each record.
type Seen = Vec<(Rmgr, u8, Lsn)>;

const OVERWRITE_CONTRECORD: (Rmgr, u8) = (Rmgr::Xlog, 0xD0);
const CHECKPOINT_SHUTDOWN: (Rmgr, u8) = (Rmgr::Xlog, 0x00);
const END_OF_RECOVERY: (Rmgr, u8) = (Rmgr::Xlog, 0x90);

fn read(bytes: &[u8], start: Lsn) -> (Seen, Result<Lsn, Error>, Reader) {
    let mut reader = Reader::new(Start::at(start)).unwrap();
    let mut seen = Seen::new();
    let mut records = reader.push(reader.position(), bytes).unwrap();
    let error = loop {
        match records.poll() {
            Ok(Some(record)) => seen.push((record.rmgr(), record.info() & 0xf0, record.lsn())),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let end = error.map_or_else(|| reader.finish(), Err);
    (seen, end, reader)
}

fn page_start(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.as_u64() / 8192 * 8192)
}

/// The first record of this kind that starts at `from` or later.
fn has(seen: &Seen, kind: (Rmgr, u8), from: Lsn) -> Option<Lsn> {
    seen.iter().find(|(rmgr, info, lsn)| (*rmgr, *info) == kind && *lsn >= from).map(|(_, _, lsn)| *lsn)
}

/// A long record without a commit goes to disk page by page, as its buffers are needed. If the
/// server is killed then, it finds the start of a record without its end, and says so where the
/// rest would have been.
#[test]
fn a_record_that_a_crash_cut_off_is_passed_over_because_the_wal_says_so() {
    for major in Major::under_test() {
        let mut cluster = Cluster::builder(major).setting("wal_buffers", "64kB").start().unwrap();
        let from = page_start(position(&cluster));
        // One attempt is enough, unless something else flushed the record's end at that moment.
        let cut_off = (0..5).find_map(|_| {
            let before = position(&cluster);
            let emit = "SELECT pg_logical_emit_message(false, 'lost', repeat('x', 2000000))";
            cluster.sql("postgres", emit).unwrap();
            cluster.kill9();
            cluster.start_again().unwrap();
            let to = position(&cluster);
            let (seen, end, _) = read(&bytes(&cluster, from, to, 1), from);
            assert_eq!(end.unwrap(), to, "{major}");
            has(&seen, OVERWRITE_CONTRECORD, before).map(|at| (at, to))
        });
        let (at, to) = cut_off.unwrap_or_else(|| panic!("{major}: no record was cut off"));
        // The page after the one where the lost record starts is not the expected one. Without the
        // record that names the lost one, it is an error.
        let mut wrong = bytes(&cluster, from, to, 1);
        let page = at.bytes_since(from) as usize / 8192 * 8192;
        wrong[page + 2] &= !0x08;
        let error = read(&wrong, from).1.unwrap_err();
        assert_eq!(error.lsn(), page_start(at), "{major}: {error}");
        assert!(error.to_string().contains("bytes are left"), "{major}: {error}");
    }
}

/// An older copy of a server recovers WAL up to a position and starts a new timeline there, while
/// the old server goes on.
#[test]
fn a_timeline_is_followed_where_a_record_starts_it_and_nowhere_else() {
    // Recovery that ends by itself writes one of the records, a promotion the other.
    let ways = [("promote", CHECKPOINT_SHUTDOWN), ("pause", END_OF_RECOVERY)];
    for (major, (action, first)) in
        Major::under_test().into_iter().flat_map(|major| ways.map(|way| (major, way)))
    {
        let mut cluster = Cluster::start(major).unwrap();
        cluster.sql("postgres", "CREATE TABLE t (a int)").unwrap();
        cluster.stop(StopMode::Fast).unwrap();
        let copy = cluster.data_dir().with_file_name("copy");
        run("cp", &["-a".as_ref(), cluster.data_dir().as_ref(), copy.as_ref()]);
        cluster.start_again().unwrap();
        let from = page_start(position(&cluster));
        cluster.sql("postgres", "INSERT INTO t SELECT generate_series(1, 100)").unwrap();
        let target = position(&cluster);
        cluster.sql("postgres", "INSERT INTO t SELECT generate_series(1, 2000)").unwrap();
        let old_end = position(&cluster);
        let old = bytes(&cluster, from, old_end, 1);
        cluster.stop(StopMode::Immediate).unwrap();
        recover(&mut cluster, &copy, target, action);
        cluster.sql("postgres", "INSERT INTO t SELECT generate_series(1, 2000)").unwrap();
        let to = position(&cluster);

        let (seen, end, reader) = read(&old, from);
        assert_eq!((end.unwrap(), reader.timeline()), (old_end, Some(1)), "{major}");
        assert_eq!(has(&seen, first, target), None);

        let new = bytes(&cluster, from, to, 2);
        let (seen, end, reader) = read(&new, from);
        assert_eq!((end.unwrap(), reader.timeline()), (to, Some(2)), "{major}");
        let switch =
            has(&seen, first, target).unwrap_or_else(|| panic!("{major}: no end of recovery ({action})"));
        assert!(switch >= target && switch < old_end, "{major}: {switch}");

        // The old timeline's page with the switch on it, and its records behind. Then the new
        // timeline's pages.
        let page = (switch.bytes_since(from) as usize / 8192 + 1) * 8192;
        let forked = [&old[..page], &new[page..]].concat();
        // The error depends on where the last record ends: it is in the next page, or in the record
        // that should start there.
        let error = read(&forked, from).1.unwrap_err();
        assert!(error.lsn() >= switch && !error.is_incomplete(), "{major}: {error}");
        // Back to the old timeline.
        let back = [&new[..page + 8192], &old[page + 8192..]].concat();
        let words = read(&back, from).1.unwrap_err().to_string();
        assert!(words.contains("is of timeline 1, behind one of 2"), "{words}");
    }
}

/// Replaces the server by the older copy, with the newer WAL, and starts it as a recovery up to
/// `target`.
fn recover(cluster: &mut Cluster, copy: &Path, target: Lsn, action: &str) {
    let data = cluster.data_dir();
    run("rm", &["-r".as_ref(), copy.join("pg_wal").as_ref()]);
    run("mv", &[data.join("pg_wal").as_ref(), copy.as_ref()]);
    run("rm", &["-r".as_ref(), data.as_ref()]);
    run("mv", &[copy.as_ref(), data.as_ref()]);
    let settings = format!(
        "restore_command = 'false'\nrecovery_target_lsn = '{target}'\nrecovery_target_action = '{action}'\n"
    );
    let path = data.join("postgresql.auto.conf");
    let conf = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, conf + &settings).unwrap();
    std::fs::write(data.join("recovery.signal"), "").unwrap();
    cluster.start_again().unwrap();
    if action == "pause" {
        let paused = || Ok(cluster.one("postgres", "SELECT pg_get_wal_replay_pause_state()") == "paused");
        wait_for("recovery to reach its target", Duration::from_secs(60), paused).unwrap();
        cluster.sql("postgres", "SELECT pg_promote()").unwrap();
    }
    let recovered = || Ok(cluster.one("postgres", "SELECT pg_is_in_recovery()") == "f");
    wait_for("the end of recovery", Duration::from_secs(60), recovered).unwrap();
}

fn run(program: &str, arguments: &[&OsStr]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program}");
}
