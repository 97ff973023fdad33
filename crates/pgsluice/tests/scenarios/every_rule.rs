//! Every type of conflict with every resolution that it allows, by every path that applies.
//!
//! Each pair of type and resolution has a table of its own. Two transactions of the source change
//! its rows, while nobody applies. One transaction of the target stands before both, between them,
//! or behind both:
//!
//! ```text
//!   rows 1 to 3      local   first           second
//!   rows 11 to 13            first   local   second
//!   rows 21 to 23            first           second   local
//! ```
//! A model says which rows are left, and how often which conflict was met. All strategies must
//! agree with it: sets, single transactions by the session's procedure (by statements on 14 and
//! 15), and one change at a time, over a logical slot and over WAL.

use std::fmt::Write as _;

use testkit::Builder;

use crate::conflicts::lsn_to_skip;
use crate::support::{Scenario, scenario_alone};
use crate::update_deleted::{RETAIN, wait_for_capture};

/// The types, with the resolutions besides `error` that the documents allow.
pub(crate) const KINDS: [(&str, &[&str]); 8] = [
    ("insert_exists", ANY),
    ("update_origin_differs", ANY),
    ("update_exists", ANY),
    ("update_deleted", ANY),
    ("update_missing", &["skip", "keep_local", "apply_remote", "last_update_wins"]),
    ("delete_origin_differs", ANY),
    ("delete_missing", &["skip"]),
    ("multiple_unique_conflicts", ANY),
];
const ANY: &[&str] = &["skip", "keep_local", "apply_remote", "last_update_wins", "first_update_wins"];

/// Where the local transaction stands between the two of the source.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Local {
    First,
    Between,
    Last,
}
const PLACES: [Local; 3] = [Local::First, Local::Between, Local::Last];

/// A type, a resolution, and the table in which they meet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) kind: &'static str,
    pub(crate) resolution: &'static str,
}

