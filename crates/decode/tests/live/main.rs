//! WAL of live servers, decoded: what comes out is what the server itself says, in three ways: pg_walinspect about each
//! record, test_decoding about the rows of transactions, and the pages about the bytes of rows.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod kinds;
mod pages;
mod rows;
#[path = "../../../wal/tests/live/server.rs"]
mod server;
