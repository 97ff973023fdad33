//! Golden themes: changes of a source, written in SQL, and one expectation for every strategy.
//!
//! Each file in `themes` runs once per major. Six strategies follow the same source, each into a
//! database of its own. One runs all the time and meets every transaction by itself. The others are
//! stopped while the source is written, and meet everything as one backlog. They apply it folded,
//! replayed one change at a time, in parts of three rows, and as text in parts of 500. The last
//! decodes it here from physical WAL ([`UNDECODED`] says where not, and why).
//!
//! Each strategy with a backlog has a combination of settings ([`testkit::matrix`]) that a printed
//! seed chooses. `PGSLUICE_GOLDEN_SEED` repeats it, `PGSLUICE_TEST_WORKERS` overrules it, and
//! `PGSLUICE_MATRIX` names one for all. The source decodes with little memory, so it streams larger
//! transactions while they are open, except to the last strategy.
//!
//! The expected rows of a target come from its source, never from us. See [`theme`] for the
//! headings.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod large_value;
#[path = "../scenarios/support/mod.rs"]
#[allow(dead_code, reason = "scenarios use more of its words")]
mod support;
mod theme;
mod unknown_encoding;

use std::sync::LazyLock;

use rand::Rng;
use support::{Scenario, scenario_in};
use theme::{Paragraph, Section, Theme, What};

/// Follows all the time; the others meet backlogs.
const LIVE: usize = 0;
const BEHIND: usize = 1;
const EXACT: usize = 2;
const STRATEGIES: &[&[&str]] = &[
    &[],
    &[],
    &["PGSLUICE_EXACT_ONLY=1"],
    &["--batch-rows-max", "3"],
    &["--binary", "off", "--streaming", "off", "--batch-rows-max", "500"],
];

/// The last strategy: WAL is decoded outside the server.
const DECODED: &[&str] = &["--source-mode", "wal"];
/// Themes that it does not follow, and what would be refused.
const UNDECODED: &[(&str, &str)] = &[
    ("filters", "a filter with the operator %"),
    ("latin1", "a source that is not in UTF8"),
    ("sql_ascii", "a source that is not in UTF8"),
    ("types", "types of extensions"),
];

/// One test for each theme.
macro_rules! themes {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            tell(stringify!($name));
        })*

        /// A file that no test tells would show nothing.
        #[test]
        fn every_theme_is_told() {
            let told = [$(stringify!($name)),*];
            for file in std::fs::read_dir(theme::directory()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                assert!(told.iter().any(|told| name == format!("{told}.sql")), "{name} has no test");
            }
        }
    };
}

themes! {
    churn,
    columns,
    drift,
    filters,
    generated,
    generated_published,
    generated_virtual,
    huge,
    identity,
    interleaved,
    keyless,
    latin1,
    latin1_target,
    names,
    partitions,
    partitions_through_the_root,
    schemas,
    sql_ascii,
    subtransactions,
    toast,
    triggers,
    truncate,
    two_phase,
    types,
    unique_swaps,
    wide,
}

/// [`STRATEGIES`], with a combination of settings for each that meets a backlog. The combination
/// differs from theme to theme and from run to run. The purpose of a strategy stays: the size of
/// its batches, and the order in which changes are replayed.
fn strategies(name: &str) -> Vec<Vec<String>> {
    static SEED: LazyLock<u64> = LazyLock::new(|| {
        let seed = std::env::var("PGSLUICE_GOLDEN_SEED").ok().map(|seed| seed.parse().expect("a number"));
        seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000))
    });
    let owned = |words: &&[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let mut strategies: Vec<Vec<String>> = STRATEGIES.iter().map(owned).collect();
    match UNDECODED.iter().find(|(undecoded, _)| *undecoded == name) {
        None => strategies.push(owned(&DECODED)),
        Some((_, why)) => println!("{name}: not told with source_mode = wal, which refuses {why}"),
    }
    let sum: u64 = name.bytes().map(u64::from).sum();
    for (number, strategy) in strategies.iter_mut().enumerate().skip(BEHIND) {
        let mut combination = testkit::matrix::chosen(*SEED + sum, number);
        combination.workers = testkit::apply_workers().unwrap_or(combination.workers);
        let [workers, batch, prefetch, order] = combination.arguments();
        strategy.extend([workers, prefetch, order]);
        let own = strategy.iter().position(|word| word == "--batch-rows-max");
        match (own, testkit::matrix::forced()) {
            (Some(_), None) => {}
            (Some(at), Some(_)) => drop(strategy.splice(at..at + 2, [batch])),
            (None, _) => strategy.push(batch),
        }
    }
    println!("PGSLUICE_GOLDEN_SEED={}: {strategies:?}", *SEED);
    strategies
}

