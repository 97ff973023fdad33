//! `cargo x fuzz`: libFuzzer over everything that reads bytes from outside, from the recorded
//! streams.
//!
//! Needs the nightly toolchain and a C++ compiler, and nothing else: the flags are those of
//! cargo-fuzz, which works on `fuzz/` as well. What it finds stays in `fuzz/artifacts`, what it
//! learns in `fuzz/corpus`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::succeeds;
use crate::corpus;

#[path = "../../crates/proto/tests/clients/seeds.rs"]
mod seeds;

const TARGETS: [&str; 14] = [
    "frames",
    "pgoutput",
    "tuples",
    "transactions",
    "conninfo",
    "store",
    "wal",
    "records",
    "values",
    "catalog",
    "startup",
    "command",
    "scram",
    "statements",
];

/// Messages of a client. Some of them name a view that the relay has.
const STATEMENTS: [&[(u8, &[u8])]; 3] = [
    &[(b'Q', b"SELECT * FROM pg_replication_slots\0"), (b'X', b"")],
    &[
        (b'P', b"s\0TABLE pg_catalog.pg_stat_replication\0\0\0"),
        (b'S', b""),
        (b'B', b"\0s\0\0\0\0\0\0\0"),
        (b'C', b"Ss\0"),
        (b'S', b""),
    ],
    &[
        (b'Q', b"COPY t FROM STDIN\0"),
        (b'd', b"row"),
        (b'c', b""),
        (b'Q', b"WITH a AS (SELECT 1) SELECT $$y$$, \"slot_name\" FROM a, pg_replication_slots; -- \0"),
    ],
];

/// Coverage for libFuzzer, and the address sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";

/// Each of `targets` (all, if there is none) for `seconds`; whether none found anything.
pub(crate) fn run(targets: &[String], seconds: u64) -> Result<bool> {
    let targets: Vec<&str> =
        if targets.is_empty() { TARGETS.to_vec() } else { targets.iter().map(String::as_str).collect() };
    for target in &targets {
        ensure!(TARGETS.contains(target), "{target} is none of {}", TARGETS.join(", "));
    }
    let fuzz = testkit::workspace_dir().join("fuzz");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = Command::new("rustup");
    build.args(["run", "nightly", "cargo", "build", "--release", "--target", &triple]).current_dir(&fuzz);
    // Our own cargo's settings are not for another toolchain.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
        build.env_remove(name);
    }
    build.env("RUSTFLAGS", FLAGS);
    ensure!(
        succeeds(&mut build)?,
        "building the fuzz targets failed; they need `rustup toolchain install nightly`"
    );
    let mut fine = true;
    for target in targets {
        let seeds = seed(&fuzz, target)?;
        let artifacts = fuzz.join("artifacts").join(target);
        std::fs::create_dir_all(&artifacts)?;
        println!("fuzz {target}: {seconds} s");
        let mut fuzzer = Command::new(fuzz.join("target").join(&triple).join("release").join(target));
        fuzzer
            .arg(seeds)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=20", "-rss_limit_mb=1024"]);
        fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display())).current_dir(&fuzz);
        fine &= succeeds(&mut fuzzer)?;
    }
    Ok(fine)
}

