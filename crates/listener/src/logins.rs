//! Users whose login at another server is not the one they have here.
//!
//! The file has one line for each, and nobody but its owner may read it:
//!
//! ```text
//! USER ROLE PASSWORD
//! ```

use std::collections::BTreeMap;

use crate::lines::{TableError, fields};
use crate::users::words;

/// What a user logs in with elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The role there.
    pub role: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("role", &self.role).finish_non_exhaustive()
    }
}

/// Logins by user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserMap(BTreeMap<String, Login>);

impl UserMap {
    /// Reads a file of logins.
    ///
    /// # Errors
    /// A line that does not have three words, or a user that stands there twice.
    pub fn parse(text: &str) -> Result<UserMap, TableError> {
        let mut logins = BTreeMap::new();
        for line in fields(text) {
            let line = line?;
            let [user, role, password] = words(&line, "USER ROLE PASSWORD")?.map(str::to_owned);
            let number = line.number;
            if logins.contains_key(&user) {
                return Err(TableError::new(number, format!("user \"{user}\" is there twice")));
            }
            logins.insert(user, Login { role, password });
        }
        Ok(UserMap(logins))
    }

    /// A user's login.
    #[must_use]
    pub fn find(&self, user: &str) -> Option<&Login> {
        self.0.get(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_found_by_user_and_passwords_are_not_shown() {
        let map =
            UserMap::parse("# who comes with a certificate\nreader \"sub role\" \"pass word\"\n").unwrap();
        let login = map.find("reader").unwrap();
        assert_eq!((login.role.as_str(), login.password.as_str()), ("sub role", "pass word"));
        assert!(map.find("other").is_none());
        assert!(!format!("{map:?}").contains("pass word"));
    }

    #[test]
    fn a_line_with_a_mistake_is_named_without_its_password() {
        for (text, expected) in [
            ("a b", "line 1: the line is not of the form USER ROLE PASSWORD"),
            ("a b secret\n\na c secret", "line 3: user \"a\" is there twice"),
        ] {
            assert_eq!(UserMap::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
