//! Statements in which a view of the publisher is replaced by rows of the relay.
//!
//! ```text
//! SELECT slot_name FROM pg_catalog.pg_replication_slots
//!
//! WITH pg_replication_slots AS (SELECT ... the relay's rows ...)
//! SELECT slot_name FROM pg_replication_slots
//! ```
//! The publisher runs the whole, so joins, functions and formats are its own. What is not a query,
//! `PREPARE` and views that a statement makes stay as they are: their rows would stay those of now.

use sql_tokens::{Kind, Token, Tokens};

/// The schema of the views, which a statement may name.
const SCHEMA: &str = "pg_catalog";
/// What a query begins with. A common table expression may stand before each.
const QUERIES: [&str; 7] = ["select", "values", "table", "insert", "update", "delete", "merge"];

/// `sql` with the relay's rows wherever a query names a view that `view` knows: it returns the
/// query of the rows. `None` if nothing is to be changed.
pub(crate) fn shadow(sql: &str, view: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let mut tokens = Tokens::new(sql);
    let words: Vec<Token<'_>> =
        tokens.by_ref().filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment)).collect();
    // The publisher says what is wrong with it.
    if !tokens.is_at_end() || words.iter().any(|word| word.is("atomic")) {
        return None;
    }
    let mut edits = Vec::new();
    for statement in statements(&words) {
        edits.extend(edits_of(statement, view).unwrap_or_default());
    }
    if edits.is_empty() {
        return None;
    }
    let (mut text, mut at) = (String::with_capacity(sql.len() + 256), 0);
    for Edit { from, to, put } in edits {
        text.push_str(&sql[at..from]);
        text.push_str(&put);
        at = to;
    }
    text.push_str(&sql[at..]);
    Some(text)
}

/// Bytes that make room for others.
struct Edit {
    from: usize,
    to: usize,
    put: String,
}

/// The statements between semicolons.
fn statements<'a, 'b>(words: &'b [Token<'a>]) -> impl Iterator<Item = &'b [Token<'a>]> {
    let mut depth = 0;
    words.split(move |word| {
        depth += i32::from(word.is_char('(')) - i32::from(word.is_char(')'));
        depth <= 0 && word.is_char(';')
    })
}