fn tell(name: &str) {
    let theme = Theme::read(name);
    let [source, target] = &theme.databases;
    let strategies = strategies(name);
    let strategies: Vec<Vec<&str>> =
        strategies.iter().map(|words| words.iter().map(String::as_str).collect()).collect();
    let strategies: Vec<&[&str]> = strategies.iter().map(Vec::as_slice).collect();
    scenario_in(source, target, &strategies, |s| {
        if s.major() < theme.since {
            println!("{name}: not told on {}, it needs {}", s.major(), theme.since);
            return;
        }
        let db = s.source_one("SELECT current_database()");
        s.source(&format!("ALTER DATABASE {db} SET logical_decoding_work_mem = '64kB'"));
        Teller { s, theme: &theme, followed: false }.tell();
    });
}

struct Teller<'a> {
    s: &'a mut Scenario,
    theme: &'a Theme,
    followed: bool,
}

impl Teller<'_> {
    fn tell(&mut self) {
        for section in &self.theme.sections {
            self.section(section);
        }
        assert!(self.followed, "a theme without steps shows nothing");
        for number in 0..self.s.followers() {
            let log = self.s.log(number);
            let conflict = log.lines().find(|line| line.contains("conflict detected"));
            assert_eq!(conflict, None, "strategy {number}");
        }
    }

    fn section(&mut self, section: &Section) {
        let each = section.paragraphs.iter().map(|paragraph| paragraph.sql.as_str());
        match &section.what {
            What::Both => each.for_each(|sql| self.s.both(sql)),
            What::Source => each.for_each(|sql| self.s.source(sql)),
            What::Target => each.for_each(|sql| self.s.target(sql)),
            What::Steps => self.steps(&section.paragraphs),
            What::Stops(words) => self.stops(words, &section.paragraphs),
            What::Compare => {
                each.for_each(|sql| assert_eq!(self.s.target_one(sql), self.s.source_one(sql), "{sql}"))
            }
            What::Holds => each.for_each(|sql| assert_eq!(self.s.target_one(sql), "t", "{sql}")),
        }
    }

    /// What is there before the first step is copied.
    fn follow(&mut self) {
        if self.followed {
            return;
        }
        if let Some(what) = &self.theme.publish {
            self.s.publish(what);
        }
        self.s.follow();
        self.compare();
        self.followed = true;
    }

    fn steps(&mut self, steps: &[Paragraph]) {
        self.follow();
        self.s.stop_from(BEHIND);
        for step in steps {
            self.write(step);
            let mark = self.s.mark();
            self.s.wait_for_mark_of(LIVE, mark);
        }
        self.s.follow();
        self.compare();
    }

    fn stops(&mut self, words: &str, steps: &[Paragraph]) {
        self.follow();
        self.s.stop_from(BEHIND);
        steps.iter().for_each(|step| self.write(step));
        self.s.run();
        self.s.wait_for_log(words);
    }

    fn write(&self, step: &Paragraph) {
        match &step.session {
            Some(session) => self.s.source_in(session, &step.sql),
            None => self.s.source(&step.sql),
        }
    }

    fn compare(&self) {
        let sql =
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables WHERE pubname = 'p'";
        for row in self.s.try_source(sql).unwrap() {
            let table = row[0].as_deref().unwrap();
            let special = |(name, _): &&(String, String)| table == name || table == format!("public.{name}");
            match self.theme.expected.iter().find(special) {
                Some((table, query)) => self.s.same_as(table, query),
                None => self.s.same_table(table),
            }
        }
    }
}

/// Themes show nothing of a path that is not taken.
#[test]
fn the_strategies_are_what_they_say() {
    scenario_in("", "", STRATEGIES, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v int)");
        s.follow();
        s.stop_from(BEHIND);
        (0..50).for_each(|id| s.source(&format!("INSERT INTO t VALUES ({id}, 0)")));
        s.follow();
        let total = |number: usize, name: &str| s.status(number)["totals"][name].as_u64().unwrap();
        let (batches, transactions) = (total(BEHIND, "batches"), total(BEHIND, "transactions"));
        assert!(batches < transactions, "{batches} batches of {transactions} transactions");
        assert_eq!(total(BEHIND, "replays"), 0);
        assert_eq!(total(EXACT, "batches"), total(EXACT, "transactions"));
        assert!(total(EXACT, "replays") > 0);
        assert_eq!(total(EXACT, "transactions"), transactions);
    });
}
