//! `pgsluice man`: manual pages, made by clap_mangen from the command line.

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::exit::Code;
use crate::failure::Failure;
use crate::settings::with_other_names;

/// Prints one page, or writes all of them.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<Code> {
    let mut program = with_other_names(Cli::command());
    program.build();
    if let Some(dir) = &args.dir {
        for (name, page) in pages(&program)? {
            let path = dir.join(format!("{name}.1"));
            std::fs::write(&path, page).with_context(|| format!("could not write {}", path.display()))?;
        }
        return Ok(Code::Done);
    }
    let wanted = match &args.command {
        Some(command) => format!("pgsluice-{command}"),
        None => "pgsluice".to_owned(),
    };
    let page = pages(&program)?.into_iter().find(|(name, _)| *name == wanted);
    let (_, page) = page.ok_or(Failure::NoPage(wanted))?;
    Ok(super::print(&page))
}

/// Names and texts of all pages.
fn pages(program: &Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    add(&mut pages, "pgsluice".to_owned(), program)?;
    Ok(pages)
}

/// Adds the page of a command, and those of its own commands.
fn add(pages: &mut Vec<(String, Vec<u8>)>, name: String, command: &Command) -> anyhow::Result<()> {
    // clap_mangen's pages want 'static names; these are few and small.
    let page: &'static str = String::leak(name.clone());
    pages.push((name.clone(), render(command.clone().name(page))?));
    for own in command.get_subcommands().filter(|own| own.get_name() != "help") {
        add(pages, format!("{name}-{}", own.get_name()), own)?;
    }
    Ok(())
}

fn render(command: Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
