//! Writes the backlog by sessions on the publisher: by pgbench where it is installed, otherwise by
//! our own sessions.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use crate::lab::rig::DB;

/// As in the message the first scenario is from.
const SESSIONS: u64 = 10;

/// One transaction.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Chosen anew for each transaction; statements name them as `:name`.
    pub(crate) variables: Vec<(&'static str, Value)>,
    /// More than one stand between BEGIN and COMMIT.
    pub(crate) statements: Vec<&'static str>,
    /// How many sessions do it at the same time.
    pub(crate) sessions: u64,
}

/// An `integer`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// One of them, at random.
    Random { from: i64, to: i64 },
    /// A random block number below `blocks`, times `times`, plus one.
    Block { blocks: i64, times: i64 },
    /// The next of a sequence.
    Next(&'static str),
}

impl Script {
    /// One statement in each of ten sessions.
    pub(crate) fn one(variables: Vec<(&'static str, Value)>, statement: &'static str) -> Script {
        Script { variables, statements: vec![statement], sessions: SESSIONS }
    }

    /// pgbench's default: three updates, a query, an insert.
    pub(crate) fn tpcb(scale: u64) -> Script {
        let up_to = |most: u64| Value::Random { from: 1, to: i64::try_from(most).unwrap_or(i64::MAX) };
        Script {
            variables: vec![
                ("aid", up_to(scale * 100_000)),
                ("bid", up_to(scale)),
                ("tid", up_to(scale * 10)),
                ("delta", Value::Random { from: -5_000, to: 5_000 }),
            ],
            statements: vec![
                "UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid",
                "SELECT abalance FROM pgbench_accounts WHERE aid = :aid",
                "UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid",
                "UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid",
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, now())",
            ],
            sessions: SESSIONS,
        }
    }

    /// The same, with a deletion of the account in one transaction of ten, which then inserts it
    /// again.
    pub(crate) fn tpcb_with_deletions(scale: u64) -> Script {
        let mut script = Script::tpcb(scale);
        script.variables.push(("dice", Value::Random { from: 1, to: 10 }));
        script.statements.extend([
            "DELETE FROM pgbench_accounts WHERE aid = :aid AND :dice = 10",
            "INSERT INTO pgbench_accounts SELECT :aid::int, :bid::int, :delta::int, '' WHERE :dice = 10",
        ]);
        script
    }

    /// As pgbench reads it.
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.variables {
            let line = match value {
                Value::Random { from, to } => format!("\\set {name} random({from}, {to})"),
                Value::Block { blocks, times } => {
                    format!("\\set {name} random(0, {} - 1) * {times} + 1", blocks)
                }
                Value::Next(sequence) => format!("SELECT nextval('{sequence}')::int AS {name} \\gset"),
            };
            let _ = writeln!(text, "{line}");
        }
        let is_block = self.statements.len() > 1;
        let around = |word: &'static str| is_block.then_some(word);
        for statement in
            around("BEGIN").into_iter().chain(self.statements.iter().copied()).chain(around("COMMIT"))
        {
            let _ = writeln!(text, "{statement};");
        }
        text
    }
}

/// What writing the backlog took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) transactions: u64,
    pub(crate) sessions: u64,
    pub(crate) seconds: f64,
    pub(crate) by: String,
}

/// How much is written, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// This number of transactions, rounded down to the same number for every session, as fast as
    /// the server can.
    Transactions(u64),
    /// A rate per second, for some time.
    Rate { per_second: f64, time: Duration },
    /// As fast as the server can, for some time.
    Time(Duration),
}

/// Runs `script` against the server at `port`.
pub(crate) fn write(port: u16, script: &Script, amount: Amount) -> Result<Written> {
    let started = Instant::now();
    let (by, transactions) = if is_installed() {
        ("pgbench", run_pgbench(port, script, amount)?)
    } else {
        ("own sessions", run_sessions(port, script, amount)?)
    };
    Ok(Written {
        transactions,
        sessions: script.sessions,
        seconds: started.elapsed().as_secs_f64(),
        by: by.to_owned(),
    })
}

/// For one session.
fn each(transactions: u64, script: &Script) -> u64 {
    (transactions / script.sessions).max(1)
}

