//! Decoding: the server's walsender beside pgsluice, over the same WAL.
//!
//! The walsender sends a slot's messages to a reader that throws them away. pgsluice reads the
//! segments, decodes them, and sends the same messages in the same frames over a socket to such a
//! reader. The measure is the CPU time of the decoding side: the server's processes on one side,
//! the decoding thread on the other. Readers do not count. Both sides must send the same number of
//! messages and bytes, except for announcements, which may be repeated.
//!
//! For memory, both sides decode the same WAL once more. pgsluice then is `pgsluice decode`, a
//! program of its own. Meanwhile the benchmark samples the resident memory, and our spool
//! directory. The walsender's figure leaves out memory that it shares with the server's other
//! processes.

use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use base::{Lsn, PgVersion};
use catalog::{Catalog, Look};
use client::{ConnInfo, Replication, Wire};
use output::{Decoder, Publications};
use source::segments::Segments;
use testkit::{Cluster, Major, process, wait_for};
use txn::DirSpool;
use types::Settings;

use crate::lab::cpu::{Cpu, cpu_between};
use crate::lab::load::{self, Amount, Script, Value};
use crate::lab::measure::{Run, median};
use crate::lab::rig::{DB, NAME};
use crate::report::{Case, Stock};
use crate::{Arm, Options, Say};

/// The sides of each case.
pub(crate) const STOCK: Stock = Stock {
    sides: &[
        "Stock: the walsender with `proto_version 2` and `binary`, and with `streaming` as the case says. It sends to a \
         reader that throws everything away.",
        "That reader reads seldom and much at a time, as pgsluice reads a slot. If it read each message as it comes, each \
         would be a TCP segment of its own, and the walsender would take twice the CPU.",
        "pgsluice: `output::Decoder` over the server's segments. It has the same options, and sends the same messages to \
         the same kind of reader.",
        "All seconds are CPU seconds of the decoding side. Rates are rows of the case per CPU second, whether or not they \
         are sent.",
    ],
    columns: &[
        "\"Equal\": both sent the same number of messages, with the same number of bytes. This leaves out \
                announcements of tables and types, and streamed transactions without a published change.",
    ],
};

/// The cases of the early filter.
pub(crate) const EARLY_FILTER: [&str; 5] = [
    "unpublished-wide",
    "unpublished-wide-streaming",
    "unpublished-narrow",
    "single-insert",
    "single-update",
];

const SLOT: &str = "decode";
const LOOK_MAX: Duration = Duration::from_secs(60);
/// Of one segment, as servers are made.
const SILENCE_MAX: Duration = Duration::from_secs(300);
const TRANSACTIONS: u64 = 1_000_000;
const TRANSACTIONS_QUICK: u64 = 200_000;
const BULK: u64 = 5_000_000;
const BULK_QUICK: u64 = 1_000_000;
const WIDE: u64 = 400_000;
const WIDE_QUICK: u64 = 200_000;

/// `XLogData`: its tag and three 8-byte numbers.
const DATA_TAG: u8 = b'w';
const DATA_HEADER: usize = 25;

/// `logical_decoding_work_mem`, which is also what `pgsluice decode` has.
const WORK_MEM_MB: u64 = 64;
/// WAL to decode where instructions are counted, which takes fifty times as long.
const COUNTED_BYTES: u64 = 64 << 20;
/// Between two looks at a program's memory.
const LOOK: Duration = Duration::from_millis(2);

/// What is written, and what of it is published.
struct Job {
    case: &'static str,
    what: String,
    schema: &'static str,
    publication: &'static str,
    work: Work,
    /// Rows that are written.
    rows: u64,
    streaming: bool,
    /// `logical_decoding_work_mem` of both.
    work_mem_mb: u64,
    /// 0: there is none but the rate at which WAL is read.
    goal: f64,
    /// GB of WAL per CPU second.
    rate_goal: Option<f64>,
    /// Everything is published and comes out as it is read, so the cost of the filter is counted.
    filter_cost: bool,
}

enum Work {
    Script(Script, u64),
    Sql(Vec<String>),
}

const T: &str = "CREATE TABLE t (id integer PRIMARY KEY, n integer, v text); CREATE SEQUENCE ids";