/// The directory in which `target` starts and to which it adds what it learns.
fn seed(fuzz: &Path, target: &str) -> Result<PathBuf> {
    let dir = fuzz.join("corpus").join(target);
    std::fs::create_dir_all(&dir)?;
    let mut number = 0;
    let mut write = |bytes: &[u8]| {
        number += 1;
        std::fs::write(dir.join(format!("seed-{number}")), bytes)
    };
    if target == "conninfo" {
        let path = testkit::workspace_dir().join("crates/client/tests/corpus/conninfo.txt");
        let text = std::fs::read_to_string(path)?;
        text.lines().try_for_each(|line| write(line.as_bytes()))?;
        return Ok(dir);
    }
    let asked = match target {
        "startup" => seeds::startup(),
        "command" => seeds::commands(),
        "scram" => seeds::scram(),
        "statements" => STATEMENTS.map(statements).to_vec(),
        _ => Vec::new(),
    };
    if !asked.is_empty() {
        asked.iter().try_for_each(|bytes| write(bytes))?;
        return Ok(dir);
    }
    if target == "store" {
        // Long enough for walks that fill pages and cross checkpoints; what is in them is the
        // fuzzer's business.
        for length in [200, 5_000, 40_000] {
            let bytes: Vec<u8> =
                (0..length).map(|place: u32| place.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
            write(&bytes)?;
        }
        return Ok(dir);
    }
    if target == "wal" || target == "records" {
        for entry in std::fs::read_dir(corpus::wal::directory())? {
            let bytes = std::fs::read(entry?.path())?;
            match target {
                "wal" => bytes.chunks(FUZZED_WAL).try_for_each(|pages| write(&[&[0], pages].concat()))?,
                _ => records(&bytes, &mut write).context("a recording is broken")?,
            }
        }
        return Ok(dir);
    }
    if target == "catalog" {
        write(&exported_catalog()?)?;
        return Ok(dir);
    }
    if target == "values" {
        // Each kind of type, and a row; the rest it finds by itself.
        (0..64).try_for_each(|which| write(&[which, 0, 0, 0, 0]))?;
        return Ok(dir);
    }
    for entry in std::fs::read_dir(corpus::directory())? {
        let bytes = std::fs::read(entry?.path())?;
        match target {
            "frames" => write(&bytes)?,
            "transactions" => (0..2).try_for_each(|binary| write(&[&[binary], &bytes[..]].concat()))?,
            _ => {
                for message in messages(&bytes).context("a recording is broken")? {
                    match target {
                        "tuples" if message.first() == Some(&b'I') => {
                            write(message.get(6..).unwrap_or_default())?
                        }
                        "tuples" => {}
                        _ => (0..2).try_for_each(|place| write(&[&[place], message].concat()))?,
                    }
                }
            }
        }
    }
    Ok(dir)
}

/// Messages behind a byte that says into how large pieces they are cut.
fn statements(messages: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![7];
    for (tag, body) in messages {
        let length = u32::try_from(body.len() + 4).expect("a short message");
        bytes.push(*tag);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// The catalogs of a server that has just been made, as `pgsluice catalog export` writes them.
fn exported_catalog() -> Result<Vec<u8>> {
    const DB: &str = "postgres";
    let cluster = testkit::Cluster::start(testkit::Major::V18)?;
    cluster.sql(
        DB,
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t WHERE (id > 7)",
    )?;
    let file = cluster.data_dir().join("fuzz.catalog");
    let mut export = Command::new(testkit::pgsluice_path()?);
    export.args(["catalog", "export", "--source", &cluster.url(DB), "--file"]).arg(&file);
    ensure!(succeeds(&mut export)?, "the catalogs could not be exported");
    Ok(std::fs::read(file)?)
}

/// A few pages: records cross from one to the next.
const FUZZED_WAL: usize = 3 * wal::PAGE_SIZE;

/// Each record of a recording, behind a byte for its major: how far it is from 14.
fn records(bytes: &[u8], write: &mut impl FnMut(&[u8]) -> std::io::Result<()>) -> Result<()> {
    let address = bytes.get(8..16).context("it has no page")?;
    let start = base::Lsn::new(u64::from_le_bytes(address.try_into()?));
    let mut reader = wal::Reader::new(wal::Start::at(start))?;
    let mut records = reader.push(start, bytes)?;
    while let Some(record) = records.poll()? {
        let major = u8::try_from(record.layout().major())?;
        write(&[&[major - 14], record.bytes()].concat())?;
    }
    Ok(())
}

/// The messages of pgoutput in a recorded session.
fn messages(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut messages = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        let length = u32::from_be_bytes(rest.first_chunk::<4>().copied()?) as usize;
        let (message, behind) = rest.split_at_checked(length)?;
        // XLogData: a byte and three numbers of eight bytes, behind the length.
        if *tag == b'd' && message.get(4) == Some(&b'w') {
            messages.push(message.get(29..)?);
        }
        bytes = behind;
    }
    Some(messages)
}
