//! WAL that the source has removed comes from an archive.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use testkit::{Builder, wait_for};

use super::ONE;
use crate::support::{BOUND, Scenario, scenario_alone};

/// How long a process is not scheduled.
const STANDS_STILL: Duration = Duration::from_secs(2);

/// A directory that the source's server, another user, may write to.
fn archive() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("pgsluice-archive-").tempdir().unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all).unwrap();
    dir
}

/// Writes until the slot has lost WAL.
fn lose_wal(s: &Scenario) {
    let lost = format!(
        "SELECT coalesce(bool_or(wal_status = 'lost'), false) FROM pg_replication_slots WHERE slot_name = '{}'",
        s.slot(0)
    );
    wait_for("the slot to lose WAL", BOUND, || {
        s.source("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series((SELECT max(id) FROM t) + 1, (SELECT max(id) FROM t) + 1000) i");
        s.source("SELECT pg_switch_wal()");
        s.source("CHECKPOINT");
        Ok(s.source_one(&lost) == "t")
    })
    .unwrap();
}

/// Starts pgsluice, which may read what the slot has lost from `archive`.
fn run_beside(archive: &Path, s: &mut Scenario) {
    s.run_with(|command| {
        command.env("PGSLUICE_WAL_ARCHIVE", archive).env("PGSLUICE_WAL_STREAM", "on");
    });
}

#[test]
fn what_the_source_has_removed_comes_from_its_archive() {
    let dir = archive();
    let place = dir.path().to_str().unwrap();
    scenario_alone(
        ONE,
        |source| archiving(source, place),
        |target| target,
        |s| {
            let inode = std::fs::metadata(s.pair().source.data_dir().join("PG_VERSION")).unwrap().ino();
            let own = dir.path().join(inode.to_string());
            s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
            s.source("INSERT INTO t VALUES (0)");
            s.publish("FOR TABLE t, mark");
            s.follow();
            lost_while_it_was_stopped(s, &own);
            lost_while_it_runs(s);
            late_segments_are_waited_for(s, &own);
            lost_by_the_archive_too(s, &own);
        },
    );
}

/// A source that keeps little WAL for its slots, and has a directory for each cluster below
/// `place`.
fn archiving(source: Builder, place: &str) -> Builder {
    let own = format!("d={place}/$(stat -c %%i PG_VERSION) && mkdir -p $d");
    source
        .setting("archive_mode", "on")
        .setting("archive_command", &format!("{own} && cp %p $d/new && mv $d/new $d/%f"))
        .setting("max_slot_wal_keep_size", "16MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB")
}

/// Without the archive it refuses to start; with it, it goes on.
fn lost_while_it_was_stopped(s: &mut Scenario, archive: &Path) {
    s.stop();
    lose_wal(s);
    s.source("UPDATE t SET v = 'changed' WHERE id % 7 = 0");
    let output = s.call(0, &["run", "--publication", "p", "--source-mode", "wal"]);
    assert!(output.status.code() == Some(1) && output.stderr.contains("has lost WAL"), "{output:?}");
    run_beside(archive, s);
    s.catch_up();
    s.same();
    assert!(s.log(0).contains("reading WAL from"), "{}", s.log(0));
}

/// The process is not scheduled for a while, and its slot loses WAL meanwhile.
fn lost_while_it_runs(s: &mut Scenario) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(s.sluice(0).pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // The checkpoint below takes the slot away from its walsender, which says so and waits until
    // that was heard: so it cannot return before the process goes on. How long it stands still is
    // what is tested.
    let later = std::thread::spawn(move || {
        std::thread::sleep(STANDS_STILL);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    });
    lose_wal(s);
    later.join().unwrap();
    s.catch_up();
    s.same();
    assert_eq!(s.log(0).matches("reading WAL from").count(), 2, "{}", s.log(0));
}

/// The last segment but one comes late: `status` names it until it is there.
fn late_segments_are_waited_for(s: &mut Scenario, archive: &Path) {
    s.stop();
    lose_wal(s);
    let mut segments: Vec<_> = std::fs::read_dir(archive).unwrap().map(|file| file.unwrap().path()).collect();
    segments.sort();
    let late = &segments[segments.len() - 2];
    let hidden = late.with_extension("hidden");
    std::fs::rename(late, &hidden).unwrap();
    run_beside(archive, s);
    let awaited = |s: &Scenario| s.status(0)["decoded"]["awaited"].clone();
    let name = late.file_name().unwrap().to_str().unwrap();
    let waits = || Ok(awaited(s).as_str().is_some_and(|awaited| awaited.contains(name)));
    wait_for("the segment to be named", BOUND, waits).unwrap();
    std::fs::rename(&hidden, late).unwrap();
    s.catch_up();
    s.same();
    assert!(awaited(s).is_null());
}

fn lost_by_the_archive_too(s: &mut Scenario, archive: &Path) {
    s.stop();
    lose_wal(s);
    for file in std::fs::read_dir(archive).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    s.source("SELECT pg_switch_wal()");
    run_beside(archive, s);
    s.wait_for_log("cannot read the archive of the source's WAL");
}
