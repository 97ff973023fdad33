//! Statements in a form that fails if they meet an unexpected number of rows.

use std::sync::Arc;

use plan::Statement;
use plan::sql::Shape;
use rustc_hash::FxHashMap;

/// The forms that fail by themselves, by the names of the statements they are made from.
#[derive(Default)]
pub(super) struct Insisting(FxHashMap<String, Option<Arc<Shape>>>);

impl Insisting {
    /// Returns the form of `statement` that fails by itself; `None` if it has none.
    pub(super) fn of(&mut self, statement: Statement) -> Option<Statement> {
        let name = &statement.shape.name;
        if name.is_empty() {
            // The statement is not made for a table.
            return (statement.rows_expected == 0).then_some(statement);
        }
        if !self.0.contains_key(name) {
            let made = statement.shape.insisting().map(Arc::new);
            self.0.insert(name.clone(), made);
        }
        let shape = self.0.get(name)?.clone()?;
        Some(Statement { shape, ..statement })
    }
}
