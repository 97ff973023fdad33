//! Where native apply of 18 stops, we say the same, part by part, and go on alike.
//!
//! Native apply has no rules: a held unique key is an error, until the user removes the row that
//! holds it, as PostgreSQL's documents say. The words about each are written down here. They are
//! compared with the history of every strategy, and on 18 with the server's log.
//!
//! On purpose, these differ, as `docs/operations/conflicts.md` tells:
//!
//! - A DETAIL has several lines. Our message is one line, with `\n` for a line break of a value.
//! - Native apply shows the values of a key whole, and quotes names that need it. We cut each value
//!   as in rows, and leave names plain.
//! - Its remote row has the columns that only the target has. Ours has what the source sent.
//! - It counts and logs each attempt. We count an error once, and a conflict that was rolled back
//!   with an error when it is resolved.

use testkit::wait_for;

use crate::native_conflicts::{NATIVE, detecting, local, subscribe_natively, wait_for_native};
use crate::support::{BOUND, Scenario};

/// A conflict as it was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Said {
    is_error: bool,
    kind: String,
    table: String,
    xid: String,
    finished_at: String,
    detail: String,
}

/// The conflicts in PostgreSQL's log. The lines of a DETAIL are joined.
fn said_by_native(log: &str) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    let mut is_detail = false;
    for line in log.lines() {
        if let Some((level, found)) = line.split_once("conflict detected on relation \"public.") {
            let (table, kind) = found.split_once("\": conflict=").expect("PostgreSQL's wording");
            let (table, kind, is_error) = (table.to_owned(), kind.to_owned(), level.contains("ERROR:"));
            all.push(Said { is_error, kind, table, ..Said::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some((_, detail)) = line.split_once("DETAIL:  ").filter(|_| last.detail.is_empty()) {
            detail.clone_into(&mut last.detail);
            is_detail = true;
        } else if let Some(more) = line.strip_prefix('\t').filter(|_| is_detail) {
            last.detail.extend([" ", more]);
        } else {
            is_detail = false;
        }
        if let Some((_, place)) = line.split_once(" in transaction ").filter(|_| last.xid.is_empty())
            && line.contains("processing remote data")
        {
            let (xid, lsn) = place.split_once(", finished at ").expect("PostgreSQL's wording");
            (last.xid, last.finished_at) = (xid.to_owned(), lsn.to_owned());
        }
    }
    all
}

/// The conflicts in the history of follower `number`.
fn said_by_ours(s: &Scenario, number: usize) -> Vec<Said> {
    let sql = "SELECT string_agg(concat_ws(E'\\t', outcome, type, table_name, remote_xid, finished_at, detail), \
               E'\\n' ORDER BY id) FROM (SELECT outcome, type, table_name, remote_xid, finished_at, detail, \
               min(id) AS id FROM pgsluice.conflict_history GROUP BY 1, 2, 3, 4, 5, 6) h";
    let read = |line: &str| {
        let parts: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let [outcome, kind, table, xid, finished_at, detail] = <[String; 6]>::try_from(parts).unwrap();
        Said { is_error: outcome == "error", kind, table, xid, finished_at, detail }
    };
    s.target_one_of(number, sql).lines().map(read).collect()
}

/// Tables for changes that violate unique keys. The indexes are not in the order of their names.
const HELD: &str = "CREATE TABLE t (id int PRIMARY KEY, v text); \
     CREATE TABLE held (id int PRIMARY KEY, u int, w int, v text); \
     CREATE UNIQUE INDEX held_z ON held (u); CREATE UNIQUE INDEX held_a ON held (w); \
     CREATE TABLE bag (a int, b text); CREATE UNIQUE INDEX bag_a ON bag (a); \
     ALTER TABLE bag REPLICA IDENTITY FULL; \
     CREATE TABLE texts (id int PRIMARY KEY, \"Text\" text UNIQUE); \
     CREATE TABLE extra (id int PRIMARY KEY, v text)";
/// A column that only targets have.
const OWN: &str = "ALTER TABLE extra ADD own text DEFAULT 'own'";
const TABLES: [&str; 5] = ["t", "held", "bag", "texts", "extra"];

/// A transaction of the source that violates unique keys of the target.
struct Stop {
    kind: &'static str,
    table: &'static str,
    change: &'static str,
    /// What is to stand in its way, each written by a transaction of its own.
    held_by: &'static [&'static str],
    /// The words, with the row that a local transaction wrote as `[table first_column]`.
    detail: String,
    /// Where native's words are others: ours, then native's.
    unlike: Option<(String, String)>,
    /// Removes what stands in its way.
    remove: &'static str,
}

impl Stop {
    fn words(&self, is_native: bool) -> String {
        match self.unlike.as_ref().filter(|_| is_native) {
            Some((ours, native)) => {
                assert!(self.detail.contains(ours), "{}: {ours}", self.detail);
                self.detail.replace(ours, native)
            }
            None => self.detail.clone(),
        }
    }
}

/// The sentence about the holder of a key: the index, who wrote the row, and the values.
fn held(index: &str, by: &str, values: &str) -> String {
    format!("Key already exists in unique index \"{index}\", modified {by}. {values}.")
}

fn stops() -> Vec<Stop> {
    [inserts(), texts(), updates(), updates_of_rows()].into_iter().flatten().chain([last()]).collect()
}

fn inserts() -> Vec<Stop> {
    let remote = "remote row (103, 103, 103, remote)";
    let both = "existing local row (104, 104, null, local); remote row (104, 104, 204, remote)";
    vec![
        Stop {
            kind: "insert_exists",
            table: "held",
            change: "INSERT INTO held VALUES (101, 101, 101, 'remote')",
            held_by: &["INSERT INTO held VALUES (101, 1101, NULL, 'local')"],
            detail: held(
                "held_pkey",
                "locally [held 101]",
                "Key (id)=(101); existing local row (101, 1101, null, local); remote row (101, 101, 101, remote)",
            ),
            unlike: None,
            remove: "DELETE FROM held WHERE id = 101",
        },
        // Each key is held by another row.
        Stop {
            kind: "multiple_unique_conflicts",
            table: "held",
            change: "INSERT INTO held VALUES (103, 103, 103, 'remote')",
            held_by: &[
                "INSERT INTO held VALUES (3103, 3203, 103, 'c')",
                "INSERT INTO held VALUES (2103, 103, 2203, 'b')",
                "INSERT INTO held VALUES (103, 1103, 1203, 'a')",
            ],
            detail: [
                ("held_pkey", "103", "Key (id)=(103); existing local row (103, 1103, 1203, a)"),
                ("held_z", "2103", "Key (u)=(103); existing local row (2103, 103, 2203, b)"),
                ("held_a", "3103", "Key (w)=(103); existing local row (3103, 3203, 103, c)"),
            ]
            .map(|(index, id, row)| held(index, &format!("locally [held {id}]"), &format!("{row}; {remote}")))
            .join(" "),
            unlike: None,
            remove: "DELETE FROM held WHERE id IN (103, 2103, 3103)",
        },
        // One row holds two keys.
        Stop {
            kind: "multiple_unique_conflicts",
            table: "held",
            change: "INSERT INTO held VALUES (104, 104, 204, 'remote')",
            held_by: &["INSERT INTO held VALUES (104, 104, NULL, 'local')"],
            detail: [("held_pkey", "id"), ("held_z", "u")]
                .map(|(index, key)| held(index, "locally [held 104]", &format!("Key ({key})=(104); {both}")))
                .join(" "),
            unlike: None,
            remove: "DELETE FROM held WHERE id = 104",
        },
    ]
}

/// Values that are told in other words.
fn texts() -> Vec<Stop> {
    let (letters, all) = ("é".repeat(32), "é".repeat(40));
    let rows = format!("existing local row (1102, {letters}...); remote row (102, {letters}...)");
    let stop = |table, change, held_by, detail, (ours, native): (&str, &str), remove| Stop {
        kind: "insert_exists",
        table,
        change,
        held_by,
        detail,
        unlike: Some((ours.to_owned(), native.to_owned())),
        remove,
    };
    vec![
        stop(
            "texts",
            "INSERT INTO texts VALUES (102, repeat('é', 40))",
            &["INSERT INTO texts VALUES (1102, repeat('é', 40))"],
            held("texts_Text_key", "locally [texts 1102]", &format!("Key (Text)=({letters}...); {rows}")),
            (&format!("Key (Text)=({letters}...)"), &format!("Key (\"Text\")=({all})")),
            "DELETE FROM texts WHERE id = 1102",
        ),
        stop(
            "texts",
            "INSERT INTO texts VALUES (109, E'two\\nlines')",
            &["INSERT INTO texts VALUES (109, E'one\\nand more')"],
            held(
                "texts_pkey",
                "locally [texts 109]",
                "Key (id)=(109); existing local row (109, one\\nand more); remote row (109, two\\nlines)",
            ),
            ("\\n", " "),
            "DELETE FROM texts WHERE id = 109",
        ),
        stop(
            "extra",
            "INSERT INTO extra VALUES (110, 'remote')",
            &["INSERT INTO extra VALUES (110, 'local', 'mine')"],
            held(
                "extra_pkey",
                "locally [extra 110]",
                "Key (id)=(110); existing local row (110, local, mine); remote row (110, remote)",
            ),
            ("(110, remote)", "(110, remote, own)"),
            "DELETE FROM extra WHERE id = 110",
        ),
    ]
}

fn update(
    kind: &'static str,
    table: &'static str,
    change: &'static str,
    held_by: &'static [&'static str],
    detail: String,
    remove: &'static str,
) -> Stop {
    Stop { kind, table, change, held_by, detail, unlike: None, remove }
}

