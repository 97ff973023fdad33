//! Names of origins, each stored once for the life of the program.
//!
//! [`super::Begin`] is copied with every chunk, and a server has few origins
//! (`max_replication_slots` of them at a time).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Names that are stored. A server where origins are made and dropped without end must not fill the
/// memory.
const NAMES_MAX: usize = 10_000;
/// Bytes of a name. 18 allows 512. Before, a name had to fit into an index page, a third of 8 kB.
const NAME_BYTES_MAX: usize = 4_096;

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// `name` as it is stored; `None` if there are too many, or if it is longer than 4,096 bytes, which
/// no server's is.
#[must_use]
pub fn stored_origin(name: &str) -> Option<&'static str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_stored_once_and_none_that_is_too_long() {
        let first = stored_origin("once").unwrap();
        assert!(std::ptr::eq(first, stored_origin("once").unwrap()));
        assert_eq!(stored_origin(&"n".repeat(NAME_BYTES_MAX)).map(str::len), Some(NAME_BYTES_MAX));
        assert_eq!(stored_origin(&"n".repeat(NAME_BYTES_MAX + 1)), None);
    }
}
