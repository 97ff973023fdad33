//! Tuples from the pages of real servers, rendered and compared with what the server itself says of
//! the rows.
//!
//! Text is compared with a query's result, binary with COPY's, both with the settings of a
//! replication connection; see `oracle`. Every test prints how many values it compared.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod catalog;
mod damage;
mod edges;
mod oracle;
mod random;
mod refused;
mod rows;
mod toast;
#[allow(dead_code, reason = "what nobody can write is for the stream's tests")]
#[path = "../../../pgsluice/tests/scenarios/types/values.rs"]
mod values;
mod zones;
