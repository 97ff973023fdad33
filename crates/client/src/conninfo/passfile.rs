//! The password file, `~/.pgpass`: one `host:port:dbname:user:password` per
//! line, first match wins, as `passwordFromFile` of libpq reads it.
//!
//! No crate reads it. `*` alone matches anything; a backslash takes the next character as it
//! is. A file that others may read is passed over with a warning.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::Error;

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) dbname: &'a str,
    pub(super) user: &'a str,
}

/// The password for `wanted`; `None` also when there is no such file.
pub(super) fn look_up(path: &Path, wanted: Wanted<'_>) -> Result<Option<String>, Error> {
    let unreadable = |error: io::Error| {
        Error::configuration(format!("password file {} cannot be read: {error}", path.display()))
    };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    if !metadata.is_file() {
        tracing::warn!(path = %path.display(), "password file is ignored: it is not a plain file");
        return Ok(None);
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            "password file is ignored: it has group or world access; `chmod 0600` it"
        );
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    Ok(search(&String::from_utf8_lossy(&bytes), wanted))
}

fn search(text: &str, wanted: Wanted<'_>) -> Option<String> {
    let port = wanted.port.to_string();
    text.split('\n').map(|line| line.trim_end_matches('\r')).filter(|line| !line.starts_with('#')).find_map(
        |line| {
            let rest = field(line, wanted.host)?;
            let rest = field(rest, &port)?;
            let rest = field(rest, wanted.dbname)?;
            let rest = field(rest, wanted.user)?;
            Some(unescape(rest))
        },
    )
}

/// What follows the first field of `line` if that field matches `wanted`.
fn field<'a>(line: &'a str, wanted: &str) -> Option<&'a str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut wanted = wanted.chars();
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        let c = match c {
            ':' => return wanted.next().is_none().then(|| &line[at + 1..]),
            '\\' => chars.next()?.1,
            c => c,
        };
        if wanted.next() != Some(c) {
            return None;
        }
    }
    None
}

/// The last field. A backslash at the very end stands for itself.
fn unescape(text: &str) -> String {
    let mut password = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => password.push(chars.next().unwrap_or('\\')),
            c => password.push(c),
        }
    }
    password
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(host: &str) -> Wanted<'_> {
        Wanted { host, port: 5432, dbname: "shop", user: "app" }
    }

    #[test]
    fn lines_and_what_they_give() {
        let cases = [
            ("h:5432:shop:app:secret", Some("secret")),
            ("h:5432:shop:app:with:colons", Some("with:colons")),
            (r"h:5432:shop:app:a\:b\\c", Some(r"a:b\c")),
            (r"h:5432:shop:app:end\", Some(r"end\")),
            ("h:5432:shop:app:crlf\r\n", Some("crlf")),
            ("h:5432:shop:app:", Some("")),
            ("*:*:*:*:any", Some("any")),
            ("h:*:shop:*:some", Some("some")),
            ("*h:5432:shop:app:no", None),
            ("h:5433:shop:app:no", None),
            ("hh:5432:shop:app:no", None),
            ("h:5432:shop:app", None),
            ("#h:5432:shop:app:no\nh:5432:shop:app:second", Some("second")),
            ("h:5432:shop:app:first\n*:*:*:*:later", Some("first")),
            ("\n\ngarbage\nh:5432:shop:app:last", Some("last")),
        ];
        for (text, expected) in cases {
            assert_eq!(search(text, wanted("h")).as_deref(), expected, "{text:?}");
        }
        assert_eq!(search(r"fe80\:\:1:*:*:*:six", wanted("fe80::1")).as_deref(), Some("six"));
        assert_eq!(search("fe80::1:*:*:*:six", wanted("fe80::1")), None);
    }

    #[test]
    fn a_file_others_may_read_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgpass");
        assert_eq!(look_up(&path, wanted("h")).unwrap(), None);
        std::fs::write(&path, "h:*:*:*:secret\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            look_up(&path, wanted("h")).unwrap()
        };
        assert_eq!(with_mode(0o640), None);
        assert_eq!(with_mode(0o604), None);
        assert_eq!(with_mode(0o600).as_deref(), Some("secret"));
        assert_eq!(look_up(directory.path(), wanted("h")).unwrap(), None);
    }
}
