//! Writes the backlog: ten sessions on the publisher, by pgbench where it is installed, else by sessions of our own.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use tokio_postgres::{Client, NoTls};

use crate::rig::DB;

/// As in the message the first scenario is from.
const SESSIONS: u64 = 10;

const INSERT: &str = "INSERT INTO t (sk) VALUES (random() * 10000000)";

/// What one transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// `UPDATE t SET counter = counter + 1 WHERE pk = ...`, one row of `rows` at random.
    Update { rows: u64 },
    /// `INSERT INTO t (sk) VALUES (random() * 10000000)`.
    Insert,
    /// pgbench's default: three updates, a query, an insert.
    Tpcb { scale: u64 },
}

/// What writing the backlog took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) transactions: u64,
    pub(crate) seconds: f64,
    pub(crate) by: &'static str,
}

/// Runs `transactions` (rounded down to the same number for every session) against the server at `port`.
pub(crate) fn write(port: u16, script: Script, transactions: u64) -> Result<Written> {
    let each = (transactions / SESSIONS).max(1);
    let started = Instant::now();
    let by = if is_installed() {
        run_pgbench(port, script, each)?;
        "pgbench"
    } else {
        run_sessions(port, script, each)?;
        "own sessions"
    };
    Ok(Written { transactions: each * SESSIONS, seconds: started.elapsed().as_secs_f64(), by })
}

fn is_installed() -> bool {
    let quiet = Command::new("pgbench").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

fn run_pgbench(port: u16, script: Script, each: u64) -> Result<()> {
    let mut command = Command::new("pgbench");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.args(["--no-vacuum", "--protocol=prepared", "--jobs=2", "--random-seed=1"]);
    command.arg(format!("--client={SESSIONS}")).arg(format!("--transactions={each}"));
    command.args(["--host=127.0.0.1", "--username=postgres"]).arg(format!("--port={port}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match script {
        Script::Update { .. } | Script::Insert => command.arg("--file=-"),
        Script::Tpcb { .. } => command.arg("--builtin=tpcb-like"),
    };
    let mut child = command.arg(DB).spawn().context("running pgbench")?;
    let mut input = child.stdin.take().context("pgbench has no standard input")?;
    let text = match script {
        Script::Update { rows } => {
            format!("\\set pk random(1, {rows})\nUPDATE t SET counter = counter + 1 WHERE pk = :pk;\n")
        }
        Script::Insert => format!("{INSERT};\n"),
        Script::Tpcb { .. } => String::new(),
    };
    std::io::Write::write_all(&mut input, text.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pgbench ended with {}: {said}", output.status);
    Ok(())
}

fn run_sessions(port: u16, script: Script, each: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(tokio::spawn(session(port, script, each)));
        }
        for session in sessions {
            session.await??;
        }
        Ok(())
    })
}

async fn session(port: u16, script: Script, each: u64) -> Result<()> {
    let url = format!("postgres://postgres@127.0.0.1:{port}/{DB}");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    match script {
        Script::Update { rows } => {
            let update = client.prepare("UPDATE t SET counter = counter + 1 WHERE pk = $1").await?;
            for _ in 0..each {
                client.execute(&update, &[&random(rows)?]).await?;
            }
            Ok(())
        }
        Script::Insert => {
            let insert = client.prepare(INSERT).await?;
            for _ in 0..each {
                client.execute(&insert, &[]).await?;
            }
            Ok(())
        }
        Script::Tpcb { scale } => tpcb(&client, scale, each).await,
    }
}

/// From 1 to `most`.
fn random(most: u64) -> Result<i32> {
    Ok(rand::rng().random_range(1..=i32::try_from(most)?))
}

async fn tpcb(client: &Client, scale: u64, each: u64) -> Result<()> {
    let account =
        client.prepare("UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2").await?;
    let read = client.prepare("SELECT abalance FROM pgbench_accounts WHERE aid = $1").await?;
    let teller = client.prepare("UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2").await?;
    let branch =
        client.prepare("UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2").await?;
    let insert = "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES ($1, $2, $3, $4, now())";
    let history = client.prepare(insert).await?;
    for _ in 0..each {
        let (aid, tid, bid) = (random(scale * 100_000)?, random(scale * 10)?, random(scale)?);
        let delta = random(10_000)? - 5_000;
        client.batch_execute("BEGIN").await?;
        client.execute(&account, &[&delta, &aid]).await?;
        client.query_one(&read, &[&aid]).await?;
        client.execute(&teller, &[&delta, &tid]).await?;
        client.execute(&branch, &[&delta, &bid]).await?;
        client.execute(&history, &[&tid, &bid, &aid, &delta]).await?;
        client.batch_execute("COMMIT").await?;
    }
    Ok(())
}