fn jobs(options: &Options) -> Vec<Job> {
    let pick = |quick, full| options.rows.unwrap_or(if options.quick { quick } else { full });
    let (single, bulk) = (pick(TRANSACTIONS_QUICK, TRANSACTIONS), pick(BULK_QUICK, BULK));
    let wide = pick(WIDE_QUICK, WIDE);
    let job = |case, what: String, publication, work, rows, goal| Job {
        case,
        what,
        schema: T,
        publication,
        work,
        rows,
        streaming: false,
        work_mem_mb: WORK_MEM_MB,
        goal,
        rate_goal: None,
        filter_cost: false,
    };
    let fill =
        |rows: u64| format!("INSERT INTO t SELECT i, i, 'value ' || i FROM generate_series(1, {rows}) i");
    let update = "UPDATE t SET n = n + 1".to_owned();
    let published = "FOR TABLE t, mark";
    let insert = Script::one(
        vec![("id", Value::Next("ids"))],
        "INSERT INTO t VALUES (:id, :id, 'a value of some length')",
    );
    let change = Script::one(
        vec![("id", Value::Random { from: 1, to: 100_000 })],
        "UPDATE t SET n = n + 1 WHERE id = :id",
    );
    let in_memory = |job: Job, case| Job { case, work_mem_mb: 4_096, goal: 6.0, ..job };
    let bulk_insert = || {
        let what = format!("one transaction of {bulk} new rows, published");
        job("bulk-insert", what, published, Work::Sql(vec![fill(bulk)]), bulk, 10.0)
    };
    let bulk_update = || {
        let what = format!("{bulk} rows updated in one transaction, published");
        let work = vec!["TRUNCATE t".to_owned(), fill(bulk), "VACUUM t".to_owned(), update.clone()];
        Job { rows: bulk * 2, ..job("bulk-update", what, published, Work::Sql(work), bulk, 10.0) }
    };
    let wide_rows = |case, streaming, goal| Job {
        streaming,
        rate_goal: Some(3.0),
        ..job(
            case,
            format!("one transaction of {wide} rows of 1.9 KB that nobody subscribed to"),
            "FOR TABLE mark",
            Work::Sql(vec![format!(
                "INSERT INTO t SELECT i, i, repeat(md5(i::text), 60) FROM generate_series(1, {wide}) i"
            )]),
            wide,
            goal,
        )
    };
    let churn = |i: u64| {
        format!(
            "DO $$ BEGIN FOR i IN 1..20 LOOP EXECUTE format('CREATE TABLE c{i}_%s (id int PRIMARY KEY, v text)', i); \
             EXECUTE format('ALTER TABLE c{i}_%s ADD w int DEFAULT 7', i); \
             EXECUTE format('CREATE TEMP TABLE x{i}_%s (id int)', i); \
             EXECUTE format('DROP TABLE c{i}_%s, x{i}_%s', i, i); END LOOP; END $$"
        )
    };
    let churns: Vec<String> = (0..if options.quick { 50 } else { 250 }).map(churn).collect();
    vec![
        Job {
            filter_cost: true,
            ..job(
                "single-insert",
                format!("{single} new rows, each a transaction, published"),
                published,
                Work::Script(insert, single),
                single,
                12.0,
            )
        },
        Job {
            filter_cost: true,
            schema: "CREATE TABLE t (id integer PRIMARY KEY, n integer, v text) WITH (fillfactor = 50); \
                     INSERT INTO t SELECT i, 0, 'a value of some length' FROM generate_series(1, 100000) i",
            ..job(
                "single-update",
                format!("{single} updated rows, each a transaction, published"),
                published,
                Work::Script(change, single),
                single,
                12.0,
            )
        },
        bulk_insert(),
        in_memory(bulk_insert(), "bulk-insert-in-memory"),
        bulk_update(),
        in_memory(bulk_update(), "bulk-update-in-memory"),
        job(
            "ddl-churn",
            format!(
                "{} transactions of 20 tables made, altered and dropped, and as many temporary ones",
                churns.len()
            ),
            "FOR TABLE mark",
            Work::Sql(churns.clone()),
            churns.len() as u64 * 40,
            4.0,
        ),
        wide_rows("unpublished-wide", false, 20.0),
        wide_rows("unpublished-wide-streaming", true, 10.0),
        Job {
            schema: "CREATE TABLE t (id integer PRIMARY KEY, n integer, v text); CREATE INDEX ON t (n)",
            rate_goal: Some(1.2),
            ..job(
                "unpublished-narrow",
                format!(
                    "{bulk} narrow rows with an index that nobody subscribed to, in transactions of 100,000"
                ),
                "FOR TABLE mark",
                Work::Sql(
                    (0..bulk.div_ceil(100_000))
                        .map(|part| {
                            let first = part * 100_000;
                            format!(
                                "INSERT INTO t SELECT i, i, 'value' FROM generate_series({} + 1, {}) i",
                                first,
                                (first + 100_000).min(bulk)
                            )
                        })
                        .collect(),
                ),
                bulk,
                0.0,
            )
        },
    ]
}

