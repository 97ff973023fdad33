//! The commands that an operator gives for a subscription, whether a process runs it or not.
//!
//! | module | works with |
//! | --- | --- |
//! | [`admin`] | both servers: reads, changes or removes what a subscription left there |
//! | [`adopt`] | the target: takes over from a native subscription, or hands back to it |
//! | [`conflicts`] | the target's history of conflicts |
//! | [`control`] | the process that runs the subscription, through its socket |
//! | [`running_applier`] | the same process, which stands still while `verify` compares |
//! | [`metrics`] | every pipeline of this process, over HTTP |
//! | [`sequences`] | both servers, for what logical replication does not carry |
//! | [`moving`] | a native subscription and its publisher, to bring it to a relay or back |
//! | [`slots`] | a relay or a server, for its replication slots |
//!
//! ## The contract
//! A command changes a subscription only in one transaction on the target, or through what `engine`
//! offers. A running pipeline shows its state in [`engine::Status`], and listens to it. If anything
//! interrupts a command, the same command continues it when it is given again.
//!
//! ## Why this crate depends on `engine`, and not the other way round
//! Commands read the pipeline's status and settings, and adopting asks for the check of both ends
//! that a start makes. The pipeline asks nothing of a command. Both read only one thing, whether a
//! subscription was adopted. A start must know that, so it stays in module `adoption` of `engine`.
//!
//! Nothing here moves a row or a change.

pub mod admin;
pub mod adopt;
pub mod conflicts;
pub mod control;
pub mod metrics;
pub mod moving;
pub mod running_applier;
pub mod sequences;
pub mod slots;
