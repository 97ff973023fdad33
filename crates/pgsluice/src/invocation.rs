//! Completes the commands that messages name, so that they work exactly as printed.
//!
//! A library's message says `pgsluice skip --lsn 16/B374D848` and cannot know which settings this
//! process has for the subscription and its servers. Code that prints a message passes it through
//! [`complete`]. That sets each command in backquotes, and adds the settings of this process that
//! the command takes. Flags are repeated as flags, variables stand in front of the command, and
//! settings of a file come with `--config`. Every command names its subscription.
//!
//! | in the message | what is printed |
//! | --- | --- |
//! | `pgsluice` and a command's name | the command with its flags, completed |
//! | the same with `--subscription` or after a backquote | as it is: it is complete already |
//! | a command that needs what this process does not know, such as the publication of `run` | as it is |
//!
//! No password is printed. A connection string loses its password, and the first such command says
//! where to give it.
//!
//! What does not belong here: which command is the remedy. The message decides that.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use clap::{ArgAction, Command, CommandFactory};
use client::Shown;

use crate::cli::Cli;
use crate::config::Said;
use crate::subject::Subject;

/// The word before every command in a message.
const PROGRAM: &str = "pgsluice ";

/// Tells where to give the password that a printed command lacks.
const PASSWORD: &str = " (its password is left out: set PGPASSWORD, or keep it in ~/.pgpass)";

/// Commands that connect to no server.
const WITHOUT_SERVERS: [&str; 2] = ["stop", "refresh"];

/// Commands that need only the target, although they take the source too.
const TARGET_ONLY: [&str; 4] = ["skip", "enable", "disable", "conflicts"];

/// The settings that this process has for one subscription.
#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    name: String,
    said: Vec<Said>,
    /// Variables that connection strings are completed from.
    variables: Vec<(String, String)>,
    lacks_password: bool,
    has_source: bool,
    has_target: bool,
    has_publications: bool,
}

/// The subscriptions of this process, with their settings.
static TOLD: Mutex<Vec<Invocation>> = Mutex::new(Vec::new());

/// Completes commands for `subjects` from now on.
pub(crate) fn remember(said: &[Said], subjects: &[Subject], env: &dyn Fn(&str) -> Option<OsString>) {
    let told = subjects.iter().map(|subject| Invocation::new(said, subject, env)).collect();
    *TOLD.lock().unwrap_or_else(PoisonError::into_inner) = told;
}

/// `text` with its commands completed, if it is known which subscription they are about: the one
/// named, otherwise the only one of the process.
pub(crate) fn complete(text: &str, subscription: Option<&str>) -> String {
    with_told(text, subscription, |own| own.complete(text, Clone::clone))
}

/// The same for a line of JSON.
pub(crate) fn complete_json(line: &str, subscription: Option<&str>) -> String {
    with_told(line, subscription, |own| {
        own.complete(line, |command| {
            let quoted = serde_json::Value::from(command.as_str()).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        })
    })
}

fn with_told(text: &str, subscription: Option<&str>, with: impl Fn(&Invocation) -> String) -> String {
    if !text.contains(PROGRAM) {
        return text.to_owned();
    }
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let named = told.iter().find(|own| subscription == Some(own.name.as_str()));
    match (named, told.as_slice()) {
        (Some(own), _) | (None, [own]) => with(own),
        _ => text.to_owned(),
    }
}

/// The subscription that a line of the log is about, from the line's field. Colours stand between
/// the parts of the field.
pub(crate) fn subscription_of(line: &str) -> Option<&str> {
    line.rmatch_indices("subscription").find_map(|(at, field)| name_behind(&line[at + field.len()..]))
}

fn name_behind(mut rest: &str) -> Option<&str> {
    loop {
        let before = rest;
        rest = rest.trim_start_matches(['"', ':', '=']);
        if let Some(code) = rest.strip_prefix("\x1b[") {
            rest = code.split_once('m')?.1;
        }
        if rest == before {
            break;
        }
    }
    let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    (!name.is_empty()).then_some(name)
}

