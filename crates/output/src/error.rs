//! What stops decoding.

use std::fmt;

/// Why nothing more comes out.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug)]
pub(crate) enum Kind {
    Options(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Options(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// A published table whose changes cannot be rendered or filtered here, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// The column that stands in the way, if it is one.
    pub column: Option<String>,
    /// What is wrong with it.
    pub reason: String,
}