fn is_installed() -> bool {
    let quiet = Command::new("pgbench").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// Runs the script in pgbench. Returns the number of transactions.
fn run_pgbench(port: u16, script: &Script, amount: Amount) -> Result<u64> {
    let mut command = Command::new("pgbench");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.args(["--no-vacuum", "--protocol=prepared", "--random-seed=1", "--file=-"]);
    command.arg(format!("--client={}", script.sessions)).arg(format!("--jobs={}", script.sessions.min(2)));
    match amount {
        Amount::Transactions(count) => command.arg(format!("--transactions={}", each(count, script))),
        Amount::Rate { per_second, time } => {
            command.arg(format!("--rate={per_second:.1}")).arg(format!("--time={}", time.as_secs()))
        }
        Amount::Time(time) => command.arg(format!("--time={}", time.as_secs())),
    };
    command.args(["--host=127.0.0.1", "--username=postgres"]).arg(format!("--port={port}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.arg(DB).spawn().context("running pgbench")?;
    let mut input = child.stdin.take().context("pgbench has no standard input")?;
    std::io::Write::write_all(&mut input, script.text().as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pgbench ended with {}: {said}", output.status);
    done(&String::from_utf8_lossy(&output.stdout)).context("pgbench does not say how much it did")
}

/// The number of transactions in what pgbench prints; before a slash, if their number was given.
fn done(said: &str) -> Option<u64> {
    let count =
        said.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "))?;
    count.split('/').next()?.trim().parse().ok()
}

/// Runs the script in sessions. Returns the number of transactions.
fn run_sessions(port: u16, script: &Script, amount: Amount) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut sessions = Vec::new();
        for _ in 0..script.sessions {
            sessions.push(tokio::spawn(session(port, script.clone(), amount)));
        }
        let mut transactions = 0;
        for session in sessions {
            transactions += session.await??;
        }
        Ok(transactions)
    })
}

async fn session(port: u16, script: Script, amount: Amount) -> Result<u64> {
    let url = format!("postgres://postgres@127.0.0.1:{port}/{DB}");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let transaction = Prepared::new(&client, &script).await?;
    match amount {
        Amount::Transactions(count) => {
            for _ in 0..each(count, &script) {
                transaction.run(&client).await?;
            }
            Ok(each(count, &script))
        }
        Amount::Rate { per_second, time } => {
            let mut ticks =
                tokio::time::interval(Duration::from_secs_f64(script.sessions as f64 / per_second));
            let (started, mut count) = (Instant::now(), 0);
            while started.elapsed() < time {
                ticks.tick().await;
                transaction.run(&client).await?;
                count += 1;
            }
            Ok(count)
        }
        Amount::Time(time) => {
            let (started, mut count) = (Instant::now(), 0);
            while started.elapsed() < time {
                transaction.run(&client).await?;
                count += 1;
            }
            Ok(count)
        }
    }
}

/// A script in one session.
struct Prepared {
    values: Vec<Value>,
    /// With the numbers of the variables that each names.
    statements: Vec<(tokio_postgres::Statement, Vec<usize>)>,
}

impl Prepared {
    async fn new(client: &Client, script: &Script) -> Result<Prepared> {
        let mut statements = Vec::new();
        for statement in &script.statements {
            let (mut sql, mut named) = ((*statement).to_owned(), Vec::new());
            for (index, (name, _)) in script.variables.iter().enumerate() {
                let with = sql.replace(&format!(":{name}"), &format!("${}", named.len() + 1));
                if with != sql {
                    named.push(index);
                    sql = with;
                }
            }
            statements.push((client.prepare(&sql).await?, named));
        }
        Ok(Prepared { values: script.variables.iter().map(|(_, value)| *value).collect(), statements })
    }

    async fn run(&self, client: &Client) -> Result<()> {
        let mut values = Vec::new();
        for value in &self.values {
            values.push(value.choose(client).await?);
        }
        let is_block = self.statements.len() > 1;
        if is_block {
            client.batch_execute("BEGIN").await?;
        }
        for (statement, named) in &self.statements {
            let named: Vec<&(dyn ToSql + Sync)> = named.iter().map(|index| &values[*index] as _).collect();
            client.query(statement, &named).await?;
        }
        if is_block {
            client.batch_execute("COMMIT").await?;
        }
        Ok(())
    }
}

impl Value {
    async fn choose(self, client: &Client) -> Result<i32> {
        Ok(i32::try_from(match self {
            Value::Random { from, to } => rand::rng().random_range(from..=to),
            Value::Block { blocks, times } => rand::rng().random_range(0..blocks) * times + 1,
            Value::Next(sequence) => {
                client.query_one("SELECT nextval($1::text::regclass)", &[&sequence]).await?.get(0)
            }
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_did_is_in_its_report() {
        let said =
            |count| format!("scaling factor: 1\nnumber of transactions actually processed: {count}\ntps = 5");
        assert_eq!(done(&said("2710")), Some(2_710));
        assert_eq!(done(&said("90/100")), Some(90));
        assert_eq!(done("pgbench: error"), None);
    }

    #[test]
    fn a_script_reads_as_pgbench_wants_it() {
        let one = Script::one(
            vec![("pk", Value::Block { blocks: 10, times: 1_000 })],
            "DELETE FROM t WHERE pk = :pk",
        );
        assert_eq!(one.text(), "\\set pk random(0, 10 - 1) * 1000 + 1\nDELETE FROM t WHERE pk = :pk;\n");
        let tpcb = Script::tpcb(10).text();
        assert!(tpcb.starts_with("\\set aid random(1, 1000000)\n"), "{tpcb}");
        assert!(tpcb.contains("\nBEGIN;\n") && tpcb.ends_with(");\nCOMMIT;\n"), "{tpcb}");
    }
}
