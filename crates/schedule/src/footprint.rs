//! What a chunk touches, as far as its changes show it, and what part of it must wait.
//!
//! Hashes of keys stand for keys: two keys with the same hash are a dependency too many, and never
//! one too few.

use std::sync::Arc;

use base::Oid;

use crate::KeyFilter;

/// What a chunk touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Footprint {
    /// It may look at or change anything.
    Everything,
    /// In the order of the plan's tables.
    Tables(Vec<Touched>),
}

/// One table of a [`Footprint`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// The target's table; for a partition, its root.
    pub root: Oid,
    /// Keys of different mappings cannot be compared.
    pub mapping: u64,
    /// What of the table is touched.
    pub units: Units,
}

/// The parts of a table that can be executed apart from one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Units {
    /// The table, whose rows cannot be told apart.
    Whole,
    /// The table, to which rows are added that nothing can collide with.
    Append,
    /// Rows by their keys: the keys of unit n end before `ends[n]`.
    Keys {
        /// Where each unit's keys end.
        ends: Vec<u32>,
        /// Hashes of the keys of all units.
        keys: Vec<u64>,
    },
    /// Rows by their keys, of a large transaction: all of it is one unit.
    Filtered(Arc<KeyFilter>),
}

/// What of a table must wait for the chunk's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Late {
    /// Nothing waits.
    Nothing,
    /// All of it waits.
    All,
    /// These units wait, ascending.
    Units(Vec<u32>),
}

/// What must wait, for each table of the plan.
pub type Split = Vec<Late>;
