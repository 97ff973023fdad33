//! Scenarios by theme, with `pgsluice run` between two real servers. Tests of a rule have its name.
//!
//! A scenario says in SQL what both ends have, and what happens on the source or, without pgsluice,
//! on the target. Every strategy must end with the source's rows, or with exactly the conflict that
//! PostgreSQL's own subscriber would meet. `support` has the vocabulary.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adopt;
mod archived;
mod bags;
mod binary;
mod both_ways;
mod clock_skew;
mod commands;
mod conflict_hazards;
mod conflict_history;
mod conflicts;
mod consistency;
mod convergence;
mod create_schema;
mod decoded;
mod early;
mod errors;
mod estimates;
mod every_rule;
mod exceptions;
mod failover;
mod failures;
mod faults;
mod folded_backlog;
mod folds;
mod identity;
mod interleaved;
mod joining_rules;
mod late;
mod left_out;
mod limits;
mod native_conflicts;
mod native_stops;
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
mod resolutions;
mod restored_targets;
mod ring;
mod shared;
mod shared_slot;
mod statements;
#[allow(dead_code, reason = "the golden themes use other words of it")]
mod support;
mod tables;
mod transactions;
mod triggers;
mod two_way;
mod types;
mod unfit_targets;
mod update_deleted;
mod update_deleted_faults;
mod verify;
mod worked_example;
