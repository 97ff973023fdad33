//! Every rule, with transactions of both ends in every order.
//!
//! Four transactions of the source belong to one case: one that is to conflict, two others on the
//! same key, and one on another key. They commit in each order that the source accepts. One
//! transaction of the target, of a session or of a third node, commits at each place between them
//! where times count. All of that happens while nobody applies:
//!
//! ```text
//!   place   0          1           2           3         4
//!   source  | before   | conflict  | other     | behind  |
//!   target      one transaction at one of the places
//! ```
//! A model of its own says which rows are left, and which conflicts are met in which order, and of
//! whom. It knows versions, writers and times, and nothing of sets, procedures or folds. All paths
//! of `every_rule` must agree with it. An order in which it meets an error is left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::every_rule::{KINDS, Rule, by_every_path, each, rules};
use crate::support::{Scenario, Session};
use crate::update_deleted::wait_for_capture;

/// Identity, second key, value.
type Row = (u32, u32, &'static str);

/// One statement, on either end.
#[derive(Debug, Clone, Copy)]
enum Change {
    Insert(Row),
    Update { id: u32, u: Option<u32>, v: &'static str },
    Delete(u32),
}
use Change::{Delete, Insert, Update};

impl Change {
    fn sql(self, table: &str) -> String {
        match self {
            Insert((id, u, v)) => format!("INSERT INTO {table} VALUES ({id}, {u}, '{v}')"),
            Update { id, u: Some(u), v } => format!("UPDATE {table} SET u = {u}, v = '{v}' WHERE id = {id}"),
            Update { id, u: None, v } => format!("UPDATE {table} SET v = '{v}' WHERE id = {id}"),
            Delete(id) => format!("DELETE FROM {table} WHERE id = {id}"),
        }
    }
}

/// Who wrote a row of the target last, or deleted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Ours,
    Local,
    /// A node whose changes come by another subscription, which carries their times.
    LongAgo,
    FarAhead,
}

/// The origin of a third node on the target, and the times of its transactions.
const THIRD: &str = "third";
const LONG_AGO: &str = "2001-02-03 04:05:06.789012+00";
const FAR_AHEAD: &str = "2101-02-03 04:05:06.789012+00";

impl Writer {
    fn time_text(self) -> Option<&'static str> {
        match self {
            Writer::LongAgo => Some(LONG_AGO),
            Writer::FarAhead => Some(FAR_AHEAD),
            Writer::Ours | Writer::Local => None,
        }
    }

    /// As [`sequence`] reads it from the history.
    fn told(self) -> &'static str {
        match self {
            Writer::Ours => "ours",
            Writer::Local => "local",
            Writer::LongAgo => "third long ago",
            Writer::FarAhead => "third far ahead",
        }
    }
}

/// The source's transactions of a case, in the order of [`remote`].
const ROLES: [usize; 4] = [0, 1, 2, 3];

/// The source's transactions about key `k`: before, conflict, behind, other.
fn remote(rule: Rule, k: u32) -> [Change; 4] {
    let set = |id: u32, v| Update { id, u: None, v };
    let [before, conflict, behind] = match rule.kind {
        "insert_exists" => [Delete(k), Insert((k, 2000 + k, "conflict")), set(k, "behind")],
        "update_exists" => {
            [set(k, "before"), Update { id: k, u: Some(2000 + k), v: "conflict" }, set(k, "behind")]
        }
        "update_missing" => [set(k, "before"), set(k, "conflict"), Delete(k)],
        "delete_origin_differs" | "delete_missing" => [set(k, "before"), Delete(k), Insert((k, k, "behind"))],
        "multiple_unique_conflicts" => {
            [Delete(1000 + k), Insert((1000 + k, 4000 + k, "conflict")), set(1000 + k, "behind")]
        }
        _ => [set(k, "before"), set(k, "conflict"), set(k, "behind")],
    };
    [before, conflict, behind, Insert((9000 + k, 9000 + k, "other"))]
}

/// The target's transaction about key `k`.
fn local(rule: Rule, k: u32) -> Vec<Change> {
    match rule.kind {
        "insert_exists" => vec![Insert((k, k, "local"))],
        "update_origin_differs" | "delete_origin_differs" => vec![Update { id: k, u: None, v: "local" }],
        "update_exists" => vec![Insert((1000 + k, 2000 + k, "local"))],
        "update_deleted" => vec![Delete(k)],
        "multiple_unique_conflicts" => {
            vec![Insert((1000 + k, 3000 + k, "local")), Insert((2000 + k, 4000 + k, "local"))]
        }
        _ => Vec::new(),
    }
}

