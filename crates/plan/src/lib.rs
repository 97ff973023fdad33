//! From the changes of source transactions to the SQL that writes their net effect.
//!
//! ```text
//!   source relation + target's catalogs --> Table      which path, which key, which columns
//!   Batch (changes as they came)        --> Plan       the net effect, in steps for each table
//!   Plan                                --> Footprint  what it touches, for crate `schedule`
//!   Table + kind of statement           --> Shape      SQL to prepare, with one possible plan
//!   Shape + rows                        --> Statement  its parameters, as Bind and COPY want them
//! ```
//! Contract: a plan leaves the target as its changes would, one after the other, if every statement
//! meets the number of rows that it expects. If a statement meets another number, or if changes
//! contradict one another ([`Misfit`]), the plan says nothing about the target. Then the caller
//! rolls back and applies the changes as they came.
//!
//! The crate does no I/O. Crate `apply` reads the catalogs, chooses when a plan is made, and sends
//! its statements.
//!
//! Circle: sql, sql/telling: a set that tells is a kind of statement, made from the plain set.

pub mod bag;
mod batch;
mod exceptions;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod fold;
mod footprint;
mod holder;
mod key_index;
mod plan;
pub mod search;
pub mod sql;
mod statement;
mod table;

pub use batch::{Batch, CHANGE_OVERHEAD, Change, Digest, End, Tally};
pub use exceptions::{Exceptions, KeyBytes, RowKeys};
pub use fold::{Fold, Net};
pub use footprint::Gathering;
pub use holder::{Element, Holder};
pub use key_index::{Bounds, KeyColumn, KeyIndex};
pub use plan::{Plan, Stage, Step};
pub use statement::{
    Arrays, CopyRows, Misfit, PIECE, Parameters, Statement, Walk, plain_statement, row_statement,
};
pub use table::{
    Collisions, Column, Leading, Lookup, MappingError, Mask, Path, Table, TargetColumn, TargetTable,
    UniqueKey, display_name, quoted_name,
};
