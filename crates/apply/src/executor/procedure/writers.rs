//! The part of a branch that decides about a row which somebody else wrote last.
//!
//! In a two-way pair such rows are ordinary, so the procedure decides about them itself (rule D5):
//!
//! ```text
//!   UPDATE or DELETE of a row that is ours ---- 1 row ---> next change
//!     | 0 rows
//!     v
//!   lock the row, read its last writer ---- no row, or ours ---> an error: exact replay
//!     | somebody else
//!     v
//!   the user's rule: write the row, or leave it ---> record, within the transaction
//!                                                \-> report, behind its COMMIT
//! ```
//! The rule is the one that [`conflict::Resolution::decide`] knows. It is asked for each way in
//! which two commit times can stand, and the server compares only the times. So the decision cannot
//! come out otherwise here than in the other paths.

use base::{PgTimestamp, Xid, quote_literal};
use conflict::{Commit, Conflict, ConflictType, Met, Origin, Resolution, Stamp, Verdict, Written};
use plan::sql::{self, last_writer, located};
use plan::{Lookup, Table};
use state::{WriterConflict, statements};

use crate::executor::met::{LastWriter, With};
use crate::executor::resolved::Settings;

/// The variables of the procedure that this part takes.
pub(super) const VARIABLES: &str = " pgsluice_xmin pg_catalog.text; pgsluice_micros pg_catalog.int8; \
     pgsluice_time pg_catalog.text; pgsluice_origin pg_catalog.oid; pgsluice_name pg_catalog.text; \
     pgsluice_wins pg_catalog.bool; pgsluice_met pg_catalog.text;";

/// The procedure's arguments that it reads: where transactions ended, when, which they were, and
/// the positions that messages give for them. The transaction at hand is one behind `pgsluice_end`.
const TIME: &str = "($3)[pgsluice_end + 1]";
const XID: &str = "($4)[pgsluice_end + 1]";
const FINISHED_AT: &str = "($5)[pgsluice_end + 1]";

/// What decides about such rows.
pub(crate) struct Decides<'s> {
    pub(crate) settings: &'s Settings,
    pub(crate) subscription: &'s str,
    pub(crate) with: With,
}

/// A row that the procedure decided about, as it reports it.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The number of the transaction in the call, from 0.
    pub(crate) transaction: usize,
    /// The number of the change in the call, from 0.
    pub(crate) change: usize,
    /// Whether the change was written.
    pub(crate) applied: bool,
    /// `None` if it cannot be read.
    pub(crate) writer: Option<LastWriter>,
}

/// Transaction, change, applied; as texts the writer's xid, microseconds, time, origin and name.
type Reported =
    (usize, usize, bool, Option<String>, Option<String>, Option<String>, Option<String>, Option<String>);