/// Every case on every major from 15 on.
pub(crate) fn run(options: &Options, say: &Say) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for major in options.majors() {
        for job in jobs(options).iter().filter(|job| options.wants(job.case)) {
            let case = run_job(options, say, major, job);
            cases.push(case.with_context(|| format!("{} on {major}", job.case))?);
        }
    }
    Ok(cases)
}

fn run_job(options: &Options, say: &Say, major: Major, job: &Job) -> Result<Case> {
    let name = format!("decode {}-{major}", job.case);
    let stage = Stage::prepare(major, job)?;
    let version = first(&stage.cluster, "SELECT split_part(version(), ' ', 2)")?;
    let mut case = Case::new(job.case, major, version, job.goal, job.rows);
    case.source = "wal".to_owned();
    case.what = format!("{}; {:.0} MB of WAL", job.what, stage.wal_bytes() / 1e6);
    case.sides = ["walsender", "pgsluice"].map(Into::into);
    say.line(&format!("{name}: {}", case.what));
    for repeat in 0..options.repeats() {
        let mut counts = Vec::new();
        let mut runs = Vec::new();
        for arm in options.order(repeat) {
            let (run, sent) = match arm {
                Arm::Native => stage.walsender(job)?,
                _ => stage.ours(job)?,
            };
            counts.push(sent);
            runs.push((arm, run));
        }
        let equal = counts.iter().all(|sent| *sent == counts[0]);
        if !equal {
            eprintln!("NOT EQUAL: {counts:?}");
        }
        for (arm, run) in runs {
            let run = Run { equal, ..run };
            let wall = run.curve.first().map_or(0.0, |point| point.0);
            let rate = stage.wal_bytes() / run.seconds / 1e9;
            let run = Run { curve: Vec::new(), ..run };
            say.line(&format!(
                "{name}: {}, {wall:.2} s of wall time, {rate:.2} GB of WAL per CPU s",
                case.describe(arm, repeat + 1, options.repeats(), &run)
            ));
            case.add(arm, run);
        }
    }
    let spilled = stage.spilled()? / 1e6 / f64::from(options.repeats());
    case.what = format!("{}; the server spilled {spilled:.0} MB in a run", case.what);
    if !case.ours.is_empty() {
        let rate = stage.wal_bytes() / median(case.ours.iter().map(|run| run.seconds)) / 1e9;
        let goal = job.rate_goal.map_or(String::new(), |goal| format!(" (goal {goal})"));
        case.what = format!("{}; ours read {rate:.2} GB of WAL per CPU second{goal}", case.what);
    }
    if job.work_mem_mb == WORK_MEM_MB {
        let Room { resident, spilled } = stage.room()?;
        case.what = format!(
            "{}; `pgsluice decode` had {:.0} MB resident and {:.0} MB in its spool directory at most, the walsender {:.0} MB \
             resident without shared memory",
            case.what,
            resident as f64 / 1e6,
            spilled as f64 / 1e6,
            stage.walsender_resident(job)? as f64 / 1e6
        );
    }
    if job.filter_cost {
        let [on, off] = [true, false].map(|filter| stage.instructions(filter));
        let (on, off) = (on?, off?);
        case.what = format!(
            "{}; of the first {} MB, with the filter {:.2} % more instructions than without (goal 1 %), {:.2} G (callgrind)",
            case.what,
            COUNTED_BYTES >> 20,
            (on / off - 1.0) * 100.0,
            off / 1e9
        );
        say.line(&format!("{name}: {}", case.what));
    }
    Ok(case)
}

