//! `pgsluice config-reference`: the settings table in Markdown.

use crate::exit::Code;
use crate::reference::markdown;

/// Prints the reference.
pub(crate) fn config_reference() -> Code {
    super::print(markdown().as_bytes())
}