fn updates() -> Vec<Stop> {
    let rows = "remote row (3, 107, 107, three); replica identity (id)=(3)";
    vec![
        update(
            "update_exists",
            "held",
            "UPDATE held SET id = 105 WHERE id = 1",
            &["INSERT INTO held VALUES (105, 1105, 1205, 'local')"],
            held(
                "held_pkey",
                "locally [held 105]",
                "Key (id)=(105); existing local row (105, 1105, 1205, local); remote row (105, 1, 1, one); \
                 replica identity (id)=(1)",
            ),
            "DELETE FROM held WHERE id = 105",
        ),
        update(
            "update_exists",
            "held",
            "UPDATE held SET u = 106, v = 'moved' WHERE id = 2",
            &["SELECT pg_replication_origin_session_setup('third'); BEGIN; \
               SELECT pg_replication_origin_xact_setup('0/1', '2001-02-03 04:05:06.789+00'); \
               INSERT INTO held VALUES (1106, 106, NULL, 'third'); COMMIT; \
               SELECT pg_replication_origin_session_reset()"],
            held(
                "held_z",
                "by origin \"third\" [held 1106]",
                "Key (u)=(106); existing local row (1106, 106, null, third); remote row (2, 106, 2, moved); \
                 replica identity (id)=(2)",
            ),
            "DELETE FROM held WHERE id = 1106",
        ),
        update(
            "multiple_unique_conflicts",
            "held",
            "UPDATE held SET u = 107, w = 107 WHERE id = 3",
            &[
                "INSERT INTO held VALUES (1107, 107, 1207, 'a')",
                "INSERT INTO held VALUES (2107, 2207, 107, 'b')",
            ],
            [
                ("held_z", "1107", "Key (u)=(107); existing local row (1107, 107, 1207, a)"),
                ("held_a", "2107", "Key (w)=(107); existing local row (2107, 2207, 107, b)"),
            ]
            .map(|(index, id, row)| held(index, &format!("locally [held {id}]"), &format!("{row}; {rows}")))
            .join(" "),
            "DELETE FROM held WHERE id IN (1107, 2107)",
        ),
    ]
}

