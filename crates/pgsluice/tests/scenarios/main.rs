//! Two real servers and `pgsluice run` between them: scenarios by theme, each rule by its name.
//!
//! A scenario is told in SQL: what both ends have, what happens on the source (or behind pgsluice's back on the
//! target), and that every strategy ends with the source's rows, or with exactly the conflict that PostgreSQL's own
//! subscriber would have met. See `support` for the words.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adopt;
mod archived;
mod bags;
mod binary;
mod commands;
mod conflicts;
mod consistency;
mod create_schema;
mod decoded;
mod early;
mod errors;
mod estimates;
mod failover;
mod failures;
mod faults;
mod folds;
mod identity;
mod late;
mod left_out;
mod observed;
mod parallel;
mod partitions;
mod plans;
mod prefetch;
mod progress;
mod refresh;
mod relaxed;
mod relook;
mod remedies;
mod replaced;
mod settled;
mod shared;
mod statements;
#[allow(dead_code, reason = "the golden themes use other words of it")]
mod support;
mod tables;
mod transactions;
mod triggers;
mod two_way;
mod types;
mod verify;