fn edits_of(statement: &[Token<'_>], view: &dyn Fn(&str) -> Option<String>) -> Option<Vec<Edit>> {
    let mut named: Vec<(String, String)> = Vec::new();
    let mut edits = Vec::new();
    for (at, word) in statement.iter().enumerate() {
        let Some(name) = word.name() else { continue };
        let Some(qualified) = is_reference(statement, at) else { continue };
        if !named.iter().any(|(known, _)| *known == name) {
            let Some(rows) = view(&name) else { continue };
            named.push((name, rows));
        }
        if qualified {
            edits.push(Edit { from: statement[at - 2].start, to: word.start, put: String::new() });
        }
        if is_own_expression(statement, at) {
            return None;
        }
    }
    if named.is_empty() {
        return None;
    }
    let tables: Vec<String> = named.iter().map(|(name, rows)| format!("{name} AS ({rows})")).collect();
    let tables = tables.join(", ");
    let (at, is_behind_with) = beginning(statement)?;
    let put = if is_behind_with { format!("{tables}, ") } else { format!("WITH {tables} ") };
    edits.insert(0, Edit { from: at, to: at, put });
    Some(edits)
}

/// Whether the name at `at` may be that of a view: with its schema (`true`), or alone.
fn is_reference(statement: &[Token<'_>], at: usize) -> Option<bool> {
    let is = |at: Option<usize>, c| at.and_then(|at| statement.get(at)).is_some_and(|word| word.is_char(c));
    if is(Some(at + 1), '(') {
        return None;
    }
    if !is(at.checked_sub(1), '.') {
        return Some(false);
    }
    let schema = at.checked_sub(2).and_then(|at| statement[at].name())?;
    (schema == SCHEMA && !is(at.checked_sub(3), '.')).then_some(true)
}

/// Whether the statement gives the name at `at` a meaning of its own.
fn is_own_expression(statement: &[Token<'_>], at: usize) -> bool {
    let [next, after] = [1, 2].map(|by| statement.get(at + by));
    next.is_some_and(|next| next.is("as"))
        && after.is_some_and(|after| after.is_char('(') || after.is("materialized") || after.is("not"))
}

/// Where a common table expression goes, and whether it goes behind the word `WITH`.
fn beginning(statement: &[Token<'_>]) -> Option<(usize, bool)> {
    let first = statement.first()?;
    if first.is_char('(') || QUERIES.iter().any(|query| first.is(query)) {
        return Some((first.start, false));
    }
    if first.is("with") {
        let second = statement.get(1)?;
        let behind = if second.is("recursive") { statement.get(2)? } else { second };
        return Some((behind.start, true));
    }
    if first.is("explain") {
        let mut rest = &statement[1..];
        if rest.first()?.is_char('(') && !begins_query(rest.get(1)?) {
            rest = &rest[rest.iter().position(|word| word.is_char(')'))? + 1..];
        }
        while rest.first()?.is("analyze") || rest.first()?.is("verbose") {
            rest = &rest[1..];
        }
        return beginning(rest);
    }
    if first.is("copy") {
        return if statement.get(1)?.is_char('(') { beginning(&statement[2..]) } else { None };
    }
    if first.is("declare") {
        return beginning(&statement[statement.iter().position(|word| word.is("for"))? + 1..]);
    }
    if first.is("create") && statement.iter().take(4).any(|word| word.is("table")) {
        let at = statement.windows(2).position(|pair| pair[0].is("as") && begins_query(&pair[1]))?;
        return beginning(&statement[at + 1..]);
    }
    None
}

fn begins_query(word: &Token<'_>) -> bool {
    word.is_char('(') || word.is("with") || QUERIES.iter().any(|query| word.is(query))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(name: &str) -> Option<String> {
        let known = ["pg_replication_slots", "pg_stat_replication"];
        known.contains(&name).then(|| "ROWS".to_owned())
    }

    fn shadowed(sql: &str) -> Option<String> {
        shadow(sql, &rows)
    }

    const WITH: &str = "WITH pg_replication_slots AS (ROWS) ";

    #[test]
    fn a_view_is_named_with_its_schema_or_without() {
        for (sql, rest) in [
            ("SELECT * FROM pg_replication_slots", None),
            ("select 1 from PG_REPLICATION_SLOTS s", None),
            ("SELECT * FROM \"pg_replication_slots\"", None),
            ("TABLE pg_catalog.pg_replication_slots", Some("TABLE pg_replication_slots")),
            (
                "SELECT pg_catalog.pg_replication_slots.slot_name FROM \"pg_catalog\" . pg_replication_slots",
                Some("SELECT pg_replication_slots.slot_name FROM pg_replication_slots"),
            ),
            ("(SELECT 1 FROM pg_replication_slots) UNION SELECT 2", None),
            ("INSERT INTO t SELECT 1 FROM pg_replication_slots", None),
            ("DELETE FROM t USING pg_replication_slots s", None),
        ] {
            assert_eq!(shadowed(sql), Some(format!("{WITH}{}", rest.unwrap_or(sql))), "{sql}");
        }
    }

    #[test]
    fn what_does_not_mean_the_view_stays_as_it_is() {
        for sql in [
            "SELECT 'pg_replication_slots'",
            "SELECT $$pg_replication_slots$$ -- pg_replication_slots",
            "SELECT * FROM mine.pg_replication_slots",
            "SELECT * FROM pg_replication_slots_of_mine",
            "SELECT pg_replication_slots(1)",
            "WITH pg_replication_slots AS (SELECT 1) TABLE pg_replication_slots",
            "WITH pg_replication_slots AS MATERIALIZED (SELECT 1) TABLE pg_replication_slots",
            "GRANT SELECT ON pg_replication_slots TO bob",
            "CREATE VIEW v AS SELECT * FROM pg_replication_slots",
            "PREPARE p AS SELECT * FROM pg_replication_slots",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2 FROM pg_replication_slots; END",
            "SELECT 'no end FROM pg_replication_slots",
            "",
        ] {
            assert_eq!(shadowed(sql), None, "{sql}");
        }
    }

    #[test]
    fn the_rows_come_where_a_query_begins() {
        for (sql, changed) in [
            ("WITH a AS (SELECT 1) SELECT * FROM pg_replication_slots, a", "WITH *a AS (SELECT 1) SELECT"),
            ("WITH RECURSIVE a AS (SELECT 1) SELECT * FROM pg_replication_slots", "WITH RECURSIVE *a AS"),
            ("EXPLAIN SELECT * FROM pg_replication_slots", "EXPLAIN +SELECT"),
            (
                "EXPLAIN (ANALYZE, COSTS OFF) SELECT * FROM pg_replication_slots",
                "EXPLAIN (ANALYZE, COSTS OFF) +SELECT",
            ),
            ("EXPLAIN ANALYZE VERBOSE SELECT 1 FROM pg_replication_slots", "EXPLAIN ANALYZE VERBOSE +SELECT"),
            ("EXPLAIN (SELECT 1 FROM pg_replication_slots)", "EXPLAIN +(SELECT"),
            ("COPY (SELECT 1 FROM pg_replication_slots) TO STDOUT", "COPY (+SELECT"),
            ("DECLARE c CURSOR WITH HOLD FOR SELECT 1 FROM pg_replication_slots", "WITH HOLD FOR +SELECT"),
            ("CREATE TEMP TABLE x (a) AS SELECT 1 FROM pg_replication_slots", "(a) AS +SELECT"),
        ] {
            let changed = changed.replace('+', WITH).replace('*', "pg_replication_slots AS (ROWS), ");
            let shadowed = shadowed(sql).unwrap_or_else(|| panic!("{sql}"));
            assert!(shadowed.contains(&changed), "{sql}: {shadowed}");
        }
    }

    #[test]
    fn each_statement_of_a_text_is_looked_at_by_itself() {
        let sql = "BEGIN; SELECT 1 FROM pg_stat_replication; SELECT 2 FROM pg_replication_slots \
                   JOIN pg_catalog.pg_stat_replication r ON true; COMMIT";
        assert_eq!(
            shadowed(sql).as_deref(),
            Some(
                "BEGIN; WITH pg_stat_replication AS (ROWS) SELECT 1 FROM pg_stat_replication; \
                 WITH pg_replication_slots AS (ROWS), pg_stat_replication AS (ROWS) \
                 SELECT 2 FROM pg_replication_slots JOIN pg_stat_replication r ON true; COMMIT"
            )
        );
    }

    proptest! {
        #[test]
        fn any_text_can_be_looked_at(words in proptest::collection::vec(
            prop_oneof![
                Just("pg_replication_slots"), Just("pg_catalog"), Just("."), Just("("), Just(")"), Just(";"),
                Just("WITH"), Just("EXPLAIN"), Just("SELECT"), Just("AS"), Just("COPY"), Just("DECLARE"),
                Just("FOR"), Just("CREATE"), Just("TABLE"), Just("'"), Just("RECURSIVE"), Just("é"),
            ],
            0..12,
        )) {
            let sql = words.join(" ");
            if let Some(shadowed) = shadowed(&sql) {
                prop_assert!(shadowed.contains("AS (ROWS)"));
            }
        }
    }
}
