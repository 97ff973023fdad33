//! The configuration reference, made from the settings table.

use std::fmt::Write as _;

use crate::paragraph::wrapped;
use crate::settings::{Place, Setting};

const HEAD: &str = "\
# Configuration reference

A setting comes from a flag, an environment variable or a key of the configuration file
(`--config`). A flag overrides the environment, the environment overrides the file, and the file
overrides the default. Keys at the file's top level hold for every subscription. Each
`[[subscription]]` table describes one subscription: it has the `name`, and any setting that is not
marked *top level*.

A duration is a number with one of the units `us`, `ms`, `s`, `min`, `h` and `d`. A size is a number
with `B`, `kB`, `MB`, `GB` or `TB`; a kB is 1024 bytes. A number without a unit is in the setting's
own unit. Switches take `on` or `off`.

";

const RELAY_HEAD: &str = "\
## The relay

`pgsluice relay` has a configuration file of its own (`--config`), with these keys at the top level.
`pgsluice user` reads the same file.

";

/// The whole reference in Markdown.
pub(crate) fn markdown() -> String {
    let mut out = HEAD.to_owned();
    groups(&mut out, &Setting::all(), false);
    out.push_str(RELAY_HEAD);
    groups(&mut out, &Setting::of_relay(), true);
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn groups(out: &mut String, settings: &[Setting], is_of_relay: bool) {
    let mut group = String::new();
    let prefix = if is_of_relay { "The relay: " } else { "" };
    for setting in settings {
        if setting.group != group {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "## {prefix}{}\n", setting.group);
            group.clone_from(&setting.group);
        }
        section(out, setting, is_of_relay);
    }
}

fn section(out: &mut String, setting: &Setting, is_of_relay: bool) {
    let key = match setting.place() {
        Place::Nowhere => "none".to_owned(),
        _ if is_of_relay => format!("`{}`", setting.key),
        Place::TopLevel => format!("`{}` (top level)", setting.key),
        Place::Name => {
            format!("`name` in `[[subscription]]`, or `{}` at the top level of a file without", setting.key)
        }
        Place::Anywhere => format!("`{}`", setting.key),
    };
    let default = setting.default.as_ref().map_or_else(|| "none".to_owned(), |text| format!("`{text}`"));
    let values = match (&setting.unit, setting.words.is_empty()) {
        (Some(unit), _) => format!("{}, bare number in {unit}", setting.value_name.to_lowercase()),
        (None, false) => setting.words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        (None, true) => setting.value_name.to_lowercase().replace('|', " or "),
    };
    let (first, rest) = setting.meaning.trim().split_once("\n\n").unwrap_or((setting.meaning.trim(), ""));
    // Help leaves the full stop out behind its first sentence.
    let first = if first.ends_with('.') { first.to_owned() } else { format!("{first}.") };
    let rest = rest.split("\n\n").filter(|text| !text.is_empty());
    let paragraphs: Vec<String> =
        std::iter::once(first.as_str()).chain(rest).map(|text| wrapped("", text)).collect();
    let many = if setting.many { ", several allowed" } else { "" };
    let _ = write!(
        out,
        "### {}\n\n{}\n\n| flag | file key | environment | value and unit | default |\n| --- | --- | --- | --- | --- |\n\
         | `{}` | {key} | `{}` | {values}{many} | {default} |\n\n",
        setting.key,
        paragraphs.join("\n\n"),
        setting.flag(),
        setting.variable(),
    );
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_reference_lists_exactly_the_flags_of_run_and_relay() {
        let text = markdown();
        let listed: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("| `--")?.split('`').next()).collect();
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        // Two directions are a way to give a command, not a setting.
        let settings = run.get_arguments().filter(|arg| arg.get_help_heading() != Some("Two directions"));
        let relay = command.find_subcommand("relay").unwrap();
        let settings = settings.chain(relay.get_arguments());
        let flags: Vec<_> =
            settings.filter_map(|arg| arg.get_long()).filter(|flag| *flag != "help").collect();
        assert_eq!(listed, flags);
    }

    #[test]
    fn every_setting_says_what_it_means_and_has_a_group() {
        for setting in Setting::all().into_iter().chain(Setting::of_relay()) {
            assert!(setting.meaning.len() > 20 && !setting.group.is_empty(), "{setting:?}");
            assert!(setting.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{setting:?}");
        }
    }

    #[test]
    fn units_are_in_the_reference() {
        let text = markdown();
        let row = |flag: &str| {
            text.lines().find(|line| line.starts_with(&format!("| `{flag}`"))).unwrap().to_owned()
        };
        assert!(row("--wal-receiver-timeout").contains("bare number in ms"));
        assert!(row("--wal-receiver-status-interval").contains("bare number in s |"));
        assert!(row("--copy-split-bytes").contains("bare number in B"));
    }
}
