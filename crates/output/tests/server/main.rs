//! Compares what we decode from a server's WAL with what its own pgoutput sends, message by
//! message.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod compare;
mod same;
mod stage;
mod themes;
