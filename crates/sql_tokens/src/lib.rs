//! SQL cut into tokens, as far as statements can be told apart by them.
//!
//! The rules are psql's (`psqlscan.l`): strings with and without escapes, dollar quotes, quoted
//! names, comments. What is inside a string or a body is never looked at. A string without `E` has
//! no escapes, as with `standard_conforming_strings = on`.
//!
//! A parser of SQL is no substitute. It would have to know the grammar of every major, and would
//! give back another text than pg_dump or a client wrote. The tests cut statements with every kind
//! of quote, and any text at all.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or a name without quotes.
    Word,
    /// A name in double quotes.
    Quoted,
    /// A string of any kind, dollar quotes included.
    Text,
    /// `--` to the end of its line, or `/* */`.
    Comment,
    /// White space.
    Space,
    /// A number, or one other character.
    Other,
}

/// A token and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind,
    /// As it stands there.
    pub text: &'a str,
    /// Its first byte in the whole text.
    pub start: usize,
}

impl<'a> Token<'a> {
    /// Whether it is this keyword; `keyword` in lower case.
    #[must_use]
    pub fn is(&self, keyword: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(keyword)
    }

    /// Whether it is this character.
    #[must_use]
    pub fn is_char(&self, c: char) -> bool {
        self.kind == Kind::Other && self.text.starts_with(c)
    }

    /// The name it stands for, as the server folds it.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self.kind {
            Kind::Word => Some(self.text.to_ascii_lowercase()),
            Kind::Quoted => Some(self.text[1..self.text.len() - 1].replace("\"\"", "\"")),
            _ => None,
        }
    }
}

/// Cuts a text into tokens; ends early where a quote or comment does not end.
pub struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    /// From the beginning of `text`.
    #[must_use]
    pub fn new(text: &'a str) -> Tokens<'a> {
        Tokens { text, at: 0 }
    }

    /// Whether everything was cut.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Passes over everything up to the end of the line.
    pub fn skip_line(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.find('\n').map_or(rest.len(), |end| end + 1);
    }

    fn measure(&self) -> Option<(Kind, usize)> {
        let rest = &self.text[self.at..];
        let first = rest.chars().next()?;
        Some(match first {
            c if c.is_ascii_whitespace() => (Kind::Space, run(rest, |c| c.is_ascii_whitespace())),
            '-' if rest.starts_with("--") => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (Kind::Comment, block_comment(rest)?),
            '\'' => (Kind::Text, quoted(rest, '\'', false)?),
            '"' => (Kind::Quoted, quoted(rest, '"', false)?),
            'E' | 'e' if rest[1..].starts_with('\'') => (Kind::Text, 1 + quoted(&rest[1..], '\'', true)?),
            // Other prefixes change what a string means, not where it ends.
            '$' => match dollar_tag(rest) {
                Some(tag) => {
                    let end = rest[tag.len()..].find(tag)?;
                    (Kind::Text, end + 2 * tag.len())
                }
                None => (Kind::Other, 1),
            },
            c if is_name_start(c) => (Kind::Word, run(rest, is_name_part)),
            // With all that is stuck to it, so that `1e5` is no name.
            c if c.is_ascii_digit() => (Kind::Other, run(rest, is_name_part)),
            c => (Kind::Other, c.len_utf8()),
        })
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let (kind, length) = self.measure()?;
        let start = self.at;
        self.at += length;
        Some(Token { kind, text: &self.text[start..self.at], start })
    }
}

/// The tokens of a statement that say something.
#[must_use]
pub fn words(statement: &str) -> Vec<Token<'_>> {
    Tokens::new(statement).filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment)).collect()
}

/// A name, perhaps with its schema, that begins at `tokens[0]`: as it is
/// written, which pg_dump always does alike.
#[must_use]
pub fn qualified_name(tokens: &[Token<'_>]) -> Option<String> {
    let is_name = |token: &&Token<'_>| matches!(token.kind, Kind::Word | Kind::Quoted);
    let mut name = tokens.first().filter(is_name)?.text.to_owned();
    for pair in tokens[1..].chunks_exact(2).take_while(|pair| pair[0].is_char('.')) {
        name = format!("{name}.{}", Some(&pair[1]).filter(is_name)?.text);
    }
    Some(name)
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_name_part(c: char) -> bool {
    is_name_start(c) || c.is_ascii_digit() || c == '$'
}

/// Bytes of the leading characters for which `belongs` holds.
fn run(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c: char| !belongs(c)).unwrap_or(text.len())
}

/// Bytes up to the closing quote; a doubled one is none.
fn quoted(text: &str, quote: char, escapes: bool) -> Option<usize> {
    let mut rest = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            '\\' if escapes => {
                rest.next();
            }
            c if c == quote => match rest.peek() {
                Some((_, next)) if *next == quote => {
                    rest.next();
                }
                _ => return Some(at + 1),
            },
            _ => {}
        }
    }
    None
}

/// Comments of this form nest.
fn block_comment(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        match rest {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// `$tag$`, if the text begins with one.
fn dollar_tag(text: &str) -> Option<&str> {
    let length = run(&text[1..], |c| is_name_part(c) && c != '$');
    let is_tag = !text[1..].starts_with(|c: char| c.is_ascii_digit());
    (is_tag && text[1 + length..].starts_with('$')).then(|| &text[..length + 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        words(text).into_iter().map(|token| (token.kind, token.text)).collect()
    }

    #[test]
    fn quotes_of_every_kind_hide_what_is_inside() {
        for text in [
            "'a;''b'",
            r"E'a\';b'",
            r"'a\'",
            "\"a;\"\"b\"",
            "$$ ; ' $$",
            "$b_1$ $$ ; $b$ $b_1$",
            "/* ; /* ; */ ' */",
            "-- it's ;",
        ] {
            let tokens: Vec<Token<'_>> = Tokens::new(text).collect();
            assert_eq!(tokens.len(), 1, "{text}: {tokens:?}");
        }
        // No tag begins in the middle of a name, nor with a digit.
        assert_eq!(kinds("a$b$ c"), [(Kind::Word, "a$b$"), (Kind::Word, "c")]);
        assert_eq!(
            kinds("$1;$2"),
            [
                (Kind::Other, "$"),
                (Kind::Other, "1"),
                (Kind::Other, ";"),
                (Kind::Other, "$"),
                (Kind::Other, "2"),
            ]
        );
        assert_eq!(kinds("'a'--c\n1e5"), [(Kind::Text, "'a'"), (Kind::Other, "1e5")]);
    }

    #[test]
    fn names_as_they_are_written_and_as_the_server_folds_them() {
        let name = |text| qualified_name(&words(text));
        assert_eq!(name("public.\"T \"\"x\" rest").as_deref(), Some("public.\"T \"\"x\""));
        assert_eq!(name("t (a)").as_deref(), Some("t"));
        assert_eq!(name("'t'"), None);
        let folded: Vec<_> = words("Bob \"T \"\"x\" 'x'").iter().map(Token::name).collect();
        assert_eq!(folded, [Some("bob".to_owned()), Some("T \"x".to_owned()), None]);
    }

    proptest! {
        #[test]
        fn every_text_is_cut_without_loss(text in "[a-zE$'\"\\\\/*;. \n0-9é-]{0,40}") {
            let mut tokens = Tokens::new(&text);
            let mut joined = String::new();
            for token in tokens.by_ref() {
                prop_assert_eq!(token.start, joined.len());
                joined.push_str(token.text);
            }
            // What is left is a quote without its end.
            prop_assert!(text.starts_with(&joined));
            prop_assert_eq!(tokens.is_at_end(), joined == text);
        }
    }
}