/// UPDATEs that find their row by all of its values, or find it changed.
fn updates_of_rows() -> Vec<Stop> {
    vec![
        update(
            "update_exists",
            "bag",
            "UPDATE bag SET a = 8 WHERE a = 1",
            &["INSERT INTO bag VALUES (8, 'local')"],
            held(
                "bag_a",
                "locally [bag 8]",
                "Key (a)=(8); existing local row (8, local); remote row (8, x); replica identity full (1, x)",
            ),
            "DELETE FROM bag WHERE a = 8",
        ),
        // Somebody else wrote the row that it changes, too.
        update(
            "update_exists",
            "held",
            "UPDATE held SET u = 111 WHERE id = 4",
            &[
                "UPDATE held SET v = 'changed' WHERE id = 4",
                "INSERT INTO held VALUES (1111, 111, NULL, 'local')",
            ],
            held(
                "held_z",
                "locally [held 1111]",
                "Key (u)=(111); existing local row (1111, 111, null, local); remote row (4, 111, 4, four); \
                 replica identity (id)=(4)",
            ),
            "DELETE FROM held WHERE id = 1111",
        ),
    ]
}

/// The one at which native apply is told to try again.
fn last() -> Stop {
    Stop {
        kind: "insert_exists",
        table: "held",
        change: "INSERT INTO held VALUES (112, 112, 112, 'remote')",
        held_by: &["INSERT INTO held VALUES (112, 1112, 1112, 'local')"],
        detail: held(
            "held_pkey",
            "locally [held 112]",
            "Key (id)=(112); existing local row (112, 1112, 1112, local); remote row (112, 112, 112, remote)",
        ),
        unlike: None,
        remove: "DELETE FROM held WHERE id = 112",
    }
}

