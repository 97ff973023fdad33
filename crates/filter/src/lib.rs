//! Row filters of publications, evaluated as the server would.
//!
//! Handed is `pg_publication_rel.prqual`, the expression as the server stores it, and for each row the payloads of the
//! columns that the filter names. What comes out is whether the row is published: TRUE is, FALSE and NULL are not.
//!
//! The stored tree is read rather than the SQL that `pg_get_expr` makes of it, because the tree says which function an
//! operator is and which type each value has; SQL would have to be resolved again, against the catalogs, to know that.
//!
//! Promises: a filter is compiled whole or refused with its text and the part that stands in the way; the values it is
//! given are read as their types say, and bytes that are damaged are an error. A cast that fails in the server fails here.
//!
//! Does not belong here: which filters of which publications count for a change, and what becomes of an UPDATE of which
//! one side is published.

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
pub use error::{Error, Refused, Result};
