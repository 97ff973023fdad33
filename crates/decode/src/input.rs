//! What a reader of a kind of record is handed, and how it says that the record is broken.

use wal::{Parts, Record};

use crate::layout::Facts;

/// What the readers of the kinds are handed.
pub(crate) struct Input<'p, 'a> {
    pub(crate) record: Record<'a>,
    pub(crate) parts: &'p Parts<'a>,
    pub(crate) facts: &'static Facts,
}

/// A record is not as its kind has to be.
pub(crate) type Read<T> = Result<T, &'static str>;

pub(crate) const CUT_SHORT: &str = "it is cut short";
pub(crate) const LEFT_OVER: &str = "it is longer than it can be";