/// What was sent, without announcements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sent {
    messages: u64,
    bytes: u64,
}

impl Sent {
    fn count(&mut self, data: &[u8]) {
        // Each side decides where it cuts a stream, and no case publishes what is streamed.
        if !matches!(data.first(), Some(b'R' | b'Y' | b'S' | b'E' | b'c')) {
            self.messages += 1;
            self.bytes += data.len() as u64;
        }
    }
}

/// What a program took at most, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    resident: u64,
    spilled: u64,
}

/// A server with WAL, a slot before it, and what the catalogs were there.
struct Stage {
    cluster: Cluster,
    runtime: tokio::runtime::Runtime,
    catalog: Catalog,
    /// The same in a file.
    exported: PathBuf,
    start: Lsn,
    end: Lsn,
    /// Transactions that come out.
    commits: u64,
}

impl Stage {
    fn prepare(major: Major, job: &Job) -> Result<Stage> {
        let cluster = crate::lab::rig::settings(1)
            .into_iter()
            .chain([
                ("wal_keep_size", "20GB".to_owned()),
                // The reader sends nothing, and the server is silent itself while it reads its
                // spill files.
                ("wal_sender_timeout", "0".to_owned()),
                ("logical_decoding_work_mem", format!("{}MB", job.work_mem_mb)),
            ])
            .fold(Cluster::builder(major), |builder, (name, value)| builder.setting(name, &value))
            .start()?;
        cluster.sql(DB, &format!("CREATE TABLE mark (id int PRIMARY KEY); {}", job.schema))?;
        cluster.sql(DB, &format!("CREATE PUBLICATION {NAME} {}", job.publication))?;
        cluster.sql(DB, &format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"))?;
        // A thread of its own: the connection of a reader that has enough is ended there.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let info = ConnInfo::parse(&cluster.url(DB))?;
        let catalog = runtime.block_on(async {
            let session = client::connect(&info, "bench", &[]).await?;
            anyhow::Ok(Catalog::look(&[session], &Look { redo: None, wait_max: LOOK_MAX }).await?)
        })?;
        let exported = cluster.data_dir().join("bench.catalog");
        let export = Command::new(testkit::pgsluice_path()?)
            .args(["catalog", "export", "--source", &cluster.url(DB), "--file"])
            .arg(&exported)
            .output()?;
        ensure!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
        let start = lsn(&cluster)?;
        let work = match &job.work {
            Work::Script(script, count) => {
                load::write(cluster.port(), script, Amount::Transactions(*count))?.transactions
            }
            Work::Sql(statements) => {
                for sql in statements {
                    cluster.sql(DB, sql)?;
                }
                statements.len() as u64
            }
        };
        cluster.sql(DB, "INSERT INTO mark VALUES (1)")?;
        let end = lsn(&cluster)?;
        cluster.sql(DB, "CHECKPOINT")?;
        let is_published = job.publication.contains("TABLE t");
        // VACUUM sends nothing.
        let silent = matches!(&job.work, Work::Sql(all) if all.iter().any(|sql| sql.starts_with("VACUUM")));
        let commits = 1 + if is_published { work - u64::from(silent) } else { 0 };
        Ok(Stage { cluster, runtime, catalog, exported, start, end, commits })
    }

    fn wal_bytes(&self) -> f64 {
        (self.end.as_u64() - self.start.as_u64()) as f64
    }

    /// What the slot has spilled.
    fn spilled(&self) -> Result<f64> {
        let sql = format!(
            "SELECT coalesce(sum(spill_bytes), 0) FROM pg_stat_replication_slots WHERE slot_name = '{SLOT}'"
        );
        Ok(first(&self.cluster, &sql)?.parse()?)
    }

    /// Waits until the walsender of the session before has noticed that it is gone.
    fn slot_is_free(&self) -> Result<()> {
        let active = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'");
        wait_for("the slot to be free", SILENCE_MAX, || Ok(first(&self.cluster, &active)? == "f"))
    }

    fn walsender(&self, job: &Job) -> Result<(Run, Sent)> {
        self.slot_is_free()?;
        let started = Instant::now();
        let url = self.cluster.url(DB);
        let reading = || self.runtime.block_on(read(&url, self.commits, job.streaming));
        let (cpu, sent) = cpu_between(&self.cluster, reading);
        Ok((run_of(cpu, started, 0), sent?))
    }

    /// The most memory of its own that the walsender takes for the same WAL.
    fn walsender_resident(&self, job: &Job) -> Result<u64> {
        self.slot_is_free()?;
        let url = self.cluster.url(DB);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| -> Result<u64> {
                let sql = format!(
                    "SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
                );
                let (mut pid, mut resident) = (0, 0);
                while !has_ended.load(Ordering::Relaxed) {
                    if pid == 0 {
                        pid = first(&self.cluster, &sql)?.parse()?;
                    }
                    resident = resident.max(process::resident_bytes_unshared(pid));
                    std::thread::sleep(LOOK);
                }
                Ok(resident)
            });
            let sent = self.runtime.block_on(read(&url, self.commits, job.streaming));
            has_ended.store(true, Ordering::Relaxed);
            let resident = looking.join().map_err(|_| anyhow!("the look at memory panicked"))??;
            sent?;
            ensure!(resident > 0, "the walsender was never seen");
            Ok(resident)
        })
    }

    fn ours(&self, job: &Job) -> Result<(Run, Sent)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (mut peer, _) = listener.accept()?;
        let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()));
        let (catalog, wal) = (self.catalog.clone(), self.cluster.data_dir().join("pg_wal"));
        let started = Instant::now();
        let (cpu, sent) = std::thread::scope(|scope| {
            let decoding = scope.spawn(|| -> Result<(f64, Sent)> {
                let before = thread_cpu()?;
                let sent = self.decode(job, catalog, &wal, socket)?;
                Ok((thread_cpu()? - before, sent))
            });
            decoding.join().map_err(|_| anyhow!("the decoder panicked"))?
        })?;
        reader.join().map_err(|_| anyhow!("the reader panicked"))??;
        Ok((run_of(cpu, started, 0), sent))
    }

    /// The arguments of `pgsluice decode` for the WAL up to `to`.
    fn decode_args(&self, command: &mut Command, to: Lsn) {
        command.args(["decode", "--format", "pgoutput", "--publication", NAME, "--to", &to.to_string()]);
        command.arg("--catalog").arg(&self.exported).arg("--wal").arg(self.cluster.data_dir().join("pg_wal"));
        command.stdout(Stdio::null());
    }

    /// Instructions of `pgsluice decode` for the first part of the WAL.
    fn instructions(&self, filter: bool) -> Result<f64> {
        const COLLECTED: &str = "Collected : ";
        let to = Lsn::new(self.end.as_u64().min(self.start.as_u64() + COUNTED_BYTES));
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(testkit::pgsluice_path()?);
        self.decode_args(&mut command, to);
        if !filter {
            command.arg("--no-early-filter");
        }
        let output = command.output().context("valgrind counts instructions: apt-get install valgrind")?;
        let text = String::from_utf8_lossy(&output.stderr);
        let count = text.split_once(COLLECTED).and_then(|(_, rest)| rest.split_whitespace().next());
        // The end is inside a record, which `decode` reports.
        Ok(count.with_context(|| format!("valgrind: {text}"))?.parse()?)
    }

    /// The memory and the spool that `pgsluice decode` takes for the same WAL.
    fn room(&self) -> Result<Room> {
        let spools = std::env::temp_dir().join(format!("pgsluice-bench-room-{}", std::process::id()));
        std::fs::create_dir_all(&spools)?;
        let mut command = Command::new(testkit::pgsluice_path()?);
        self.decode_args(&mut command, self.end);
        let mut child = command.env("TMPDIR", &spools).spawn()?;
        let mut room = Room::default();
        let status = loop {
            room.resident = room.resident.max(process::resident_bytes_max(child.id()));
            room.spilled = room.spilled.max(bytes_below(&spools));
            match child.try_wait()? {
                Some(status) => break status,
                None => std::thread::sleep(LOOK),
            }
        };
        std::fs::remove_dir_all(&spools)?;
        ensure!(status.success() && room.resident > 0, "pgsluice decode ended with {status}");
        Ok(room)
    }

    fn decode(&self, job: &Job, catalog: Catalog, wal: &Path, socket: TcpStream) -> Result<Sent> {
        let version = PgVersion::from_num(catalog.server().major * 10_000);
        let database = catalog.databases().first().context("a database was looked at")?.0;
        let publications = Publications::Named(vec![NAME.to_owned()]);
        let mut options =
            output::Options::new(database, publications, catalog.looked(), Settings::new(version));
        options.proto_version = 2;
        options.binary = true;
        options.streaming = if job.streaming { output::Streaming::On } else { output::Streaming::Off };
        options.work_mem_bytes = usize::try_from(job.work_mem_mb << 20)?;
        let segments = Segments::find(&[wal.to_owned()])?;
        options.segment_size = segments.segment_size();
        // It goes with the cluster.
        let spool = DirSpool::open(self.cluster.data_dir().with_file_name("spool"))?;
        let mut decoder = Decoder::new(catalog, options, Box::new(spool))?;
        let mut out = io::BufWriter::with_capacity(64 << 10, socket);
        let mut sent = Sent::default();
        let mut bytes = segments.read(decoder.position())?;
        while decoder.position() < self.end {
            let piece = bytes.next()?.context("WAL ended early")?;
            let mut outputs = decoder.push(piece)?;
            while let Some(message) = outputs.next()? {
                sent.count(message.data);
                let length = u32::try_from(4 + DATA_HEADER + message.data.len())?;
                let lsn = message.lsn.as_u64().to_be_bytes();
                out.write_all(b"d")?;
                out.write_all(&length.to_be_bytes())?;
                out.write_all(&[DATA_TAG])?;
                out.write_all(&lsn)?;
                out.write_all(&lsn)?;
                out.write_all(&[0; 8])?;
                out.write_all(message.data)?;
            }
        }
        out.flush()?;
        ensure!(decoder.counters().transactions > 0, "nothing came out");
        Ok(sent)
    }
}

