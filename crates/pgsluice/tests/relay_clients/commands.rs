//! Replication commands of 14 to 18, one by one, at the walsender and at the relay.
//!
//! A [`Script`] is what one connection says. Every message of the answer is compared: columns with
//! their types, values, tags, the state of the transaction, and errors with code, message, detail
//! and hint. Values that belong to a server are masked: positions, process ids, names of snapshots.
//!
//! Where the relay answers otherwise on purpose, the step says so with [`Step::refused`]: the relay
//! has these words, and the publisher has others.

use std::time::Duration;

use client::{ConnInfo, RawSession, Replication};
use listener::Link;
use proto::frame::{Frame, ServerError};
use testkit::Major;

use crate::load;
use crate::stage::{BOUND, End, Stage};

const NO_PHYSICAL: &str = "the relay serves logical replication only";
const NO_PHYSICAL_SLOT: &str = "the relay has logical replication slots only";
const NO_PLUGIN: &str = "the relay has the output plugin pgoutput only, and not \"test_decoding\"";
const NO_FAILOVER: &str = "the relay has failover slots only if synchronized_standby_slots is set";

/// One command.
#[derive(Clone, Copy)]
struct Step {
    command: &'static str,
    /// From this major on, the relay refuses it with these words, and the publisher does not.
    refused: Option<(u32, &'static str)>,
}

impl Step {
    /// See [`Step::refused`].
    const fn refused(since: u32, command: &'static str, words: &'static str) -> Step {
        Step { command, refused: Some((since, words)) }
    }
}

const fn same(command: &'static str) -> Step {
    Step { command, refused: None }
}

/// What one connection says.
type Script = &'static [Step];

/// Older servers take some of the first words as SQL, and refuse it.
const SCRIPTS: [Script; 12] = [
    &[
        same("IDENTIFY_SYSTEM"),
        same("IDENTIFY_SYSTEM;"),
        same("  IDENTIFY_SYSTEM -- a comment"),
        same("IDENTIFY_SYSTEM x"),
        same("identify_system"),
        same("IDENTIFY_SYSTEM; SELECT 1"),
        same("\"IDENTIFY_SYSTEM\""),
        same(""),
        same(";"),
        same("SELECT 1; SELECT 2"),
    ],
    &[
        same("SHOW server_version"),
        same("SHOW wal_segment_size;"),
        same("SHOW data_directory_mode"),
        same("SHOW \"DateStyle\""),
        same("SHOW no_such.setting"),
        same("SHOW nothing"),
        same("SHOW"),
        same("SHOW a b"),
        same("show work_mem"),
    ],
    &[
        same("TIMELINE_HISTORY 1"),
        same("TIMELINE_HISTORY 0"),
        same("TIMELINE_HISTORY"),
        same("TIMELINE_HISTORY 99999999999"),
        same("READ_REPLICATION_SLOT missing"),
        same("READ_REPLICATION_SLOT \"missing\";"),
        same("READ_REPLICATION_SLOT"),
        same("READ_REPLICATION_SLOT a b"),
        same("CREATE_REPLICATION_SLOT read LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("READ_REPLICATION_SLOT read"),
        same("DROP_REPLICATION_SLOT read"),
    ],
    &[
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput"),
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput"),
        same("DROP_REPLICATION_SLOT a"),
        same("DROP_REPLICATION_SLOT a"),
        same("DROP_REPLICATION_SLOT a WAIT"),
        same("CREATE_REPLICATION_SLOT \"a\" LOGICAL \"pgoutput\" EXPORT_SNAPSHOT;"),
        same("DROP_REPLICATION_SLOT \"a\" WAIT;"),
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("DROP_REPLICATION_SLOT a wait"),
        same("DROP_REPLICATION_SLOT"),
        same("DROP_REPLICATION_SLOT a WAIT"),
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput USE_SNAPSHOT"),
        same("CREATE_REPLICATION_SLOT a TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"),
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("DROP_REPLICATION_SLOT a"),
        // A temporary slot goes with the next error, also of SQL.
        same("CREATE_REPLICATION_SLOT a TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("SELECT 1 / 0"),
        same("CREATE_REPLICATION_SLOT a LOGICAL pgoutput TWO_PHASE NOEXPORT_SNAPSHOT"),
        same("DROP_REPLICATION_SLOT a"),
    ],
    &[
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'nothing')"),
        same("DROP_REPLICATION_SLOT b"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'export', TWO_PHASE)"),
        same("DROP_REPLICATION_SLOT b"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (TWO_PHASE false, SNAPSHOT \"nothing\")"),
        same("DROP_REPLICATION_SLOT b"),
        same("CREATE_REPLICATION_SLOT b TEMPORARY LOGICAL pgoutput (TWO_PHASE 1)"),
        same("DROP_REPLICATION_SLOT b WAIT"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (snapshot 'nothing', two_phase 'on')"),
        same("DROP_REPLICATION_SLOT b"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput ()"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'use')"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'nothing') NOEXPORT_SNAPSHOT"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (SNAPSHOT 'nothing',)"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (FAILOVER false, SNAPSHOT 'nothing')"),
        same("DROP_REPLICATION_SLOT b"),
        same("CREATE_REPLICATION_SLOT b LOGICAL pgoutput (RESERVE_WAL)"),
        same("CREATE_REPLICATION_SLOT b PHYSICAL pgoutput"),
    ],
    // The same with what the relay does not have.
    &[
        Step::refused(14, "CREATE_REPLICATION_SLOT c TEMPORARY PHYSICAL", NO_PHYSICAL_SLOT),
        Step::refused(14, "CREATE_REPLICATION_SLOT d TEMPORARY PHYSICAL RESERVE_WAL", NO_PHYSICAL_SLOT),
        Step::refused(15, "CREATE_REPLICATION_SLOT e TEMPORARY PHYSICAL (RESERVE_WAL)", NO_PHYSICAL_SLOT),
        Step::refused(14, "CREATE_REPLICATION_SLOT f TEMPORARY LOGICAL test_decoding", NO_PLUGIN),
        Step::refused(17, "CREATE_REPLICATION_SLOT g LOGICAL pgoutput (FAILOVER)", NO_FAILOVER),
        Step::refused(14, "START_REPLICATION 0/0 TIMELINE 99", NO_PHYSICAL),
        Step::refused(14, "START_REPLICATION SLOT missing PHYSICAL 0/0", NO_PHYSICAL),
        Step::refused(14, "BASE_BACKUP (NO_SUCH_OPTION)", NO_PHYSICAL),
    ],
    &[
        same("CREATE_REPLICATION_SLOT h LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("ALTER_REPLICATION_SLOT h (FAILOVER false)"),
        same("ALTER_REPLICATION_SLOT \"h\" ( FAILOVER false );"),
        same("ALTER_REPLICATION_SLOT h (TWO_PHASE true)"),
        same("ALTER_REPLICATION_SLOT h (TWO_PHASE false, FAILOVER false)"),
        same("ALTER_REPLICATION_SLOT h (FAILOVER false, FAILOVER false)"),
        same("ALTER_REPLICATION_SLOT h (TWO_PHASE, TWO_PHASE)"),
        same("ALTER_REPLICATION_SLOT h (FAILOVER 'perhaps')"),
        same("ALTER_REPLICATION_SLOT h (SHINY)"),
        same("ALTER_REPLICATION_SLOT h ()"),
        same("ALTER_REPLICATION_SLOT h"),
        same("ALTER_REPLICATION_SLOT missing (FAILOVER false)"),
        Step::refused(17, "ALTER_REPLICATION_SLOT h (FAILOVER)", NO_FAILOVER),
        same("DROP_REPLICATION_SLOT h"),
    ],
    &[
        same("CREATE_REPLICATION_SLOT i LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("START_REPLICATION SLOT missing LOGICAL 0/0 (proto_version '1', publication_names 'p')"),
        same("START_REPLICATION SLOT i LOGICAL 0/0 (proto_version '9', publication_names 'p')"),
        same("START_REPLICATION SLOT i LOGICAL 0 (proto_version '1', publication_names 'p')"),
        same("START_REPLICATION SLOT i LOGICAL 0/0 ()"),
        same("START_REPLICATION LOGICAL 0/0"),
        same("START_REPLICATION SLOT i LOGICAL 0/0 (proto_version '1', publication_names 'p')"),
        same("IDENTIFY_SYSTEM"),
    ],
    // A server does not begin a second stream in a connection: it ends it at once.
    &[
        same(
            "START_REPLICATION SLOT \"i\" LOGICAL 0/0 (\"proto_version\" '1', \"publication_names\" '\"p\"')",
        ),
        same("DROP_REPLICATION_SLOT i"),
    ],
    // In a transaction.
    &[
        same("BEGIN"),
        same("CREATE_REPLICATION_SLOT j LOGICAL pgoutput USE_SNAPSHOT"),
        same("IDENTIFY_SYSTEM"),
        same("SELECT 1"),
        same("ROLLBACK"),
        same("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ"),
        same("CREATE_REPLICATION_SLOT j LOGICAL pgoutput USE_SNAPSHOT"),
        same("SELECT count(*) FROM t"),
        same("COMMIT"),
        same("DROP_REPLICATION_SLOT j"),
        same("BEGIN ISOLATION LEVEL REPEATABLE READ"),
        same("SELECT 1"),
        same("CREATE_REPLICATION_SLOT j LOGICAL pgoutput USE_SNAPSHOT"),
        same("ROLLBACK"),
        same("BEGIN ISOLATION LEVEL REPEATABLE READ"),
        same("SAVEPOINT one"),
        same("CREATE_REPLICATION_SLOT j LOGICAL pgoutput USE_SNAPSHOT"),
        same("ROLLBACK"),
        same("BEGIN"),
        same("CREATE_REPLICATION_SLOT j LOGICAL pgoutput EXPORT_SNAPSHOT"),
        same("ROLLBACK"),
        same("BEGIN"),
        same("TIMELINE_HISTORY 1"),
        same("ROLLBACK"),
        same("BEGIN"),
        same("START_REPLICATION SLOT missing LOGICAL 0/0"),
        same("SELECT 1"),
        same("ROLLBACK"),
    ],
    &[
        same("BEGIN"),
        same("DROP_REPLICATION_SLOT missing"),
        same("SELECT 'the transaction has failed'"),
        same("IDENTIFY_SYSTEM"),
        same("SHOW work_mem"),
        same("DROP_REPLICATION_SLOT missing"),
        same("ROLLBACK"),
        same("BEGIN"),
        same("SELECT 1 / 0"),
        same("IDENTIFY_SYSTEM"),
        same("CREATE_REPLICATION_SLOT k LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("COMMIT"),
        same("BEGIN"),
        same("IDENTIFY_SYSTEM"),
        same("CREATE_REPLICATION_SLOT k LOGICAL pgoutput NOEXPORT_SNAPSHOT"),
        same("DROP_REPLICATION_SLOT k"),
        same("SAVEPOINT one"),
        same("DROP_REPLICATION_SLOT k WAIT"),
        same("ROLLBACK TO one"),
        same("SELECT 'it goes on'"),
        same("COMMIT"),
    ],
    // Words of other majors.
    &[
        Step::refused(17, "UPLOAD_MANIFEST x", NO_PHYSICAL),
        same("BASE_BACKUPS"),
        same("CREATE_REPLICATION"),
        same("READ_SLOT s"),
    ],
];

/// A replication connection whose messages are seen as they come.
struct Talk {
    runtime: tokio::runtime::Runtime,
    link: Link,
}

impl Talk {
    fn begin(stage: &Stage, end: End, database: &str) -> Talk {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let info = ConnInfo::parse(&stage.conninfo(end, database)).unwrap();
        let session = RawSession::connect(&info, "commands", Replication::Database, &[]);
        let (stream, inbox) = runtime.block_on(session).unwrap().into_parts();
        assert!(inbox.is_empty(), "nothing comes unasked");
        Talk { runtime, link: Link::over(stream) }
    }

    fn push(&mut self, tag: u8, body: &[u8]) {
        let out = &mut self.link.outbox;
        out.push(tag);
        out.extend_from_slice(&(u32::try_from(body.len()).unwrap() + 4).to_be_bytes());
        out.extend_from_slice(body);
    }

    /// Sends what was pushed.
    fn flush(&mut self) {
        self.runtime.block_on(self.link.flush()).unwrap();
    }

    /// The next message within a time. Data and keepalives of a stream are left out.
    fn next(&mut self, bound: Duration) -> Option<Frame> {
        let Talk { runtime, link } = self;
        runtime.block_on(async {
            let next = async {
                loop {
                    let frame = link.frame(1 << 20).await.unwrap();
                    if frame.tag != b'd' {
                        return frame;
                    }
                }
            };
            tokio::time::timeout(bound, next).await.ok()
        })
    }

    /// Every message until the end of a command, or of the session. A stream is ended at once.
    fn heard(&mut self) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let frame = self.next(BOUND).unwrap_or_else(|| panic!("no answer behind {heard:?}"));
            let line = shown(&frame);
            if frame.tag == b'W' {
                self.push(b'c', b"");
                self.flush();
            }
            let is_end = frame.tag == b'Z' || line.starts_with("E FATAL");
            heard.push(line);
            if is_end {
                return heard;
            }
        }
    }

    fn say(&mut self, command: &str) {
        self.push(b'Q', &[command.as_bytes(), b"\0"].concat());
        self.flush();
    }

    fn ask(&mut self, command: &str) -> Vec<String> {
        self.say(command);
        self.heard()
    }
}

/// A message for comparison.
fn shown(frame: &Frame) -> String {
    let body = &frame.body;
    let tag = char::from(frame.tag);
    match frame.tag {
        b'T' => format!("{tag} {}", fields(body).join(", ")),
        b'D' => {
            let row = client::text_row(body).unwrap();
            let values: Vec<String> =
                row.iter().map(|value| value.as_deref().map_or("NULL".to_owned(), masked)).collect();
            format!("{tag} {}", values.join(" | "))
        }
        b'E' | b'N' => {
            let ServerError { severity, code, message, detail, hint, position, .. } =
                ServerError::parse(body).unwrap();
            let [detail, hint] = [detail, hint].map(Option::unwrap_or_default);
            format!("{tag} {severity} {code} {} [{detail}] [{hint}] {position:?}", masked(&message))
        }
        _ => format!("{tag} {}", body.escape_ascii()),
    }
}

/// The columns of a `RowDescription`: name, and the numbers behind it.
fn fields(body: &[u8]) -> Vec<String> {
    let mut rest = &body[2..];
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == 0).unwrap();
        let (name, behind) = (String::from_utf8_lossy(&rest[..end]), &rest[end + 1..]);
        let number = |from: usize, to: usize| {
            behind[from..to].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        fields.push(format!(
            "{name} table {} {} type {} size {} modifier {} format {}",
            number(0, 4),
            number(4, 6),
            number(6, 10),
            number(10, 12),
            number(12, 16),
            number(16, 18)
        ));
        rest = &behind[18..];
    }
    fields
}

/// A text without what belongs to one server: positions, process ids, names of snapshots.
fn masked(text: &str) -> String {
    let words = text.split(' ').scan("", |before, word| {
        let is_position = word.parse::<base::Lsn>().is_ok() && word.contains('/');
        let is_process = *before == "PID" && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_snapshot =
            word.len() > 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        *before = word;
        Some(if is_position || is_process || (is_snapshot && word.contains('-')) { "..." } else { word })
    });
    words.collect::<Vec<_>>().join(" ")
}

fn each(database: &str, test: impl Fn(&Stage, Major) + Sync) {
    Major::each(1, |major| {
        let stage = Stage::of(major);
        stage.database(database, load::TABLES);
        test(&stage, major);
    });
}

/// Compares what both ends said, line by line.
fn assert_same(what: &str, [publisher, relay]: &[Vec<String>; 2]) {
    let differ = publisher.iter().zip(relay).position(|(ours, theirs)| ours != theirs);
    let at = differ.unwrap_or(publisher.len().min(relay.len()));
    let [ours, theirs] = [publisher, relay].map(|said| said.get(at).map_or("nothing", String::as_str));
    let before = at.checked_sub(1).map_or("the beginning", |before| &publisher[before]);
    assert!(publisher == relay, "{what}: behind {before}\n  publisher {ours}\n  relay     {theirs}");
}

#[test]
fn commands_are_answered_as_the_publisher_answers_them() {
    let database = "commands";
    each(database, |stage, major| {
        let mut differ = Vec::new();
        for script in SCRIPTS {
            let mut talks = End::BOTH.map(|end| Talk::begin(stage, end, database));
            for Step { command, refused } in script {
                let [publisher, relay] = talks.each_mut().map(|talk| talk.ask(command));
                let is_fine = match refused.filter(|(since, _)| major.number() >= *since) {
                    None => publisher == relay,
                    Some((_, words)) => {
                        let told = format!("E ERROR 0A000 {words} ");
                        relay.first().is_some_and(|first| first.starts_with(&told)) && publisher != relay
                    }
                };
                if !is_fine {
                    let [publisher, relay] = [publisher, relay].map(|heard| heard.join("\n    "));
                    differ.push(format!("{command}\n  publisher\n    {publisher}\n  relay\n    {relay}"));
                }
            }
        }
        // What only the publisher could make.
        let drop =
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'g'";
        stage.publisher.sql("postgres", drop).unwrap();
        assert!(differ.is_empty(), "{major}: {} commands differ\n{}", differ.len(), differ.join("\n"));
    });
}

/// While one connection streams from a slot, another one asks for it, also from another database.
#[test]
fn a_slot_in_use_is_refused_or_waited_for() {
    let [database, other] = ["commands_wait", "commands_wait_other"];
    each(database, |stage, major| {
        stage.database(other, load::TABLES);
        let said = End::BOTH.map(|end| {
            let begin = |database| Talk::begin(stage, end, database);
            let (mut streams, mut asks, mut apart) = (begin(database), begin(database), begin(other));
            let start = "START_REPLICATION SLOT busy LOGICAL 0/0 (proto_version '1', publication_names 'p')";
            let mut said = streams.ask("CREATE_REPLICATION_SLOT busy LOGICAL pgoutput NOEXPORT_SNAPSHOT");
            streams.say(start);
            said.push(shown(&streams.next(BOUND).unwrap()));
            for command in [
                start,
                "DROP_REPLICATION_SLOT busy",
                "READ_REPLICATION_SLOT busy",
                "CREATE_REPLICATION_SLOT busy LOGICAL pgoutput NOEXPORT_SNAPSHOT",
            ] {
                said.extend(asks.ask(command));
                said.extend(apart.ask(command));
            }
            // Where there is the first command, it waits as the other one does.
            for command in ["ALTER_REPLICATION_SLOT busy (FAILOVER false)", "DROP_REPLICATION_SLOT busy WAIT"]
            {
                asks.say(command);
                // Only time can show that nothing is answered.
                said.extend(asks.next(Duration::from_millis(300)).map(|frame| shown(&frame)));
                streams.push(b'c', b"");
                streams.flush();
                said.extend(streams.heard());
                said.extend(asks.heard());
                // A connection streams once.
                streams = begin(database);
                streams.ask("CREATE_REPLICATION_SLOT busy LOGICAL pgoutput NOEXPORT_SNAPSHOT");
                streams.say(start);
                said.push(shown(&streams.next(BOUND).unwrap()));
            }
            streams.push(b'c', b"");
            streams.flush();
            said.extend(streams.heard());
            for command in [start, "DROP_REPLICATION_SLOT busy"] {
                said.extend(apart.ask(command));
            }
            said
        });
        assert_same(&major.to_string(), &said);
        for expected in ["is active for PID ...", "was not created in this database"] {
            assert!(said[1].iter().any(|line| line.contains(expected)), "{major}: {expected}");
        }
    });
}

/// Messages of the other protocols than the simple one, each list in a connection of its own.
const MESSAGES: [&[(u8, &[u8])]; 8] = [
    &[
        (b'P', b"\0SELECT 1\0\0\0"),
        (b'B', b"\0\0\0\0\0\0\0\0"),
        (b'D', b"P\0"),
        (b'E', b"\0\0\0\0\0"),
        (b'S', b""),
    ],
    &[(b'P', b"\0SELECT 1\0\0\0"), (b'Q', b"SELECT 'left out'\0"), (b'H', b""), (b'S', b"")],
    &[(b'C', b"S\0"), (b'S', b"")],
    &[(b'S', b"")],
    &[(b'H', b""), (b'Q', b"SELECT 1\0")],
    &[(b'F', b"\0\0\0\x01\0\0\0\0\0\0")],
    &[(b'c', b""), (b'f', b"why\0"), (b'd', b"data"), (b'Q', b"SELECT 1\0")],
    &[(b'z', b"")],
];

#[test]
fn other_messages_are_answered_as_the_publisher_answers_them() {
    let database = "commands_messages";
    each(database, |stage, major| {
        for messages in MESSAGES {
            let said = End::BOTH.map(|end| {
                let mut talk = Talk::begin(stage, end, database);
                messages.iter().for_each(|(tag, body)| talk.push(*tag, body));
                talk.flush();
                let mut said = talk.heard();
                if !said.iter().any(|line| line.starts_with("E FATAL")) {
                    // Nothing else is owed.
                    said.extend(talk.ask("SELECT 'the end'"));
                }
                said
            });
            let tags: String = messages.iter().map(|(tag, _)| char::from(*tag)).collect();
            assert_same(&format!("{major}, {tags}"), &said);
        }
    });
}
