//! What a subscriber asks for with `START_REPLICATION`: pgoutput's options.
//!
//! Subscribers that ask for the same share one decoding and one encoding (rule L4).
//!
//! Source: `parse_output_parameters` and `pgoutput_startup` in `pgoutput.c` of 14 to 18.

use output::{OriginFilter, Streaming};
use proto::command::CommandOption;

use crate::create::boolean;
use crate::told::{Told, code};

/// pgoutput's options, as a server of the publisher's major understands them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Form {
    /// The protocol's version.
    pub proto_version: u32,
    /// Publications by name, in the order in which they were named.
    pub publications: Vec<String>,
    /// Values come in binary form where their types have one.
    pub binary: bool,
    /// How large transactions come.
    pub streaming: Streams,
    /// Prepared transactions are asked for when they are prepared.
    pub two_phase: bool,
    /// Messages of `pg_logical_emit_message` come.
    pub messages: bool,
    /// Only changes without an origin come.
    pub origin_none: bool,
}

/// How large transactions come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Streams {
    /// When they commit.
    Off,
    /// In blocks.
    On,
    /// In blocks, and aborts have their place.
    Parallel,
}

impl From<Streams> for Streaming {
    fn from(streams: Streams) -> Streaming {
        match streams {
            Streams::Off => Streaming::Off,
            Streams::On => Streaming::On,
            Streams::Parallel => Streaming::Parallel,
        }
    }
}

impl Form {
    /// The filter of origins.
    #[must_use]
    pub fn origin(&self) -> OriginFilter {
        if self.origin_none { OriginFilter::None } else { OriginFilter::Any }
    }

    /// Reads the options as pgoutput of `major` does.
    ///
    /// # Errors
    /// An option is unknown, is there twice, is missing, or has no fitting value; or the version of
    /// the protocol does not have what is asked for.
    pub fn read(options: &[CommandOption], major: u32) -> Result<Form, Told> {
        let given = Given::read(options, major)?;
        given.check(major)
    }
}

/// The options that were given.
#[derive(Default)]
struct Given {
    proto_version: Option<u32>,
    publications: Option<Vec<String>>,
    binary: Option<bool>,
    messages: Option<bool>,
    streaming: Option<Streams>,
    two_phase: Option<bool>,
    origin_none: Option<bool>,
}

impl Given {
    fn read(options: &[CommandOption], major: u32) -> Result<Given, Told> {
        let mut given = Given::default();
        for option in options {
            match option.name.as_str() {
                "proto_version" => once(&mut given.proto_version, || version(option, major))?,
                "publication_names" => once(&mut given.publications, || names(option))?,
                "binary" => once(&mut given.binary, || boolean(option))?,
                "messages" => once(&mut given.messages, || boolean(option))?,
                "streaming" => once(&mut given.streaming, || streams(option, major))?,
                "two_phase" if major >= 15 => once(&mut given.two_phase, || boolean(option))?,
                "origin" if major >= 16 => once(&mut given.origin_none, || origin(option))?,
                other => {
                    let message = format!("unrecognized pgoutput option: {other}");
                    return Err(Told::new(code::INTERNAL_ERROR, message));
                }
            }
        }
        Ok(given)
    }

    fn check(self, major: u32) -> Result<Form, Told> {
        let missing = |name: &str| match major {
            17.. => Told::new(code::INVALID_PARAMETER_VALUE, format!("option \"{name}\" missing")),
            _ => Told::new(code::INVALID_PARAMETER_VALUE, format!("{name} parameter missing")),
        };
        if major >= 17 && self.proto_version.is_none() {
            return Err(missing("proto_version"));
        }
        if major >= 17 && self.publications.is_none() {
            return Err(missing("publication_names"));
        }
        let version = self.proto_version.unwrap_or(0);
        let most = match major {
            16.. => 4,
            15 => 3,
            _ => 2,
        };
        let who = if major >= 16 { "server only supports" } else { "we only support" };
        let not_supported = |what: String| Err(Told::new(code::FEATURE_NOT_SUPPORTED, what));
        if version > most {
            return not_supported(format!(
                "client sent proto_version={version} but {who} protocol {most} or lower"
            ));
        }
        if version < 1 {
            return not_supported(format!(
                "client sent proto_version={version} but {who} protocol 1 or higher"
            ));
        }
        let publications = self.publications.unwrap_or_default();
        // An empty list is accepted by newer servers, and no table is in it.
        if major < 17 && publications.is_empty() {
            return Err(missing("publication_names"));
        }
        let needs = |what: &str, least: u32| {
            let message =
                format!("requested proto_version={version} does not support {what}, need {least} or higher");
            Err(Told::new(code::INVALID_PARAMETER_VALUE, message))
        };
        let streaming = self.streaming.unwrap_or(Streams::Off);
        match streaming {
            Streams::On if version < 2 => return needs("streaming", 2),
            Streams::Parallel if version < 4 => return needs("parallel streaming", 4),
            _ => {}
        }
        let two_phase = self.two_phase.unwrap_or(false);
        if two_phase && version < 3 {
            return needs("two-phase commit", 3);
        }
        Ok(Form {
            proto_version: version,
            publications,
            binary: self.binary.unwrap_or(false),
            streaming,
            two_phase,
            messages: self.messages.unwrap_or(false),
            origin_none: self.origin_none.unwrap_or(false),
        })
    }
}