/// A transaction with one conflict of each type that stops nothing.
fn behind(n: usize) -> String {
    let [missing, gone, changed, kept] = [0, 1, 2, 3].map(|of| 4 * n + of);
    format!(
        "UPDATE t SET v = 'w' WHERE id = {missing}; DELETE FROM t WHERE id = {gone}; \
         UPDATE t SET v = 'w' WHERE id = {changed}; DELETE FROM t WHERE id = {kept}"
    )
}

/// Who wrote a target's rows: the end of a DETAIL's sentence, and a row that this transaction
/// wrote.
type Writers = Vec<(String, String)>;

fn writers(one: impl Fn(&str) -> String) -> Writers {
    let of = |table: &&str| {
        let first = if *table == "bag" { "a" } else { "id" };
        format!("SELECT xmin::text AS xid, format('[%s %s]', '{table}', {first}) AS row FROM {table}")
    };
    let rows = TABLES.iter().map(of).collect::<Vec<_>>().join(" UNION ALL ");
    let sql = format!(
        "SELECT string_agg(format(E'in transaction %s at %s\\t%s', xid, pg_xact_commit_timestamp(xid::xid), \
         row), E'\\n') FROM (SELECT xid, min(row) AS row FROM ({rows}) r GROUP BY xid) w"
    );
    let pair = |line: &str| line.split_once('\t').map(|(words, row)| (words.to_owned(), row.to_owned()));
    one(&sql).lines().filter_map(pair).collect()
}

/// Puts the row that a transaction wrote in place of its number and time.
fn by_row(said: &Said, writers: &Writers) -> String {
    writers.iter().fold(said.detail.clone(), |detail, (words, row)| detail.replace(words, row))
}

