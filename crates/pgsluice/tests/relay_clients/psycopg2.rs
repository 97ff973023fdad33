//! psycopg2's replication cursor, through `cursor.py`.
//!
//! It sees what pg_recvlogical does not show: the positions in the frame of each message. psycopg2
//! comes from pip, into a directory below `target/`, with a libpq of its own.

use std::path::PathBuf;

use base::Lsn;
use bytes::Bytes;
use serde_json::{Value, json};
use testkit::{Major, Output, Sluice, pip_packages, wait_for};

use crate::load;
use crate::stage::{BOUND, End, Stage, program, run};
use crate::stream::{assert_same, assert_same_rows, is_description, without_empty};

const DB: &str = "psycopg2_beside";
const PACKAGE: &str = "psycopg2-binary==2.9.13";

/// A cursor's slot at one end.
struct Cursor<'a> {
    stage: &'a Stage,
    end: End,
    database: &'static str,
}

impl Cursor<'_> {
    fn slot(&self) -> String {
        format!("{:?}_{}", self.end, self.database).to_lowercase()
    }

    fn command(&self, task: &Value) -> std::process::Command {
        let mut task = task.clone();
        task["dsn"] = match self.end {
            End::Publisher => self.stage.conninfo(self.end, self.database),
            End::Relay => self.stage.encrypted(self.database),
        }
        .into();
        task["slot"] = self.slot().into();
        let mut command = program("python3".as_ref());
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/relay_clients/cursor.py");
        command.arg(script).arg(task.to_string()).env("PYTHONPATH", pip_packages(PACKAGE).unwrap());
        command
    }

    fn call(&self, task: &Value) -> Output {
        run(self.command(task))
    }

    fn follow(&self, until: Lsn) -> Vec<Value> {
        let output = self.call(&following(until));
        lines(&output.expect_success())
    }
}

fn following(until: Lsn) -> Value {
    let options =
        json!({ "proto_version": "1", "publication_names": "p", "messages": "true", "binary": "true" });
    json!({ "do": "follow", "until": until.to_string(), "options": options })
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The messages in a cursor's lines, and their positions.
fn messages(lines: &[Value]) -> (Vec<Bytes>, Vec<[u64; 3]>) {
    let messages = lines.iter().filter(|line| line["payload"].is_string());
    let hex = |text: &str| -> Bytes {
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let number = |line: &Value, key: &str| line[key].as_u64().unwrap();
    messages
        .map(|line| {
            let positions = ["data_start", "wal_end", "size"].map(|key| number(line, key));
            (hex(line["payload"].as_str().unwrap()), positions)
        })
        .unzip()
}

/// Compares messages, and the positions of all but descriptions: those may come again later. 14
/// gives BEGIN the position of its transaction's first record, the relay that of its first change.
fn compare(major: Major, is_first: bool, lines: [Vec<Value>; 2]) {
    let [(publisher, ours), (relay, theirs)] = lines.map(|lines| messages(&lines));
    let (publisher, ours): (Vec<_>, Vec<_>) =
        without_empty(publisher.into_iter().zip(ours)).into_iter().unzip();
    let what = &format!("{major}, {}", if is_first { "round 0" } else { "round 1" });
    let compare = if is_first { assert_same } else { assert_same_rows };
    compare(what, &publisher, &relay);
    let rows = |messages: &[Bytes], positions: Vec<[u64; 3]>| -> Vec<[u64; 3]> {
        let all = messages.iter().zip(positions);
        let begins = |message: &Bytes| major == Major::V14 && message.first() == Some(&b'B');
        let all = all.filter(|(message, _)| (is_first || !is_description(message)) && !begins(message));
        all.map(|(_, at)| at).collect()
    };
    let (ours, theirs) = (rows(&publisher, ours), rows(&relay, theirs));
    let first = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
    if let Some(at) = first {
        panic!("{what}: message {at} has {:?} at the publisher and {:?} at the relay", ours[at], theirs[at]);
    }
}

#[test]
fn psycopg2_receives_what_the_publisher_sends() {
    Major::each(1, |major| {
        let stage = Stage::of(major);
        stage.database(DB, load::TABLES);
        let cursors = End::BOTH.map(|end| Cursor { stage: &stage, end, database: DB });
        let created = cursors.each_ref().map(|cursor| {
            let mut said = lines(&cursor.call(&json!({ "do": "create" })).expect_success()).remove(0);
            assert_eq!(said["slot"].take(), Value::from(cursor.slot()));
            said
        });
        assert_eq!(created[0], created[1], "{major}");
        load::write(&stage.publisher, DB, 0);
        let end = stage.end();
        compare(major, true, cursors.each_ref().map(|cursor| cursor.follow(end)));
        // What was confirmed does not come again.
        load::write(&stage.publisher, DB, 1);
        let end = stage.end();
        compare(major, false, cursors.each_ref().map(|cursor| cursor.follow(end)));
        for cursor in &cursors {
            cursor.call(&json!({ "do": "drop" })).expect_success();
        }
    });
}

/// Rule L1, also where the connection that streams has made the slot, with a snapshot.
#[test]
fn l1_a_connection_that_made_its_slot_holds_nothing_at_the_publisher() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stage = Stage::of(major);
        let database = "psycopg2_alone";
        stage.database(database, load::TABLES);
        let cursor = Cursor { stage: &stage, end: End::Relay, database };
        // It ends with the first message, however far the WAL has come without one.
        let mut task = following(Lsn::INVALID);
        task["until"] = Value::Null;
        task["create"] = true.into();
        let mut follower = Sluice::start(cursor.command(&task)).unwrap();
        wait_for("the stream to begin", BOUND, || {
            assert!(follower.is_running(), "{}", follower.stderr());
            Ok(follower.stdout().contains("streams"))
        })
        .unwrap();
        // What the relay has left goes with its backend.
        let gone = wait_for("slots to go", BOUND, || Ok(stage.slots_of_the_relay(database).is_empty()));
        load::write(&stage.publisher, database, 0);
        let status = follower.wait(BOUND).unwrap().expect("the round ends it");
        assert!(status.success() && follower.stdout().contains("payload"), "{}", follower.stderr());
        assert!(gone.is_ok(), "{major}: slots at the publisher: {}", stage.slots_of_the_relay(database));
        cursor.call(&json!({ "do": "drop" })).expect_success();
    });
}

