//! What both ends must have in the end, beside what they have.
//!
//! Both are lines of text with their numbers: the rows of each end, and the records of the history
//! on the target. A line too few, a line too many and a line that differs all show.

use std::collections::BTreeMap;

use testkit::{Cluster, Pair};

use super::story::{Row, Story, Table};

/// Differences shown.
const SHOWN_MAX: usize = 40;

/// How often each line is there.
type Lines = BTreeMap<String, usize>;

/// Rows of the source and of the target, and the history.
#[derive(Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) source: Lines,
    pub(crate) target: Lines,
    pub(crate) history: Lines,
}

fn row(table: Table, (id, u, v): Row) -> String {
    format!("{} {id} {u} {v}", table.name())
}

impl Outcome {
    /// Before any story: the source alone has these rows in each table.
    pub(crate) fn begin(absent: &[Row]) -> Outcome {
        let rows = Table::ALL.iter().flat_map(|table| absent.iter().map(|own| (row(*table, *own), 1)));
        Outcome { source: rows.collect(), ..Outcome::default() }
    }

    /// The source has told its part of these stories in its transaction `xid`.
    pub(crate) fn expect(&mut self, xid: &str, stories: &[Story]) {
        for story in stories {
            let table = story.table();
            if story.id < 0 {
                self.source.remove(&row(table, (story.id, story.id, "absent")));
            }
            self.source.extend(story.left_on_source().into_iter().map(|own| (row(table, own), 1)));
            self.target.extend(story.left_on_target().into_iter().map(|own| (row(table, own), 1)));
            let Some(record) = story.record() else { continue };
            let outcome = if record.is_applied { "applied" } else { "kept" };
            let writer = if record.has_local { "by the target" } else { "by nobody" };
            let line = format!(
                "{xid} {} {} {} {outcome} {writer}",
                table.name(),
                record.conflict,
                record.resolution
            );
            *self.history.entry(line).or_default() += record.count;
        }
    }

    /// What both ends have.
    pub(crate) fn read(pair: &Pair) -> anyhow::Result<Outcome> {
        let rows = Table::ALL.map(|table| {
            let name = table.name();
            format!("SELECT concat_ws(' ', '{name}', id, u, v) FROM {name}")
        });
        let rows = rows.join(" UNION ALL ");
        let history = "SELECT concat_ws(' ', remote_xid, table_name, type, resolution, outcome, \
                       CASE WHEN local_origin = '' THEN 'by the target' ELSE coalesce(local_origin, 'by nobody') END) \
                       FROM pgsluice.conflict_history";
        let lines = |end: &Cluster, sql: &str| -> anyhow::Result<Lines> {
            let mut lines = Lines::new();
            for line in end.sql("postgres", sql)?.into_iter().flatten().flatten() {
                *lines.entry(line).or_default() += 1;
            }
            Ok(lines)
        };
        Ok(Outcome {
            source: lines(&pair.source, &rows)?,
            target: lines(&pair.target, &rows)?,
            history: lines(&pair.target, history)?,
        })
    }

    /// What differs from what was expected, in words; empty if nothing does.
    pub(crate) fn differences(&self, seen: &Outcome) -> Vec<String> {
        let parts = [
            ("the source has", &self.source, &seen.source),
            ("the target has", &self.target, &seen.target),
            ("the history has", &self.history, &seen.history),
        ];
        let mut all = Vec::new();
        for (what, expected, seen) in parts {
            let lines = expected.keys().chain(seen.keys().filter(|line| !expected.contains_key(*line)));
            for line in lines {
                let [wanted, found] = [expected, seen].map(|of| of.get(line).copied().unwrap_or(0));
                if wanted != found {
                    all.push(format!("{what} {found} times, and not {wanted} times: {line}"));
                }
            }
        }
        if all.len() > SHOWN_MAX {
            let more = all.len() - SHOWN_MAX;
            all.truncate(SHOWN_MAX);
            all.push(format!("and {more} more differences"));
        }
        all
    }

    /// How often the history must have each type.
    pub(crate) fn met(&self, conflict: &str) -> usize {
        let of_type = |line: &&String| line.split(' ').nth(2) == Some(conflict);
        self.history.iter().filter(|(line, _)| of_type(line)).map(|(_, count)| count).sum()
    }

    /// What a program that resolves conflicts wrongly could leave behind. Each must be noticed.
    pub(crate) fn canary(&self, seen: &Outcome) {
        type Breaks = fn(&mut Outcome);
        let wrong: [(&str, Breaks); 5] = [
            ("a conflict that was recorded twice", |seen| {
                *seen.history.values_mut().next().expect("a record") += 1;
            }),
            ("a conflict that was not recorded", |seen| drop(seen.history.pop_first())),
            ("a deletion that was forgotten", |seen| {
                let found = seen.history.keys().find(|line| line.contains("update_deleted")).cloned();
                let line = found.expect("a record");
                seen.history.remove(&line);
                seen.history.insert(line.replace("update_deleted", "update_missing"), 1);
            }),
            ("a row that was not written", |seen| drop(seen.target.pop_last())),
            ("a row that was written and should not have been", |seen| {
                seen.target.insert(row(Table::LocalWins, (7, 7, "remote")), 1);
            }),
        ];
        for (what, tamper) in wrong {
            let mut seen = seen.clone();
            tamper(&mut seen);
            assert!(!self.differences(&seen).is_empty(), "not noticed: {what}");
        }
    }
}
