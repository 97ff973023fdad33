//! Errors as the server words them.

use std::fmt;

use proto::frame::ServerError;

/// SQLSTATEs, by their names in `errcodes.txt`.
pub(crate) mod code {
    pub(crate) const CONNECTION_FAILURE: &str = "08006";
    pub(crate) const PROTOCOL_VIOLATION: &str = "08P01";
    pub(crate) const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub(crate) const INVALID_PARAMETER_VALUE: &str = "22023";
    pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";
    pub(crate) const SYNTAX_ERROR: &str = "42601";
    pub(crate) const INVALID_NAME: &str = "42602";
    pub(crate) const NAME_TOO_LONG: &str = "42622";
    pub(crate) const RESERVED_NAME: &str = "42939";
    pub(crate) const UNDEFINED_OBJECT: &str = "42704";
    pub(crate) const DUPLICATE_OBJECT: &str = "42710";
    pub(crate) const DISK_FULL: &str = "53100";
    pub(crate) const OBJECT_NOT_IN_PREREQUISITE_STATE: &str = "55000";
    pub(crate) const OBJECT_IN_USE: &str = "55006";
    pub(crate) const IO_ERROR: &str = "58030";
    pub(crate) const INTERNAL_ERROR: &str = "XX000";
}

/// An error that ends the session.
pub(crate) fn fatal(code: &str, message: &str) -> Box<ServerError> {
    Box::new(ServerError::new("FATAL", code, message))
}

/// An error that a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told(pub Box<ServerError>);

impl Told {
    pub(crate) fn new(code: &str, message: impl AsRef<str>) -> Told {
        Told(Box::new(ServerError::new("ERROR", code, message.as_ref())))
    }

    pub(crate) fn hint(mut self, hint: &str) -> Told {
        self.0.hint = Some(hint.to_owned());
        self
    }

    pub(crate) fn detail(mut self, detail: String) -> Told {
        self.0.detail = Some(detail);
        self
    }

    pub(crate) fn internal(message: &str) -> Told {
        Told::new(code::INTERNAL_ERROR, message)
    }

    pub(crate) fn redundant() -> Told {
        Told::new(code::SYNTAX_ERROR, "conflicting or redundant options")
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Told {}
