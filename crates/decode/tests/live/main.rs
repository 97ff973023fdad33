//! WAL of live servers, decoded. The result is compared with the server in three ways: with
//! pg_walinspect for each record, with test_decoding for the rows of transactions, and with the
//! pages for the bytes of rows.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod kinds;
mod pages;
mod rows;
#[path = "../../../wal/tests/live/server.rs"]
mod server;
