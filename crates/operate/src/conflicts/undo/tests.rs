//! Every decision, with what undoes it.

use base::Lsn;

use super::*;

fn column(name: &str, key: bool) -> TargetColumn {
    TargetColumn {
        name: name.to_owned(),
        type_name: "text".to_owned(),
        generated: false,
        identity_always: false,
        key,
        may_be_large: !key,
    }
}

fn table() -> TargetTable {
    let generated = TargetColumn { generated: true, ..column("twice", false) };
    TargetTable {
        sql: "\"s\".\"T\"".to_owned(),
        columns: vec![column("id", true), column("V", false), generated],
    }
}

fn record(kind: &str, outcome: &str, [local, remote, identity]: [Option<&str>; 3]) -> StoredConflict {
    let text = |json: Option<&str>| json.map(str::to_owned);
    StoredConflict {
        id: 1,
        at: String::new(),
        kind: kind.to_owned(),
        table: ("s".to_owned(), "T".to_owned()),
        index: None,
        resolution: String::new(),
        outcome: outcome.to_owned(),
        remote_xid: 7,
        finished_at: Lsn::new(8),
        remote_time: String::new(),
        remote_origin: None,
        local_xid: None,
        local_origin: None,
        local_time: None,
        key: None,
        local_row: text(local),
        remote_row: text(remote),
        replica_identity: text(identity),
        detail: String::new(),
    }
}

const LOCAL: Option<&str> = Some(r#"{"id":"1","V":"it's","twice":"2"}"#);
const OTHER: Option<&str> = Some(r#"{"id":"2","V":null,"twice":"4"}"#);
const REMOTE: Option<&str> = Some(r#"{"id":"1","V":"a\\b"}"#);
const KEY: Option<&str> = Some(r#"{"id":"1"}"#);
const FULL: Option<&str> = Some(r#"{"id":"1","V":"old"}"#);

fn of(conflict: &StoredConflict) -> Undo {
    undo(conflict, std::slice::from_ref(conflict), Some(&table()))
}

fn unknown(undo: &Undo, part: &str) {
    assert!(matches!(undo, Undo::Unknown(why) if why.contains(part)), "{undo:?}");
}

#[test]
fn a_decision_about_one_row_is_undone_by_one_statement() {
    let restored = r#"UPDATE "s"."T" SET "id" = '1', "V" = 'it''s' WHERE "id" = '1'::text"#;
    let written = r#"UPDATE "s"."T" SET "id" = '1', "V" = E'a\\b' WHERE "id" = '1'::text"#;
    let inserted = r#"INSERT INTO "s"."T" ("id", "V") VALUES ('1', 'it''s')"#;
    let remote = r#"INSERT INTO "s"."T" ("id", "V") VALUES ('1', E'a\\b')"#;
    let deleted = r#"DELETE FROM "s"."T" WHERE "id" = '1'::text"#;
    let cases = [
        ("insert_exists", [LOCAL, REMOTE, None], restored, written),
        ("update_origin_differs", [LOCAL, REMOTE, KEY], restored, written),
        ("delete_origin_differs", [LOCAL, None, KEY], inserted, deleted),
        ("update_missing", [None, REMOTE, KEY], deleted, remote),
    ];
    for (kind, rows, applied, kept) in cases {
        for (outcome, expected) in [("applied", applied), ("kept", kept)] {
            let undo = of(&record(kind, outcome, rows));
            assert_eq!(undo, Undo::Statements(vec![expected.to_owned()]), "{kind} {outcome}");
        }
    }
}

#[test]
fn rows_that_made_room_come_back() {
    let one = record("update_exists", "applied", [OTHER, REMOTE, FULL]);
    let Undo::Statements(statements) = of(&one) else { panic!("{:?}", of(&one)) };
    assert_eq!(
        statements,
        [
            r#"UPDATE "s"."T" SET "id" = '1', "V" = 'old' WHERE "id" = '1'::text"#,
            r#"INSERT INTO "s"."T" ("id", "V") VALUES ('2', NULL)"#,
        ]
    );
    unknown(&of(&record("update_exists", "applied", [OTHER, REMOTE, KEY])), "REPLICA IDENTITY FULL");

    // One holder has two keys.
    let several = ["applied", "kept"].map(|outcome| {
        let record = |local| record("multiple_unique_conflicts", outcome, [local, REMOTE, None]);
        undo(&record(LOCAL), &[record(LOCAL), record(OTHER), record(OTHER)], Some(&table()))
    });
    let [Undo::Statements(applied), Undo::Statements(kept)] = several else { panic!("{several:?}") };
    let begins = |all: &[String]| {
        all.iter().map(|one| one.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        (begins(&applied), begins(&kept)),
        ("DELETE INSERT INSERT".into(), "DELETE DELETE INSERT".into())
    );
}

#[test]
fn an_identity_column_takes_a_value_from_an_insert_only() {
    let mut table = table();
    table.columns.push(TargetColumn { identity_always: true, ..column("n", false) });
    let rows = |n: &str| {
        let local = r#"{"id":"1","V":"v","n":"1"}"#.to_owned();
        (local, format!(r#"{{"id":"1","V":"w","n":"{n}"}}"#))
    };
    let of = |n: &str| {
        let (local, remote) = rows(n);
        let record = record("insert_exists", "applied", [Some(&local), Some(&remote), None]);
        undo(&record, std::slice::from_ref(&record), Some(&table))
    };
    let Undo::Statements(same) = of("1") else { panic!() };
    assert_eq!(same, [r#"UPDATE "s"."T" SET "id" = '1', "V" = 'v' WHERE "id" = '1'::text"#]);
    let Undo::Statements(other) = of("2") else { panic!() };
    assert_eq!(other[0], r#"DELETE FROM "s"."T" WHERE "id" = '1'::text"#);
    assert!(
        other[1].contains(r#"("id", "V", "n") OVERRIDING SYSTEM VALUE VALUES ('1', 'v', '1')"#),
        "{other:?}"
    );
}

#[test]
fn what_cannot_be_undone_says_what_is_missing() {
    let empty = record("insert_exists", "applied", [None; 3]);
    unknown(&of(&empty), "conflict_log_values = on");
    let whole = record("insert_exists", "applied", [LOCAL, REMOTE, None]);
    unknown(&undo(&whole, &[], None), "no table s.T any more");
    unknown(&of(&record("insert_exists", "applied", [KEY, REMOTE, None])), "no value of column \"V\"");
    unknown(&of(&record("update_missing", "kept", [None, KEY, KEY])), "REPLICA IDENTITY FULL");
    let full = of(&record("update_missing", "kept", [None, KEY, FULL]));
    assert!(matches!(full, Undo::Statements(_)), "{full:?}");
    let mut keyless = table();
    keyless.columns.iter_mut().for_each(|column| column.key = false);
    unknown(&undo(&whole, std::slice::from_ref(&whole), Some(&keyless)), "no primary key");
    for nothing in [record("insert_exists", "error", [None; 3]), record("delete_missing", "kept", [None; 3])]
    {
        assert!(matches!(of(&nothing), Undo::Nothing(_)), "{nothing:?}");
    }
}
