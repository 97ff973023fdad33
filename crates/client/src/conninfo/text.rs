//! The two written forms of a connection string, taken apart into keyword
//! and value as `conninfo_parse` and `conninfo_uri_parse` of libpq do.
//!
//! No meaning is given to any value here, and no error quotes the text
//! around it: a password may stand anywhere in it.

use super::keyword;
use crate::Error;

/// Keywords with their values, in the order written. Later ones win.
pub(super) type Pairs = Vec<(&'static str, String)>;

pub(super) fn parse(text: &str) -> Result<Pairs, Error> {
    let uri = ["postgresql://", "postgres://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match uri {
        Some(rest) => parse_uri(rest),
        None => parse_keywords(text),
    }
}

fn known(name: &str) -> Result<&'static str, Error> {
    keyword::find(name).map(|keyword| keyword.name).ok_or_else(|| {
        Error::configuration(format!(
            "\"{name}\" is not a connection option; see \"Parameter Key Words\" in PostgreSQL's libpq documentation"
        ))
    })
}

fn parse_keywords(text: &str) -> Result<Pairs, Error> {
    let mut pairs = Pairs::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = rest.find(|c| c == '=' || is_space(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let Some(after) = after.trim_start_matches(is_space).strip_prefix('=') else {
            // What has no "=" may be the second half of an unquoted password.
            return Err(Error::configuration(
                "the connection string has a word without \"=\"; it is written as keyword=value ..., with values \
                 that contain blanks in single quotes, or as postgres://user@host:port/dbname",
            ));
        };
        let name = known(name)?;
        let (value, after) = keyword_value(name, after.trim_start_matches(is_space))?;
        pairs.push((name, value));
        rest = after.trim_start_matches(is_space);
    }
    Ok(pairs)
}

/// What C's `isspace` means.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// One value and what follows it. A backslash takes the next character as it
/// is, inside quotes and outside.
fn keyword_value<'a>(name: &str, text: &'a str) -> Result<(String, &'a str), Error> {
    let (body, quoted) = match text.strip_prefix('\'') {
        Some(body) => (body, true),
        None => (text, false),
    };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if quoted => return Ok((value, &body[at + 1..])),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            c if !quoted && is_space(c) => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(Error::configuration(format!(
            "the quoted value of connection option \"{name}\" has no end"
        )));
    }
    Ok((value, ""))
}

/// What follows the scheme: `[user[:password]@][host][:port][,...][/dbname][?keyword=value[&...]]`.
fn parse_uri(text: &str) -> Result<Pairs, Error> {
    let mut pairs = Pairs::new();
    let mut rest = text;
    // As libpq: an "@" counts only before the first "/".
    let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
    if let Some(at) = authority.find('@') {
        let (user, password) = authority[..at].split_once(':').unwrap_or((&authority[..at], ""));
        push_decoded(&mut pairs, "user", user)?;
        push_decoded(&mut pairs, "password", password)?;
        rest = &rest[at + 1..];
    }
    rest = uri_hosts(rest, &mut pairs)?;
    if let Some(path) = rest.strip_prefix('/') {
        let end = path.find('?').unwrap_or(path.len());
        push_decoded(&mut pairs, "dbname", &path[..end])?;
        rest = &path[end..];
    }
    let query = rest.strip_prefix('?').unwrap_or(rest);
    for parameter in query.split('&').filter(|_| !query.is_empty()) {
        uri_parameter(parameter, &mut pairs)?;
    }
    Ok(pairs)
}

/// Reads the list of hosts and ports; returns what follows, which is empty
/// or starts with `/` or `?`.
fn uri_hosts<'a>(text: &'a str, pairs: &mut Pairs) -> Result<&'a str, Error> {
    let mut rest = text;
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    loop {
        let host;
        if let Some(bracketed) = rest.strip_prefix('[') {
            let end = bracketed.find(']').filter(|&end| end > 0).ok_or_else(|| {
                Error::configuration("an IPv6 address in the connection URI is empty or lacks its \"]\"")
            })?;
            host = &bracketed[..end];
            rest = &bracketed[end + 1..];
            if !(rest.is_empty() || rest.starts_with([':', '/', '?', ','])) {
                return Err(Error::configuration(
                    "the connection URI has something other than \":\", \"/\", \"?\" or \",\" after \"]\"",
                ));
            }
        } else {
            let end = rest.find([':', '/', '?', ',']).unwrap_or(rest.len());
            (host, rest) = rest.split_at(end);
        }
        let mut port = "";
        if let Some(after) = rest.strip_prefix(':') {
            let end = after.find(['/', '?', ',']).unwrap_or(after.len());
            (port, rest) = after.split_at(end);
        }
        hosts.push(host);
        ports.push(port);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => break,
        }
    }
    // A list of nothing but empty names would hide PGHOST.
    if hosts.len() > 1 || !hosts[0].is_empty() {
        pairs.push(("host", decode("host", &hosts.join(","))?));
    }
    if ports.len() > 1 || !ports[0].is_empty() {
        pairs.push(("port", decode("port", &ports.join(","))?));
    }
    Ok(rest)
}

fn uri_parameter(parameter: &str, pairs: &mut Pairs) -> Result<(), Error> {
    let Some((name, value)) = parameter.split_once('=') else {
        return Err(Error::configuration("a parameter of the connection URI lacks its \"=\""));
    };
    let name = decode("a parameter's name", name)?;
    if value.contains('=') {
        return Err(Error::configuration(format!(
            "parameter \"{name}\" of the connection URI has a second \"=\"; write %3D for one in the value"
        )));
    }
    let value = decode(&name, value)?;
    // JDBC's word.
    if name == "ssl" && value == "true" {
        pairs.push(("sslmode", "require".to_owned()));
    } else {
        pairs.push((known(&name)?, value));
    }
    Ok(())
}

fn push_decoded(pairs: &mut Pairs, name: &'static str, text: &str) -> Result<(), Error> {
    if !text.is_empty() {
        pairs.push((name, decode(name, text)?));
    }
    Ok(())
}

fn decode(name: &str, text: &str) -> Result<String, Error> {
    let invalid = || {
        Error::configuration(format!(
            "{name} in the connection URI is not percent-encoded UTF-8: \"%\" must be followed by two hexadecimal \
             digits other than 00; write %25 for \"%\" itself"
        ))
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16)).ok_or_else(invalid);
        let byte = (digit(rest.first())? << 4 | digit(rest.get(1))?) as u8;
        if byte == 0 {
            return Err(invalid());
        }
        bytes.push(byte);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| invalid())
}