/// Rules of the same table for types that stand in the way of what is tested.
fn beside(rule: Rule) -> Option<(&'static str, &'static str)> {
    match rule.kind {
        "delete_origin_differs" => Some(("insert_exists", "apply_remote")),
        "multiple_unique_conflicts" => Some(("update_origin_differs", "keep_local")),
        _ => None,
    }
}

/// A case: an order of the source's transactions, and the target's one.
#[derive(Debug, Clone, Copy)]
struct Case {
    rule: Rule,
    order: [usize; 4],
    /// Before the source's transaction of this number; 4 is behind all.
    place: usize,
    writer: Writer,
}

/// What the target says of one conflict: type, resolution, outcome, and whose row was met.
type Told = (&'static str, &'static str, &'static str, Option<Writer>);

/// What is left of a case.
#[derive(Debug, Default)]
struct Outcome {
    rows: Vec<Row>,
    /// With the number of the source's transaction that met it.
    told: Vec<(usize, Told)>,
}

/// The source refuses the order, or the target meets an error.
struct Undefined;

/// The model of the target.
struct Target {
    rule: Rule,
    /// With the writer, and the time at which it wrote.
    rows: BTreeMap<u32, (Row, Writer, i32)>,
    deleted: BTreeMap<u32, (Writer, i32)>,
    told: Vec<(usize, Told)>,
}

impl Target {
    fn resolution(&self, kind: &str) -> &'static str {
        match beside(self.rule) {
            _ if kind == self.rule.kind => self.rule.resolution,
            Some((other, resolution)) if other == kind => resolution,
            _ => match kind {
                "update_origin_differs" | "delete_origin_differs" => "apply_remote",
                "update_missing" | "update_deleted" | "delete_missing" => "skip",
                _ => "error",
            },
        }
    }

    /// Whether the change of transaction `number` is written although it met these versions.
    fn decide(
        &mut self,
        kind: &'static str,
        number: usize,
        met: &[(Writer, i32)],
    ) -> Result<bool, Undefined> {
        let resolution = self.resolution(kind);
        let time = source_time(number);
        let wins = match resolution {
            "apply_remote" => true,
            "skip" | "keep_local" => false,
            // Nothing was deleted that would be forgotten.
            "last_update_wins" => met.iter().all(|(_, other)| time > *other),
            "first_update_wins" => met.iter().all(|(_, other)| time < *other),
            _ => return Err(Undefined),
        };
        // A row of ours has another commit time where transactions are written together.
        if met.iter().any(|(writer, _)| *writer == Writer::Ours) {
            return Err(Undefined);
        }
        let outcome = if wins { "applied" } else { "kept" };
        self.told.push((number, (kind, resolution, outcome, met.first().map(|(writer, _)| *writer))));
        Ok(wins)
    }

    /// The rows that hold the keys of `row`, once for each key, but not the row with this identity.
    fn holders(&self, row: Row, but: Option<u32>) -> Vec<u32> {
        let holds = |other: &Row| [other.0 == row.0, self.rule.has_second_key() && other.1 == row.1];
        let others = self.rows.values().filter(|(other, ..)| Some(other.0) != but);
        others
            .flat_map(|(other, ..)| holds(other).into_iter().filter(|held| *held).map(|_| other.0))
            .collect()
    }

    fn versions(&self, of: &[u32]) -> Vec<(Writer, i32)> {
        of.iter().map(|id| (self.rows[id].1, self.rows[id].2)).collect()
    }

    fn write(&mut self, row: Row, number: usize) {
        self.write_instead(&[], row, number);
    }

    fn write_instead(&mut self, of: &[u32], row: Row, number: usize) {
        self.rows.retain(|id, _| !of.contains(id));
        self.rows.insert(row.0, (row, Writer::Ours, source_time(number)));
    }

    fn insert(&mut self, row: Row, number: usize) -> Result<(), Undefined> {
        let held = self.holders(row, None);
        let kind = if held.len() > 1 { "multiple_unique_conflicts" } else { "insert_exists" };
        if held.is_empty() || self.decide(kind, number, &self.versions(&held))? {
            self.write_instead(&held, row, number);
        }
        Ok(())
    }

    fn update(&mut self, row: Row, number: usize) -> Result<(), Undefined> {
        let Some((_, writer, time)) = self.rows.get(&row.0).copied() else {
            let wins = match self.deleted.get(&row.0).copied() {
                Some(deletion) => self.decide("update_deleted", number, &[deletion])?,
                None => self.decide("update_missing", number, &[])?,
            };
            if wins {
                self.write(row, number);
            }
            return Ok(());
        };
        let is_foreign = writer != Writer::Ours;
        if is_foreign && !self.decide("update_origin_differs", number, &[(writer, time)])? {
            return Ok(());
        }
        let held = self.holders(row, Some(row.0));
        if held.len() > 1 || (is_foreign && !held.is_empty()) {
            return Err(Undefined);
        }
        if held.is_empty() || self.decide("update_exists", number, &self.versions(&held))? {
            self.write_instead(&held, row, number);
        }
        Ok(())
    }

    fn delete(&mut self, id: u32, number: usize) -> Result<(), Undefined> {
        let Some((_, writer, time)) = self.rows.get(&id).copied() else {
            return self.decide("delete_missing", number, &[]).map(|_| ());
        };
        if writer == Writer::Ours || self.decide("delete_origin_differs", number, &[(writer, time)])? {
            self.rows.remove(&id);
        }
        Ok(())
    }

    /// What somebody else does while nobody applies.
    fn locally(&mut self, change: Change, writer: Writer, time: i32) {
        match change {
            Insert(row) => {
                self.rows.insert(row.0, (row, writer, time));
            }
            Update { id, v, .. } => {
                if let Some((row, by, at)) = self.rows.get_mut(&id) {
                    (row.2, *by, *at) = (v, writer, time);
                }
            }
            Delete(id) => {
                self.rows.remove(&id);
                self.deleted.insert(id, (writer, time));
            }
        }
    }
}

