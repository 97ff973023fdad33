//! Row filters of publications, evaluated as the server does.
//!
//! This crate is handed `pg_publication_rel.prqual`, the expression as the server stores it. For
//! each row, it is handed the payloads of the columns that the filter names. It returns whether the
//! row is published: it is for TRUE, and not for FALSE and NULL.
//!
//! It reads the stored tree and not the SQL that `pg_get_expr` makes of it. The tree says which
//! function an operator is and which type each value has. To find that out from SQL, the code would
//! need the catalogs.
//!
//! Promises: a filter is compiled as a whole, or refused with its text and the part at fault.
//! Values are read according to their types, and damaged bytes are an error. A cast that fails in
//! the server fails here.
//!
//! Does not belong here: which filters of which publications count for a change, and what happens
//! with an UPDATE if only one of its two rows is published.

mod cast;
mod compile;
mod decimal;
mod error;
mod evaluate;
mod functions;
mod names;
mod node;
mod value;

pub use compile::{Filter, Surroundings};
pub use error::{Error, RefusedFilter, Result};
