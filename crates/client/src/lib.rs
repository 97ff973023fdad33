//! Where connections come from: conninfo, TLS, SCRAM, and a connection that speaks frames.
//!
//! Every connection to either server comes from here. [`ConnInfo`] says where and how to connect,
//! in libpq's words. [`connect`] gives an ordinary session for SQL. [`Wire`] gives a connection
//! whose messages the caller reads and writes: replication streams, and COPY without parsing a row.
//! The same code finds, encrypts and authenticates both. So `sslmode`, several hosts, passwords and
//! errors behave alike.
//!
//! ```text
//! ConnInfo ──► dial (hosts, addresses) ──► stream (TCP, Unix, TLS)
//!                   │                          │
//!                   ▼                          ▼
//!              startup (packet, authentication, parameters)
//!                   │                          │
//!                Session                  Wire, COPY
//! ```
//!
//! Callers decide what to send over a connection, and what to do when one is lost: this crate never
//! tries again by itself.

mod advice;
mod bulk;
mod cancel;
mod conninfo;
mod copy;
mod denial;
mod dial;
mod error;
mod error_reference;
mod farewell;
mod link;
mod pipeline;
mod raw;
mod session;
mod snapshot;
mod startup;
mod stream;
mod tls;
mod wire;
mod x509;

pub use advice::advice;
pub use bulk::Pauses;
pub use cancel::Canceller;
pub use conninfo::{ConnInfo, Libpq, Shown};
pub use copy::CopyBlock;
pub use error::Error;
pub use error_reference::{error_reference, misread_error_reference};
pub use farewell::{settle, settle_all};
pub use pipeline::{Pipeline, PipelineResult, REPORT};
pub use raw::RawSession;
pub use session::{Session, connect};
pub use snapshot::SnapshotText;
pub use startup::Replication;
pub use tls::{common_name, end_point_hash, private_key};
pub use tokio_postgres::error::SqlState;
pub use wire::{Wire, text_row};