impl Invocation {
    fn new(said: &[Said], subject: &Subject, env: &dyn Fn(&str) -> Option<OsString>) -> Invocation {
        let mut lacks_password = env("PGPASSWORD").is_some_and(|value| !value.is_empty());
        let mut said = said.to_vec();
        for own in subject.own_settings() {
            said.retain(|other| other.key != own.key);
            said.push(own.clone());
        }
        for own in said.iter_mut().filter(|own| ["source", "target"].contains(&own.key.as_str())) {
            for value in &mut own.values {
                // An invalid connection string is refused before a command could need it.
                let Ok(shown) = Shown::of(&value.to_string_lossy()) else { continue };
                lacks_password |= shown.lacks_secret;
                *value = shown.text.into();
            }
        }
        for own in said.iter_mut().filter(|own| ["config", "state_dir"].contains(&own.key.as_str())) {
            for value in &mut own.values {
                if let Ok(path) = std::path::absolute(&*value) {
                    *value = path.into_os_string();
                }
            }
        }
        said.retain(|own| own.key != "subscription");
        let set = |name: &str| Some((name.to_owned(), env(name)?.into_string().ok()?));
        Invocation {
            name: subject.name.to_string(),
            said,
            variables: Shown::variables().filter_map(set).filter(|(_, value)| !value.is_empty()).collect(),
            lacks_password,
            has_source: subject.source().is_ok(),
            has_target: subject.target().is_ok(),
            has_publications: !subject.publications().is_empty(),
        }
    }

    /// The invocation of the error reference: all settings are in a file.
    pub(crate) fn example() -> Invocation {
        let config =
            Said { key: "config".to_owned(), values: vec!["/etc/pgsluice.toml".into()], by_flag: true };
        Invocation {
            name: "orders".to_owned(),
            said: vec![config],
            variables: Vec::new(),
            lacks_password: false,
            has_source: true,
            has_target: true,
            has_publications: true,
        }
    }

    /// `text` with its commands completed, each written by `write`.
    pub(crate) fn complete(&self, text: &str, write: impl Fn(&String) -> String) -> String {
        let program = Cli::command();
        let mut out = String::with_capacity(text.len() + 100);
        let (mut rest, mut told_of_password) = (text, !self.lacks_password);
        while let Some(at) = rest.find(PROGRAM) {
            let goes_on =
                rest[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "`/_-.".contains(c));
            let found = Named::at(&rest[at..], &program).filter(|_| !goes_on);
            let completed = found.as_ref().and_then(|named| Some((named.text, self.completed(named)?)));
            let Some((named, command)) = completed else {
                out.push_str(&rest[..at + PROGRAM.len()]);
                rest = &rest[at + PROGRAM.len()..];
                continue;
            };
            out.push_str(&rest[..at]);
            out.push_str(&format!("`{}`", write(&command)));
            let connects = !WITHOUT_SERVERS.contains(&found.map_or("", |named| named.command));
            if connects && !told_of_password {
                out.push_str(PASSWORD);
                told_of_password = true;
            }
            rest = &rest[at + named.len()..];
        }
        out.push_str(rest);
        out
    }

