//! The history of conflicts as an operator reads it: listed, filtered, explained and undone.
//!
//! Each undo is run exactly as it is printed, and the rows are compared with those before.

use serde_json::Value;
use testkit::Builder;

use crate::support::{DECODED, FOLDED, ONE_BY_ONE, Scenario, scenario_alone, scenario_with};
use crate::update_deleted::{RETAIN, wait_for_capture};

/// Every type's text needs care somewhere, and some columns are the target's own affair.
const TYPES: &str = "CREATE TYPE \"Mood\" AS ENUM ('sad', 'it''s ok'); CREATE TYPE pair AS (a int, b text)";
const WIDE: &str = "CREATE TABLE \"Wide\" (id int PRIMARY KEY, u int UNIQUE, \"Mixed \"\"Case\" text, raw bytea, \
                    words text[], grid int[][], doc jsonb, amount numeric, real_one float8, at timestamptz, \
                    span interval, fixed char(5), mood \"Mood\", ints int4range, both_of pair, flag bool)";
/// Columns that only the target has. The source may not have the generated one: 18 refuses an
/// UPDATE where the replica identity has a generated column that is not published.
const OWN: &str =
    "ALTER TABLE \"Wide\" ADD twice int GENERATED ALWAYS AS (id * 2) STORED, ADD own text DEFAULT 'own'";
const NAMES: &str = "id, u, \"Mixed \"\"Case\", raw, words, grid, doc, amount, real_one, at, span, fixed, mood, ints, \
                     both_of, flag";

/// Two rows of values that differ in every column but the keys.
fn local(id: u32, u: u32) -> String {
    format!(
        "({id}, {u}, E'it''s \"local\" \\\\ \\n', '\\x00ff27', ARRAY['a''b', NULL, '\"', ''], '{{{{1,2}},{{3,NULL}}}}', \
         'null', 'NaN', '-0', '2026-01-02 03:04:05.678901+07', '-1 day +02:03:04', 'ab', 'it''s ok', '[1,5)', \
         ROW(1, 'x, \"y\"'), true)"
    )
}

fn remote(id: u32, u: u32) -> String {
    format!(
        "({id}, {u}, NULL, '\\x', '{{}}', '[0:1]={{7,8}}', '{{\"k\": [1, null, \"it''s\"]}}', 12345678901234567890.5, \
         0.1, 'infinity', '1 mon', 'remot', 'sad', 'empty', NULL, false)"
    )
}

/// `UPDATE` to [`remote`] values.
fn set_remote(id: u32, u: u32) -> String {
    move_to(id, &remote(id, u))
}

fn move_to(id: u32, values: &str) -> String {
    format!("UPDATE \"Wide\" SET ({NAMES}) = {values} WHERE id = {id}")
}

fn with<'r>(rules: &[&'r str], more: &[&'r str], strategy: &[&'r str]) -> Vec<&'r str> {
    let rules = rules.iter().flat_map(|rule| ["--conflict", rule]);
    rules.chain(more.iter().copied()).chain(strategy.iter().copied()).collect()
}

/// Runs the scenario under these rules, with values in the history, on a target that knows who
/// wrote its rows.
fn recorded(rules: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    recorded_with(rules, &[], run);
}

/// [`recorded`] with more arguments.
fn recorded_with(rules: &[&str], more: &[&str], run: impl Fn(&mut Scenario) + Sync) {
    let more = [&["--conflict-log-values", "on"], more].concat();
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| with(rules, &more, strategy));
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    scenario_alone(&strategies.each_ref().map(Vec::as_slice), |builder| builder, track, run);
}