/// When the source's transaction of this number commits.
fn source_time(number: usize) -> i32 {
    2 * i32::try_from(number).expect("a few") + 1
}

impl Case {
    /// What happens with key `k`.
    fn outcome(self, k: u32) -> Result<Outcome, Undefined> {
        let Case { rule, order, place, writer } = self;
        let base = (k, k, "v");
        let begins = rule.begins_with_row();
        let mut source = BTreeMap::new();
        if begins || rule.is_of_missing() {
            source.insert(k, base);
        }
        let mut target = Target { rule, rows: BTreeMap::new(), deleted: BTreeMap::new(), told: Vec::new() };
        if begins {
            target.rows.insert(k, (base, Writer::Ours, -1));
        }
        let time = match writer {
            Writer::LongAgo => i32::MIN,
            Writer::FarAhead => i32::MAX,
            Writer::Local | Writer::Ours => 2 * i32::try_from(place).expect("a few"),
        };
        local(rule, k).into_iter().for_each(|change| target.locally(change, writer, time));
        let remote = remote(rule, k);
        for (number, role) in order.into_iter().enumerate() {
            match remote[role] {
                Insert(row) => {
                    if source.insert(row.0, row).is_some() {
                        return Err(Undefined);
                    }
                    target.insert(row, number)?;
                }
                Update { id, u, v } => {
                    let Some(row) = source.get_mut(&id) else { continue };
                    *row = (id, u.unwrap_or(row.1), v);
                    target.update(*row, number)?;
                }
                Delete(id) => {
                    if source.remove(&id).is_some() {
                        target.delete(id, number)?;
                    }
                }
            }
        }
        let rows = target.rows.into_values().map(|(row, ..)| row).collect();
        Ok(Outcome { rows, told: target.told })
    }
}

/// Every order of the source's transactions.
fn orders() -> Vec<[usize; 4]> {
    let mut all = Vec::new();
    for a in ROLES {
        for b in ROLES.into_iter().filter(|b| *b != a) {
            for c in ROLES.into_iter().filter(|c| ![a, b].contains(c)) {
                all.push([a, b, c, 6 - a - b - c]);
            }
        }
    }
    all
}

