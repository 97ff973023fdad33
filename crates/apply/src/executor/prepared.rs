//! What a session has prepared, and why a set was given up.

use std::sync::Arc;

use plan::sql::Shape;
use rustc_hash::FxHashSet;

use crate::error::Error;

/// The statements of a session.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) names: FxHashSet<String>,
    /// New statements that must find rows by an index and whose plans were not yet looked at.
    pub(super) unseen: Vec<Arc<Shape>>,
}

/// Why a set-based chunk was given up.
#[derive(Debug)]
pub(super) enum Setback {
    /// The target was not as the source had it.
    Unexpected,
    /// A statement failed with this SQLSTATE.
    Failed(String),
    /// The connection or the session is of no further use.
    Broken(Error),
}