/// What a cursor was told before its stream began.
fn notices(lines: &[Value]) -> Vec<String> {
    let begun = lines.iter().find(|line| line["streams"] == true).unwrap();
    let notices = begun["notices"].as_array().unwrap().iter();
    notices.map(|notice| notice.as_str().unwrap().trim_end().to_owned()).collect()
}

/// A table that only the publisher can print is named when the stream begins, and refuses nobody as
/// long as it has no rows.
#[test]
fn tables_that_will_end_the_stream_are_named_when_it_begins() {
    Major::each_of(&Major::in_turn(), 1, |major| {
        let stage = Stage::of(major);
        let database = "psycopg2_warned";
        stage.database(database, &format!("CREATE EXTENSION hstore; {}", load::TABLES));
        let cursor = Cursor { stage: &stage, end: End::Relay, database };
        cursor.call(&json!({ "do": "create" })).expect_success();
        let begin = || notices(&cursor.follow(stage.end()));
        assert_eq!(begin(), [""; 0], "{major}: everything can be sent");
        // The form is known already, and the table is new.
        let sql = "CREATE TABLE odd (id int PRIMARY KEY, fine text, doc hstore);
                   CREATE TABLE part (id int PRIMARY KEY, doc hstore) PARTITION BY RANGE (id);
                   CREATE TABLE part_one PARTITION OF part FOR VALUES FROM (0) TO (10);
                   ALTER PUBLICATION p ADD TABLE odd, part";
        stage.publisher.sql(database, sql).unwrap();
        load::write(&stage.publisher, database, 0);
        let told = |table: &str| {
            format!(
                "WARNING:  table public.{table} cannot be decoded because of its column \"doc\": values of type \
                 hstore cannot be rendered outside the server: it is a base type of an extension, whose output \
                 function only the server has\nDETAIL:  The stream will end with an error at the first row of it.\n\
                 HINT:  Publish it without what is named here, or subscribe to the publisher itself."
            )
        };
        // A form that has just begun may not have its answer in time.
        wait_for("a warning", BOUND, || Ok(!begin().is_empty())).unwrap();
        let mut said = begin();
        said.sort();
        assert_eq!(said, [told("odd"), told("part_one")], "{major}");
        let slot = cursor.slot();
        let words = format!("slot \"{slot}\" will end at the first row of a table: table public.odd");
        assert!(stage.relay_log().contains(&words), "{}", stage.relay_log());
        load::write(&stage.publisher, database, 1);
        let came = cursor.follow(stage.end());
        assert!(messages(&came).0.len() > 60, "{major}: the stream goes on without a row of them");
        // A client may want no warnings.
        let mut task = following(stage.end());
        task["quiet"] = true.into();
        let said = lines(&cursor.call(&task).expect_success());
        assert_eq!(notices(&said), [""; 0], "{major}");
        // The first row ends it, with the same words.
        stage.publisher.sql(database, "INSERT INTO odd VALUES (1, 'a', 'a=>1')").unwrap();
        let ended = cursor.call(&following(stage.end()));
        let words = "table public.odd cannot be decoded because of its column \"doc\"";
        assert!(!ended.status.success() && ended.stderr.contains(words), "{major}: {ended:?}");
        cursor.call(&json!({ "do": "drop" })).expect_success();
    });
}
