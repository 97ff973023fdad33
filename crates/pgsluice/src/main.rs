//! The program: one file per command.
//!
//! A command receives the subscriptions that it is about, already read from flags, environment and
//! file (`config`), and returns an exit code (`exit`). The command's result goes to stdout; logs
//! and errors go to stderr. No command prints a password. Only `verify`, `decode` and `conflicts`
//! print row values: the first two because that is their purpose, the third where they were
//! recorded.
//!
//! Circle: exit, failure: the exit code of an error is that of the failure inside it, and each
//! failure has a code.

mod both_ways;
mod cli;
mod command;
mod config;
mod conflict_rule;
mod errors;
mod exit;
mod failure;
mod flight;
mod invocation;
mod logging;
mod paragraph;
mod progress;
mod reference;
mod settings;
mod subject;
mod units;

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Command, RelayCommand};
use crate::config::Config;
use crate::exit::{Code, code_of};
use crate::failure::Failure;
use crate::settings::Setting;
use crate::subject::Subject;

/// How long the process may delay its end for servers that must cancel their work.
const SETTLE_BOUND: Duration = Duration::from_millis(600);

fn main() -> ExitCode {
    if let Err(error) = flight::record_from_environment() {
        eprintln!("pgsluice: {error:#}");
        return ExitCode::from(Code::Failed as u8);
    }
    let command = settings::with_other_names(Cli::command());
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return show_clap(&settings::with_both_names(error)),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return show_clap(&error),
    };
    match dispatch(cli.command, &matches) {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("pgsluice: {}", invocation::complete(&format!("{error:#}"), None));
            ExitCode::from(code_of(&error) as u8)
        }
    }
}

fn dispatch(command: Command, matches: &ArgMatches) -> anyhow::Result<Code> {
    let own = matches.subcommand().map_or(matches, |(_, own)| own);
    let own = own.subcommand().map_or(own, |(_, own)| own);
    match command {
        Command::Man(args) => return command::man::man(&args),
        Command::Completions(args) => return Ok(command::completions::completions(&args)),
        Command::ConfigReference => return Ok(command::config_reference::config_reference()),
        Command::ErrorReference => return Ok(command::error_reference::error_reference()),
        _ => {}
    }
    // These are about servers and relays, not about what a configuration file names.
    match &command {
        Command::Slots(args) => return until_signalled(command::slots::slots(&args.command), false)?,
        Command::Relay(args) => {
            if let Some(RelayCommand::Move(args)) = &args.command {
                return until_signalled(command::relay_move::relay_move(args), false)?;
            }
        }
        _ => {}
    }
    let env = |name: &str| std::env::var_os(name);
    if matches!(command, Command::Relay(_) | Command::User(_)) {
        let table = Config::gather(Setting::of_relay(), own, &env)?.relay()?;
        return match command {
            Command::User(args) => block_on(command::user::user(&table.place, &args.command)),
            _ => block_on(command::relay::relay(&table)),
        };
    }
    let mut config = Config::gather(Setting::all(), own, &env)?;
    let tables = config.subscriptions()?;
    match &command {
        Command::Decode(args) => return block_on(command::decode::decode(&only_table(tables)?, args)),
        Command::Catalog(args) => return block_on(command::catalog::catalog(&only_table(tables)?, args)),
        _ => {}
    }
    let process = tables[0].process.clone();
    let subjects = tables.into_iter().map(Subject::new).collect::<anyhow::Result<Vec<_>>>()?;
    invocation::remember(&config.said(), &subjects, &env);
    // These commands end in order, and handle signals themselves.
    let sees_to_signals = matches!(command, Command::Run(_) | Command::Adopt(_));
    let doing = async {
        let subjects = command::adopt::with_stored(&command, &mut config, subjects).await?;
        let subjects = both_ways::expand(subjects, &command.both_ways())?;
        invocation::remember(&config.said(), &subjects, &env);
        match command {
            Command::Run(_) => command::run::run(&subjects, &process).await,
            Command::Adopt(args) => command::adopt::adopt(&only(subjects)?, &args, &process).await,
            Command::Release(args) => command::release::release(&only(subjects)?, args.timeout.0).await,
            Command::Check(args) => command::check::check(&subjects, args.json).await,
            Command::Status(args) => command::status::status(&subjects, args.json).await,
            Command::Conflicts(args) => command::conflicts::conflicts(&only(subjects)?, &args).await,
            Command::Stop(args) => command::stop::stop(&subjects, args.one.timeout.0).await,
            Command::Refresh(args) => command::refresh::refresh(&only(subjects)?, args.timeout.0).await,
            Command::Skip(args) => command::skip::skip(&only(subjects)?, args.lsn).await,
            Command::Relook(_) => command::relook::relook(&only(subjects)?).await,
            Command::Enable(_) => command::enable::enable(&only(subjects)?).await,
            Command::Disable(_) => command::disable::disable(&only(subjects)?).await,
            Command::Drop(args) => {
                command::drop::drop_all(&chosen(subjects, args.both_ways.both_ways)?, args.force).await
            }
            Command::Sequences(args) => command::sequences::sequences(&only(subjects)?, &args).await,
            Command::Verify(args) => command::verify::verify(&only(subjects)?, &args).await,
            Command::Decode(_)
            | Command::Catalog(_)
            | Command::Relay(_)
            | Command::User(_)
            | Command::Slots(_)
            | Command::Man(_)
            | Command::Completions(_)
            | Command::ConfigReference
            | Command::ErrorReference => {
                unreachable!("answered above")
            }
        }
    };
    until_signalled(doing, sees_to_signals)?
}

