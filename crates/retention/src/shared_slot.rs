//! A slot that keeps WAL for capture, and belongs to the other direction of a pair.

use std::sync::Arc;

use source::restart_lsn::KeptBeside;

/// A physical slot of the target that belongs to the other direction of a pair.
#[derive(Debug, Clone)]
pub struct SharedSlot {
    /// Its name.
    pub name: String,
    /// What it keeps WAL for beside its own stream.
    pub kept: Arc<KeptBeside>,
}
