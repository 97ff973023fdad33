//! What a chunk touches, as far as its changes show it, and which part of it must wait.
//!
//! Hashes stand for keys. Two keys with the same hash make one dependency too many, never one too
//! few.

use std::sync::Arc;

use base::Oid;

use crate::KeyFilter;

/// The tables and keys that a chunk touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Footprint {
    /// The chunk may read or change anything.
    Everything,
    /// These tables, in the order of the plan's tables.
    Tables(Vec<Touched>),
}

/// One table of a [`Footprint`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// The target's table; for a partition, the root.
    pub root: Oid,
    /// The mapping of the keys. Keys of different mappings cannot be compared.
    pub mapping: u64,
    /// The units of the table that are touched.
    pub units: Units,
}

/// The parts of a table that can be executed separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Units {
    /// The whole table, because its rows cannot be told apart.
    Whole,
    /// The table, to which the chunk adds rows that cannot collide with any.
    Append,
    /// Rows by their keys: the keys of unit n end before `ends[n]`.
    Keys {
        /// Where each unit's keys end.
        ends: Vec<u32>,
        /// Hashes of the keys of all units.
        keys: Vec<u64>,
    },
    /// The rows of a large transaction, by their keys. All of them are one unit.
    Filtered(Arc<KeyFilter>),
}

/// Which units of a table must wait for the chunk's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Late {
    /// Nothing waits.
    Nothing,
    /// All of it waits.
    All,
    /// These units wait, ascending.
    Units(Vec<u32>),
}

/// Which units must wait, for each table of the plan.
pub type Split = Vec<Late>;