pub(crate) fn rules() -> impl Iterator<Item = Rule> {
    let of = |(kind, resolutions): &(&'static str, &'static [&'static str])| {
        let kind = *kind;
        resolutions.iter().map(move |resolution| Rule { kind, resolution })
    };
    KINDS.iter().flat_map(of).collect::<Vec<_>>().into_iter()
}

/// What is left of one row, and how often the conflict was resolved.
#[derive(Debug, Default, PartialEq)]
struct Left {
    rows: Vec<String>,
    applied: usize,
    kept: usize,
}

impl Rule {
    pub(crate) fn table(self) -> String {
        format!("{}_{}", self.kind, self.resolution)
    }

    pub(crate) fn option(self) -> String {
        format!("{}={}:public.{}", self.kind, self.resolution, self.table())
    }

    pub(crate) fn has_second_key(self) -> bool {
        matches!(self.kind, "update_exists" | "multiple_unique_conflicts")
    }

    /// The target has never had the row.
    pub(crate) fn is_of_missing(self) -> bool {
        matches!(self.kind, "update_missing" | "delete_missing")
    }

    /// Both ends have the row before.
    pub(crate) fn begins_with_row(self) -> bool {
        !self.is_of_missing() && !matches!(self.kind, "insert_exists" | "multiple_unique_conflicts")
    }

    /// The places of the local transaction that make a difference. A deletion that is older than an
    /// UPDATE may have been forgotten.
    fn places(self) -> &'static [Local] {
        match self.kind {
            "update_deleted" => &[Local::Last],
            _ if self.is_of_missing() => &[Local::First],
            _ => &PLACES,
        }
    }

    fn ids(self) -> impl Iterator<Item = (Local, u32)> {
        self.places().iter().flat_map(|place| (1..=3).map(move |id| (*place, 10 * *place as u32 + id)))
    }

    /// What the target does to row `k`.
    fn local(self, k: u32) -> Option<String> {
        let table = self.table();
        match self.kind {
            "insert_exists" => Some(format!("INSERT INTO {table} VALUES ({k}, {k}, 'local')")),
            "update_origin_differs" | "delete_origin_differs" => {
                Some(format!("UPDATE {table} SET v = 'local' WHERE id = {k}"))
            }
            "update_exists" => {
                Some(format!("INSERT INTO {table} VALUES ({}, {}, 'local')", 1000 + k, 2000 + k))
            }
            "update_deleted" => Some(format!("DELETE FROM {table} WHERE id = {k}")),
            "multiple_unique_conflicts" => Some(format!(
                "INSERT INTO {table} VALUES ({}, {}, 'local'), ({}, {}, 'local')",
                1000 + k,
                3000 + k,
                2000 + k,
                4000 + k
            )),
            _ => None,
        }
    }

    /// The source's two changes of row `k`.
    fn remote(self, k: u32) -> [Option<String>; 2] {
        let table = self.table();
        let update = |what: &str| Some(format!("UPDATE {table} SET {what} WHERE id = {k}"));
        let delete = || Some(format!("DELETE FROM {table} WHERE id = {k}"));
        let insert = |id: u32, u: u32| Some(format!("INSERT INTO {table} VALUES ({id}, {u}, 'first')"));
        match self.kind {
            "insert_exists" => [insert(k, 2000 + k), None],
            "update_exists" => [update(&format!("u = {}, v = 'first'", 2000 + k)), update("v = 'second'")],
            "delete_origin_differs" | "delete_missing" => [None, delete()],
            "multiple_unique_conflicts" => [insert(1000 + k, 4000 + k), None],
            _ => [update("v = 'first'"), update("v = 'second'")],
        }
    }

    /// Whether the rule prefers the source's change number `change` to the local one.
    fn wins(self, place: Local, change: usize) -> bool {
        let is_later = match place {
            Local::First => true,
            Local::Between => change == 1,
            Local::Last => false,
        };
        match self.resolution {
            "apply_remote" => true,
            "last_update_wins" => is_later,
            "first_update_wins" => !is_later,
            _ => false,
        }
    }

    /// What must be left of row `k`.
    fn left(self, place: Local, k: u32) -> Left {
        let mut left = Left::default();
        let mut version = None;
        for (change, sql) in self.remote(k).iter().enumerate() {
            if sql.is_none() {
                continue;
            }
            if version.is_none() && !self.wins(place, change) {
                left.kept += 1;
                continue;
            }
            left.applied += usize::from(version.is_none());
            version = Some(["first", "second"][change]);
        }
        let row = |id: u32, u: u32, v: &str| format!("{id} {u} {v}");
        left.rows = match (self.kind, version) {
            ("insert_exists", Some(v)) => vec![row(k, 2000 + k, v)],
            ("insert_exists" | "update_origin_differs" | "delete_origin_differs", None) => {
                vec![row(k, k, "local")]
            }
            ("update_exists", Some(v)) => vec![row(k, 2000 + k, v)],
            ("update_exists", None) => vec![row(k, k, "v"), row(1000 + k, 2000 + k, "local")],
            ("multiple_unique_conflicts", Some(v)) => vec![row(1000 + k, 4000 + k, v)],
            ("multiple_unique_conflicts", None) => {
                vec![row(1000 + k, 3000 + k, "local"), row(2000 + k, 4000 + k, "local")]
            }
            ("update_origin_differs" | "update_deleted" | "update_missing", Some(v)) => vec![row(k, k, v)],
            _ => Vec::new(),
        };
        left
    }
}

/// Runs each statement as a transaction of its own.
pub(crate) fn each(statements: impl Iterator<Item = String>) -> String {
    let mut sql = String::from("DO $$ BEGIN ");
    statements.for_each(|statement| write!(sql, "{statement}; COMMIT; ").expect("a string takes it"));
    sql + "END $$"
}

/// Every path over both sources, on a target that keeps commit times. A temporary procedure is
/// counted there, so that the scenario can tell that it ran.
pub(crate) fn by_every_path(options: &[String], run: impl Fn(&mut Scenario) + Sync) {
    let sets: &[&str] = &["--keep-commit-timestamps", "off"];
    let single: &[&str] = &["--keep-commit-timestamps", "on"];
    let (logical, wal): (&[&str], &[&str]) = (&["--source-mode", "logical"], &["--source-mode", "wal"]);
    let rules: Vec<&str> = options.iter().flat_map(|option| ["--conflict", option]).collect();
    let exact: &[&str] = &["PGSLUICE_EXACT_ONLY=1"];
    let paths =
        [[sets, logical], [single, logical], [exact, logical], [sets, wal], [single, wal], [exact, wal]];
    let paths = paths.map(|path| [RETAIN, &["--copy-data", "off"], &rules, &path.concat()].concat());
    let own = |builder: Builder| {
        ["max_replication_slots", "max_wal_senders"].iter().fold(builder, |own, name| own.setting(name, "20"))
    };
    let target = |builder: Builder| {
        own(builder).setting("track_commit_timestamp", "on").setting("track_functions", "pl")
    };
    scenario_alone(&paths.each_ref().map(Vec::as_slice), own, target, run);
}