/// A run whose seconds are CPU seconds; the curve has the wall time.
fn run_of(cpu: f64, started: Instant, resident_bytes_max: u64) -> Run {
    let wall = started.elapsed().as_secs_f64();
    let spent = Cpu { pgsluice: cpu, ..Cpu::default() };
    Run { seconds: cpu, cpu: spent, curve: vec![(wall, 0.0)], resident_bytes_max, ..Run::default() }
}

/// Of all files below a directory, in which others come and go.
fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { bytes_below(&entry.path()) } else { found.len() })
    });
    bytes.sum()
}

/// CPU seconds of this thread.
fn thread_cpu() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = text.split(' ').next().context("no CPU time")?.parse()?;
    Ok(nanoseconds / 1e9)
}

fn lsn(cluster: &Cluster) -> Result<Lsn> {
    first(cluster, "SELECT pg_current_wal_insert_lsn()")?.parse().map_err(|_| anyhow!("no LSN"))
}

fn first(cluster: &Cluster, sql: &str) -> Result<String> {
    Ok(crate::lab::rig::first(cluster.sql(DB, sql)?))
}

/// Reads `commits` transactions of the slot; nothing is confirmed.
async fn read(url: &str, commits: u64, streaming: bool) -> Result<Sent> {
    let mut wire = Wire::connect(&ConnInfo::parse(url)?, "bench decode", Replication::Database, &[]).await?;
    let streaming = if streaming { ", streaming 'on'" } else { "" };
    let command = format!(
        "START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '2', publication_names '{NAME}', binary 'true'{streaming})"
    );
    let mut pauses = wire.read_in_bulk().await?;
    wire.copy_both(&command).await?;
    let (mut sent, mut seen, mut bytes) = (Sent::default(), 0, 0);
    while seen < commits {
        let frame = match wire.buffered_frame()? {
            Some(frame) => frame,
            None => {
                let read = std::mem::take(&mut bytes);
                if let Some(pause) = pauses.as_mut().and_then(|pauses| pauses.after(read)) {
                    tokio::time::sleep(pause).await;
                }
                let frame = tokio::time::timeout(SILENCE_MAX, wire.read_frame()).await;
                frame.with_context(|| format!("only {seen} of {commits} transactions came"))??
            }
        };
        bytes += frame.body.len();
        if frame.body.first() == Some(&DATA_TAG) {
            let data = frame.body.get(DATA_HEADER..).context("a message is too short")?;
            sent.count(data);
            seen += u64::from(data.first() == Some(&b'C'));
        }
    }
    Ok(sent)
}
