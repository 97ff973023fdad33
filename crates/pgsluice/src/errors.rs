//! The reference of errors, made from the list that each crate has of its own errors.
//!
//! An entry has an example, and the message of the entry is what the program prints for it. The
//! functions that decide about real errors also decide about the example: whether `run` tries
//! again, and with which status the program ends.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use base::error_reference::{Doing, Entry, HeldBy};
use engine::Verdict;
use operate::{admin, adopt, control, moving, slots};
use relay::RelayError;

use crate::command::decode::{from_output, from_segments};
use crate::command::relay::from_relay;
use crate::command::relay_move::from_moving;
use crate::command::slots::from_slots;
use crate::command::{from_admin, from_adopt, from_control, from_engine, from_verify};
use crate::exit::{Code, code_of};
use crate::failure;
use crate::invocation::Invocation;
use crate::paragraph::wrapped;

const HEAD: &str = "\
# Errors

Every error that pgsluice ends with, or that `run` tries again after: its message, its cause, and
what to do. The code generates this document (`cargo x docs`), and `pgsluice error-reference` prints
it. Each message comes from the program's own error types, with example names and positions.

A command in a message works exactly as printed. pgsluice adds the options that the process was
started with, here `--config /etc/pgsluice.toml`. A cause or a remedy below names a command without
these options, and `LSN` in it stands for the LSN of the message.

A message names the object, the cause and the next step. To find it here, search for the words that
are not names or positions. `run` logs each error, and `pgsluice status` shows the latest. The
findings of `pgsluice check` are not listed: each prints its object, its remedy and the SQL. If one
subscription of a process fails, the process goes on with the others. It ends with the exit status
of the first that failed.

";

/// What a reader may look for, and the titles of the entries about it. A test meets each of these
/// entries.
const SITUATIONS: [(&str, &[&str]); 17] = [
    ("a wrong password", &["A wrong password"]),
    (
        "no TLS where it is required",
        &[
            "The server admits only connections with TLS",
            "The connection requires TLS and the server does not offer it",
        ],
    ),
    (
        "a certificate that does not match",
        &["The certificate is for another host", "The certificate's authority is unknown"],
    ),
    ("a missing publication", &["A publication is missing"]),
    (
        "a table of the target that lacks a column",
        &["The target's table lacks a column", "The target's table lacks a column (first copy)"],
    ),
    ("a message of an unknown type", &["A message of an unknown type"]),
    ("a truncated stream", &["The server closed the connection", "A message that is cut short"]),
    (
        "corrupt or foreign state",
        &["State on the target that is damaged or not pgsluice's", "The replication origin is gone"],
    ),
    ("a slot that was dropped", &["The slot was dropped"]),
    ("a slot that was invalidated", &["The slot was invalidated"]),
    (
        "a slot that was made again under the same name",
        &["The slot is ahead of the target", "The slot is not the one that pgsluice created"],
    ),
    ("a target restored from an older backup", &["The slot is ahead of the target"]),
    (
        "a source restored to a position before ours",
        &["The source was restored to before our position", "The source has another history"],
    ),
    ("a source failed over to a position before ours", &["The source failed over to before our position"]),
    ("another writer that holds our origin", &["Another writer holds our replication origin"]),
    ("a read-only target", &["The target cannot be written to"]),
    (
        "a publication that was dropped and made again",
        &["A publication was dropped, and perhaps created again"],
    ),
];

/// One entry in words.
struct EntryText {
    doing: Doing,
    title: &'static str,
    message: String,
    cause: &'static str,
    remedy: &'static str,
    then: String,
    held_by: &'static [HeldBy],
}

impl EntryText {
    fn new<E>(entry: Entry<E>, message: impl Fn(&E) -> String, then: impl Fn(E) -> String) -> EntryText {
        let Entry { doing, title, error, cause, remedy, held_by } = entry;
        let message = Invocation::example().complete(&message(&error), Clone::clone);
        EntryText { doing, title, message, cause, remedy, then: then(error), held_by }
    }
}

/// Every entry, in the order of the document.
fn all() -> Vec<EntryText> {
    let mut all = Vec::new();
    let own = failure::error_reference().into_iter();
    all.extend(own.map(|entry| EntryText::new(entry, ToString::to_string, |error| ends(error.code()))));
    let pipeline = engine::error_reference().into_iter();
    all.extend(
        pipeline.map(|entry| EntryText::new(entry, |error| base::with_causes(error), |error| run(&error))),
    );
    let handed_over = adopt::error_reference().into_iter();
    all.extend(handed_over.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_adopt(&error))))
    }));
    let compared = verify::error_reference().into_iter();
    all.extend(compared.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_verify(&error))))
    }));
    let asked = control::error_reference().into_iter();
    all.extend(asked.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_control(error))))
    }));
    let servers = admin::error_reference().into_iter();
    all.extend(servers.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_admin(error))))
    }));
    let decoded = output::error_reference().into_iter();
    all.extend(decoded.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_output(&error))))
    }));
    let files = source::segments_error_reference().into_iter();
    all.extend(files.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_segments(&error))))
    }));
    let relays = relay::error_reference().into_iter();
    all.extend(
        relays.map(|entry| EntryText::new(entry, |error| base::with_causes(error), |error| serve(&error))),
    );
    let moved = moving::error_reference().into_iter();
    all.extend(moved.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_moving(&error))))
    }));
    let slots = slots::error_reference().into_iter();
    all.extend(slots.map(|entry| {
        EntryText::new(entry, |error| base::with_causes(error), |error| ends(code_of(&from_slots(&error))))
    }));
    // Stable: within a group in the order of the crates.
    all.sort_by_key(|told| told.doing);
    all
}