/// Followers 1 and 4 apply single transactions.
const SINGLE: [usize; 2] = [1, 4];

#[test]
fn d1_every_type_is_resolved_by_every_rule_in_every_path() {
    let options: Vec<String> = rules().map(Rule::option).collect();
    by_every_path(&options, |s| {
        let make = |rule: Rule| {
            let unique = if rule.has_second_key() { "UNIQUE" } else { "" };
            format!("CREATE TABLE {} (id int PRIMARY KEY, u int {unique}, v text);", rule.table())
        };
        s.both(&rules().map(make).collect::<String>());
        let rows = |wanted: fn(Rule) -> bool| {
            let wanted = rules().filter(move |rule| wanted(*rule));
            wanted.flat_map(|rule| {
                rule.ids().map(move |(_, k)| format!("INSERT INTO {} VALUES ({k}, {k}, 'v')", rule.table()))
            })
        };
        s.source(&each(rows(Rule::is_of_missing)));
        s.run();
        s.wait_for_log("streaming from");
        s.source(&each(rows(Rule::begins_with_row)));
        s.catch_up();
        wait_for_capture(s);
        s.stop();
        collide(s);
        s.run();
        s.catch_up();
        rules().for_each(|rule| check(s, rule));
        for (kind, _) in KINDS {
            let of_kind = rules().filter(|rule| rule.kind == kind);
            let expected: usize = of_kind
                .flat_map(|rule| rule.ids().map(move |(place, k)| rule.left(place, k)))
                .map(|left| left.applied + left.kept)
                .sum();
            assert_eq!(s.conflicts(kind), expected as u64, "the counter of {kind}");
        }
        details(s);
        if s.major() >= 16 {
            for number in SINGLE {
                let calls =
                    "SELECT sum(calls) > 0 FROM pg_stat_user_functions WHERE funcname LIKE 'pgsluice_each%'";
                assert_eq!(s.target_one_of(number, calls), "t", "the procedure of follower {number} ran");
            }
        } else {
            println!("no procedure applies on PostgreSQL {}: statements do", s.major());
        }
    });
}

/// The transactions of both ends, in the order of their commits.
fn collide(s: &Scenario) {
    let local = |place: Local| {
        let rows = rules().flat_map(|rule| rule.ids().map(move |(of, k)| (rule, of, k)));
        rows.filter(move |(_, of, _)| *of == place).filter_map(|(rule, _, k)| rule.local(k))
    };
    let remote = |change: usize| {
        rules().flat_map(move |rule| {
            rule.ids().filter_map(move |(_, k)| rule.remote(k).into_iter().nth(change).flatten())
        })
    };
    s.target(&each(local(Local::First)));
    s.source(&each(remote(0)));
    s.target(&each(local(Local::Between)));
    s.source(&each(remote(1)));
    s.target(&each(local(Local::Last)));
}

