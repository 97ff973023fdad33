//! `pgsluice error-reference`: every error in Markdown.

use crate::errors::markdown;
use crate::exit::Code;

/// Prints the reference.
pub(crate) fn error_reference() -> Code {
    super::print(markdown().as_bytes())
}
