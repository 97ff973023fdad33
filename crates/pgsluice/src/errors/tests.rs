//! The reference has all that an operator needs for every error, and claims nothing that is untrue.

use std::collections::HashSet;
use std::path::Path;

use clap::CommandFactory;

use super::*;
use crate::cli::Cli;

/// What a remedy may begin with: an order, not a description.
const ORDERS: [&str; 41] = [
    "Add", "Adopt", "Alter", "Change", "Check", "Compare", "Connect", "Correct", "Create", "Do", "Drop",
    "End", "Find", "Give", "Go", "Hand", "Install", "Issue", "Leave", "Let", "Look", "Make", "Move", "Name",
    "Put", "Raise", "Read", "Remove", "Rename", "Renew", "Repair", "Repeat", "Report", "Restore", "Run",
    "Set", "Start", "Stop", "Take", "Wait", "Write",
];

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the package is in crates/ of the workspace")
}

/// What is wrong with an entry by itself.
fn complaints(told: &EntryText) -> Vec<String> {
    let EntryText { title, cause, remedy, message, .. } = told;
    let order = remedy.split([' ', ',', ':', ';', '.']).next().unwrap_or_default();
    let rules = [
        (message.trim().is_empty(), "it has no message".to_owned()),
        (cause.len() < 20 || !cause.ends_with('.'), format!("the cause is no sentence: {cause}")),
        (!remedy.ends_with('.'), format!("the remedy is no sentence: {remedy}")),
        (!ORDERS.contains(&order), format!("the remedy begins with \"{order}\", which is no order")),
        (quoted(remedy).next().is_none(), format!("the remedy names nothing: {remedy}")),
        (
            [cause, remedy].iter().any(|text| text.matches('`').count() % 2 == 1),
            "a backquote is alone".to_owned(),
        ),
    ];
    rules.into_iter().filter(|(broken, _)| *broken).map(|(_, what)| format!("{title}: {what}")).collect()
}

#[test]
fn every_error_has_a_cause_and_an_order_that_names_something() {
    let wrong: Vec<String> = all().iter().flat_map(complaints).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let vague = EntryText { remedy: "The administrator should look into it.", ..all().remove(0) };
    assert_eq!(complaints(&vague).len(), 2, "a vague one is found");
}

#[test]
fn no_two_errors_share_a_message_or_a_title() {
    let all = all();
    let (mut messages, mut anchors) = (HashSet::new(), HashSet::new());
    let twice: Vec<&str> = all
        .iter()
        .filter(|told| !messages.insert(&told.message) | !anchors.insert(anchor(told.title)))
        .map(|told| told.title)
        .collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(messages.len() > 100, "the error references are there: {}", messages.len());
}

/// A remedy that names a renamed command or flag fails here.
#[test]
fn remedies_name_commands_and_flags_that_exist() {
    let program = Cli::command();
    let commands = program.get_subcommands();
    let commands = commands.flat_map(|command| command.get_subcommands().chain(std::iter::once(command)));
    let flags: HashSet<String> = commands
        .flat_map(|command| command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned))
        .collect();
    let mut named = 0;
    for told in all() {
        for text in quoted(told.cause).chain(quoted(told.remedy)) {
            if let Some(words) = text.strip_prefix("pgsluice ") {
                let command = words.split(' ').next().unwrap_or_default();
                let known = command.starts_with("--") || program.find_subcommand(command).is_some();
                assert!(known, "{}: `{text}`", told.title);
            }
            let own = text.starts_with("pgsluice ") || text.starts_with("--");
            for flag in text.split([' ', '=']).filter_map(|word| word.strip_prefix("--")).filter(|_| own) {
                assert!(flag == "help" || flags.contains(flag), "{}: --{flag}", told.title);
                named += 1;
            }
        }
    }
    assert!(named > 30, "{named}");
}

/// Whether a file, or one below a directory, has a test of this name.
fn has_test(path: &Path, name: &str) -> bool {
    if let Ok(entries) = std::fs::read_dir(path) {
        return entries.flatten().any(|entry| has_test(&entry.path(), name));
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declares = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let rest = line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    lines.windows(2).any(|pair| pair[0].starts_with("#[") && pair[0].contains("test]") && declares(pair[1]))
}

/// Whether the test exists in the place that the entry names.
fn exists((place, name): &HeldBy) -> bool {
    let package = |name: &str| repository().join("crates").join(name);
    match place.split_once(' ') {
        None => has_test(&package(place).join("src"), name),
        Some((own, target)) => {
            let tests = package(own).join("tests");
            has_test(&tests.join(target), name) || has_test(&tests.join(target).with_extension("rs"), name)
        }
    }
}

#[test]
fn the_tests_that_are_named_exist() {
    let missing: Vec<String> = all()
        .iter()
        .flat_map(|told| told.held_by.iter().filter(|held| !exists(held)).map(move |held| (told.title, held)))
        .map(|(title, held)| format!("{title}: {held:?}"))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(!exists(&("pgsluice", "repository")), "what is no test is none");
}

#[test]
fn what_people_look_for_is_there_and_has_a_test() {
    let all = all();
    for (what, titles) in SITUATIONS {
        for title in titles {
            let found = all.iter().find(|told| told.title == *title);
            let Some(found) = found else { panic!("{what}: no entry \"{title}\"") };
            assert!(!found.held_by.is_empty(), "{what}: \"{title}\" has no test");
        }
    }
}

/// The functions that decide about retries and exit codes also write the entry; these examples
/// would show a mix-up.
#[test]
fn what_comes_then_is_what_the_program_does() {
    let all = all();
    let then = |title: &str| {
        let found = all.iter().find(|told| told.title == title);
        found.map(|told| told.then.clone()).unwrap_or_else(|| panic!("{title}"))
    };
    assert!(then("A wrong password").ends_with("exit status 1."));
    assert!(then("A required setting is missing").ends_with("exit status 2."));
    assert!(then("Another process applies the subscription").ends_with("exit status 3."));
    assert!(then("The subscription is disabled").ends_with("exit status 4."));
    assert!(then("Nothing runs the subscription here").ends_with("exit status 5."));
    assert!(then("The server is starting up or shutting down").contains("tries again by itself, at once"));
    let conflict = then("A row to insert exists already");
    assert!(conflict.contains("every `wal_retrieve_retry_interval`. With `disable_on_error`"), "{conflict}");
}

#[test]
fn links_lead_to_headings() {
    let text = markdown();
    let headings: HashSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("### ")).map(anchor).collect();
    let links: Vec<&str> = text.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() >= SITUATIONS.len());
    for link in links {
        assert!(headings.contains(link), "{link}");
    }
}
