//! A theme: a file of SQL, and what its headings mean.
//!
//! A heading is a line `--@ WORD REST`; below it stands SQL in paragraphs, each sent as one query,
//! which is one transaction unless it says BEGIN. Headings are followed in their order, except
//! those that say where a theme runs and `expect`, which hold for the whole theme.
//!
//! | heading                    | what follows it                                                             |
//! |----------------------------|-----------------------------------------------------------------------------|
//! | `since 15`                 | nothing; the theme needs that major                                         |
//! | `source database OPTIONS`  | nothing; how `CREATE DATABASE` ends on the source (`target database` alike) |
//! | `publish WHAT`             | nothing; what is published; all tables without this heading                |
//! | `both`, `source`, `target` | schema and rows, on that end                                                |
//! | `expect TABLE`             | a query on the source: what the target's table must hold, instead of all    |
//! | `steps`                    | transactions of the source, after which both ends are compared              |
//! | `stops WORDS`              | transactions of the source that stop every strategy with these words        |
//! | `compare`                  | queries that must have the same answer on both ends                         |
//! | `holds`                    | queries of the target that must be true                                     |
//!
//! A paragraph of `steps` that begins with `-- session NAME` is sent in another session, which
//! stays open.

use std::path::Path;

/// One file.
pub(crate) struct Theme {
    pub(crate) name: String,
    pub(crate) since: u32,
    /// Options of the databases, source and target.
    pub(crate) databases: [String; 2],
    pub(crate) publish: Option<String>,
    /// Tables that do not hold what the source's hold, and the query that says what they hold.
    pub(crate) expected: Vec<(String, String)>,
    pub(crate) sections: Vec<Section>,
}

/// A heading and the paragraphs below it.
pub(crate) struct Section {
    pub(crate) what: What,
    pub(crate) paragraphs: Vec<Paragraph>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Both,
    Source,
    Target,
    Steps,
    Stops(String),
    Compare,
    Holds,
}

/// One query, and the session it is sent in if that is not the ordinary one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paragraph {
    pub(crate) session: Option<String>,
    pub(crate) sql: String,
}

impl Theme {
    /// The theme in `themes/NAME.sql`.
    pub(crate) fn read(name: &str) -> Theme {
        let path = directory().join(format!("{name}.sql"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}.sql: {error}"));
        Theme::parse(name, &text)
    }

    fn parse(name: &str, text: &str) -> Theme {
        let mut theme = Theme {
            name: name.to_owned(),
            since: 14,
            databases: [String::new(), String::new()],
            publish: None,
            expected: Vec::new(),
            sections: Vec::new(),
        };
        let (title, rest) = text.split_once("\n--@ ").unwrap_or((text, ""));
        assert!(title.starts_with("-- "), "{name}: the first line says what the theme shows");
        for part in rest.split("\n--@ ") {
            let (heading, body) = part.split_once('\n').unwrap_or((part, ""));
            theme.add(heading.trim(), paragraphs(body));
        }
        theme
    }

    fn add(&mut self, heading: &str, mut paragraphs: Vec<Paragraph>) {
        let (word, rest) = heading.split_once(' ').unwrap_or((heading, ""));
        let what = match (word, rest) {
            ("since", major) => {
                self.since = major.parse().expect("a major");
                return;
            }
            ("publish", what) => {
                self.publish = Some(what.to_owned());
                return;
            }
            ("expect", table) => {
                let query = paragraphs.pop().expect("a query").sql;
                self.expected.push((table.to_owned(), query));
                return;
            }
            ("source" | "target", rest) if !rest.is_empty() => {
                let options = rest.strip_prefix("database ").expect("`source database OPTIONS`");
                self.databases[usize::from(word == "target")] = options.to_owned();
                return;
            }
            ("both", "") => What::Both,
            ("source", "") => What::Source,
            ("target", "") => What::Target,
            ("steps", "") => What::Steps,
            ("stops", words) => What::Stops(words.to_owned()),
            ("compare", "") => What::Compare,
            ("holds", "") => What::Holds,
            _ => panic!("{}: no heading is called {heading:?}", self.name),
        };
        assert!(!paragraphs.is_empty(), "{}: nothing stands below {heading:?}", self.name);
        self.sections.push(Section { what, paragraphs });
    }
}

/// Where the themes are.
pub(crate) fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/themes")
}

fn paragraphs(body: &str) -> Vec<Paragraph> {
    let blocks = body.split("\n\n").map(str::trim).filter(|block| !block.is_empty());
    let paragraph = |block: &str| {
        let named = block.lines().next().and_then(|line| line.strip_prefix("-- session "));
        Paragraph { session: named.map(|name| name.trim().to_owned()), sql: block.to_owned() }
    };
    blocks.map(paragraph).collect()
}

#[test]
fn a_theme_is_read_as_it_is_written() {
    let text = "-- Nothing.\n-- At all.\n\n--@ since 16\n--@ target database ENCODING 'LATIN1'\n--@ publish FOR TABLE t\n\
                --@ both\nCREATE TABLE t (\n    id int);\n\n-- a comment\nCREATE TABLE u ();\n\n--@ expect t\nSELECT 1\n\
                --@ steps\n-- session b\nBEGIN;\n\n--@ stops two words\nSELECT 2\n";
    let theme = Theme::parse("x", text);
    assert_eq!((theme.since, theme.publish.as_deref()), (16, Some("FOR TABLE t")));
    assert_eq!(theme.databases, ["", "ENCODING 'LATIN1'"]);
    assert_eq!(theme.expected, [("t".to_owned(), "SELECT 1".to_owned())]);
    let whats: Vec<&What> = theme.sections.iter().map(|section| &section.what).collect();
    assert_eq!(whats, [&What::Both, &What::Steps, &What::Stops("two words".to_owned())]);
    assert_eq!(theme.sections[0].paragraphs.len(), 2);
    assert_eq!(theme.sections[1].paragraphs[0].session.as_deref(), Some("b"));
    assert!(std::panic::catch_unwind(|| Theme::parse("x", "-- t\n--@ stepps\nSELECT 1")).is_err());
}
