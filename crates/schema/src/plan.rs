//! Which statement is run when.
//!
//! Everything up to the first entry that belongs after the data, by pg_dump's
//! own order, is run before the copy. What comes then is sorted into the
//! stages of the crate's documentation.

use std::collections::BTreeSet;

use sql_tokens::{Token, qualified_name, words};

use crate::Error;
use crate::script::{Entry, entries};

/// pg_dump's words for what it prints behind the data (`SECTION_POST_DATA`).
/// Others may stand among them, which are then left where they stand.
const AFTER_DATA: [&str; 11] = [
    "CONSTRAINT",
    "CHECK CONSTRAINT",
    "FK CONSTRAINT",
    "INDEX",
    "INDEX ATTACH",
    "STATISTICS",
    "RULE",
    "TRIGGER",
    "EVENT TRIGGER",
    "POLICY",
    "ROW SECURITY",
];

/// Settings at the head of every dump. Ours say the same and do not depend on
/// what the target's version knows (`transaction_timeout` is new in 17).
const OWN_SETTINGS: [&str; 11] = [
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",
    "client_encoding",
    "standard_conforming_strings",
    "check_function_bodies",
    "xmloption",
    "client_min_messages",
    "row_security",
    "search_path",
];

/// When a step is run; the order is that of the crate's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Key,
    Index,
    Attach,
    ForeignKey,
    Rest,
    Late,
}

impl Stage {
    pub(crate) const ALL: [Stage; 6] =
        [Stage::Key, Stage::Index, Stage::Attach, Stage::ForeignKey, Stage::Rest, Stage::Late];

    /// As it is stored.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stage::Key => "key",
            Stage::Index => "index",
            Stage::Attach => "attach",
            Stage::ForeignKey => "foreign key",
            Stage::Rest => "rest",
            Stage::Late => "late",
        }
    }
}

/// Something that is created after the copy, in a transaction of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// In the order of the dump.
    pub(crate) number: i32,
    pub(crate) stage: Stage,
    /// `INDEX sales.orders_v_idx`
    pub(crate) object: String,
    /// Tables that it locks, for SQL; known where it runs beside others.
    pub(crate) relations: Vec<String>,
    /// It suffers nothing beside it on its tables; otherwise others that do
    /// not mind either.
    pub(crate) exclusive: bool,
    pub(crate) statements: Vec<String>,
}

/// A schema, sorted.
#[derive(Debug, Clone)]
pub struct Schema {
    pub(crate) before: Vec<Entry>,
    pub(crate) steps: Vec<Step>,
}

impl Schema {
    /// Sorts what pg_dump printed.
    ///
    /// # Errors
    /// It is not what pg_dump prints.
    pub fn read(dump: &str) -> Result<Schema, Error> {
        let mut entries = entries(dump)?;
        entries.retain(|entry| !is_comment_on_extension(entry));
        for entry in &mut entries {
            entry.statements.retain(|statement| !is_own_setting(&words(statement)));
        }
        spread_settings(&mut entries);
        entries.retain(|entry| !entry.statements.is_empty());
        let is_after = |entry: &Entry| AFTER_DATA.contains(&entry.kind.as_str());
        let middle = entries.iter().position(is_after).unwrap_or(entries.len());
        let after = entries.split_off(middle);
        let mut steps: Vec<Step> = (1..).zip(after).map(|(number, entry)| step(number, entry)).collect();
        leave_what_waits(&mut steps);
        Ok(Schema { before: entries, steps })
    }

    /// Every statement there is, to look at or to change.
    pub(crate) fn statements_mut(&mut self) -> impl Iterator<Item = &mut Vec<String>> {
        let before = self.before.iter_mut().map(|entry| &mut entry.statements);
        before.chain(self.steps.iter_mut().map(|step| &mut step.statements))
    }
}

/// An extension brings its comment along, which only its owner may set.
fn is_comment_on_extension(entry: &Entry) -> bool {
    entry.kind == "COMMENT" && entry.name.starts_with("EXTENSION ")
}

