//! Replication commands, as a walsender reads them.
//!
//! A simple query of a replication connection is a replication command if its first word is one.
//! Everything else is SQL. Keywords are upper case; names are folded to lower case unless they are
//! quoted.
//!
//! Source: `repl_gram.y`, `repl_scanner.l` and `walsender.c` of 14 to 18.

use std::fmt;

use base::Lsn;

/// `NAMEDATALEN`: longer names are cut.
const NAME_SIZE: usize = 64;

/// A replication command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `IDENTIFY_SYSTEM`
    IdentifySystem,
    /// `SHOW name`
    Show(String),
    /// `READ_REPLICATION_SLOT slot`
    ReadSlot(String),
    /// `CREATE_REPLICATION_SLOT ...`
    CreateSlot(CreateSlot),
    /// `DROP_REPLICATION_SLOT slot [WAIT]`
    DropSlot {
        /// The slot.
        slot: String,
        /// Whether to wait until nobody uses it.
        wait: bool,
    },
    /// `ALTER_REPLICATION_SLOT slot (option [, ...])`
    AlterSlot {
        /// The slot.
        slot: String,
        /// What to change.
        options: Vec<CommandOption>,
    },
    /// `START_REPLICATION SLOT slot LOGICAL position [(option [, ...])]`
    StartLogical {
        /// The slot.
        slot: String,
        /// Where to start; the slot's own position if that is later.
        start: Lsn,
        /// The output plugin's options.
        options: Vec<CommandOption>,
    },
    /// `START_REPLICATION [SLOT slot] [PHYSICAL] position [TIMELINE number]`
    StartPhysical {
        /// The slot, if one is used.
        slot: Option<String>,
        /// Where to start.
        start: Lsn,
        /// The timeline; the present one if none is named.
        timeline: Option<u32>,
    },
    /// `TIMELINE_HISTORY number`
    TimelineHistory(u32),
    /// `BASE_BACKUP` and `UPLOAD_MANIFEST`, whose words are not read.
    Backup,
}

/// `CREATE_REPLICATION_SLOT slot [TEMPORARY] { PHYSICAL | LOGICAL plugin } options`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSlot {
    /// The slot.
    pub slot: String,
    /// It goes with the connection.
    pub temporary: bool,
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// The options stand in parentheses: the newer syntax.
    pub in_parentheses: bool,
    /// In either syntax: the old keywords are given as the options that they stand for.
    pub options: Vec<CommandOption>,
}

/// One option of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOption {
    /// Its name.
    pub name: String,
    /// Its value, if it has one.
    pub value: Option<String>,
    /// The value stood there as a number, without quotes.
    pub is_number: bool,
}

impl CommandOption {
    /// Its value as a boolean, as `defGetBoolean` reads it: true if there is none. 0 and 1 are
    /// booleans where they are numbers, and not as strings.
    ///
    /// # Errors
    /// It is none.
    pub fn boolean(&self) -> Result<bool, NotBoolean<'_>> {
        match (self.is_number, self.value.as_deref().map(str::to_ascii_lowercase).as_deref()) {
            (_, None) | (false, Some("true" | "on")) | (true, Some("1")) => Ok(true),
            (false, Some("false" | "off")) | (true, Some("0")) => Ok(false),
            _ => Err(NotBoolean(&self.name)),
        }
    }
}

/// The option with this name is no boolean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBoolean<'a>(pub &'a str);

impl fmt::Display for NotBoolean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requires a Boolean value", self.0)
    }
}

impl std::error::Error for NotBoolean<'_> {}

/// Why a replication command cannot be read, worded as the server's error with SQLSTATE 42601.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyntaxError {
    /// The words do not make a command.
    Words,
    /// A quoted string or name does not end.
    Unterminated(&'static str),
    /// A position is too large.
    Number,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyntaxError::Words => f.write_str("syntax error"),
            SyntaxError::Unterminated(what) => write!(f, "unterminated quoted {what}"),
            SyntaxError::Number => f.write_str("invalid streaming start location"),
        }
    }
}

