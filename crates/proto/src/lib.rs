//! Protocol v3 frames, replication commands and pgoutput v1 to v4; bytes in and out, no I/O.
//!
//! Everything here is handed bytes and gives back values, or the other way
//! round. A length is checked before it is believed; an unknown message is an
//! error, never skipped. Sockets, retries and meaning belong to later stages.

pub mod frame;
pub mod pgoutput;
pub mod replication;