/// The objects that `pgsluice conflicts --json` prints.
#[track_caller]
fn listed(s: &Scenario, number: usize, filter: &[&str]) -> Vec<Value> {
    let output = s.call(number, &[&["conflicts", "--json"], filter].concat());
    let text = output.expect_success();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The types of the listed conflicts.
#[track_caller]
fn kinds(s: &Scenario, number: usize, filter: &[&str]) -> Vec<String> {
    listed(s, number, filter).iter().map(|own| own["type"].as_str().unwrap().to_owned()).collect()
}

/// What `pgsluice conflicts --id` prints about the newest conflict of this type.
#[track_caller]
fn explained(s: &Scenario, number: usize, kind: &str) -> String {
    let newest = &listed(s, number, &["--type", kind, "--limit", "1"])[0];
    let id = newest["id"].to_string();
    s.call(number, &["conflicts", "--id", &id]).expect_success()
}

/// Runs what is printed there.
#[track_caller]
fn undo(s: &Scenario, number: usize, kind: &str) -> String {
    let text = explained(s, number, kind);
    let Some((_, sql)) = text.split_once("touched these rows:\n\n") else { panic!("no SQL:\n{text}") };
    assert_eq!(s.target_one_of(number, &format!("{sql} SELECT 'done'")), "done");
    text
}

const ROWS: &str = "SELECT string_agg(w::text, '\n' ORDER BY id) FROM \"Wide\" w";

/// Makes `change` on the source, and undoes what became of it on every target.
#[track_caller]
fn comes_back(s: &mut Scenario, kind: &str, change: &str) {
    let before = s.target_one(ROWS);
    s.source(change);
    s.catch_up();
    assert_ne!(s.target_one(ROWS), before, "{kind}: {change}");
    for number in 0..s.followers() {
        undo(s, number, kind);
    }
    assert_eq!(s.target_one(ROWS), before, "{kind}: {change}");
}

#[test]
fn what_was_written_is_undone_as_printed() {
    let rules = [
        "insert_exists=apply_remote",
        "update_exists=apply_remote",
        "multiple_unique_conflicts=apply_remote",
        "update_missing=apply_remote",
        "update_origin_differs=apply_remote",
        "delete_origin_differs=apply_remote",
    ];
    recorded(&rules, |s| {
        s.both(TYPES);
        s.both(WIDE);
        s.source("ALTER TABLE \"Wide\" REPLICA IDENTITY FULL");
        s.target(OWN);
        for id in [20, 21, 22, 30, 32] {
            s.source(&format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", local(id, id * 10)));
        }
        s.follow();
        let of_target =
            [(10, 100), (11, 110), (13, 130), (31, 310), (40, 400), (41, 410), (42, 420), (43, 430)];
        for (id, u) in of_target {
            s.target(&format!(
                "INSERT INTO \"Wide\" ({NAMES}, own) VALUES {}",
                local(id, u).replace(", true)", ", true, 'mine')")
            ));
        }
        let insert = |id, u| format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", remote(id, u));
        comes_back(s, "insert_exists", &insert(10, 101));
        comes_back(s, "insert_exists", &insert(12, 110));
        s.target("UPDATE \"Wide\" SET own = 'changed', u = NULL WHERE id IN (20, 21)");
        comes_back(s, "update_origin_differs", &set_remote(20, 200));
        comes_back(s, "delete_origin_differs", "DELETE FROM \"Wide\" WHERE id = 21");
        s.target("DELETE FROM \"Wide\" WHERE id = 22");
        comes_back(s, "update_missing", &set_remote(22, 220));
        comes_back(s, "update_exists", &set_remote(30, 310));
        comes_back(s, "multiple_unique_conflicts", &insert(40, 410));
        comes_back(s, "multiple_unique_conflicts", &move_to(32, &remote(42, 430)));
        // One row holds both keys.
        comes_back(s, "multiple_unique_conflicts", &insert(13, 130));
    });
}

#[test]
fn what_was_left_out_is_written_as_printed() {
    let rules = [
        "insert_exists=keep_local",
        "update_exists=keep_local",
        "multiple_unique_conflicts=skip",
        "update_missing=skip",
        "update_origin_differs=keep_local",
        "delete_origin_differs=keep_local",
    ];
    recorded(&rules, |s| {
        s.both(TYPES);
        s.both(WIDE);
        s.target(OWN);
        let rows = format!("SELECT string_agg(ROW({NAMES})::text, '\n' ORDER BY id) FROM \"Wide\"");
        s.source("ALTER TABLE \"Wide\" REPLICA IDENTITY FULL");
        for id in [20, 21, 22, 30, 32] {
            s.source(&format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", local(id, id * 10)));
        }
        s.follow();
        for (id, u) in [(10, 100), (13, 130), (31, 310), (40, 400), (41, 410), (42, 420), (43, 430)] {
            s.target(&format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", local(id, u)));
        }
        s.target("UPDATE \"Wide\" SET fixed = 'l' WHERE id IN (20, 21); DELETE FROM \"Wide\" WHERE id = 22");
        let insert = |id, u| format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", remote(id, u));
        for (kind, change) in [
            ("insert_exists", insert(10, 101)),
            ("update_origin_differs", set_remote(20, 200)),
            ("delete_origin_differs", "DELETE FROM \"Wide\" WHERE id = 21".to_owned()),
            ("update_missing", set_remote(22, 220)),
            ("update_exists", set_remote(30, 310)),
            ("multiple_unique_conflicts", insert(40, 410)),
            ("multiple_unique_conflicts", move_to(32, &remote(42, 430))),
            ("multiple_unique_conflicts", insert(13, 130)),
        ] {
            s.source(&change);
            s.catch_up();
            assert_ne!(s.target_one(&rows), s.source_one(&rows), "{kind}");
            for number in 0..s.followers() {
                undo(s, number, kind);
            }
        }
        s.same();
    });
}

/// A large value that an UPDATE leaves as it is, so that only REPLICA IDENTITY FULL has it.
const LARGE: &str = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)";

/// The table for rows that the target loses. Both ends have rows 20 to 23, of which 22 is large.
fn begin_to_lose(s: &mut Scenario) {
    s.both(TYPES);
    s.both(WIDE);
    s.both("ALTER TABLE \"Wide\" ALTER \"Mixed \"\"Case\" SET STORAGE EXTERNAL");
    s.source("ALTER TABLE \"Wide\" REPLICA IDENTITY FULL");
    s.target(OWN);
    for id in 20..=23 {
        s.source(&format!("INSERT INTO \"Wide\" ({NAMES}) VALUES {}", local(id, id * 10)));
    }
    s.source(&format!("UPDATE \"Wide\" SET \"Mixed \"\"Case\" = {LARGE} WHERE id = 22"));
    s.follow();
    wait_for_capture(s);
}

/// Changes of rows that the target loses: every value, the key, and one value beside a large one.
fn changes_of_lost_rows() -> [(u32, String); 3] {
    [
        (20, set_remote(20, 200)),
        (21, move_to(21, &remote(51, 510))),
        (22, "UPDATE \"Wide\" SET amount = -1 WHERE id = 22".to_owned()),
    ]
}

/// An UPDATE brought back a row that somebody had deleted on the target. The undo deletes it again,
/// under its new key.
#[test]
fn a_deleted_row_that_came_back_goes_again_as_printed() {
    for resolution in ["apply_remote", "last_update_wins"] {
        recorded_with(&[&format!("update_deleted={resolution}")], RETAIN, |s| {
            begin_to_lose(s);
            for (id, change) in changes_of_lost_rows() {
                s.stop();
                s.target(&format!("DELETE FROM \"Wide\" WHERE id = {id}"));
                let before = s.target_one(ROWS);
                s.source(&change);
                s.run();
                s.catch_up();
                s.same();
                assert_ne!(s.target_one(ROWS), before, "{resolution}: {change}");
                for number in 0..s.followers() {
                    let text = undo(s, number, "update_deleted");
                    assert!(text.contains("DELETE FROM"), "{text}");
                }
                assert_eq!(s.target_one(ROWS), before, "{resolution}: {change}");
                s.source(&format!("DELETE FROM \"Wide\" WHERE id IN ({id}, 51)"));
                s.catch_up();
            }
        });
    }
}

/// The row stayed deleted. The undo inserts it as the UPDATE had it, and as if the UPDATE had been
/// written: the columns of the target alone have their defaults.
#[test]
fn a_deleted_row_that_stayed_away_comes_as_printed() {
    for resolution in ["skip", "keep_local", "last_update_wins"] {
        recorded_with(&[&format!("update_deleted={resolution}")], RETAIN, |s| {
            begin_to_lose(s);
            for (id, change) in changes_of_lost_rows() {
                s.stop();
                s.source(&change);
                s.target(&format!("DELETE FROM \"Wide\" WHERE id = {id}"));
                let before = s.target_one(ROWS);
                s.run();
                s.catch_up();
                assert_eq!(s.target_one(ROWS), before, "{resolution}: {change}");
                for number in 0..s.followers() {
                    let text = undo(s, number, "update_deleted");
                    assert!(text.contains("INSERT INTO"), "{text}");
                }
                s.same();
                let not_default = "SELECT count(*) FROM \"Wide\" WHERE twice <> id * 2 OR own <> 'own'";
                assert_eq!(s.target_one(not_default), "0", "{resolution}: {change}");
            }
            let history = "SELECT string_agg(DISTINCT concat_ws(' ', type, outcome), ', ') \
                           FROM pgsluice.conflict_history";
            assert_eq!(s.target_one(history), "update_deleted kept");
            // Without the whole row, the record does not have the large value.
            s.source("ALTER TABLE \"Wide\" REPLICA IDENTITY DEFAULT");
            s.catch_up();
            s.stop();
            s.source("UPDATE \"Wide\" SET amount = -2 WHERE id = 22");
            s.target("DELETE FROM \"Wide\" WHERE id = 22");
            s.run();
            s.catch_up();
            for number in 0..s.followers() {
                let text = explained(s, number, "update_deleted");
                assert!(text.contains("REPLICA IDENTITY FULL"), "{text}");
                assert!(!text.contains("touched these rows:"), "{text}");
            }
        });
    }
}

/// A target that keeps no commit times: each conflict that needs none is found, and names the
/// transaction that wrote the row, without its time and origin. Nobody asks whose a row is. Of a
/// deletion, the target's WAL has the time.
#[test]
fn without_commit_times_a_conflict_names_the_transaction_alone() {
    let rules = [
        "insert_exists=keep_local",
        "update_exists=keep_local",
        "multiple_unique_conflicts=keep_local",
        "update_deleted=skip",
    ];
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| with(&rules, RETAIN, strategy));
    scenario_alone(
        &strategies.each_ref().map(Vec::as_slice),
        |builder| builder,
        |builder| builder.setting("track_commit_timestamp", "off"),
        |s| {
            s.both("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text)");
            s.source("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 9) i");
            s.follow();
            wait_for_capture(s);
            s.target("INSERT INTO t VALUES (20, 20, 'local'), (30, 30, 'local'), (60, 61, 'local'), (62, 63, 'local')");
            s.target("UPDATE t SET v = 'local' WHERE id IN (1, 2); DELETE FROM t WHERE id IN (3, 4)");
            for change in [
                "UPDATE t SET v = 'w' WHERE id = 1",
                "DELETE FROM t WHERE id = 2",
                "UPDATE t SET v = 'w' WHERE id = 3",
                "DELETE FROM t WHERE id = 4",
                "INSERT INTO t VALUES (20, 21, 'w')",
                "UPDATE t SET v = 'x' WHERE id = 20",
                "UPDATE t SET u = 30 WHERE id = 5",
                "INSERT INTO t VALUES (40, 61, 'w')",
                "UPDATE t SET v = 'x' WHERE id = 40",
                "INSERT INTO t VALUES (31, 31, 'w')",
                "UPDATE t SET id = 60, u = 63 WHERE id = 31",
            ] {
                s.source(change);
            }
            s.catch_up();
            let history = "SELECT string_agg(concat_ws(' ', type, outcome, local_xid IS NOT NULL, \
                                  local_time IS NOT NULL, local_origin IS NOT NULL), ', ' ORDER BY id) \
                             FROM pgsluice.conflict_history";
            // Transaction, time and origin of the target's row.
            let written = "kept t f f";
            assert_eq!(
                s.target_one(history),
                format!(
                    "update_deleted kept t t t, delete_missing kept f f f, insert_exists {written}, \
                     update_exists {written}, insert_exists {written}, update_missing kept f f f, \
                     multiple_unique_conflicts {written}, multiple_unique_conflicts {written}"
                )
            );
            assert_eq!(s.target_one("SELECT string_agg(v, ' ' ORDER BY id) FROM t WHERE id IN (1, 2)"), "w");
            for kind in ["update_origin_differs", "delete_origin_differs"] {
                assert_eq!(s.conflicts(kind), 0, "{kind}");
            }
            s.wait_for_log("Key already exists in unique index \"t_u_key\", modified in transaction ");
            for number in 0..s.followers() {
                let exists = explained(s, number, "insert_exists").replace("\n              ", " ");
                assert!(
                    exists.contains("track_commit_timestamp would say when, and from which origin"),
                    "{exists}"
                );
                let deleted = explained(s, number, "update_deleted").replace("\n              ", " ");
                assert!(deleted.contains("the row was deleted by transaction "), "{deleted}");
                assert!(deleted.contains(" of the target itself at "), "{deleted}");
            }
        },
    );
}

/// An identity column GENERATED ALWAYS takes no value by UPDATE, and neither does a generated one.
#[test]
fn identity_columns_come_back() {
    recorded(&["insert_exists=apply_remote"], |s| {
        s.both("CREATE TABLE \"I\" (n int GENERATED ALWAYS AS IDENTITY, \"Key\" text PRIMARY KEY, v text)");
        s.follow();
        s.target(
            "INSERT INTO \"I\" OVERRIDING SYSTEM VALUE VALUES (100, 'it''s', 'local'), (7, 'b', 'local')",
        );
        let rows = "SELECT string_agg(i::text, ' ' ORDER BY n) FROM \"I\" i";
        let before = s.target_one(rows);
        s.source("INSERT INTO \"I\" OVERRIDING SYSTEM VALUE VALUES (1, 'it''s', 'remote')");
        s.catch_up();
        (0..s.followers()).for_each(|number| drop(undo(s, number, "insert_exists")));
        assert_eq!(s.target_one(rows), before);
        s.source("INSERT INTO \"I\" OVERRIDING SYSTEM VALUE VALUES (7, 'b', 'remote')");
        s.catch_up();
        (0..s.followers()).for_each(|number| drop(undo(s, number, "insert_exists")));
        assert_eq!(s.target_one(rows), before);
    });
}

/// Every filter, in both forms, while the subscription runs and afterwards.
#[test]
fn conflicts_are_listed_by_filter() {
    recorded(&["insert_exists=keep_local", "insert_exists=error:public.fails"], |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE \"A.b\" (a int, b text, PRIMARY KEY (a, b))");
        s.both("CREATE TABLE fails (id int PRIMARY KEY)");
        for number in 0..s.followers() {
            let said = s.call(number, &["conflicts"]).expect_success();
            assert_eq!(said, format!("{}: the target's history has no conflict\n", s.name(number)));
            assert!(listed(s, number, &[]).is_empty());
        }
        s.source("INSERT INTO t VALUES (5, 'v')");
        s.follow();
        s.target("INSERT INTO t VALUES (1, 'local'); INSERT INTO \"A.b\" VALUES (1, 'x=y'); DELETE FROM t WHERE id = 5");
        s.source("INSERT INTO t VALUES (1, 'remote')");
        s.source("INSERT INTO \"A.b\" VALUES (1, 'x=y')");
        s.source("UPDATE t SET v = 'w' WHERE id = 5");
        s.source("DELETE FROM t WHERE id = 5");
        s.catch_up();
        s.target("INSERT INTO fails VALUES (1)");
        s.source("INSERT INTO fails VALUES (1)");
        s.wait_for_log("conflict detected on relation \"public.fails\"");
        s.target("DELETE FROM fails");
        s.catch_up();
        for number in 0..s.followers() {
            filters(s, number);
            texts(s, number);
        }
        s.stop();
        (0..s.followers()).for_each(|number| filters(s, number));
    });
}

