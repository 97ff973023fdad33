//! `pgsluice catalog export` and `pgsluice decode` on the WAL of real servers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{Cluster, Major};

const DB: &str = "postgres";

fn pgsluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pgsluice")).env_clear().args(args).output().unwrap()
}

#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[track_caller]
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Without LSN and transaction, and times of commits.
fn what(lines: &[String]) -> Vec<String> {
    let line = |line: &String| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[2] {
            "BEGIN" | "COMMIT" => words[2].to_owned(),
            kind => format!("{kind} {}", words[3]),
        }
    };
    lines.iter().map(line).collect()
}

struct Archive {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl Archive {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Copies the segments that are complete and the one that is written to.
    fn copy(&self, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(self.cluster.data_dir().join("pg_wal")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
        }
    }
}

fn archive(major: Major) -> Archive {
    let cluster = Cluster::builder(major).setting("wal_keep_size", "1GB").setting("autovacuum", "off");
    let archive = Archive { cluster: cluster.start().unwrap(), dir: tempfile::tempdir().unwrap() };
    for sql in [
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE \"Odd\" (id int PRIMARY KEY, c regclass)",
        "INSERT INTO t VALUES (1, 'before the look', NULL)",
        "CREATE PUBLICATION p FOR TABLE t",
    ] {
        archive.cluster.sql(DB, sql).unwrap();
    }
    archive
}

#[test]
fn ranges_of_wal_are_printed_without_a_slot() {
    for major in Major::under_test() {
        let archive = archive(major);
        let (file, wal) = (archive.text("catalogs"), archive.text("wal"));
        let url = archive.cluster.url(DB);
        let said = lines(&pgsluice(&["catalog", "export", "--source", &url, "--file", &file]));
        assert!(
            said[0].contains("catalogs of database postgres") && said[0].contains("needs WAL from"),
            "{said:?}"
        );
        for sql in [
            "INSERT INTO t VALUES (2, 'it''s', repeat('b', 4000))",
            "UPDATE t SET id = 3, v = NULL WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
            "SELECT pg_switch_wal()",
            "INSERT INTO \"Odd\" VALUES (1, 't')",
            "TRUNCATE t",
            "SELECT pg_logical_emit_message(true, 'a', 'message')",
        ] {
            archive.cluster.sql(DB, sql).unwrap();
        }
        archive.copy(&archive.path("wal"));
        let decode =
            |more: &[&str]| pgsluice(&[&["decode", "--wal", &wal, "--catalog", &file], more].concat());
        let expected = [
            "BEGIN",
            &format!("INSERT public.t id='2' v='it''s' big='{}'", "b".repeat(4000)),
            "COMMIT",
            "BEGIN",
            "UPDATE public.t key: id='2' new: id='3' v=NULL big=(unchanged)",
            "COMMIT",
            "BEGIN",
            "DELETE public.t key: id='1'",
            "COMMIT",
            "BEGIN",
            "TRUNCATE public.t",
            "COMMIT",
            "BEGIN",
            "MESSAGE 'a' 'message'",
            "COMMIT",
        ];
        let published = decode(&["--publication", "p"]);
        assert_eq!(what(&lines(&published)), expected);
        let summary = String::from_utf8_lossy(&published.stderr).into_owned();
        assert!(summary.contains("3 rows in 5 transactions"), "{summary}");
        if major.number() >= 18 {
            let nothing = decode(&["--publication", "nowhere"]);
            // Messages are of no table.
            assert_eq!(what(&lines(&nothing)), expected[12..]);
            let said = String::from_utf8_lossy(&nothing.stderr).into_owned();
            assert!(said.contains("publication \"nowhere\" does not exist"), "{said}");
        }
        // Every table: one of them cannot be rendered.
        let error = failure(&decode(&[]));
        assert!(error.contains("table public.Odd cannot be decoded because of its column \"c\""), "{error}");
        let all = decode(&["--skip-refused"]);
        assert_eq!(what(&lines(&all)), expected);
        assert!(String::from_utf8_lossy(&all.stderr).contains("left out: table public.Odd"));
        // From the second transaction to the third: a commit is named by where its record ends.
        let all = lines(&published);
        let lsn = |line: &String| line.split(' ').next().unwrap().to_owned();
        let (from, to) = (lsn(&all[2]), lsn(&all[8]));
        let some = lines(&decode(&["--publication", "p", "--from", &from, "--to", &to]));
        assert_eq!(some, all[3..9]);
        let json = lines(&decode(&["--publication", "p", "--format", "json", "--from", &from, "--to", &to]));
        let update: serde_json::Value = serde_json::from_str(&json[1]).unwrap();
        assert_eq!(update["key"], serde_json::json!({"id": "2"}));
        let raw = decode(&["--publication", "p", "--format", "pgoutput"]);
        assert!(raw.status.success() && raw.stdout[16] == b'B');
        // Without the file, decode reads the catalogs now, and leaves out earlier changes with a
        // message.
        let late = pgsluice(&["decode", "--wal", &wal, "--source", &url, "--publication", "p"]);
        let said = String::from_utf8_lossy(&late.stderr).into_owned();
        assert!(late.stdout.is_empty(), "{said}");
    }
}

/// The kind: what was left out is told by what was met, not by what there is in the end.
#[test]
fn tables_that_are_gone_by_the_end_are_named_among_those_left_out() {
    for major in Major::under_test() {
        let archive = archive(major);
        let (file, wal) = (archive.text("catalogs"), archive.text("wal"));
        let url = archive.cluster.url(DB);
        lines(&pgsluice(&["catalog", "export", "--source", &url, "--file", &file]));
        for sql in [
            "CREATE TABLE gone (c regclass)",
            "INSERT INTO gone VALUES ('t')",
            "DROP TABLE gone",
            // The same within one transaction, within one that did not commit, and of a table that
            // was repaired.
            "BEGIN; CREATE TABLE brief (c regclass); INSERT INTO brief VALUES ('t'); DROP TABLE brief; COMMIT",
            "BEGIN; CREATE TABLE never (c regclass); INSERT INTO never VALUES ('t'); ROLLBACK",
            "INSERT INTO \"Odd\" VALUES (1, 't')",
            "ALTER TABLE \"Odd\" DROP COLUMN c",
            "INSERT INTO \"Odd\" VALUES (2)",
            "CREATE TABLE unused (c regclass)",
        ] {
            archive.cluster.sql(DB, sql).unwrap();
        }
        archive.copy(&archive.path("wal"));
        let output = pgsluice(&["decode", "--wal", &wal, "--catalog", &file, "--skip-refused"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(what(&lines(&output)).contains(&"INSERT public.\"Odd\" id='2'".to_owned()), "{output:?}");
        let mut left_out: Vec<&str> =
            told.lines().filter_map(|line| line.strip_prefix("pgsluice: left out: table public.")).collect();
        left_out.sort_unstable();
        let names: Vec<&str> = left_out.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["Odd", "brief", "gone", "unused"], "{told}");
    }
}

#[test]
fn archives_are_read_as_they_are_and_what_they_lack_is_named() {
    let major = *Major::under_test().last().unwrap();
    let archive = archive(major);
    let (file, wal) = (archive.text("catalogs"), archive.text("wal"));
    let url = archive.cluster.url(DB);
    lines(&pgsluice(&["catalog", "export", "--source", &url, "--file", &file]));
    let mut segments = Vec::new();
    for number in 0..4 {
        let segment = "SELECT pg_walfile_name(pg_current_wal_lsn())";
        segments.push(archive.cluster.one(DB, segment));
        archive.cluster.sql(DB, &format!("INSERT INTO t VALUES (1{number}, 'v', NULL)")).unwrap();
        archive.cluster.sql(DB, "SELECT pg_switch_wal()").unwrap();
    }
    archive.copy(&archive.path("wal"));
    let decode = |wal: &[&str], more: &[&str]| {
        pgsluice(&[&["decode", "--catalog", &file, "--publication", "p", "--wal"], wal, more].concat())
    };
    let plain = lines(&decode(&[&wal], &[]));
    assert_eq!(plain.iter().filter(|line| line.contains("INSERT")).count(), 4);
    // As an archive may have it, named file by file.
    let run = |program: &str, args: &[&str]| Command::new(program).args(args).output().unwrap();
    let path = |number: usize| archive.path("wal").join(&segments[number]).to_str().unwrap().to_owned();
    assert!(run("gzip", &[&path(1)]).status.success());
    assert_eq!(lines(&decode(&[&wal], &[])), plain);
    let named: Vec<String> =
        (0..4).map(|number| path(number) + if number == 1 { ".gz" } else { "" }).collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    assert_eq!(lines(&decode(&named, &[])), plain);
    // Half of it, and a hole.
    let first = lines(&decode(&named[..2], &[]));
    assert_eq!(first, plain[..first.len()]);
    assert_eq!(first.iter().filter(|line| line.contains("INSERT")).count(), 2);
    let error = failure(&decode(&named[..2], &["--to", "FF/0"]));
    assert!(error.contains("before FF/0 (--to)"), "{error}");
    let error = failure(&decode(&[named[0], named[1], named[3]], &[]));
    assert!(error.contains(&format!("segment {}", segments[2])), "{error}");
    let error = failure(&decode(&named[1..], &[]));
    assert!(
        error.contains(&format!("segment {}", segments[0])) && error.contains("where the catalogs begin"),
        "{error}"
    );
    let output = decode(&named, &["--database", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    // A bit of the first record is not what was written; behind a switch nothing would be read.
    let mut bytes = std::fs::read(path(2)).unwrap();
    bytes[70] ^= 1;
    std::fs::write(path(2), bytes).unwrap();
    let error = failure(&decode(&named, &[]));
    assert!(error.contains("WAL record") || error.contains("WAL page"), "{error}");
}