/// The cases of one rule: with each place where times count, and otherwise at the places in turn.
fn cases(rule: Rule) -> Vec<Case> {
    let is_timed = rule.resolution.ends_with("_update_wins");
    let mut all = Vec::new();
    for (n, order) in orders().into_iter().enumerate() {
        let case = |place, writer| Case { rule, order, place, writer };
        if local(rule, 1).is_empty() {
            all.push(case(0, Writer::Local));
            continue;
        }
        match is_timed {
            true => all.extend((0..=4).map(|place| case(place, Writer::Local))),
            false => all.push(case(n % 5, Writer::Local)),
        }
        if is_timed || n % 3 == 0 {
            all.push(case(n % 5, if n % 2 == 0 { Writer::LongAgo } else { Writer::FarAhead }));
        }
    }
    all.retain(|case| case.outcome(1).is_ok());
    all
}

/// The cases of one rule with their keys.
fn keyed(rule: Rule) -> impl Iterator<Item = (u32, Case)> {
    (1..).zip(cases(rule))
}

#[test]
fn d1_transactions_in_every_order_are_resolved_as_the_model_says() {
    let mut options: Vec<String> = rules().map(Rule::option).collect();
    options.extend(rules().filter_map(|rule| {
        beside(rule).map(|(kind, resolution)| format!("{kind}={resolution}:public.{}", rule.table()))
    }));
    by_every_path(&options, |s| {
        let make = |rule: Rule| {
            let unique = if rule.has_second_key() { "UNIQUE" } else { "" };
            format!("CREATE TABLE {} (id int PRIMARY KEY, u int {unique}, v text);", rule.table())
        };
        s.both(&rules().map(make).collect::<String>());
        let rows = |wanted: fn(Rule) -> bool| {
            let insert = |rule: Rule| {
                let count = cases(rule).len();
                format!("INSERT INTO {} SELECT i, i, 'v' FROM generate_series(1, {count}) i", rule.table())
            };
            each(rules().filter(move |rule| wanted(*rule)).map(insert))
        };
        s.source(&rows(Rule::is_of_missing));
        take_origin(s);
        s.run();
        s.wait_for_log("streaming from");
        s.source(&rows(Rule::begins_with_row));
        s.catch_up();
        wait_for_capture(s);
        s.stop();
        (0..=4).for_each(|place| commit_at(s, place));
        s.run();
        s.catch_up();
        rules().for_each(|rule| check(s, rule));
        counters(s);
        words(s);
    });
}

/// Makes the third node's origin, and uses it once, so that it has a state before those of the
/// subscriptions have taken all that the server keeps.
fn take_origin(s: &Scenario) {
    let mut session = Session::to(&s.target_url(0));
    for call in ["create('third')", "session_setup('third')", "session_reset()"] {
        session.run(&format!("SELECT pg_replication_origin_{call}"));
    }
}

/// The target's transactions at this place, then the source's of this number.
fn commit_at(s: &Scenario, place: usize) {
    let all = || rules().flat_map(keyed);
    let here = |third: bool| {
        all().filter(move |(_, case)| case.place == place && case.writer.time_text().is_some() == third)
    };
    let written = |k: u32, rule: Rule| {
        let changes: Vec<String> =
            local(rule, k).into_iter().map(|change| change.sql(&rule.table())).collect();
        changes.join("; ")
    };
    let plain = here(false).map(|(k, case)| written(k, case.rule)).filter(|sql| !sql.is_empty());
    s.target(&each(plain));
    let third = here(true).map(|(k, case)| {
        let time = case.writer.time_text().unwrap_or_default();
        format!("PERFORM pg_replication_origin_xact_setup('0/1', '{time}'); {}", written(k, case.rule))
    });
    let third = each(third);
    for number in 0..s.followers() {
        let mut session = Session::to(&s.target_url(number));
        session.run(&format!("SELECT pg_replication_origin_session_setup('{THIRD}')"));
        session.run(&third);
        session.run("SELECT pg_replication_origin_session_reset()");
    }
    if place < 4 {
        s.source(&each(
            all().map(|(k, case)| remote(case.rule, k)[case.order[place]].sql(&case.rule.table())),
        ));
    }
}