fn is_own_setting(tokens: &[Token<'_>]) -> bool {
    match tokens {
        [set, name, ..] if set.is("set") => OWN_SETTINGS.iter().any(|own| name.is(own)),
        [select, schema, _, function, ..] => {
            select.is("select") && schema.is("pg_catalog") && function.is("set_config")
        }
        _ => false,
    }
}

/// A setting holds for all that follows. Steps are run by themselves, each in
/// a transaction with its settings before it.
fn spread_settings(entries: &mut [Entry]) {
    let mut settings: Vec<(String, String)> = Vec::new();
    for entry in entries {
        let mut statements: Vec<String> = settings.iter().map(|(_, statement)| statement.clone()).collect();
        let mut does_something = false;
        for statement in std::mem::take(&mut entry.statements) {
            if let Some(name) = setting(&statement) {
                settings.retain(|(known, _)| *known != name);
                settings.push((name, statement.clone()));
            } else {
                does_something = true;
            }
            statements.push(statement);
        }
        if does_something {
            entry.statements = statements;
        }
    }
}

/// The setting's name, if the statement changes one.
pub(crate) fn setting(statement: &str) -> Option<String> {
    match words(statement).as_slice() {
        [set, session, authorization, ..]
            if set.is("set") && session.is("session") && authorization.is("authorization") =>
        {
            None
        }
        [set, name, ..] if set.is("set") => name.name(),
        _ => None,
    }
}

fn step(number: i32, entry: Entry) -> Step {
    let object = entry.describe();
    let own: Vec<&String> = entry.statements.iter().filter(|own| setting(own).is_none()).collect();
    let tokens = own.first().map_or_else(Vec::new, |definition| words(definition));
    let is_unique = tokens.get(1).is_some_and(|word| word.is("unique"));
    let (stage, relations, exclusive) = match entry.kind.as_str() {
        "CONSTRAINT" => (Stage::Key, altered(&tokens), true),
        // What follows the index in its entry changes the table.
        "INDEX" if is_unique => (Stage::Key, indexed(&tokens), own.len() > 1),
        "INDEX" => (Stage::Index, indexed(&tokens), own.len() > 1),
        "INDEX ATTACH" => (Stage::Attach, Vec::new(), true),
        "FK CONSTRAINT" => (Stage::ForeignKey, [altered(&tokens), referenced(&tokens)].concat(), true),
        _ => (Stage::Rest, Vec::new(), true),
    };
    // Where it is not known what it locks it runs alone.
    let stage = if relations.is_empty() && stage != Stage::Attach { Stage::Rest } else { stage };
    Step { number, stage, object, relations, exclusive, statements: entry.statements }
}

/// What is built on something that pg_dump had to postpone waits for it.
fn leave_what_waits(steps: &mut [Step]) {
    let postponed: BTreeSet<String> = steps
        .iter()
        .filter(|step| step.stage == Stage::Rest)
        .flat_map(|step| &step.statements)
        .filter_map(|statement| created_view(&words(statement)))
        .collect();
    for step in steps.iter_mut().filter(|step| step.stage < Stage::Attach) {
        if step.relations.iter().any(|relation| postponed.contains(relation)) {
            step.stage = Stage::Rest;
        }
    }
}

/// `CREATE MATERIALIZED VIEW name`
fn created_view(tokens: &[Token<'_>]) -> Option<String> {
    match tokens {
        [create, materialized, view, name @ ..]
            if create.is("create") && materialized.is("materialized") && view.is("view") =>
        {
            qualified_name(name)
        }
        _ => None,
    }
}

/// `ALTER TABLE [ONLY] name`
fn altered(tokens: &[Token<'_>]) -> Vec<String> {
    let is_alter = tokens.first().is_some_and(|word| word.is("alter"))
        && tokens.get(1).is_some_and(|word| word.is("table"));
    if is_alter { table_at(&tokens[2..]) } else { Vec::new() }
}

/// `CREATE [UNIQUE] INDEX name ON [ONLY] name`
fn indexed(tokens: &[Token<'_>]) -> Vec<String> {
    let on = tokens.iter().position(|word| word.is("on"));
    on.map_or_else(Vec::new, |on| table_at(&tokens[on + 1..]))
}

/// `REFERENCES name`
fn referenced(tokens: &[Token<'_>]) -> Vec<String> {
    let at = tokens.iter().position(|word| word.is("references"));
    at.map_or_else(Vec::new, |at| table_at(&tokens[at + 1..]))
}

fn table_at(tokens: &[Token<'_>]) -> Vec<String> {
    let only = usize::from(tokens.first().is_some_and(|word| word.is("only")));
    qualified_name(&tokens[only..]).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str, name: &str, sql: &str) -> String {
        format!("--\n-- Name: {name}; Type: {kind}; Schema: s; Owner: me\n--\n\n{sql}\n\n")
    }

    #[test]
    fn statements_go_where_they_belong() {
        let dump = [
            "SET statement_timeout = 0;\nSET transaction_timeout = 0;\n\
             SELECT pg_catalog.set_config('search_path', '', false);\nSET default_tablespace = '';\n"
                .to_owned(),
            entry("TABLE", "t", "CREATE TABLE s.t (a integer);\nALTER TABLE s.t OWNER TO me;"),
            entry("COMMENT", "EXTENSION x", "COMMENT ON EXTENSION x IS 'y';"),
            entry(
                "CONSTRAINT",
                "t t_pkey",
                "ALTER TABLE ONLY s.t\n    ADD CONSTRAINT t_pkey PRIMARY KEY (a);",
            ),
            entry("INDEX", "t_a", "CREATE INDEX t_a ON s.t USING btree (a);")
                + "SET default_tablespace = fast;\n",
            entry(
                "INDEX",
                "t_b",
                "CREATE UNIQUE INDEX t_b ON ONLY s.t USING btree (a);\n\
                                   ALTER TABLE ONLY s.t REPLICA IDENTITY USING INDEX t_b;",
            ),
            entry("MATERIALIZED VIEW", "m", "CREATE MATERIALIZED VIEW s.m AS SELECT 1 AS a WITH NO DATA;"),
            entry("INDEX", "m_a", "CREATE INDEX m_a ON s.m USING btree (a);"),
            entry("INDEX ATTACH", "p_a", "ALTER INDEX s.t_a ATTACH PARTITION s.p_a;"),
            entry(
                "TRIGGER",
                "t g",
                "CREATE TRIGGER g BEFORE INSERT ON s.t FOR EACH ROW EXECUTE FUNCTION s.f();",
            ),
            entry(
                "FK CONSTRAINT",
                "t t_fk",
                "ALTER TABLE ONLY s.t ADD CONSTRAINT t_fk FOREIGN KEY (a) REFERENCES \"S\".u(a);",
            ),
        ]
        .concat();
        let schema = Schema::read(&dump).unwrap();
        let before: Vec<_> = schema.before.iter().map(|entry| entry.statements.join(";")).collect();
        assert_eq!(
            before,
            ["SET default_tablespace = '';CREATE TABLE s.t (a integer);ALTER TABLE s.t OWNER TO me"]
        );
        let seen: Vec<_> = schema
            .steps
            .iter()
            .map(|step| (step.object.as_str(), step.stage, step.relations.join(" "), step.exclusive))
            .collect();
        let at = |relations: &str| relations.to_owned();
        assert_eq!(
            seen,
            [
                ("CONSTRAINT s.t t_pkey", Stage::Key, at("s.t"), true),
                ("INDEX s.t_a", Stage::Index, at("s.t"), false),
                ("INDEX s.t_b", Stage::Key, at("s.t"), true),
                ("MATERIALIZED VIEW s.m", Stage::Rest, at(""), true),
                ("INDEX s.m_a", Stage::Rest, at("s.m"), false),
                ("INDEX ATTACH s.p_a", Stage::Attach, at(""), true),
                ("TRIGGER s.t g", Stage::Rest, at(""), true),
                ("FK CONSTRAINT s.t t_fk", Stage::ForeignKey, at("s.t \"S\".u"), true),
            ]
        );
        assert_eq!(schema.steps[2].statements[0], "SET default_tablespace = fast");
        assert!(schema.steps[0].statements[0].contains("''"), "{:?}", schema.steps[0]);
    }
}
