//! What pg_dump prints, as entries of statements.
//!
//! It prints for psql: before each entry a comment that names it, after it
//! one statement or several, and in between settings for what follows. Newer
//! minor versions begin and end with `\restrict`, a command of psql's that
//! means nothing to a server.

use sql_tokens::{Kind, Token, Tokens};

use crate::error::{self, Error};

/// One entry of pg_dump's table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// pg_dump's word: `TABLE`, `FK CONSTRAINT`; empty for what stands before
    /// the first.
    pub(crate) kind: String,
    /// `orders orders_pkey`, for people.
    pub(crate) name: String,
    /// The schema, or nothing.
    pub(crate) schema: Option<String>,
    /// Without their semicolons.
    pub(crate) statements: Vec<String>,
}

impl Entry {
    /// `INDEX sales.orders_v_idx`
    pub(crate) fn describe(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{} {schema}.{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Every entry of `text` in its order.
pub(crate) fn entries(text: &str) -> Result<Vec<Entry>, Error> {
    let nameless = Entry { kind: String::new(), name: String::new(), schema: None, statements: Vec::new() };
    let mut entries = vec![nameless];
    let mut tokens = Tokens::new(text);
    let mut statement = Statement::default();
    while let Some(token) = tokens.next() {
        match token.kind {
            Kind::Space => {}
            Kind::Comment if statement.start.is_none() => entries.extend(header(token.text)),
            _ if statement.start.is_none() && token.is_char('\\') => {
                meta_command(&text[token.start..])?;
                tokens.skip_line();
            }
            _ => {
                if let Some(start) = statement.take(&token)
                    && let Some(entry) = entries.last_mut()
                {
                    entry.statements.push(text[start..token.start].trim_end().to_owned());
                }
            }
        }
    }
    if !tokens.is_at_end() || statement.start.is_some() {
        let within = entries.last().map(Entry::describe).unwrap_or_default();
        return Err(error::Kind::CutDump { within }.into());
    }
    entries.retain(|entry| !entry.statements.is_empty());
    Ok(entries)
}

/// `-- Name: t_pkey; Type: CONSTRAINT; Schema: public; Owner: postgres`, which
/// pg_dump keeps on one line. Read from behind: a name may contain anything.
fn header(comment: &str) -> Option<Entry> {
    let rest = comment.strip_prefix("-- Name: ")?;
    let (rest, _) = rest.rsplit_once("; Owner: ")?;
    let (rest, schema) = rest.rsplit_once("; Schema: ")?;
    let (name, kind) = rest.rsplit_once("; Type: ")?;
    Some(Entry {
        kind: kind.to_owned(),
        name: name.to_owned(),
        schema: (schema != "-").then(|| schema.to_owned()),
        statements: Vec::new(),
    })
}

fn meta_command(rest: &str) -> Result<(), Error> {
    let line = rest.lines().next().unwrap_or_default();
    match line.split_whitespace().next() {
        Some("\\restrict" | "\\unrestrict") => Ok(()),
        _ => Err(error::Kind::UnknownCommand { line: line.to_owned() }.into()),
    }
}

/// Where a statement ends: at a semicolon outside brackets and outside the
/// body of a function that is written in SQL (`BEGIN ATOMIC ... END`), as
/// psql sees it.
#[derive(Default)]
struct Statement {
    start: Option<usize>,
    brackets: usize,
    blocks: usize,
    /// The first words, which say whether a body may come.
    words: Vec<String>,
}

/// Words that can stand before a body, `CREATE OR REPLACE FUNCTION`.
const WORDS_MAX: usize = 4;

impl Statement {
    /// Takes the next token in; where the statement began, if it ends here.
    fn take(&mut self, token: &Token<'_>) -> Option<usize> {
        if token.is_char(';') && self.brackets == 0 && self.blocks == 0 {
            // A semicolon by itself ends nothing.
            return std::mem::take(self).start;
        }
        self.start.get_or_insert(token.start);
        match token.kind {
            Kind::Word => self.take_word(token),
            Kind::Other if token.text == "(" => self.brackets += 1,
            Kind::Other if token.text == ")" => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        None
    }

    fn take_word(&mut self, token: &Token<'_>) {
        if self.words.len() < WORDS_MAX {
            self.words.push(token.text.to_ascii_lowercase());
        }
        if self.brackets > 0 || !self.may_have_body() {
            return;
        }
        if token.is("begin") || token.is("case") && self.blocks > 0 {
            self.blocks += 1;
        } else if token.is("end") {
            self.blocks = self.blocks.saturating_sub(1);
        }
    }

    fn may_have_body(&self) -> bool {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let is_routine = |word: &str| matches!(word, "function" | "procedure");
        match words.as_slice() {
            ["create", "or", "replace", routine, ..] | ["create", routine, ..] => is_routine(routine),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCRIPT: &str = r#"--
-- PostgreSQL database dump
--

\restrict abc

SET statement_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);

--
-- Name: f(integer); Type: FUNCTION; Schema: public; Owner: me
--

CREATE FUNCTION public.f(a integer) RETURNS integer
    LANGUAGE sql
    BEGIN ATOMIC
 SELECT CASE WHEN (a > 0) THEN 1 ELSE 2 END;
 SELECT 2;
END;


ALTER FUNCTION public.f(a integer) OWNER TO me;

--
-- Name: g(); Type: FUNCTION; Schema: public; Owner: me
--

CREATE FUNCTION public.g() RETURNS trigger
    LANGUAGE plpgsql
    AS $_$
begin
  -- Name: x; Type: TABLE; Schema: -; Owner: -
  execute 'select 1;' using $1;
  return new;
end;
$_$;

--
-- Name: t; Type: odd; Type: RULE; Schema: s; Owner: me; Tablespace: fast
--

CREATE RULE r AS ON INSERT TO public.t DO ALSO (SELECT 1; SELECT 'a;b');

\unrestrict abc
"#;

    #[test]
    fn a_script_is_cut_into_entries() {
        let entries = entries(SCRIPT).unwrap();
        let seen: Vec<_> =
            entries.iter().map(|entry| (entry.kind.as_str(), entry.statements.len())).collect();
        assert_eq!(seen, [("", 2), ("FUNCTION", 2), ("FUNCTION", 1), ("RULE", 1)]);
        assert!(entries[1].statements[0].ends_with("SELECT 2;\nEND"), "{:?}", entries[1]);
        assert_eq!(entries[1].describe(), "FUNCTION public.f(integer)");
        assert!(entries[2].statements[0].contains("Type: TABLE"));
        assert_eq!(entries[3].name, "t; Type: odd");
        assert!(entries[3].statements[0].ends_with("'a;b')"));
    }

    #[test]
    fn what_is_not_whole_or_not_known_is_refused() {
        for (text, words) in [
            ("SELECT 'a", "middle of a statement"),
            ("SELECT 1", "middle of a statement"),
            ("\\connect x\n", "\\connect x"),
        ] {
            let error = entries(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    /// A part of a statement, with anything inside that could be taken for an end.
    fn part() -> impl Strategy<Value = String> {
        let inside = "([;'\"\\\\$()/*\\n-]|[a-zé]|\\PC){0,8}";
        prop_oneof![
            prop::sample::select(vec![
                "select",
                "x1",
                "a$b$",
                "42",
                "1e5",
                "=",
                "$1",
                "(a; 'b)'; c)",
                "--;\n"
            ])
            .prop_map(str::to_owned),
            inside.prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
            inside.prop_map(|text| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))),
            inside.prop_map(|text| base::quote_ident(&text)),
            inside.prop_map(|text| format!("$t_1${}$t_1$", text.replace('$', ";$"))),
            inside.prop_map(|text| format!("/*{}*/", text.replace(['/', '*'], ";"))),
        ]
    }

    fn statement() -> impl Strategy<Value = String> {
        prop::collection::vec(part(), 0..6).prop_map(|parts| format!("SELECT {} x", parts.join(" ")))
    }

    proptest! {
        #[test]
        fn statements_come_out_as_they_went_in(statements in prop::collection::vec(statement(), 1..5)) {
            let script: String = statements.iter().map(|statement| format!("{statement};\n")).collect();
            let found = entries(&script).unwrap();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].statements, &statements);
            // Cut anywhere, it is refused or a part of the statements, in their order.
            for (at, _) in script.char_indices() {
                let Ok(found) = entries(&script[..at]) else { continue };
                let all: Vec<_> = found.into_iter().flat_map(|entry| entry.statements).collect();
                prop_assert!(statements.starts_with(&all), "cut at {at}: {all:?}");
            }
        }

        #[test]
        fn any_text_is_cut_or_refused(text in any::<String>(), dump in "([-;'\"$/*()\\\\]|[a-z]|\n|-- Name: |; Type: ){0,60}") {
            let _ = entries(&text);
            let _ = entries(&dump);
        }
    }
}