fn filters(s: &Scenario, number: usize) {
    let all = listed(s, number, &[]);
    let seen = |filter: &[&str]| kinds(s, number, filter).join(" ");
    assert_eq!(seen(&[]), "insert_exists delete_missing update_missing insert_exists insert_exists");
    assert_eq!(seen(&["--type", "update_missing"]), "update_missing");
    assert_eq!(seen(&["--table", "public.t", "--limit", "2"]), "delete_missing update_missing");
    assert_eq!(seen(&["--table", "public.A.b"]), "insert_exists");
    assert_eq!(seen(&["--key", "a=1", "--key", "b=x=y"]), "insert_exists");
    assert_eq!(seen(&["--key", "id=5"]), "delete_missing update_missing");
    assert_eq!(seen(&["--key", "id=6"]), "");
    assert_eq!(seen(&["--resolution", "keep_local"]), "insert_exists insert_exists");
    assert_eq!(seen(&["--resolution", "error"]), "insert_exists");
    let at = all[2]["at"].as_str().unwrap();
    assert_eq!(seen(&["--since", at]), "insert_exists delete_missing update_missing");
    assert_eq!(seen(&["--until", at]), "insert_exists insert_exists");
    assert_eq!(seen(&["--since", "tomorrow"]), "");
    let none = s.call(number, &["conflicts", "--since", "tomorrow"]).expect_success();
    assert_eq!(none, format!("{}: the target's history has no such conflict\n", s.name(number)));
    let first = &all[4];
    assert_eq!(
        (&first["schema"], &first["table"], &first["index"]),
        (&"public".into(), &"t".into(), &"t_pkey".into())
    );
    assert_eq!((&first["resolution"], &first["outcome"]), (&"keep_local".into(), &"kept".into()));
    assert_eq!(first["key"], serde_json::json!({"id": "1"}));
    assert_eq!(first["local_row"], serde_json::json!({"id": "1", "v": "local"}));
    assert_eq!(first["remote_row"], serde_json::json!({"id": "1", "v": "remote"}));
    assert_eq!((&first["replica_identity"], &first["local_origin"]), (&Value::Null, &"".into()));
    assert!(first["remote_xid"].is_u64() && first["local_xid"].is_u64(), "{first}");
    let id = first["id"].to_string();
    let one = &listed(s, number, &["--id", &id])[0];
    assert_eq!(
        one["undo"]["statements"][0],
        "UPDATE \"public\".\"t\" SET \"id\" = '1', \"v\" = 'remote' WHERE \"id\" = '1'::integer"
    );
}

