//! What a person asks of a subscription, whether a process runs it or not.
//!
//! | module | asks |
//! | --- | --- |
//! | [`admin`] | both servers: what a subscription left there, and to change or remove it |
//! | [`adopt`] | the target: to take over from a native subscription, or to hand back to it |
//! | [`control`] | the process that runs the subscription, through its socket |
//! | [`pin`] | the same process, to stand still while `verify` compares |
//! | [`metrics`] | every pipeline of this process, over HTTP |
//! | [`sequences`] | both servers, for what logical replication does not carry |
//!
//! ## The contract
//! A command changes a subscription only as one transaction on the target, or through what
//! `engine` offers for it: [`engine::Status`] is what a running pipeline shows and listens to.
//! Whatever interrupts a command, the same command repeated goes on.
//!
//! ## Why this crate depends on `engine`, and not the other way round
//! Commands read the pipeline's status and settings, and adopting asks for the check of both ends
//! that a start makes. The pipeline asks nothing of a command. The one thing that both read is
//! that a subscription was adopted: a start must know it, so it stays in [`engine::adoption`].
//!
//! Nothing here moves a row or a change.

pub mod admin;
pub mod adopt;
pub mod control;
pub mod metrics;
pub mod pin;
pub mod sequences;
