//! `docs/operations/two-way-example.md`, played on real servers as it is written there.
//!
//! A line of its console blocks that begins with a prompt is run: `a=#` and `b=#` by `psql`, `$` as
//! a command. What stands below it must be what it prints, but for numbers, times and the width of
//! lines and columns in what pgsluice prints. What only reads is repeated until it does, because
//! replication takes its time. Only the two connection strings are replaced.

use std::process::Command;

use testkit::{Cluster, Major, Pair, Sluice, wait_for, workspace_dir};

use crate::support::BOUND;

const PAGE: &str = "docs/operations/two-way-example.md";
const DB: &str = "app";
const FILE: &str = "pair.toml";
/// Where the page has that file.
const DIR: &str = "/etc/pgsluice";

/// A line with a prompt, and what the page says that it prints.
struct Step {
    prompt: String,
    input: String,
    output: String,
}

/// The contents of the blocks fenced as `language`.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("\n```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in blocks(page, "console").iter().flat_map(|block| block.lines()) {
        let prompt = ["a=# ", "b=# ", "$ "].into_iter().find(|prompt| line.starts_with(prompt));
        match (prompt, steps.last_mut()) {
            (Some(prompt), _) => steps.push(Step {
                prompt: prompt.to_owned(),
                input: line[prompt.len()..].to_owned(),
                output: String::new(),
            }),
            (None, Some(step)) => step.output += &format!("{line}\n"),
            (None, None) => panic!("a block of {PAGE} begins without a prompt: {line}"),
        }
    }
    steps
}

/// The words of `text` without what differs from run to run: numbers with their units, times, LSNs,
/// and where lines and columns end.
fn normalized(text: &str) -> String {
    let is_lsn = |word: &str| {
        let halves = word.trim_end_matches([',', '.']).split_once('/');
        let is_hex = |half: &str| !half.is_empty() && half.chars().all(|digit| digit.is_ascii_hexdigit());
        halves.is_some_and(|(high, low)| is_hex(high) && is_hex(low))
    };
    let words = text.split_whitespace().map(|word| match word {
        _ if is_lsn(word) => "LSN".to_owned(),
        "kB" | "MB" => "B".to_owned(),
        word => word.chars().fold(String::new(), |mut word, letter| {
            if !(letter.is_ascii_digit() && word.ends_with('0')) {
                word.push(if letter.is_ascii_digit() { '0' } else { letter });
            }
            word
        }),
    });
    words.collect::<Vec<_>>().join(" ").replace(" 0 min 0 s", " 0 s")
}

/// The servers and what runs between them.
struct Play {
    pair: Pair,
    running: Option<Sluice>,
}

impl Play {
    fn start(major: Major) -> Play {
        let builder = || Cluster::builder(major).setting("track_commit_timestamp", "on");
        let pair = Pair::with(builder(), builder()).unwrap();
        for cluster in [&pair.source, &pair.target] {
            cluster.sql("postgres", &format!("CREATE DATABASE {DB}")).unwrap();
        }
        Play { pair, running: None }
    }

    /// The page's connection strings and this pair's.
    fn names(&self) -> [(String, String); 2] {
        let there = |host: &str| format!("host={host} dbname=app user=postgres");
        [(there("a"), self.pair.source.url(DB)), (there("b"), self.pair.target.url(DB))]
    }

    fn filled_in(&self, text: &str) -> String {
        self.names().iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }

    /// The reverse, for what is printed; without the directory that is this test's.
    fn as_on_page(&self, text: &str) -> String {
        let dir = self.pair.state_dir().display().to_string();
        let text = text.replace(&format!("PGSLUICE_STATE_DIR={dir} "), "").replace(&dir, DIR);
        let names = self.names();
        names.iter().fold(text, |text, (there, here)| text.replace(here, &format!("'{there}'")))
    }

    fn psql(&self, prompt: &str, sql: &str) -> String {
        let cluster = if prompt == "a=# " { &self.pair.source } else { &self.pair.target };
        let output = Command::new("psql").args(["-X", "-c", sql, "-d", &cluster.url(DB)]).output();
        let output = output.expect("psql, which scripts/setup installs");
        assert!(output.status.success(), "{sql}: {output:?}");
        // `psql` fills the last column with blanks.
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    }

    /// `pgsluice` with the words of a command line.
    fn command(&self, line: &str) -> Command {
        let line = self.filled_in(line.strip_prefix("pgsluice ").expect("a command of pgsluice"));
        let words: Vec<&str> = line.split(' ').map(|word| word.trim_matches('\'')).collect();
        let mut command = Sluice::command(&self.pair, &words).unwrap();
        for variable in ["PGSLUICE_SOURCE", "PGSLUICE_TARGET"] {
            command.env_remove(variable);
        }
        command.current_dir(self.pair.state_dir());
        command
    }

    fn printed(&self, step: &Step) -> String {
        if step.prompt != "$ " {
            return self.psql(&step.prompt, &step.input);
        }
        let mut sluice = Sluice::start(self.command(&step.input)).unwrap();
        let status = sluice.wait(BOUND).unwrap().unwrap_or_else(|| panic!("{} takes too long", step.input));
        let errors = if status.success() { String::new() } else { sluice.stderr() };
        self.as_on_page(&format!("{}{errors}", sluice.stdout()))
    }

    /// What `step` printed, once that is what the page says; otherwise what it printed last.
    fn play(&mut self, step: &Step) -> String {
        if let Some(command) = step.input.strip_suffix(" &") {
            self.running = Some(Sluice::start(self.command(command)).unwrap());
            return String::new();
        }
        let reads = ["SELECT", "pgsluice status", "pgsluice verify", "pgsluice conflicts"];
        let reads = reads.iter().any(|word| step.input.starts_with(word));
        let same = |printed: &str| match step.prompt.as_str() {
            "$ " => normalized(printed) == normalized(&step.output),
            _ => printed.trim() == step.output.trim(),
        };
        let mut printed = self.printed(step);
        let _ = wait_for("what the page says", BOUND, || {
            if !same(&printed) && reads {
                printed = self.printed(step);
            }
            Ok(same(&printed) || !reads)
        });
        if step.prompt != "$ " && !reads {
            // What a statement that writes returns is its command tag, which the page leaves out.
            return step.output.clone();
        }
        if same(&printed) { step.output.clone() } else { printed }
    }
}

#[test]
fn docs_worked_example() {
    let page = std::fs::read_to_string(workspace_dir().join(PAGE)).unwrap();
    let steps = steps(&page);
    assert!(steps.len() > 15, "{PAGE} has its console blocks");
    for major in Major::under_test() {
        let mut play = Play::start(major);
        let [settings] = blocks(&page, "toml")[..] else { panic!("{PAGE} has one file") };
        std::fs::write(play.pair.state_dir().join(FILE), play.filled_in(settings)).unwrap();
        let mut fits = true;
        let mut session = String::new();
        for step in &steps {
            let printed = play.play(step);
            fits &= printed == step.output;
            session += &format!("{}{}\n{}\n", step.prompt, step.input, printed.trim_end());
        }
        let log = play.running.as_ref().map(Sluice::stderr).unwrap_or_default();
        assert!(fits, "{PAGE} says otherwise. PostgreSQL {major}:\n{session}\n{log}");
    }
}
