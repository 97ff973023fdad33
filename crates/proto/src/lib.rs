//! Protocol v3 frames, replication commands and pgoutput v1 to v4. Bytes in and out, no I/O.
//!
//! All functions here turn bytes into values, or values into bytes. A length is checked before it
//! is believed. An unknown message is an error and never skipped. Sockets, retries and the meaning
//! of messages belong to later stages.

pub mod frame;
pub mod pgoutput;
pub mod replication;
