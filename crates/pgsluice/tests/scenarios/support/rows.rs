//! Whether every database holds the same rows, and which differ.

use std::collections::BTreeMap;

use testkit::Rows;

use super::Scenario;

impl Scenario {
    /// Every published table holds the same rows in every database; columns by the source's names.
    #[track_caller]
    pub(crate) fn same(&self) {
        let sql = "SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1";
        for row in self.try_source(sql).expect("the publication") {
            self.same_table(row[0].as_deref().unwrap());
        }
    }

    /// One table holds the same rows in every database.
    #[track_caller]
    pub(crate) fn same_table(&self, table: &str) {
        let sql = format!(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute \
              WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped",
            table = table.replace('\'', "''")
        );
        let columns = self.source_one(&sql);
        let sql = format!("SELECT ROW({columns})::text FROM {table} ORDER BY 1");
        let expected = self.try_source(&sql).unwrap_or_else(|error| panic!("{error}"));
        self.same_rows(table, &expected, &sql);
    }

    /// In every target database the table holds the rows that `query` has on the source.
    #[track_caller]
    pub(crate) fn same_as(&self, table: &str, query: &str) {
        let rows = format!("SELECT q::text FROM ({query}) q ORDER BY 1");
        let expected = self.try_source(&rows).unwrap_or_else(|error| panic!("{error}"));
        self.same_rows(table, &expected, &format!("SELECT t::text FROM {table} t ORDER BY 1"));
    }

    #[track_caller]
    fn same_rows(&self, table: &str, expected: &Rows, sql: &str) {
        for number in 0..self.followers.len() {
            let found = self.at(&self.target_url(number), sql).unwrap_or_else(|error| panic!("{error}"));
            if found != *expected {
                let (args, log) = (&self.followers[number].args, self.short_log(number));
                panic!("{table} differs, strategy {args:?}: {}\n{log}", difference(expected, &found));
            }
        }
    }
}

/// The first rows that only one side has, counted.
fn difference(expected: &Rows, found: &Rows) -> String {
    let mut balance = BTreeMap::<&str, i64>::new();
    expected
        .iter()
        .flatten()
        .for_each(|row| *balance.entry(row.as_deref().unwrap_or("NULL")).or_default() += 1);
    found.iter().flatten().for_each(|row| *balance.entry(row.as_deref().unwrap_or("NULL")).or_default() -= 1);
    let mut text = format!("{} rows on the source, {} on the target", expected.len(), found.len());
    for (side, sign) in [("source", 1), ("target", -1)] {
        for (row, count) in balance.iter().filter(|(_, count)| **count * sign > 0).take(5) {
            let row: String = row.chars().take(300).collect();
            text.push_str(&format!("\n  only on the {side}, {} times: {row}", count.abs()));
        }
    }
    text
}
