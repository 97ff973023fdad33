//! The connection service file: named groups of connection options in INI
//! form, as `parseServiceFile` of libpq reads it.
//!
//! No crate reads it as libpq does. Looked up in `PGSERVICEFILE` or `~/.pg_service.conf`, then in
//! `pg_service.conf` of the system's configuration directory.

use std::path::{Path, PathBuf};

use super::keyword;
use super::text::Pairs;
use crate::Error;

/// Where Debian's and the PGDG packages' libpq looks, unless `PGSYSCONFDIR` says otherwise.
const SYSTEM_DIRECTORY: &str = "/etc/postgresql-common";

/// The options of service `name`.
pub(super) fn look_up(
    name: &str,
    env: &dyn Fn(&str) -> Option<String>,
    home: Option<&Path>,
) -> Result<Pairs, Error> {
    let mut looked_in = Vec::new();
    let explicit = env("PGSERVICEFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = explicit.clone().or_else(|| home.map(|home| home.join(".pg_service.conf")));
    let system = env("PGSYSCONFDIR").map_or_else(|| PathBuf::from(SYSTEM_DIRECTORY), PathBuf::from);
    for path in own.into_iter().chain([system.join("pg_service.conf")]) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(_) if !path.exists() && explicit.as_ref() != Some(&path) => continue,
            Err(error) => {
                return Err(Error::configuration(format!(
                    "service file {} cannot be read: {error}",
                    path.display()
                )));
            }
        };
        if let Some(pairs) = search(&text, name, &path)? {
            return Ok(pairs);
        }
        looked_in.push(path.display().to_string());
    }
    let where_ = if looked_in.is_empty() { "there is no service file".into() } else { looked_in.join(", ") };
    Err(Error::configuration(format!(
        "connection service \"{name}\" is not defined ({where_}); define it there, or set PGSERVICEFILE"
    )))
}

fn search(text: &str, name: &str, path: &Path) -> Result<Option<Pairs>, Error> {
    let mut found: Option<Pairs> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if header.strip_suffix(']') == Some(name) {
                found = Some(Pairs::new());
            }
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        // Only the keyword is quoted: the value may be a password.
        let wrong = |why: String| {
            Error::configuration(format!("service file {}, line {}: {why}", path.display(), index + 1))
        };
        if line.starts_with("ldap") {
            return Err(wrong("services from LDAP are not supported".into()));
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(wrong("expected keyword=value".into()));
        };
        if key == "service" || key == "servicefile" {
            return Err(wrong("a service cannot name another".into()));
        }
        let keyword =
            keyword::find(key).ok_or_else(|| wrong(format!("\"{key}\" is not a connection option")))?;
        // As in libpq the first of two equal keywords wins.
        if !pairs.iter().any(|(name, _)| *name == keyword.name) {
            pairs.push((keyword.name, value.to_owned()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_comments_and_errors() {
        let text = "# all\n[other]\nhost=no\nrubbish\n\n[shop]\n  host=db1 \nport=5433\nhost=later\n[third]\nport=1\n";
        let path = Path::new("services");
        let pairs = search(text, "shop", path).unwrap().unwrap();
        assert_eq!(pairs, vec![("host", "db1".to_owned()), ("port", "5433".to_owned())]);
        assert!(search(text, "none", path).unwrap().is_none());
        for (bad, part) in [
            ("[shop]\nhost", "line 2"),
            ("[shop]\nhosst=x", "\"hosst\""),
            ("[shop]\nservice=x", "another"),
            ("[shop]\nldap://x", "LDAP"),
        ] {
            let error = search(bad, "shop", path).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.is_configuration());
        }
    }
}
