//! One file for each benchmark: its cases, their sizes and goals, and how a case runs.
//!
//! Each has `run`, which measures the cases that the options name and returns them. A file may take
//! another's rig where both measure the same thing: `ablation` runs `catchup` with other settings,
//! and `publisher_cost` the cases of `subscriptions`.

pub(crate) mod ablation;
pub(crate) mod catchup;
pub(crate) mod conflicts;
pub(crate) mod copy;
pub(crate) mod decode;
pub(crate) mod fanout;
pub(crate) mod lag;
pub(crate) mod publisher_cost;
mod subscriptions;
pub(crate) mod update_deleted;
pub(crate) mod verify;