impl std::error::Error for SyntaxError {}

/// The major from which on the first word of `query` is that of a command, if it is one here. Older
/// servers take the whole as SQL.
#[must_use]
pub fn known_since(query: &str) -> u32 {
    match (Words { rest: query }).next() {
        Ok(Some(Word::Name { text: "READ_REPLICATION_SLOT", quoted: false })) => 15,
        Ok(Some(Word::Name { text: "ALTER_REPLICATION_SLOT" | "UPLOAD_MANIFEST", quoted: false })) => 17,
        _ => 0,
    }
}

/// Reads a replication command of the newest grammar; `None` if `query` is something else, which is
/// SQL.
///
/// # Errors
/// The first word is that of a command, and the rest does not follow its grammar.
pub fn parse(query: &str) -> Result<Option<Command>, SyntaxError> {
    let mut words = Words { rest: query };
    let Ok(Some(Word::Name { text: first, quoted: false })) = words.next() else { return Ok(None) };
    let mut parser = Parser { words, peeked: None };
    let command = match first {
        "IDENTIFY_SYSTEM" => Command::IdentifySystem,
        "SHOW" => Command::Show(parser.dotted_name()?),
        "READ_REPLICATION_SLOT" => Command::ReadSlot(parser.dotted_name()?),
        "CREATE_REPLICATION_SLOT" => parser.create()?,
        "DROP_REPLICATION_SLOT" => {
            Command::DropSlot { slot: parser.name()?, wait: parser.takes_keyword("WAIT")? }
        }
        "ALTER_REPLICATION_SLOT" => {
            let slot = parser.name()?;
            Command::AlterSlot { slot, options: parser.options()?.ok_or(SyntaxError::Words)? }
        }
        "START_REPLICATION" => parser.start()?,
        "TIMELINE_HISTORY" => Command::TimelineHistory(parser.number()?),
        "BASE_BACKUP" | "UPLOAD_MANIFEST" => return Ok(Some(Command::Backup)),
        _ => return Ok(None),
    };
    parser.takes(&Word::Sign(';'))?;
    match parser.next()? {
        None => Ok(Some(command)),
        Some(_) => Err(SyntaxError::Words),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word<'a> {
    /// A name or a keyword. Quotes inside of a quoted one are still doubled.
    Name {
        text: &'a str,
        quoted: bool,
    },
    /// A string. Quotes inside are still doubled.
    Text(&'a str),
    Number(u32),
    Position(Lsn),
    Sign(char),
}

struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<Option<Word<'a>>, SyntaxError> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c', '\x0b']);
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        match first {
            '\'' => self
                .quoted('\'')
                .map(|text| Some(Word::Text(text)))
                .ok_or(SyntaxError::Unterminated("string")),
            '"' => self
                .quoted('"')
                .map(|text| Some(Word::Name { text, quoted: true }))
                .ok_or(SyntaxError::Unterminated("identifier")),
            _ => self.plain(first),
        }
    }

    /// What stands between two quotes; a doubled quote is a part of it.
    fn quoted(&mut self, quote: char) -> Option<&'a str> {
        let body = &self.rest[1..];
        let mut at = 0;
        loop {
            at += body[at..].find(quote)?;
            if body[at + 1..].starts_with(quote) {
                at += 2;
                continue;
            }
            self.rest = &body[at + 1..];
            return Some(&body[..at]);
        }
    }

    fn plain(&mut self, first: char) -> Result<Option<Word<'a>>, SyntaxError> {
        if let Some((position, rest)) = position(self.rest)? {
            self.rest = rest;
            return Ok(Some(Word::Position(position)));
        }
        let is_in_name = |at: char| at.is_ascii_alphanumeric() || matches!(at, '_' | '$') || !at.is_ascii();
        let end = |is_in: &dyn Fn(char) -> bool| self.rest.find(|at| !is_in(at)).unwrap_or(self.rest.len());
        let (word, size) = if first.is_ascii_digit() {
            let size = end(&|at| at.is_ascii_digit());
            // As `strtoul` reads it, of which the server keeps the lower half.
            (Word::Number(self.rest[..size].parse().unwrap_or(u64::MAX) as u32), size)
        } else if is_in_name(first) && first != '$' {
            let size = end(&is_in_name);
            (Word::Name { text: &self.rest[..size], quoted: false }, size)
        } else {
            (Word::Sign(first), first.len_utf8())
        };
        self.rest = &self.rest[size..];
        Ok(Some(word))
    }
}