/// Stores an option that may be given once. Its value is not read if it was given before.
fn once<T>(place: &mut Option<T>, read: impl FnOnce() -> Result<T, Told>) -> Result<(), Told> {
    if place.is_some() {
        return Err(Told::redundant());
    }
    *place = Some(read()?);
    Ok(())
}

/// The option's value; the server does not accept that there is none.
fn text(option: &CommandOption) -> Result<&str, Told> {
    let none = || Told::new(code::SYNTAX_ERROR, format!("{} requires a parameter", option.name));
    option.value.as_deref().ok_or_else(none)
}

/// A number as `strtoul` reads it: nothing is zero, and what is below zero is very large. Major 14
/// reads it as `scanint8` does, with spaces around it.
fn version(option: &CommandOption, major: u32) -> Result<u32, Told> {
    let text = text(option)?;
    let refused = |message: String| Told::new(code::INVALID_PARAMETER_VALUE, message);
    let unsigned = text.trim_start();
    let (is_negative, digits) = match unsigned.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, unsigned.strip_prefix('+').unwrap_or(unsigned)),
    };
    let number = match digits.parse::<u64>() {
        _ if text.is_empty() && major >= 15 => Some(0),
        _ if major < 15 => digits.trim_end().parse::<i64>().ok().map(i64::unsigned_abs),
        // A second sign is none.
        Ok(number) if !digits.starts_with('+') => Some(number),
        _ => None,
    };
    let number = number.ok_or_else(|| refused("invalid proto_version".to_owned()))?;
    let number = if is_negative { number.wrapping_neg() } else { number };
    u32::try_from(number).map_err(|_| refused(format!("proto_version \"{text}\" out of range")))
}

fn streams(option: &CommandOption, major: u32) -> Result<Streams, Told> {
    if major >= 16 && option.value.as_deref().is_some_and(|value| value.eq_ignore_ascii_case("parallel")) {
        return Ok(Streams::Parallel);
    }
    match boolean(option) {
        Ok(on) => Ok(if on { Streams::On } else { Streams::Off }),
        Err(_) if major >= 16 => {
            let message = format!("{} requires a Boolean value or \"parallel\"", option.name);
            Err(Told::new(code::SYNTAX_ERROR, message))
        }
        Err(error) => Err(error),
    }
}

fn origin(option: &CommandOption) -> Result<bool, Told> {
    let text = text(option)?;
    if text.eq_ignore_ascii_case("none") {
        return Ok(true);
    }
    if text.eq_ignore_ascii_case("any") {
        return Ok(false);
    }
    Err(Told::new(code::INVALID_PARAMETER_VALUE, format!("unrecognized origin value: \"{text}\"")))
}

/// Names between commas, as `SplitIdentifierString` reads them.
fn names(option: &CommandOption) -> Result<Vec<String>, Told> {
    let invalid = || Told::new(code::INVALID_NAME, "invalid publication_names syntax");
    let mut rest = text(option)?.trim_start();
    let mut names = Vec::new();
    if rest.is_empty() {
        return Ok(names);
    }
    loop {
        let (name, after) = name(rest).ok_or_else(invalid)?;
        names.push(name);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => return Ok(names),
            None => return Err(invalid()),
        }
    }
}

/// The first name of `text`, and what follows it.
fn name(text: &str) -> Option<(String, &str)> {
    let Some(body) = text.strip_prefix('"') else {
        let end = text.find(|at: char| at == ',' || at.is_ascii_whitespace()).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_ascii_lowercase(), &text[end..]));
    };
    let mut at = 0;
    loop {
        at += body[at..].find('"')?;
        if !body[at + 1..].starts_with('"') {
            return Some((body[..at].replace("\"\"", "\""), &body[at + 1..]));
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(name: &str, value: Option<&str>) -> CommandOption {
        CommandOption { name: name.to_owned(), value: value.map(str::to_owned), is_number: false }
    }

    #[test]
    fn what_a_subscriber_of_18_asks_for() {
        let options = [
            option("proto_version", Some("4")),
            option("streaming", Some("parallel")),
            option("origin", Some("none")),
            option("publication_names", Some("\"p1\", \"P\"\"2\",p3")),
            option("binary", Some("true")),
        ];
        let form = Form::read(&options, 18).unwrap();
        let expected = Form {
            proto_version: 4,
            publications: ["p1", "P\"2", "p3"].map(str::to_owned).to_vec(),
            binary: true,
            streaming: Streams::Parallel,
            two_phase: false,
            messages: false,
            origin_none: true,
        };
        assert_eq!(form, expected);
    }

    #[test]
    fn equal_wishes_are_one_form() {
        let form = |binary| {
            let options = [
                option("proto_version", Some("1")),
                option("binary", binary),
                option("publication_names", Some("p")),
            ];
            Form::read(&options, 18).unwrap()
        };
        assert_eq!(form(None), form(Some("on")));
        assert_ne!(form(None), form(Some("off")));
    }

    #[test]
    fn lists_of_names_that_are_none() {
        for text in ["a,", ",a", "a b", "\"a", "\"a\"b"] {
            let options = [option("proto_version", Some("1")), option("publication_names", Some(text))];
            let told = Form::read(&options, 18).unwrap_err();
            assert_eq!(told.0.code, "42602", "{text}");
        }
    }
}
