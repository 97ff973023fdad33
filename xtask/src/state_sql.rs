//! SQL about pgsluice's own state on the target, outside of the crate that owns it.
//!
//! Only the crate `state` knows which tables schema `pgsluice` has, and what a missing one means.
//! A line of another crate of the product that names the schema in SQL is a complaint. Tests may
//! read the tables. Messages that name a table for a person are no SQL: there, no word of SQL and
//! no quote stands before the name.
//!
//! Lines are looked at one by one, so a name at the beginning of a line is not noticed.

use crate::tidy::numbered;

const OWNER: &str = "crates/state/";
/// Its query on the columns of a table finds the types of [`OWNER`], too, by the schema's name.
const FINDS_TYPES: &str = "crates/apply/";
/// What serves tests, and is no part of the product.
const FOR_TESTS: &str = "crates/testkit/";
/// Words that stand before a name in SQL.
const WORDS: [&str; 11] =
    ["FROM", "INTO", "UPDATE", "JOIN", "TABLE", "EXISTS", "REFERENCES", "TYPE", "SCHEMA", "ON", "ONLY"];

/// The lines of a file that write the schema's name into SQL.
pub(crate) fn elsewhere(path: &str, text: &str) -> Vec<String> {
    let is_product = path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs");
    if !is_product || [OWNER, FOR_TESTS].iter().any(|own| path.starts_with(own)) {
        return Vec::new();
    }
    let product = numbered(text).take_while(|(_, line)| *line != "#[cfg(test)]");
    let may_find_types = path.starts_with(FINDS_TYPES);
    let is_complaint = |line: &str| {
        !line.trim_start().starts_with("//")
            && (has_name_in_schema(line) || names_schema(line) && !may_find_types)
    };
    let lines = product.filter(|(_, line)| is_complaint(line));
    lines
        .map(|(number, _)| {
            format!("line {number}: SQL that names schema pgsluice: let the crate state have it")
        })
        .collect()
}

/// `nspname = 'pgsluice'`. The prefix of `pg_logical_emit_message` has the same name.
fn names_schema(line: &str) -> bool {
    line.contains("'pgsluice'") && line.contains("nsp")
}

/// `FROM pgsluice.subscription`, `'pgsluice.ahead'`, `ON SCHEMA pgsluice`
fn has_name_in_schema(line: &str) -> bool {
    line.match_indices("pgsluice").any(|(at, name)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let is_behind_word = before.ends_with(' ')
            && before.split_whitespace().next_back().is_some_and(|word| WORDS.contains(&word));
        let is_qualifier = after
            .strip_prefix('.')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || "{%".contains(c)));
        let is_schema = before.ends_with("SCHEMA ") && !after.starts_with(char::is_alphanumeric);
        is_qualifier && (is_behind_word || before.ends_with('\'')) || is_schema
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complains(line: &str) -> bool {
        !elsewhere("crates/check/src/a.rs", &format!("//! x\n{line}\n")).is_empty()
    }

    #[test]
    fn only_the_crate_state_has_sql_on_its_schema() {
        let sql = "    let sql = \"SELECT 1 FROM pgsluice.subscription\";";
        assert!(complains(sql));
        assert!(complains("    \"SELECT to_regclass('pgsluice.ahead')\""));
        assert!(complains("    \"GRANT USAGE ON SCHEMA pgsluice TO {role}\""));
        assert!(complains("    \"WHERE n.nspname = 'pgsluice'\""));
        assert!(complains("    format!(\"DELETE FROM pgsluice.{table}\")"));
        assert!(elsewhere("crates/state/src/a.rs", sql).is_empty());
        assert!(elsewhere("crates/a/tests/a.rs", sql).is_empty());
        assert!(!complains(&format!("#[cfg(test)]\n{sql}")));
    }

    #[test]
    fn a_message_may_name_a_table() {
        assert!(!complains("    Error::client(\"read pgsluice.schema_step on the target\", error)"));
        assert!(!complains("    // FROM pgsluice.subscription"));
        assert!(!complains("    \"SELECT pg_logical_emit_message(true, 'pgsluice', '')\""));
        assert!(!complains("    \"which is a defect of pgsluice.\""));
    }
}
