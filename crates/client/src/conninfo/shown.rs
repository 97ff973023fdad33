//! Connection strings that may be printed: the same connection, without its secrets.
//!
//! A string without a secret is printed as it was written. A string with a secret is rebuilt from
//! its parts as keywords and values, because cutting a password out of a URI is not reliable.

use super::{keyword, text};
use crate::Error;

/// Keywords whose values nobody may see.
pub(super) const SECRETS: [&str; 5] =
    ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"];

/// Variables that libpq reads besides those of its keywords.
const FILES: [&str; 2] = ["PGSERVICEFILE", "PGSYSCONFDIR"];

/// A connection string that may be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Leads where the original does.
    pub text: String,
    /// A secret was left out.
    pub lacks_secret: bool,
}

impl Shown {
    /// What may be printed of `text`.
    ///
    /// # Errors
    /// [`Error::is_configuration`]: it is no connection string.
    pub fn of(text: &str) -> Result<Shown, Error> {
        let pairs = text::parse(text)?;
        if !pairs.iter().any(|(name, _)| SECRETS.contains(name)) {
            return Ok(Shown { text: text.to_owned(), lacks_secret: false });
        }
        let shown = pairs.iter().filter(|(name, _)| !SECRETS.contains(name));
        let words: Vec<String> = shown.map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        Ok(Shown { text: words.join(" "), lacks_secret: true })
    }

    /// The variables from which a connection string is completed, but for the password's.
    pub fn variables() -> impl Iterator<Item = &'static str> {
        let own = keyword::KEYWORDS.iter().filter(|keyword| !SECRETS.contains(&keyword.name));
        own.filter_map(|keyword| keyword.env).chain(FILES)
    }
}

/// A value as a keyword/value string has it.
fn quoted(value: &str) -> String {
    let is_plain =
        !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
    match is_plain {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> (String, bool) {
        let Shown { text, lacks_secret } = Shown::of(text).unwrap();
        (text, lacks_secret)
    }

    #[test]
    fn secrets_are_left_out_and_nothing_else() {
        let cases = [
            ("postgres://u@h:5432/db?sslmode=require", "postgres://u@h:5432/db?sslmode=require", false),
            ("postgres://u:p%40w@h:5433/db", "user=u host=h port=5433 dbname=db", true),
            (
                "postgres://u@h/db?password=pw&connect_timeout=3",
                "user=u host=h dbname=db connect_timeout=3",
                true,
            ),
            ("host=h password='a b' dbname=d", "host=h dbname=d", true),
            ("host=h options='-c a=\\'b\\'' sslpassword=x", "host=h options='-c a=\\'b\\''", true),
            ("host=h scram_client_key=a= scram_server_key=b=", "host=h", true),
            ("service=s", "service=s", false),
        ];
        for (text, expected, lacks) in cases {
            let (shown, lacks_secret) = shown(text);
            let sorted = |text: &str| {
                let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                words.sort();
                words
            };
            assert_eq!((sorted(&shown), lacks_secret), (sorted(expected), lacks), "{text}");
            assert!(text::parse(&shown).is_ok(), "{shown}");
        }
        assert!(Shown::variables().any(|name| name == "PGHOST"));
        assert!(Shown::variables().all(|name| name != "PGPASSWORD"));
    }
}
