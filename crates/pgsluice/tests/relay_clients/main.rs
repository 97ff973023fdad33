//! Real clients through `pgsluice relay`: each sees what it sees at the publisher itself.
//!
//! | file | client |
//! | --- | --- |
//! | `recvlogical` | pg_recvlogical of 14 to 18 |
//! | `psycopg2` | psycopg2's replication cursor |
//! | `psql` | psql and libpq of 14 to 18: SQL, TLS, logins, errors |
//! | `follower` | `pgsluice run` with the relay as its source |
//! | `debezium` | Debezium's embedded engine |
//! | `commands` | any: replication commands, and each message of their answers |
//! | `protocol` | any: pgoutput in each version of its protocol, and each message of the stream |
//!
//! The oracle is the publisher: the same client does the same there, and what it prints or receives
//! is compared. `stage` has the publisher and the relay that the tests of a major share. `load` has
//! the tables and what happens to them, `stream` the messages that a client received.
//!
//! What the tests need beside the servers, they fetch below `target/`: client programs with pip
//! (`testkit::client_dir`), psycopg2 with pip, Debezium with Maven. Debezium takes long and
//! downloads much, so its test runs only when asked for:
//!
//! ```sh
//! cargo test -p pgsluice --test relay_clients -- --include-ignored
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod commands;
#[path = "../../../output/tests/conformance/compare.rs"]
#[allow(dead_code, reason = "the tests of `output` use the rest")]
mod compare;
mod debezium;
mod follower;
mod load;
#[path = "../../../output/tests/conformance/message.rs"]
#[allow(dead_code, reason = "the tests of `output` use the rest")]
mod message;
mod protocol;
mod psql;
mod psycopg2;
mod recvlogical;
mod stage;
mod stream;
#[path = "../../../output/tests/conformance/told.rs"]
#[allow(dead_code, reason = "the tests of `output` use the rest")]
mod told;