/// The forms for people.
fn texts(s: &Scenario, number: usize) {
    let text = s.call(number, &["conflicts", "--limit", "4"]).expect_success();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 7, "{text}");
    assert!(lines[..6].iter().all(|line| line.chars().count() <= 100), "{text}");
    assert!(lines[1].contains("public.fails") && lines[1].contains("error"), "{text}");
    assert!(lines[5].contains("--limit") && lines[6].contains("--id"), "{text}");
    let all = listed(s, number, &[]);
    let explained = |at: usize| {
        let id = all[at]["id"].to_string();
        s.call(number, &["conflicts", "--id", &id]).expect_success()
    };
    let kept = explained(4);
    for part in [
        "insert_exists on table public.t",
        "of the target itself",
        "left the change out",
        "the rule insert_exists=keep_local",
        "Key (id)=(1); existing local row (1, local); remote row (1, remote).",
    ] {
        assert!(kept.replace("\n              ", " ").contains(part), "{part}:\n{kept}");
    }
    assert!(kept.lines().any(|line| line.split_whitespace().eq(["v", "local", "remote"])), "{kept}");
    assert!(explained(0).contains("rolled the transaction back, so it wrote nothing"), "{}", explained(0));
    assert!(explained(1).contains("no row to delete"), "{}", explained(1));
}