#[test]
fn d1_where_native_apply_stops_we_say_the_same_and_go_on_alike() {
    let rules = ["insert_exists=error", "update_exists=error", "multiple_unique_conflicts=error"];
    let rules: Vec<&str> = rules.iter().flat_map(|rule| ["--conflict", rule]).collect();
    detecting(&[&["--conflict-log-values", "on"], &rules[..]].concat(), |s| {
        s.both(HELD);
        s.target(OWN);
        s.publish("FOR TABLE t, held, bag, texts, extra, mark");
        subscribe_natively(s, &format!("{HELD}; {OWN}"), ", disable_on_error = true");
        s.follow();
        let stops = stops();
        let writers = hold(s, &stops);
        for (n, stop) in stops.iter().enumerate() {
            s.source(stop.change);
            s.source(&behind(n + 1));
        }
        for (n, stop) in stops.iter().enumerate() {
            wait_for_stop(s, n + 1);
            if n + 1 == stops.len() {
                native_counts_each_attempt(s, stop.kind);
            }
            local(s, stop.remove);
            enable(s);
        }
        s.catch_up();
        wait_for_native(s);
        for (number, own) in writers.iter().enumerate().take(s.followers()) {
            let said = said_by_ours(s, number);
            assert_stops(&said, &stops, own, false);
            assert_log(s, number, &said);
        }
        if s.major() >= 18 {
            compare(s, &stops, &writers);
        }
    });
}

/// Writes what both ends have, and then what stands in the way. Returns the writers of each
/// target's rows, those of the native one last.
fn hold(s: &mut Scenario, stops: &[Stop]) -> Vec<Writers> {
    s.source(&format!(
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, {}) i; INSERT INTO bag VALUES (1, 'x'); \
         INSERT INTO held VALUES (1, 1, 1, 'one'), (2, 2, 2, 'two'), (3, 3, 3, 'three'), (4, 4, 4, 'four')",
        4 * stops.len() + 3
    ));
    s.catch_up();
    wait_for_native(s);
    s.pair().target.sql("postgres", "SELECT pg_replication_origin_create('third')").unwrap();
    local(s, "DELETE FROM t WHERE id % 4 < 2");
    local(s, "UPDATE t SET v = 'local'");
    stops.iter().flat_map(|stop| stop.held_by).for_each(|sql| local(s, sql));
    let mut all: Vec<Writers> =
        (0..s.followers()).map(|number| writers(|sql| s.target_one_of(number, sql))).collect();
    if s.major() >= 18 {
        all.push(writers(|sql| s.pair().target.one(NATIVE, sql)));
    }
    all
}

/// Waits until every subscriber stands at stop number `n`. None has passed it.
fn wait_for_stop(s: &Scenario, n: usize) {
    let errors = "SELECT count(DISTINCT finished_at) FROM pgsluice.conflict_history WHERE outcome = 'error'";
    for number in 0..s.followers() {
        let is_there = || Ok(s.target_one_of(number, errors) == n.to_string());
        wait_for(&format!("stop {n} of follower {number}"), BOUND, is_there).unwrap();
    }
    let behind = "SELECT count(*) FROM pgsluice.conflict_history WHERE table_name = 't'";
    assert_eq!(s.target_one(behind), (4 * (n - 1)).to_string(), "before stop {n}");
    if s.major() < 18 {
        return;
    }
    let target = &s.pair().target;
    let enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'n'";
    wait_for("native apply to stop", BOUND, || Ok(target.one(NATIVE, enabled) == "f")).unwrap();
    let errors = said_by_native(&target.log()).iter().filter(|said| said.is_error).count();
    assert_eq!(errors, n, "native's errors");
}

fn enable(s: &Scenario) {
    if s.major() >= 18 {
        s.pair().target.sql(NATIVE, "ALTER SUBSCRIPTION n ENABLE").unwrap();
    }
}

fn native_count(s: &Scenario, kind: &str) -> u64 {
    let sql = format!("SELECT confl_{kind} FROM pg_stat_subscription_stats WHERE subname = 'n'");
    s.pair().target.one(NATIVE, &sql).parse().unwrap()
}