/// The rows and the history of one rule's table.
fn check(s: &Scenario, rule: Rule) {
    let table = rule.table();
    let left: Vec<Left> = rule.ids().map(|(place, k)| rule.left(place, k)).collect();
    let mut rows: Vec<&str> = left.iter().flat_map(|left| &left.rows).map(String::as_str).collect();
    rows.sort_unstable();
    let sql = format!(
        "SELECT coalesce(string_agg(r, ', ' ORDER BY r COLLATE \"C\"), '') FROM \
         (SELECT concat_ws(' ', id, u, v) AS r FROM {table}) x"
    );
    assert_eq!(s.target_one(&sql), rows.join(", "), "the rows of {table}");
    let count = |of: fn(&Left) -> usize| left.iter().map(of).sum::<usize>();
    let expected = [("applied", count(|left| left.applied)), ("kept", count(|left| left.kept))];
    let expected: Vec<String> = expected
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(outcome, count)| format!("{} {} {outcome} {count}", rule.kind, rule.resolution))
        .collect();
    let sql = format!(
        "SELECT string_agg(h, ', ' ORDER BY h) FROM (SELECT concat_ws(' ', type, resolution, outcome, \
         count(DISTINCT (remote_xid, finished_at))) AS h FROM pgsluice.conflict_history \
         WHERE table_name = '{table}' GROUP BY type, resolution, outcome) x"
    );
    assert_eq!(s.target_one(&sql), expected.join(", "), "the history of {table}");
}

/// Each path words the last writer alike, and records what it words.
fn details(s: &Scenario) {
    for (kind, verb) in [("update_origin_differs", "Updating"), ("delete_origin_differs", "Deleting")] {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE detail <> format('{verb} the row that was modified locally in \
             transaction %s at %s.', local_xid, local_time)) || ' of ' || (count(*) > 0) || ' ' || \
             bool_and(local_origin = '' AND remote_time < now() AND local_time < now() \
             AND local_xid::text = (SELECT x.local_xid::text FROM pgsluice.conflict_history x WHERE x.id = h.id)) \
             FROM pgsluice.conflict_history h WHERE type = '{kind}'"
        );
        assert_eq!(s.target_one(&sql), "0 of true true", "the details of {kind}");
        let times = format!(
            "SELECT string_agg(concat_ws(' ', remote_xid, finished_at, remote_time), ', ' ORDER BY finished_at) \
             FROM pgsluice.conflict_history WHERE type = '{kind}'"
        );
        s.target_one(&times);
    }
}

/// A rule that says `error` rolls the transaction back and names the conflict, until the user skips
/// the transaction.
#[test]
fn d1_every_type_can_be_an_error() {
    let of = |kind: &'static str| Rule { kind, resolution: "error" };
    let options: Vec<String> = KINDS.iter().map(|(kind, _)| of(kind).option()).collect();
    by_every_path(&options, |s| {
        for (kind, _) in KINDS {
            let rule = of(kind);
            let unique = if rule.has_second_key() { "UNIQUE" } else { "" };
            s.both(&format!("CREATE TABLE {} (id int PRIMARY KEY, u int {unique}, v text)", rule.table()));
        }
        let insert = |kind: &&'static str| format!("INSERT INTO {} VALUES (21, 21, 'v')", of(kind).table());
        s.source(&each(["update_missing", "delete_missing"].iter().map(insert)));
        s.run();
        s.wait_for_log("streaming from");
        let with_row = ["update_origin_differs", "update_exists", "update_deleted", "delete_origin_differs"];
        s.source(&each(with_row.iter().map(insert)));
        s.catch_up();
        wait_for_capture(s);
        for (kind, _) in KINDS {
            let rule = of(kind);
            s.stop();
            let change = rule.remote(21).into_iter().flatten().next().expect("a change");
            s.source(&change);
            rule.local(21).iter().for_each(|sql| s.target(sql));
            let rows =
                format!("SELECT coalesce(string_agg(x::text, ' ' ORDER BY id), '') FROM {} x", rule.table());
            let before = s.target_one(&rows);
            s.run();
            s.wait_for_log(&format!(
                "conflict detected on relation \"public.{}\": conflict={kind}: ",
                rule.table()
            ));
            assert_eq!(s.target_one(&rows), before, "{kind}");
            let history = format!(
                "SELECT string_agg(DISTINCT concat_ws(' ', type, resolution, outcome), ', ') \
                 FROM pgsluice.conflict_history WHERE table_name = '{}'",
                rule.table()
            );
            assert_eq!(s.target_one(&history), format!("{kind} error error"));
            for number in 0..s.followers() {
                let lsn = lsn_to_skip(&s.log(number));
                s.call(number, &["skip", "--lsn", &lsn]).expect_success();
            }
            s.catch_up();
            assert_eq!(s.target_one(&rows), before, "{kind}, skipped");
        }
    });
}