/// Without the setting no value is anywhere, and the undo names the setting.
#[test]
fn values_are_recorded_only_when_asked_for() {
    let rules = ["insert_exists=keep_local"];
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| with(&rules, &[], strategy));
    scenario_with(&strategies.each_ref().map(Vec::as_slice), |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.follow();
        s.target("INSERT INTO t VALUES (4711, 'secret of the target')");
        s.source("INSERT INTO t VALUES (4711, 'secret of the source')");
        s.source("UPDATE t SET v = 'another secret' WHERE id = 4711");
        s.source("DELETE FROM t");
        s.catch_up();
        s.source("INSERT INTO t VALUES (4712, 'secret of the source')");
        s.catch_up();
        s.target("DELETE FROM t");
        s.source("UPDATE t SET v = 'another secret'");
        s.catch_up();
        let history = "SELECT string_agg(h::text, ' ') FROM pgsluice.conflict_history h";
        for number in 0..s.followers() {
            let rows = s.target_one_of(number, history);
            let words = ["secret", "4711", "4712"];
            assert!(words.iter().all(|word| !rows.contains(word)), "{rows}");
            assert!(!s.log(number).contains("secret"), "{}", s.log(number));
            let newest = listed(s, number, &["--type", "insert_exists"])[0]["id"].to_string();
            let text = s.call(number, &["conflicts", "--id", &newest]).expect_success();
            assert!(text.contains("conflict_log_values was off"), "{text}");
        }
    });
}

