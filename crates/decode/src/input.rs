//! The input of the readers of kinds, and how they report a broken record.

use wal::{Parts, Record};

use crate::layout::Facts;

/// The input of a reader of a kind.
pub(crate) struct Input<'p, 'a> {
    pub(crate) record: Record<'a>,
    pub(crate) parts: &'p Parts<'a>,
    pub(crate) facts: &'static Facts,
}

/// The result of reading. The error says why the record does not have the form of its kind.
pub(crate) type Read<T> = Result<T, &'static str>;

pub(crate) const CUT_SHORT: &str = "it is cut short";
pub(crate) const LEFT_OVER: &str = "it is longer than it can be";
