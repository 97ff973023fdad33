//! WAL of live servers: every record is what the server itself says of it.
//!
//! The server's answer comes from pg_walinspect (from 15 on) and, for page images, from the page
//! itself.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod images;
mod inspect;
mod server;
mod timelines;
