//! Lines of a file in the manner of `pg_hba.conf`: fields between spaces, each a list of words
//! between commas. A word in double quotes means itself. A comment begins with `#`. A line goes on
//! behind a backslash at its end.

use std::fmt;

/// Why a table cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableError {
    line: usize,
    why: String,
}

impl TableError {
    pub(crate) fn new(line: usize, why: impl Into<String>) -> TableError {
        TableError { line, why: why.into() }
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TableError {}

/// A line that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) fields: Vec<Field>,
}

/// Words between commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Field {
    pub(crate) words: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) quoted: bool,
}

impl Field {
    /// Its word, if it has only one.
    pub(crate) fn single(&self) -> Option<&str> {
        match &self.words[..] {
            [word] => Some(&word.text),
            _ => None,
        }
    }
}

/// The lines of `text` that are not empty.
pub(crate) fn fields(text: &str) -> impl Iterator<Item = Result<Line, TableError>> + '_ {
    joined(text).into_iter().filter_map(|(number, line)| match line_fields(&line) {
        Ok(fields) if fields.is_empty() => None,
        Ok(fields) => Some(Ok(Line { number, fields })),
        Err(why) => Some(Err(TableError::new(number, why))),
    })
}

/// Lines with those that continue them, and the number of the first.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in text.lines().enumerate() {
        let (part, goes_on) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| continues) {
            Some((_, whole)) => whole.push_str(part),
            None => lines.push((number + 1, part.to_owned())),
        }
        continues = goes_on;
    }
    lines
}

fn line_fields(line: &str) -> Result<Vec<Field>, &'static str> {
    let mut fields: Vec<Field> = Vec::new();
    let mut rest = line;
    // A comma, even with spaces around it, continues the field.
    let mut continues = false;
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(',') {
            if fields.is_empty() || continues {
                return Err("a comma stands where a word should");
            }
            (rest, continues) = (after, true);
            continue;
        }
        if rest.is_empty() || rest.starts_with('#') {
            return if continues { Err("the line ends with a comma") } else { Ok(fields) };
        }
        let (word, after) = word(rest)?;
        match fields.last_mut().filter(|_| continues) {
            Some(field) => field.words.push(word),
            None => fields.push(Field { words: vec![word] }),
        }
        (rest, continues) = (after, false);
    }
}

/// The first word of `text`, which is not empty, and what follows it.
fn word(text: &str) -> Result<(Word, &str), &'static str> {
    if let Some(body) = text.strip_prefix('"') {
        let end = body.find('"').ok_or("a quote is not closed")?;
        return Ok((Word { text: body[..end].to_owned(), quoted: true }, &body[end + 1..]));
    }
    let ends = |at: char| at.is_whitespace() || matches!(at, ',' | '#');
    let mut end = text.find(ends).unwrap_or(text.len());
    let mut whole = text[..end].to_owned();
    // A value may be quoted: map="a b".
    if let Some(at) = text[..end].find('"') {
        let body = &text[at + 1..];
        let close = body.find('"').ok_or("a quote is not closed")?;
        whole = format!("{}{}", &text[..at], &body[..close]);
        end = at + 1 + close + 1;
    }
    Ok((Word { text: whole, quoted: false }, &text[end..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let line = fields(text).next().unwrap().unwrap();
        let texts = |field: &Field| field.words.iter().map(|word| word.text.clone()).collect();
        line.fields.iter().map(texts).collect()
    }

    #[test]
    fn words_lists_and_quotes() {
        assert_eq!(words("a b,c , d\t\"e f\",g#h"), [vec!["a"], vec!["b", "c", "d"], vec!["e f", "g"]]);
        assert_eq!(words("cert map=\"a b\" x"), [["cert"], ["map=a b"], ["x"]]);
    }

    #[test]
    fn lines_go_on_behind_a_backslash() {
        let lines: Vec<(usize, usize)> = fields("a \\\nb \\\nc\n\nd")
            .map(|line| line.map(|line| (line.number, line.fields.len())).unwrap())
            .collect();
        assert_eq!(lines, [(1, 3), (5, 1)]);
    }

    #[test]
    fn broken_lines_are_named() {
        for (text, why) in [
            ("a\nb \"c", "line 2: a quote is not closed"),
            ("a, ", "line 1: the line ends with a comma"),
            (",a", "line 1: a comma stands where a word should"),
            ("a,,b", "line 1: a comma stands where a word should"),
            ("x=\"", "line 1: a quote is not closed"),
        ] {
            let error = fields(text).find_map(Result::err).unwrap();
            assert_eq!(error.to_string(), why);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = fields(&text).collect::<Vec<_>>();
        }
    }
}