/// The rows that are left in the rule's table, and what is told of it in order.
fn check(s: &Scenario, rule: Rule) {
    let table = rule.table();
    let outcomes: Vec<Outcome> = keyed(rule).filter_map(|(k, case)| case.outcome(k).ok()).collect();
    assert!(outcomes.len() >= 6, "{table}: {} orders are defined", outcomes.len());
    let mut rows: Vec<Row> = outcomes.iter().flat_map(|outcome| outcome.rows.iter().copied()).collect();
    rows.sort_unstable();
    let rows: Vec<String> = rows.into_iter().map(|(id, u, v)| format!("{id} {u} {v}")).collect();
    let sql = format!("SELECT string_agg(concat_ws(' ', id, u, v), ', ' ORDER BY id) FROM {table}");
    assert_same(&table, &s.target_one(&sql), &rows.join(", "), ", ");
    let mut expected = String::new();
    for number in ROLES {
        let told = outcomes.iter().flat_map(|outcome| &outcome.told).filter(|(at, _)| *at == number);
        for (_, (kind, resolution, outcome, writer)) in told {
            let whose = writer.map_or_else(String::new, |writer| format!(" {}", writer.told()));
            writeln!(expected, "{kind} {resolution} {outcome}{whose}").expect("a string takes it");
        }
    }
    assert_same(&table, &s.target_one(&sequence(&table)), expected.trim_end(), "\n");
}

/// The history of a table in its order, a line for each change that met a conflict.
fn sequence(table: &str) -> String {
    format!(
        "SELECT coalesce(string_agg(concat_ws(' ', type, resolution, outcome, whose), E'\\n' ORDER BY id), '') FROM \
         (SELECT min(id) AS id, type, resolution, outcome, CASE WHEN local_origin = '' THEN 'local' \
            WHEN local_time = '{LONG_AGO}' THEN local_origin || ' long ago' \
            WHEN local_time = '{FAR_AHEAD}' THEN local_origin || ' far ahead' \
            ELSE local_origin || local_time END AS whose \
          FROM pgsluice.conflict_history WHERE table_name = '{table}' \
          GROUP BY finished_at, type, resolution, outcome, whose) h"
    )
}

/// Two long lists; the message has the first elements that differ.
#[track_caller]
fn assert_same(what: &str, found: &str, expected: &str, separator: &str) {
    if found == expected {
        return;
    }
    let [found, expected] = [found, expected].map(|list| list.split(separator).collect::<Vec<_>>());
    let place = found.iter().zip(&expected).position(|(one, other)| one != other);
    let place = place.unwrap_or(found.len().min(expected.len()));
    let around = |list: &[&str]| list[place.saturating_sub(3)..list.len().min(place + 4)].join(separator);
    panic!(
        "{what}: {} found, {} expected; they differ from element {place}:\n{}\nexpected:\n{}",
        found.len(),
        expected.len(),
        around(&found),
        around(&expected)
    );
}

fn counters(s: &Scenario) {
    let told = |rule: Rule| keyed(rule).filter_map(|(k, case)| case.outcome(k).ok()).flat_map(|own| own.told);
    let all: Vec<&str> = rules().flat_map(told).map(|(_, (kind, ..))| kind).collect();
    for (kind, _) in KINDS {
        let expected = all.iter().filter(|own| **own == kind).count() as u64;
        assert!(expected >= 24, "{kind}: {expected}");
        assert_eq!(s.conflicts(kind), expected, "the counter of {kind}");
    }
}

/// The words about a third node's row name its origin, its transaction and its time.
fn words(s: &Scenario) {
    for (kind, begins) in [
        ("update_origin_differs", "Updating the row that was modified by a different origin"),
        ("delete_origin_differs", "Deleting the row that was modified by a different origin"),
        ("update_deleted", "The row to be updated was deleted by a different origin"),
        (
            "insert_exists",
            "Key already exists in unique index \"insert_exists_skip_pkey\", modified by origin",
        ),
        (
            "update_exists",
            "Key already exists in unique index \"update_exists_skip_u_key\", modified by origin",
        ),
    ] {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE detail <> format('{begins} \"{THIRD}\" in transaction %s at %s.', \
             local_xid, local_time)) || ' of ' || (count(*) > 0) FROM pgsluice.conflict_history \
             WHERE table_name = '{kind}_skip' AND type = '{kind}' AND local_origin = '{THIRD}'"
        );
        assert_eq!(s.target_one(&sql), "0 of true", "{kind}");
    }
    // The transaction is the one that wrote the row, where that is still there.
    let is_told = "SELECT count(*) > 0 AND bool_and(EXISTS (SELECT FROM pgsluice.conflict_history h \
                   WHERE h.table_name = 'insert_exists_skip' AND h.local_xid::text = x.xmin::text)) \
                   FROM insert_exists_skip x WHERE v = 'local'";
    assert_eq!(s.target_one(is_told), "t");
}