    /// The whole command; `None` if it was complete already, or cannot be completed here.
    fn completed(&self, named: &Named<'_>) -> Option<String> {
        let has = |flag: &str| named.flags.iter().any(|own| own == flag);
        let takes = |key: &str| named.takes.iter().any(|(own, _)| own == key);
        if !takes("subscription") {
            return Some(named.text.to_owned());
        }
        if has("subscription") || !self.can(named.command) {
            return None;
        }
        let (mut before, mut command) = (Vec::new(), vec![named.text.to_owned()]);
        if !WITHOUT_SERVERS.contains(&named.command) {
            before.extend(self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value))));
        }
        for Said { key, values, by_flag } in &self.said {
            let skipped = key == "source" && TARGET_ONLY.contains(&named.command);
            let Some((_, form)) = named.takes.iter().find(|(own, _)| own == key) else { continue };
            if skipped || has(&key.replace('_', "-")) {
                continue;
            }
            let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
            match by_flag {
                true => command.extend(values.iter().map(|value| {
                    let flag = key.replace('_', "-");
                    match form {
                        Form::Word => format!("--{flag} {}", quoted(value)),
                        Form::Joined => format!("--{flag}={}", quoted(value)),
                    }
                })),
                false => {
                    let variable = format!("PGSLUICE_{}", key.to_ascii_uppercase());
                    before.push(format!("{variable}={}", quoted(&values.join(","))));
                }
            }
        }
        command.push(format!("--subscription {}", self.name));
        before.extend(command);
        Some(before.join(" "))
    }

    /// Whether this process knows everything that the command needs.
    fn can(&self, command: &str) -> bool {
        match command {
            "run" | "check" => self.has_source && self.has_target && self.has_publications,
            "drop" | "verify" | "sequences" => self.has_source && self.has_target,
            "skip" | "enable" | "disable" | "conflicts" | "release" | "adopt" => self.has_target,
            "decode" | "catalog" => self.has_source,
            _ => true,
        }
    }
}

/// How a flag and its value are written.
#[derive(Debug, Clone, Copy)]
enum Form {
    Word,
    /// The value may be left out, so it cannot be the next word.
    Joined,
}

/// A command as a message names it.
#[derive(Debug)]
struct Named<'a> {
    text: &'a str,
    command: &'a str,
    /// Its own flags, without dashes.
    flags: Vec<String>,
    /// Settings that the command takes, by their keys.
    takes: Vec<(String, Form)>,
}

impl<'a> Named<'a> {
    /// The command at the start of `text`: `pgsluice`, a command's name, and the flags that follow.
    fn at(text: &'a str, program: &Command) -> Option<Named<'a>> {
        let mut end = PROGRAM.len() + word(&text[PROGRAM.len()..]).len();
        let command = &text[PROGRAM.len()..end];
        if command == "--help" {
            return Some(Named { text: &text[..end], command, flags: Vec::new(), takes: Vec::new() });
        }
        let mut own = program.find_subcommand(command)?;
        if own.has_subcommands() {
            let inner = word(text[end..].strip_prefix(' ')?);
            own = own.find_subcommand(inner)?;
            end += 1 + inner.len();
        }
        let mut flags = Vec::new();
        while let Some(rest) = text[end..].strip_prefix(" --") {
            let flag = word(rest);
            let Some(arg) = own.get_arguments().find(|arg| arg.get_long() == Some(flag)) else { break };
            end += " --".len() + flag.len();
            if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) && !text[end..].starts_with('=')
            {
                let value = text[end..].strip_prefix(' ').map_or("", value);
                end += if value.is_empty() { 0 } else { 1 + value.len() };
            }
            flags.push(flag.to_owned());
        }
        let form = |arg: &clap::Arg| match arg.get_num_args() {
            Some(count) if count.min_values() == 0 => Form::Joined,
            _ => Form::Word,
        };
        let takes = own.get_arguments().map(|arg| (arg.get_id().to_string(), form(arg))).collect();
        Some(Named { text: &text[..end], command, flags, takes })
    }
}

/// Letters and dashes at the beginning of `text`.
fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(text.len())]
}

/// A flag's value at the beginning of `text`, without the end of the sentence.
fn value(text: &str) -> &str {
    let ends = |c: char| c.is_whitespace() || ",;)`\"".contains(c);
    let value = &text[..text.find(ends).unwrap_or(text.len())];
    let value = value.strip_suffix(['.', ':']).unwrap_or(value);
    if value.starts_with('-') { "" } else { value }
}

/// A word, quoted for a shell if it needs that.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests;