/// A position such as `16/B374D848` at the start of `text`, and what follows it. The longest match
/// wins, so this comes before names and numbers.
fn position(text: &str) -> Result<Option<(Lsn, &str)>, SyntaxError> {
    let digits = |text: &str| text.find(|at: char| !at.is_ascii_hexdigit()).unwrap_or(text.len());
    let high = digits(text);
    let Some(after) = text[high..].strip_prefix('/').filter(|_| high > 0) else { return Ok(None) };
    let low = digits(after);
    if low == 0 {
        return Ok(None);
    }
    let half = |digits: &str| u32::from_str_radix(digits, 16).map_err(|_| SyntaxError::Number);
    let (high, low_half) = (half(&text[..high])?, half(&after[..low])?);
    Ok(Some((Lsn::new(u64::from(high) << 32 | u64::from(low_half)), &after[low..])))
}

struct Parser<'a> {
    words: Words<'a>,
    peeked: Option<Option<Word<'a>>>,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Result<Option<Word<'a>>, SyntaxError> {
        match self.peeked.take() {
            Some(word) => Ok(word),
            None => self.words.next(),
        }
    }

    fn peek(&mut self) -> Result<Option<&Word<'a>>, SyntaxError> {
        if self.peeked.is_none() {
            self.peeked = Some(self.words.next()?);
        }
        Ok(self.peeked.as_ref().and_then(Option::as_ref))
    }

    /// Takes the next word if it is `word`.
    fn takes(&mut self, word: &Word<'_>) -> Result<bool, SyntaxError> {
        let is_it = self.peek()? == Some(word);
        if is_it {
            self.peeked = None;
        }
        Ok(is_it)
    }

    fn takes_keyword(&mut self, keyword: &str) -> Result<bool, SyntaxError> {
        self.takes(&Word::Name { text: keyword, quoted: false })
    }

    fn expects(&mut self, sign: char) -> Result<(), SyntaxError> {
        if self.takes(&Word::Sign(sign))? { Ok(()) } else { Err(SyntaxError::Words) }
    }

    /// A name that is no keyword.
    fn name(&mut self) -> Result<String, SyntaxError> {
        match self.next()? {
            Some(Word::Name { text, quoted }) if quoted || !KEYWORDS.contains(&text) => {
                Ok(folded(text, quoted))
            }
            _ => Err(SyntaxError::Words),
        }
    }

    /// A name with parts.
    fn dotted_name(&mut self) -> Result<String, SyntaxError> {
        let mut name = self.name()?;
        while self.takes(&Word::Sign('.'))? {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    fn number(&mut self) -> Result<u32, SyntaxError> {
        match self.next()? {
            Some(Word::Number(number)) => Ok(number),
            _ => Err(SyntaxError::Words),
        }
    }

    fn position(&mut self) -> Result<Lsn, SyntaxError> {
        match self.next()? {
            Some(Word::Position(position)) => Ok(position),
            _ => Err(SyntaxError::Words),
        }
    }

    fn create(&mut self) -> Result<Command, SyntaxError> {
        let slot = self.name()?;
        let temporary = self.takes_keyword("TEMPORARY")?;
        let plugin = if self.takes_keyword("PHYSICAL")? {
            None
        } else if self.takes_keyword("LOGICAL")? {
            Some(self.name()?)
        } else {
            return Err(SyntaxError::Words);
        };
        let (in_parentheses, options) = match self.options()? {
            Some(options) => (true, options),
            None => (false, self.keywords()?),
        };
        Ok(Command::CreateSlot(CreateSlot { slot, temporary, plugin, in_parentheses, options }))
    }

    /// The keywords of the old syntax, as options of the new one.
    fn keywords(&mut self) -> Result<Vec<CommandOption>, SyntaxError> {
        let mut options = Vec::new();
        'next: loop {
            for (keyword, name, value) in [
                ("EXPORT_SNAPSHOT", "snapshot", "export"),
                ("NOEXPORT_SNAPSHOT", "snapshot", "nothing"),
                ("USE_SNAPSHOT", "snapshot", "use"),
                ("RESERVE_WAL", "reserve_wal", "true"),
                ("TWO_PHASE", "two_phase", "true"),
            ] {
                if self.takes_keyword(keyword)? {
                    let (name, value) = (name.to_owned(), Some(value.to_owned()));
                    options.push(CommandOption { name, value, is_number: false });
                    continue 'next;
                }
            }
            return Ok(options);
        }
    }

    /// Options in parentheses; `None` if there are no parentheses.
    fn options(&mut self) -> Result<Option<Vec<CommandOption>>, SyntaxError> {
        if !self.takes(&Word::Sign('('))? {
            return Ok(None);
        }
        let mut options = Vec::new();
        loop {
            let Some(Word::Name { text, quoted }) = self.next()? else { return Err(SyntaxError::Words) };
            let peeked = self.peek()?.cloned();
            let is_number = matches!(peeked, Some(Word::Number(_)));
            let value = match peeked {
                Some(Word::Name { text, quoted }) => Some(folded(text, quoted)),
                Some(Word::Text(text)) => Some(text.replace("''", "'")),
                Some(Word::Number(number)) => Some(number.to_string()),
                _ => None,
            };
            if value.is_some() {
                self.peeked = None;
            }
            // Keywords are options by the name that they have in lower case.
            options.push(CommandOption { name: folded(text, quoted), value, is_number });
            if !self.takes(&Word::Sign(','))? {
                break;
            }
        }
        self.expects(')')?;
        Ok(Some(options))
    }

    fn start(&mut self) -> Result<Command, SyntaxError> {
        let slot = if self.takes_keyword("SLOT")? { Some(self.name()?) } else { None };
        if self.takes_keyword("LOGICAL")? {
            let slot = slot.ok_or(SyntaxError::Words)?;
            let start = self.position()?;
            return Ok(Command::StartLogical { slot, start, options: self.options()?.unwrap_or_default() });
        }
        self.takes_keyword("PHYSICAL")?;
        let start = self.position()?;
        let timeline = if self.takes_keyword("TIMELINE")? { Some(self.number()?) } else { None };
        Ok(Command::StartPhysical { slot, start, timeline })
    }
}

