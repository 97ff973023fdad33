//! The verifiers of those who log in by password, and the map from certificates to users.
//!
//! A file of users has one line for each, as pgbouncer's has:
//!
//! ```text
//! "name" "SCRAM-SHA-256$4096:salt$StoredKey:ServerKey"
//! ```
//! A file of maps has the form of `pg_ident.conf`: map, name in the certificate, user.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proto::scram::Verifier;

use crate::lines::{Line, TableError, fields};

/// Users by name, with their verifiers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<String, Verifier>);

impl Users {
    /// Reads a file of users.
    ///
    /// # Errors
    /// A line that is no name and verifier, or a name that stands there twice.
    pub fn parse(text: &str) -> Result<Users, TableError> {
        let mut users = BTreeMap::new();
        for line in fields(text) {
            let line = line?;
            let [name, verifier] = words(&line, "\"NAME\" \"VERIFIER\"")?;
            // The text may be a password: it is not shown.
            let verifier = Verifier::parse(verifier).ok_or_else(|| {
                TableError::new(
                    line.number,
                    format!("what user \"{name}\" has is no SCRAM-SHA-256 verifier; write it with `pgsluice user add`"),
                )
            })?;
            if users.insert(name.to_owned(), verifier).is_some() {
                return Err(TableError::new(line.number, format!("user \"{name}\" is there twice")));
            }
        }
        Ok(Users(users))
    }

    /// A user's verifier.
    #[must_use]
    pub fn verifier(&self, user: &str) -> Option<&Verifier> {
        self.0.get(user)
    }

    /// Adds a user, or replaces its verifier.
    ///
    /// # Errors
    /// The name cannot stand in the file: it contains a double quote or ends a line.
    pub fn add(&mut self, user: &str, verifier: Verifier) -> Result<(), String> {
        if user.is_empty() || user.contains(['"', '\n', '\r', '\0']) {
            return Err(format!("the name \"{}\" cannot stand in a file of users", user.escape_debug()));
        }
        self.0.insert(user.to_owned(), verifier);
        Ok(())
    }

    /// Removes a user. Returns whether it was there.
    pub fn remove(&mut self, user: &str) -> bool {
        self.0.remove(user).is_some()
    }

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The file.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, verifier)| {
            let _ = writeln!(text, "\"{name}\" \"{verifier}\"");
            text
        })
    }
}

/// Which names in certificates may connect as which users, by map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateMaps(Vec<Mapping>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    map: String,
    certificate: String,
    user: String,
}

impl CertificateMaps {
    /// Reads a file of maps.
    ///
    /// # Errors
    /// A line that does not have three words, or a regular expression.
    pub fn parse(text: &str) -> Result<CertificateMaps, TableError> {
        let mapping = |line: Result<Line, TableError>| {
            let line = line?;
            let [map, certificate, user] = words(&line, "MAP CERTIFICATE-NAME USER")?;
            if certificate.starts_with('/') {
                let why = "a regular expression (/) is not supported; write one line for each name";
                return Err(TableError::new(line.number, why));
            }
            let [map, certificate, user] = [map, certificate, user].map(str::to_owned);
            Ok(Mapping { map, certificate, user })
        };
        fields(text).map(mapping).collect::<Result<_, _>>().map(CertificateMaps)
    }

    /// Whether a certificate with this name may connect as `user`. Without a map, the names must be
    /// equal.
    #[must_use]
    pub fn allow(&self, map: Option<&str>, certificate: &str, user: &str) -> bool {
        match map {
            None => certificate == user,
            Some(map) => {
                let is_it =
                    |one: &Mapping| one.map == map && one.certificate == certificate && one.user == user;
                self.0.iter().any(is_it)
            }
        }
    }
}

/// The words of a line that has this number of fields, each with one word.
pub(crate) fn words<'a, const COUNT: usize>(
    line: &'a Line,
    form: &str,
) -> Result<[&'a str; COUNT], TableError> {
    let words: Option<Vec<&str>> = line.fields.iter().map(|field| field.single()).collect();
    words
        .and_then(|words| words.try_into().ok())
        .ok_or_else(|| TableError::new(line.number, format!("the line is not of the form {form}")))
}

#[cfg(test)]
mod tests {
    use postgres_protocol::password::scram_sha_256;

    use super::*;

    #[test]
    fn users_are_written_as_they_are_read() {
        let mut users = Users::default();
        let verifier = Verifier::parse(&scram_sha_256(b"secret")).unwrap();
        users.add("repl user", verifier.clone()).unwrap();
        users.add("a", verifier.clone()).unwrap();
        let read = Users::parse(&users.text()).unwrap();
        assert_eq!(read, users);
        assert_eq!(read.verifier("repl user"), Some(&verifier));
        assert_eq!(read.names().collect::<Vec<_>>(), ["a", "repl user"]);
        assert!(users.remove("a") && !users.remove("a"));
        for name in ["", "a\"b", "a\nb"] {
            users.add(name, verifier.clone()).unwrap_err();
        }
    }

    #[test]
    fn a_password_in_the_file_is_refused_and_not_shown() {
        let error = Users::parse("\"a\" \"hunter2\"").unwrap_err().to_string();
        assert!(error.contains("user \"a\"") && !error.contains("hunter2"), "{error}");
        let verifier = scram_sha_256(b"x");
        let twice = Users::parse(&format!("a {verifier}\na {verifier}")).unwrap_err().to_string();
        assert_eq!(twice, "line 2: user \"a\" is there twice");
        assert!(Users::parse("a").is_err());
    }

    #[test]
    fn certificates_are_mapped() {
        let maps =
            CertificateMaps::parse("machines \"db one\" sub\nmachines two sub2\nother two sub\n").unwrap();
        assert!(maps.allow(Some("machines"), "db one", "sub"));
        assert!(!maps.allow(Some("machines"), "two", "sub"));
        assert!(maps.allow(Some("other"), "two", "sub"));
        assert!(!maps.allow(Some("unknown"), "sub", "sub"));
        assert!(maps.allow(None, "sub", "sub") && !maps.allow(None, "two", "sub"));
        assert!(CertificateMaps::parse("m /^x sub").is_err());
        assert!(CertificateMaps::parse("m x").is_err());
    }
}
