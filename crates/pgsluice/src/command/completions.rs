//! `pgsluice completions SHELL`: made by clap from the command line itself.

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::Code;

/// Prints the script.
pub(crate) fn completions(args: &CompletionsArgs) -> Code {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pgsluice", &mut script);
    super::print(&script)
}
