//! Catalogs of real servers, looked at and followed through their WAL, compared with what the
//! servers say.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod damage;
mod forms;
mod places;
#[path = "../../../wal/tests/live/server.rs"]
#[allow(dead_code, reason = "the tests of `wal` use the rest")]
mod server;
mod stage;
mod traps;

mod walk;