impl Decided {
    /// Reads the JSON array of a report.
    pub(crate) fn read(report: &str) -> Result<Vec<Decided>, serde_json::Error> {
        let rows: Vec<Reported> = serde_json::from_str(report)?;
        let read = |(transaction, change, applied, xmin, micros, time, origin, name): Reported| {
            let writer = LastWriter::read([xmin, micros, time, origin, name]);
            Decided { transaction, change, applied, writer }
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

impl Decides<'_> {
    /// The statements that follow an UPDATE or DELETE which did not write its row; `value` gives
    /// the SQL for the parameter of a number. They leave in `pgsluice_rows` whether the change is
    /// done with. `None` if the procedure cannot decide.
    pub(super) fn text(
        &self,
        table: &Table,
        kind: &sql::Kind,
        value: &dyn Fn(usize) -> String,
    ) -> Option<String> {
        let (conflict, anyones) = match kind {
            sql::Kind::RowUpdate(present) => {
                (ConflictType::UpdateOriginDiffers, sql::Kind::AnyonesUpdate(present.clone()))
            }
            sql::Kind::RowDelete => (ConflictType::DeleteOriginDiffers, sql::Kind::AnyonesDelete),
            _ => return None,
        };
        let own_origins = table.own_origins()?;
        let With { commit: true, values: false } = self.with else { return None };
        let (schema, name) = &table.schema_and_name;
        let rule = self.settings.rules.of(schema, name).of(conflict);
        let wins = self.wins(rule)?;
        // A version that wins by its time brings the large values that it left as they were, which
        // only exact replay takes from the old row.
        if rule.compares_times() && matches!(kind, sql::Kind::RowUpdate(sent) if sent.contains(&false)) {
            return None;
        }
        if table.lookup != Lookup::UniqueKey {
            return None;
        }
        let before = sql::row_parameters(table, kind).len() - table.key.len();
        let found = located(table, before, &|n| value(n));
        let own: Vec<String> = own_origins.iter().map(u32::to_string).collect();
        let recorded = self.settings.history.then(|| {
            let record = WriterConflict {
                kind: conflict,
                table: (schema, name),
                resolution: rule,
                is_applied: "pgsluice_wins",
                remote_xid: XID,
                finished_at: FINISHED_AT,
                remote_time: TIME,
                local_xid: "pgsluice_xmin::pg_catalog.int8",
                local_origin: &origin_name(),
                local_time: "pgsluice_time::pg_catalog.timestamptz",
                detail: &detail(conflict),
            };
            format!("{};", statements::record_writer_conflict(self.subscription, &record))
        });
        Some(format!(
            "SELECT t.xmin::pg_catalog.text, {writer} INTO pgsluice_xmin, pgsluice_micros, pgsluice_time, \
             pgsluice_origin, pgsluice_name FROM {only}{sql} AS t WHERE {found} FOR UPDATE OF t; \
             IF (pgsluice_origin OPERATOR(pg_catalog.<>) ALL ('{{{own}}}'::pg_catalog.oid[])) IS TRUE THEN \
             pgsluice_wins := {wins}; pgsluice_rows := 1; \
             IF pgsluice_wins THEN {write}; GET DIAGNOSTICS pgsluice_rows = ROW_COUNT; END IF; \
             {recorded} \
             pgsluice_met := pg_catalog.concat_ws(',', pgsluice_met, pg_catalog.json_build_array(pgsluice_end, \
             pgsluice_next - pgsluice_end - 1, pgsluice_wins, pgsluice_xmin, pgsluice_micros::pg_catalog.text, \
             pgsluice_time, pgsluice_origin::pg_catalog.text, pgsluice_name)); \
             END IF;",
            writer = last_writer().join(", "),
            only = table.only(),
            sql = table.sql,
            own = own.join(","),
            write = sql::row_sql(table, &anyones, &|n| value(n)),
            recorded = recorded.unwrap_or_default(),
        ))
    }

    /// The SQL that tells whether the change is written; `None` if the conflict is an error.
    fn wins(&self, rule: Resolution) -> Option<String> {
        let (source, target) = self.settings.nodes.clone().unzip();
        let stamp = |time, node| Stamp { time: Some(PgTimestamp(time)), node };
        let decides = |remote: i64, local: Stamp| match rule.decide(&stamp(remote, source.clone()), &[local])
        {
            Verdict::Refuse => None,
            Verdict::KeepLocal => Some(false),
            Verdict::ApplyRemote => Some(true),
        };
        let later = decides(2, stamp(1, target.clone()))?;
        let earlier = decides(1, stamp(2, target.clone()))?;
        let with_session = decides(1, stamp(1, target))?;
        let with_others = decides(1, stamp(1, None))?;
        if [later, earlier, with_session, with_others].iter().all(|wins| *wins == later) {
            return Some(later.to_string());
        }
        let micros = format!("(EXTRACT(epoch FROM {TIME}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8");
        Some(format!(
            "CASE WHEN {micros} OPERATOR(pg_catalog.>) pgsluice_micros THEN {later} \
             WHEN {micros} OPERATOR(pg_catalog.<) pgsluice_micros THEN {earlier} \
             WHEN pgsluice_origin OPERATOR(pg_catalog.=) 0 THEN {with_session} ELSE {with_others} END"
        ))
    }
}

/// One text for each kind of origin that a row's last writer can have.
fn by_origin(text: impl Fn(Origin) -> String) -> String {
    format!(
        "CASE WHEN pgsluice_origin OPERATOR(pg_catalog.=) 0 THEN {} WHEN pgsluice_name IS NULL THEN {} ELSE {} END",
        text(Origin::Local),
        text(Origin::Dropped),
        text(Origin::Named(NAME_MARK.to_owned()))
    )
}

/// These stand in a text for what only the server knows.
const NAME_MARK: &str = "\u{1}";
const TIME_MARK: &str = "\u{2}";
const XID_MARK: Xid = Xid(u32::MAX);

fn origin_name() -> String {
    by_origin(|origin| match origin.name() {
        NAME_MARK => "pgsluice_name".to_owned(),
        name => quote_literal(name),
    })
}

/// PostgreSQL's DETAIL as SQL, made from the text that the other paths give.
fn detail(kind: ConflictType) -> String {
    by_origin(|origin| {
        let commit = Commit { origin, time: PgTimestamp(0), time_text: TIME_MARK.to_owned() };
        let written = Some(Written { xid: XID_MARK, commit: Some(commit) });
        let met = vec![Met { written, ..Met::default() }];
        let text = Conflict { kind, relation: String::new(), met }.detail();
        let variables = [
            (NAME_MARK, "pgsluice_name"),
            (TIME_MARK, "pgsluice_time"),
            (&XID_MARK.to_string(), "pgsluice_xmin"),
        ];
        variables.iter().fold(quote_literal(&text), |text, (mark, variable)| {
            text.replace(mark, &format!("' OPERATOR(pg_catalog.||) {variable} OPERATOR(pg_catalog.||) '"))
        })
    })
}

#[cfg(test)]
mod tests {
    use conflict::Node;

    use super::*;

    fn settings() -> Settings {
        let node = |system| Node { system, database: "d".to_owned() };
        Settings { nodes: Some((node(2), node(1))), ..Settings::default() }
    }

    fn wins(rule: Resolution) -> Option<String> {
        let with = With { commit: true, values: false };
        Decides { settings: &settings(), subscription: "s", with }.wins(rule)
    }

    #[test]
    fn a_rule_that_looks_at_no_time_is_a_constant() {
        assert_eq!(wins(Resolution::ApplyRemote).as_deref(), Some("true"));
        assert_eq!(wins(Resolution::KeepLocal).as_deref(), Some("false"));
        assert_eq!(wins(Resolution::Skip).as_deref(), Some("false"));
        assert_eq!(wins(Resolution::Error), None);
    }

    #[test]
    fn equal_times_are_decided_as_everywhere() {
        // The source is the larger node, and a node without a name is smaller than any.
        let last = wins(Resolution::LastUpdateWins).unwrap();
        assert!(last.contains("pgsluice_micros THEN true WHEN"), "{last}");
        assert!(last.ends_with("pgsluice_micros THEN false WHEN pgsluice_origin OPERATOR(pg_catalog.=) 0 THEN true ELSE true END"), "{last}");
        let first = wins(Resolution::FirstUpdateWins).unwrap();
        assert!(first.ends_with("pgsluice_micros THEN true WHEN pgsluice_origin OPERATOR(pg_catalog.=) 0 THEN false ELSE false END"), "{first}");
    }

    #[test]
    fn the_detail_is_that_of_the_other_paths() {
        let put = |text: &str| format!("' OPERATOR(pg_catalog.||) {text} OPERATOR(pg_catalog.||) '");
        let (name, time, xid) = (put("pgsluice_name"), put("pgsluice_time"), put("pgsluice_xmin"));
        assert_eq!(
            detail(ConflictType::UpdateOriginDiffers),
            format!(
                "CASE WHEN pgsluice_origin OPERATOR(pg_catalog.=) 0 THEN 'Updating the row that was modified locally in \
                 transaction {xid} at {time}.' WHEN pgsluice_name IS NULL THEN 'Updating the row that was modified by a \
                 non-existent origin in transaction {xid} at {time}.' ELSE 'Updating the row that was modified by a \
                 different origin \"{name}\" in transaction {xid} at {time}.' END"
            )
        );
        assert!(
            detail(ConflictType::DeleteOriginDiffers).contains("'Deleting the row that was modified locally")
        );
    }

    #[test]
    fn a_report_is_read() {
        let text = r#"[[0, 3, true, "741", "1750000000000000", "2025-06-15 15:06:40+00", "0", null]]"#;
        let decided = Decided::read(text).unwrap();
        let [Decided { transaction: 0, change: 3, applied: true, writer: Some(writer) }] = &decided[..]
        else {
            panic!("{decided:?}");
        };
        assert_eq!(writer.origin, Some(0));
    }
}