/// A transaction that is tried again is counted again by native apply, and not by us.
fn native_counts_each_attempt(s: &Scenario, kind: &str) {
    for number in 0..s.followers() {
        let often = || Ok(s.status(number)["failing"]["attempts"].as_u64() >= Some(3));
        wait_for("three attempts", BOUND, often).unwrap();
    }
    let ours = s.conflicts(kind);
    assert_eq!(ours, stops().iter().filter(|stop| stop.kind == kind).count() as u64);
    if s.major() < 18 {
        return;
    }
    let target = &s.pair().target;
    wait_for("native's counters", BOUND, || Ok(native_count(s, kind) == ours)).unwrap();
    target.sql("postgres", "ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'").unwrap();
    target.sql("postgres", "SELECT pg_reload_conf()").unwrap();
    target.sql(NATIVE, "ALTER SUBSCRIPTION n SET (disable_on_error = false)").unwrap();
    enable(s);
    let again = || Ok(native_count(s, kind) >= ours + 2);
    wait_for("native apply to count other attempts", BOUND, again).unwrap();
}

/// Each stop is told once, by its type and with every part of the words, and nothing else is an
/// error.
fn assert_stops(said: &[Said], stops: &[Stop], writers: &Writers, is_native: bool) {
    let errors: Vec<&Said> = said.iter().filter(|said| said.is_error).collect();
    assert_eq!(errors.len(), stops.len(), "{errors:#?}");
    for (said, stop) in errors.into_iter().zip(stops) {
        assert_eq!((said.kind.as_str(), said.table.as_str()), (stop.kind, stop.table), "{}", stop.change);
        assert_eq!(by_row(said, writers), stop.words(is_native), "{}", stop.change);
    }
}

/// The log of follower `number` says of each stop what its history says.
fn assert_log(s: &Scenario, number: usize, said: &[Said]) {
    let log = s.log(number);
    for Said { kind, table, detail, .. } in said.iter().filter(|said| said.is_error) {
        let words = format!("conflict detected on relation \"public.{table}\": conflict={kind}: {detail}");
        assert!(log.contains(&words), "{words}\n{log}");
    }
}

/// What native apply said, but of each transaction only what it said last before it committed, and
/// of its errors the first.
fn without_attempts(said: Vec<Said>) -> Vec<Said> {
    let mut kept: Vec<Said> = Vec::new();
    for own in said {
        if own.is_error {
            kept.retain(|other| other.is_error || other.xid != own.xid);
        }
        if !own.is_error || !kept.contains(&own) {
            kept.push(own);
        }
    }
    kept
}

/// What we said, what native apply said, the counters, and the rows.
fn compare(s: &Scenario, stops: &[Stop], writers: &[Writers]) {
    let target = &s.pair().target;
    let in_place = |said: &[Said], own: &Writers| -> Vec<Said> {
        said.iter().map(|said| Said { detail: by_row(said, own), ..said.clone() }).collect()
    };
    let (ours, native) = writers.split_at(s.followers());
    let said = without_attempts(said_by_native(&target.log()));
    assert_stops(&said, stops, &native[0], true);
    let mut expected = in_place(&said, &native[0]);
    assert_eq!(expected.len(), 5 * stops.len() + 1, "four behind each stop, and one beside one");
    // What is told of stops in other words was compared with the words that are written down here.
    let errors = expected.iter_mut().filter(|said| said.is_error);
    errors.zip(stops).for_each(|(said, stop)| said.detail = stop.words(false));
    for (number, own) in ours.iter().enumerate() {
        assert_eq!(in_place(&said_by_ours(s, number), own), expected, "ours of {number}, then native's");
    }
    for kind in [
        "update_exists",
        "multiple_unique_conflicts",
        "update_missing",
        "delete_missing",
        "delete_origin_differs",
        "update_origin_differs",
    ] {
        // One of them was rolled back with an error, and met again.
        let again = u64::from(kind == "update_origin_differs");
        let count = s.conflicts(kind) + again;
        assert!(count > again, "{kind} is among them");
        wait_for(&format!("native's {kind}: {count}"), BOUND, || Ok(native_count(s, kind) == count)).unwrap();
    }
    for table in TABLES {
        let rows = format!("SELECT string_agg(x::text, ' ' ORDER BY x::text) FROM {table} x");
        assert_eq!(s.target_one(&rows), target.one(NATIVE, &rows), "{table}");
    }
    target.sql(NATIVE, "DROP SUBSCRIPTION n").unwrap();
}
