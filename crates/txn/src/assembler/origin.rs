//! Names of origins, each stored once for the life of the program.
//!
//! [`super::Begin`] is copied with every chunk, and a server has few origins
//! (`max_replication_slots` of them at a time).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Names that are stored. A server where origins are made and dropped without end must not fill the
/// memory.
const NAMES_MAX: usize = 10_000;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// `name` as it is stored; `None` if there are too many.
#[must_use]
pub fn stored_origin(name: &str) -> Option<&'static str> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&stored) = names.get(name) {
        return Some(stored);
    }
    if names.len() >= NAMES_MAX {
        return None;
    }
    let stored: &'static str = Box::leak(name.into());
    names.insert(stored);
    Some(stored)
}