/// A name as the server keeps it.
fn folded(text: &str, quoted: bool) -> String {
    let mut name = if quoted { text.replace("\"\"", "\"") } else { text.to_ascii_lowercase() };
    if name.len() >= NAME_SIZE {
        let end = (0..NAME_SIZE).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        name.truncate(end);
    }
    name
}

/// `text` as a string of a replication command, in which a backslash means itself.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Words that are no names unless they are quoted.
const KEYWORDS: [&str; 24] = [
    "BASE_BACKUP",
    "IDENTIFY_SYSTEM",
    "READ_REPLICATION_SLOT",
    "SHOW",
    "TIMELINE",
    "START_REPLICATION",
    "CREATE_REPLICATION_SLOT",
    "DROP_REPLICATION_SLOT",
    "ALTER_REPLICATION_SLOT",
    "TIMELINE_HISTORY",
    "PHYSICAL",
    "RESERVE_WAL",
    "LOGICAL",
    "SLOT",
    "TEMPORARY",
    "TWO_PHASE",
    "EXPORT_SNAPSHOT",
    "NOEXPORT_SNAPSHOT",
    "USE_SNAPSHOT",
    "WAIT",
    "UPLOAD_MANIFEST",
    "PROGRESS",
    "FAST",
    "NOWAIT",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(query: &str) -> Command {
        parse(query).unwrap().expect("a replication command")
    }

    fn option(name: &str, value: &str) -> CommandOption {
        CommandOption { name: name.to_owned(), value: Some(value.to_owned()), is_number: false }
    }

    fn flag(name: &str) -> CommandOption {
        CommandOption { name: name.to_owned(), value: None, is_number: false }
    }

    fn create(temporary: bool, in_parentheses: bool, options: Vec<CommandOption>) -> Command {
        let (slot, plugin) = ("s".to_owned(), Some("pgoutput".to_owned()));
        Command::CreateSlot(CreateSlot { slot, temporary, plugin, in_parentheses, options })
    }

    /// What subscribers of 14 to 18 and pg_recvlogical were seen to send.
    #[test]
    fn commands_of_subscribers() {
        for (query, command) in [
            ("IDENTIFY_SYSTEM", Command::IdentifySystem),
            ("SHOW data_directory_mode", Command::Show("data_directory_mode".to_owned())),
            (
                "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput NOEXPORT_SNAPSHOT",
                create(false, false, vec![option("snapshot", "nothing")]),
            ),
            (
                "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (FAILOVER, SNAPSHOT 'use')",
                create(false, true, vec![flag("failover"), option("snapshot", "use")]),
            ),
            (
                "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL \"pgoutput\" USE_SNAPSHOT TWO_PHASE",
                create(true, false, vec![option("snapshot", "use"), option("two_phase", "true")]),
            ),
            ("DROP_REPLICATION_SLOT s WAIT", Command::DropSlot { slot: "s".to_owned(), wait: true }),
            ("DROP_REPLICATION_SLOT \"s\";", Command::DropSlot { slot: "s".to_owned(), wait: false }),
            (
                "ALTER_REPLICATION_SLOT s ( FAILOVER true, TWO_PHASE false );",
                Command::AlterSlot {
                    slot: "s".to_owned(),
                    options: vec![option("failover", "true"), option("two_phase", "false")],
                },
            ),
            (
                "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (proto_version '4', origin 'any', \
                 publication_names '\"p1\",\"it''s\"', \"binary\" 'true')",
                Command::StartLogical {
                    slot: "s".to_owned(),
                    start: Lsn::new(0x16_b374_d848),
                    options: vec![
                        option("proto_version", "4"),
                        option("origin", "any"),
                        option("publication_names", "\"p1\",\"it's\""),
                        option("binary", "true"),
                    ],
                },
            ),
            ("READ_REPLICATION_SLOT s", Command::ReadSlot("s".to_owned())),
            ("TIMELINE_HISTORY 3", Command::TimelineHistory(3)),
            (
                "START_REPLICATION SLOT \"s\" PHYSICAL 0/3000000 TIMELINE 1",
                Command::StartPhysical {
                    slot: Some("s".to_owned()),
                    start: Lsn::new(0x300_0000),
                    timeline: Some(1),
                },
            ),
            (
                "START_REPLICATION 0/0",
                Command::StartPhysical { slot: None, start: Lsn::INVALID, timeline: None },
            ),
            ("BASE_BACKUP ( LABEL 'x' )", Command::Backup),
        ] {
            assert_eq!(one(query), command, "{query}");
        }
    }

    #[test]
    fn everything_else_is_sql() {
        for query in [
            "",
            "  ",
            "SELECT 1",
            "show all",
            "identify_system",
            "BEGIN",
            "COPY t TO STDOUT",
            "\"SHOW\" x",
            "'",
        ] {
            assert_eq!(parse(query), Ok(None), "{query}");
        }
    }

    #[test]
    fn names_are_folded_and_cut_as_the_server_does() {
        let named = |query: &str| match one(query) {
            Command::ReadSlot(name) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(named("READ_REPLICATION_SLOT MySlot"), "myslot");
        assert_eq!(named("READ_REPLICATION_SLOT \"My\"\"Slot\""), "My\"Slot");
        let long = "é".repeat(40);
        assert_eq!(named(&format!("READ_REPLICATION_SLOT {long}")), "é".repeat(31));
        assert_eq!(one("SHOW a.B"), Command::Show("a.b".to_owned()));
        assert_eq!(named("READ_REPLICATION_SLOT \"WAIT\""), "WAIT");
    }

    #[test]
    fn what_does_not_follow_the_grammar_is_an_error() {
        for query in [
            "SHOW",
            "IDENTIFY_SYSTEM now",
            "CREATE_REPLICATION_SLOT s",
            "CREATE_REPLICATION_SLOT s LOGICAL",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput ()",
            "CREATE_REPLICATION_SLOT WAIT LOGICAL pgoutput",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput FAILOVER",
            "DROP_REPLICATION_SLOT s WAIT WAIT",
            "ALTER_REPLICATION_SLOT s",
            "START_REPLICATION LOGICAL 0/0",
            "START_REPLICATION SLOT s LOGICAL",
            "START_REPLICATION SLOT s LOGICAL 0/0 (a 'b'",
            "START_REPLICATION SLOT s LOGICAL 0/0 (a = 'b')",
            "TIMELINE_HISTORY x",
        ] {
            assert_eq!(parse(query), Err(SyntaxError::Words), "{query}");
        }
        for (query, what) in [
            ("DROP_REPLICATION_SLOT \"s", "identifier"),
            ("START_REPLICATION SLOT s LOGICAL 0/0 (a 'b)", "string"),
        ] {
            assert_eq!(parse(query), Err(SyntaxError::Unterminated(what)), "{query}");
        }
        assert_eq!(parse("START_REPLICATION 100000000/0"), Err(SyntaxError::Number));
        for (query, number) in
            [("TIMELINE_HISTORY 4294967299", 3), ("TIMELINE_HISTORY 99999999999999999999", u32::MAX)]
        {
            assert_eq!(parse(query), Ok(Some(Command::TimelineHistory(number))), "{query}");
        }
    }

    #[test]
    fn booleans_of_options() {
        assert_eq!(flag("two_phase").boolean(), Ok(true));
        assert_eq!(option("two_phase", "OFF").boolean(), Ok(false));
        let error = option("two_phase", "perhaps");
        assert_eq!(error.boolean().unwrap_err().to_string(), "two_phase requires a Boolean value");
        let numbers = one("ALTER_REPLICATION_SLOT s (a 1, b 0, c '1', d 2)");
        let Command::AlterSlot { options, .. } = numbers else { panic!("{numbers:?}") };
        let read: Vec<_> = options.iter().map(|option| option.boolean().ok()).collect();
        assert_eq!(read, [Some(true), Some(false), None, None]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = parse(&text);
            for command in ["CREATE_REPLICATION_SLOT", "START_REPLICATION SLOT s LOGICAL 0/0"] {
                let _ = parse(&format!("{command} {text}"));
            }
        }

        #[test]
        fn a_quoted_name_comes_back(name in "[^\\x00]{1,15}") {
            let query = format!("DROP_REPLICATION_SLOT {}", base::quote_ident(&name));
            prop_assert_eq!(parse(&query), Ok(Some(Command::DropSlot { slot: name, wait: false })));
        }

        #[test]
        fn a_quoted_value_comes_back(value in "[^\\x00]{0,40}") {
            let query = format!("START_REPLICATION SLOT s LOGICAL 0/0 (x {})", quoted(&value));
            let options = vec![option("x", &value)];
            let (slot, start) = ("s".to_owned(), Lsn::INVALID);
            prop_assert_eq!(parse(&query), Ok(Some(Command::StartLogical { slot, start, options })));
        }
    }
}