/// A filter that cannot be read, and a number that is not there.
#[test]
fn what_cannot_be_listed_is_refused_by_name() {
    scenario_with(&[FOLDED], |s| {
        s.follow();
        for (args, code, parts) in [
            (&["--type", "newest"][..], 2, ["--type", "update_missing"]),
            (&["--table", "t"], 2, ["--table", "schema.name"]),
            (&["--key", "id"], 2, ["--key", "COLUMN=VALUE"]),
            (&["--since", "soon"], 2, ["--since", "yesterday"]),
            (&["--until", "2026-13-01"], 2, ["--until", "2026-13-01"]),
            (&["--resolution", "newest"], 2, ["--resolution", "last_update_wins"]),
            (&["--limit", "0"], 2, ["--limit", "0"]),
            (&["--id", "1", "--type", "insert_exists"], 2, ["--id", "--type"]),
            (&["--id", "4711"], 1, ["no conflict 4711", "pgsluice conflicts"]),
        ] {
            let output = s.call(0, &[&["conflicts"], args].concat());
            assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
            assert!(parts.iter().all(|part| output.stderr.contains(part)), "{args:?}: {}", output.stderr);
        }
    });
}

/// Three databases: what the source received from elsewhere meets a row of the target.
#[test]
fn who_made_a_change_elsewhere_is_told() {
    let values = ["--conflict-log-values", "on"];
    let rule = ["update_origin_differs=apply_remote"];
    let strategies = [FOLDED, ONE_BY_ONE, DECODED].map(|strategy| with(&rule, &values, strategy));
    let track = |builder: Builder| builder.setting("track_commit_timestamp", "on");
    let streams = |builder: Builder| builder.setting("logical_decoding_work_mem", "64kB");
    scenario_alone(&strategies.each_ref().map(Vec::as_slice), streams, track, |s| {
        s.both("CREATE TABLE t (id int PRIMARY KEY, v text)");
        s.source("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 3) i");
        s.publish("FOR TABLE t, mark");
        s.follow();
        s.target("UPDATE t SET v = 'local'");
        s.source("UPDATE t SET v = 'here' WHERE id = 1");
        s.source_in("far", "SELECT pg_replication_origin_create('far')");
        s.source_in("far", "SELECT pg_replication_origin_session_setup('far')");
        s.source_in("far", "UPDATE t SET v = 'far' WHERE id = 2");
        // Large enough to be sent while it is open, and to be put aside in a file.
        s.source_in(
            "far",
            "BEGIN; UPDATE t SET v = 'far' WHERE id = 3; \
             INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(100, 3000) i; COMMIT",
        );
        s.catch_up();
        s.same();
        for number in 0..s.followers() {
            let all = listed(s, number, &[]);
            let of = |key: u32| {
                let own =
                    all.iter().find(|own| own["key"]["id"].to_string().trim_matches('"') == key.to_string());
                own.unwrap_or_else(|| panic!("{key}: {all:?}"))["remote_origin"].clone()
            };
            assert_eq!((of(1), of(2), of(3)), (Value::Null, "far".into(), "far".into()), "{number}");
            let id = all.iter().find(|own| own["remote_origin"] == "far").unwrap()["id"].to_string();
            let told = s.call(number, &["conflicts", "--id", &id]).expect_success();
            assert!(told.contains("from origin \"far\""), "{told}");
        }
        s.source_in("far", "SELECT pg_replication_origin_session_reset()");
        s.source("SELECT pg_replication_origin_drop('far')");
    });
}