fn ends(code: Code) -> String {
    format!("pgsluice does not try again; it ends with exit status {}.", code as u8)
}

/// What `run` does, and where it ends.
fn run(error: &engine::Error) -> String {
    let code = code_of(&from_engine(error));
    let again = match error.verdict(false) {
        Verdict::Soon => "at once, then after longer and longer pauses, up to `wal_retrieve_retry_interval`",
        Verdict::Later => "every `wal_retrieve_retry_interval`",
        Verdict::Disable | Verdict::Stop => return ends(code),
    };
    let disables = match error.verdict(true) {
        Verdict::Disable => format!(
            ". With `disable_on_error` it disables the subscription instead, and ends with exit status {}",
            Code::Disabled as u8
        ),
        _ => String::new(),
    };
    format!(
        "`run` tries again by itself, {again}{disables}. Other commands end with exit status {}.",
        code as u8
    )
}

/// What a relay does.
fn serve(error: &RelayError) -> String {
    if error.is_passing() {
        return "the relay tries again every second, and serves what it has.".to_owned();
    }
    ends(code_of(&from_relay(error)))
}

fn heading(doing: Doing) -> &'static str {
    match doing {
        Doing::Configuring => "Configuration and command line",
        Doing::Connecting => "Connecting",
        Doing::Starting => "Starting",
        Doing::CreatingSchema => "Creating the schema (`--create-schema`)",
        Doing::Copying => "The first copy",
        Doing::Streaming => "Streaming from the source",
        Doing::Applying => "Applying to the target",
        Doing::Verifying => "Comparing both ends (`pgsluice verify`)",
        Doing::Adopting => "Adopting and releasing a native subscription",
        Doing::Operating => "Commands about a subscription",
        Doing::Decoding => "Decoding WAL from files (`pgsluice decode`)",
        Doing::Relaying => "The relay (`pgsluice relay`, `slots` and `user`)",
        Doing::KeepingState => "State on disk and on the target",
    }
}

/// The anchor that Markdown viewers give a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The command that runs a test.
fn test((place, name): &HeldBy) -> String {
    match place.split_once(' ') {
        Some((package, target)) => format!("`cargo test -p {package} --test {target} {name}`"),
        None => format!("`cargo test -p {place} {name}`"),
    }
}

/// The whole reference in Markdown.
pub(crate) fn markdown() -> String {
    let all = all();
    let mut out = HEAD.to_owned();
    situations(&mut out, &all);
    let mut group = None;
    for told in &all {
        if group != Some(told.doing) {
            group = Some(told.doing);
            // Writing to a String cannot fail.
            let _ = writeln!(out, "## {}\n", heading(told.doing));
        }
        section(&mut out, told);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The table of what readers look for.
fn situations(out: &mut String, all: &[EntryText]) {
    out.push_str("## By what happened\n\n| what happened | error | held by |\n| --- | --- | --- |\n");
    for (what, titles) in SITUATIONS {
        let entries: Vec<&EntryText> = all.iter().filter(|told| titles.contains(&told.title)).collect();
        let links: Vec<_> =
            entries.iter().map(|told| format!("[{}](#{})", told.title, anchor(told.title))).collect();
        let mut tests: Vec<String> = entries.iter().flat_map(|told| told.held_by.iter().map(test)).collect();
        tests.sort();
        tests.dedup();
        let _ = writeln!(out, "| {what} | {} | {} |", links.join("; "), tests.join(", "));
    }
    out.push('\n');
}

fn section(out: &mut String, told: &EntryText) {
    let EntryText { title, message, cause, remedy, then, held_by, .. } = told;
    let _ = write!(out, "### {title}\n\n```text\n{message}\n```\n\n");
    let tests = held_by.iter().map(test).collect::<Vec<String>>().join(", ");
    let items = [("Cause", *cause), ("Remedy", *remedy), ("Then", then.as_str()), ("Test", tests.as_str())];
    for (name, text) in items.iter().filter(|(_, text)| !text.is_empty()) {
        let _ = writeln!(out, "{}", wrapped("- ", &format!("**{name}:** {text}")));
    }
    out.push('\n');
}