/// Executes a command. A signal ends the process, unless the command `sees_to_signals` itself.
fn until_signalled<T>(doing: impl Future<Output = T>, sees_to_signals: bool) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        tokio::select! {
            done = doing => Ok(done),
            number = signalled(), if !sees_to_signals => Err(number),
        }
    });
    // No server should work for a process that has ended.
    runtime.block_on(client::settle_all(SETTLE_BOUND));
    // A task that does not end must not keep the process alive.
    runtime.shutdown_background();
    match ended {
        Ok(done) => Ok(done),
        Err(number) => std::process::exit(128 + number),
    }
}

/// The number of the first SIGTERM or SIGINT that comes.
async fn signalled() -> i32 {
    let listen = |kind| signal(kind).ok();
    let (terminate, interrupt) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let (Some(mut terminate), Some(mut interrupt)) = (terminate, interrupt) else {
        // Without a handler, a signal ends the program as usual.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => 15,
        _ = interrupt.recv() => 2,
    }
}

/// The one subscription of a command that takes only one.
fn only(mut subjects: Vec<Subject>) -> anyhow::Result<Subject> {
    match subjects.len() {
        1 => Ok(subjects.swap_remove(0)),
        _ => {
            let names = subjects.iter().map(|subject| subject.name.to_string()).collect();
            Err(Failure::Several(names).into())
        }
    }
}

/// The subscription of a command that takes one, or both of its directions.
fn chosen(subjects: Vec<Subject>, both_ways: bool) -> anyhow::Result<Vec<Subject>> {
    match both_ways {
        true => Ok(subjects),
        false => only(subjects).map(|subject| vec![subject]),
    }
}

/// The same, before the subscription's name is known.
fn only_table(mut tables: Vec<settings::SettingsTable>) -> anyhow::Result<settings::SettingsTable> {
    match tables.len() {
        1 => Ok(tables.swap_remove(0)),
        _ => {
            let names = tables.into_iter().filter_map(|table| table.which.subscription).collect();
            Err(Failure::Several(names).into())
        }
    }
}

/// Runs a command that needs no subscription.
fn block_on(command: impl Future<Output = anyhow::Result<Code>>) -> anyhow::Result<Code> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command)
}

/// Prints what clap has to say: help on stdout, errors on stderr.
fn show_clap(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        // clap repeats the text that it did not understand, even a connection string.
        eprint!("{}", without_passwords(&error.render().to_string()));
        return ExitCode::from(Code::Usage as u8);
    }
    // A closed pipe is not an error.
    let _ = error.print();
    ExitCode::SUCCESS
}

/// `text` with the passwords of connection strings and URIs masked.
fn without_passwords(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        out.push_str(before);
        let authority = &after[..after.find(['/', '?', ' ', '\'', '\n']).unwrap_or(after.len())];
        match authority.rsplit_once('@').and_then(|(login, _)| login.split_once(':')) {
            Some((user, password)) => {
                out.push_str(user);
                out.push_str(":***");
                rest = &after[user.len() + 1 + password.len()..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    let (text, mut out) = (out, String::new());
    let mut rest = text.as_str();
    while let Some(start) = rest.find("password=") {
        let (before, after) = rest.split_at(start + "password=".len());
        out.push_str(before);
        out.push_str("***");
        rest = &after[after.find([' ', '&', '\'', '\n']).unwrap_or(after.len())..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        settings::with_other_names(Cli::command()).debug_assert();
    }

    #[test]
    fn passwords_are_blotted_out() {
        let cases = [
            ("postgres://u:pw@h/db", "postgres://u:***@h/db"),
            ("'postgres://u:p@w@h/db' found", "'postgres://u:***@h/db' found"),
            ("postgres://u@h:5432/db?password=pw&x=1", "postgres://u@h:5432/db?password=***&x=1"),
            ("host=h password=pw user=u", "host=h password=*** user=u"),
            ("nothing here", "nothing here"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_passwords(text), expected);
        }
    }
}
