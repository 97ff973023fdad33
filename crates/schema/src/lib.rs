//! The source's schema on a target that is empty, by pg_dump.
//!
//! The input is the address of both servers, a pg_dump ([`PgDump::find`]), and an empty target.
//!
//! The crate creates the whole schema of the source's database, except publications, subscriptions
//! and our own state. Before the first copy it creates what the tables need to take rows, in one
//! transaction, so that a failure leaves nothing ([`Schema::create`]). Indexes, constraints,
//! triggers and the rest come after the copy, in parallel ([`finish()`]).
//!
//! ```text
//! pg_dump --> script (statements) --> plan: before the copy | steps after it
//!                                             |                  |
//!                          one transaction on the target, which tries and stores the steps
//!                                                                |
//!   (the first copy)                                             v
//!                                             steps, each a transaction that marks itself done
//! ```
//!
//! # Stages
//! The order in which pg_dump prints is one that works; of it is kept what
//! matters, the rest goes over several connections:
//!
//! | stage | what | order |
//! | --- | --- | --- |
//! | build | primary keys, unique and exclusion constraints, indexes | any, in parallel; unique ones first |
//! | attach | `ALTER INDEX ... ATTACH PARTITION` | one by one |
//! | foreign key | foreign keys, which need the unique indexes | any, in parallel |
//! | rest | triggers, rules, policies, comments, what pg_dump had to postpone | one by one, as pg_dump prints it |
//! | late | foreign keys that do not hold yet ([`validate()`]) | one by one, while changes flow |
//!
//! Two steps never run together on one table unless both only build an index:
//! their locks would make them wait for one another, or deadlock.
//!
//! # Hazards
//! 1. **A foreign key over half-arrived data.** After a copy that was
//!    interrupted the tables stand at different snapshots: a row may refer to
//!    one that the stream has yet to bring. A key that does not hold is made
//!    NOT VALID and validated when the stream has passed every snapshot; from
//!    then on each state of the target is one of the source. What is still
//!    missing then is not published, and said.
//! 2. **A predecessor that was killed** may have a backend that still builds.
//!    Each step takes an advisory lock on itself and then looks again whether
//!    it was done.
//! 3. **The source's schema changes after it was read.** The steps were stored
//!    with the tables, so that a later start builds what belongs to them.
//!
//! Circle: error, pg_dump: an error names the programs that were found, and finding them can fail.
//!
//! Does not belong here: whether the target may be created into, and when.

mod build;
mod create;
mod error;
mod error_reference;
mod finish;
mod owners;
mod pg_dump;
mod plan;
mod progress;
mod refusal;
mod schedule;
mod script;
mod session;
mod steps;
mod validate;

pub use build::Build;
pub use create::Created;
pub use error::Error;
pub use error_reference::error_reference;
pub use finish::finish;
pub use pg_dump::PgDump;
pub use plan::Schema;
pub use progress::{Building, SchemaProgress};
pub use steps::has_steps;
pub use validate::validate;
