//! Protocol v3 frames, replication commands and pgoutput v1 to v4. Bytes in and out, no I/O.
//!
//! | module | side |
//! | --- | --- |
//! | [`frame`] | messages of either side, and errors |
//! | [`replication`] | what stands inside CopyData, of walsender and receiver |
//! | [`pgoutput`] | the output plugin's messages, read and written |
//! | [`startup`], [`command`] | what a server reads: first packets and replication commands |
//! | [`backend`], [`scram`] | what a server writes, and how it authenticates a client |
//!
//! All functions here turn bytes into values, or values into bytes. A length is checked before it
//! is believed. An unknown message is an error and never skipped. Sockets, retries and the meaning
//! of messages belong to later stages.

pub mod backend;
pub mod command;
pub mod frame;
pub mod pgoutput;
pub mod replication;
pub mod scram;
pub mod startup;
