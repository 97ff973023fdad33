//! Comparison with test_decoding: the rows of each transaction, in its order. Transactions are put
//! together in the simplest way, in memory, because only the content of records is compared.

use std::collections::{BTreeMap, BTreeSet};

use base::Xid;
use decode::{Decoded, NewTuple, Place, What, decode};
use testkit::{Cluster, Major};

use crate::server::{Stretch, position};

/// All tables begin with `id int`.
const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL; \
    CREATE TABLE whole (id int, v text); ALTER TABLE whole REPLICA IDENTITY FULL; \
    CREATE TABLE keyless (id int, v text); CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id); \
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100); \
    CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200)";

const WORK: [&str; 13] = [
    "INSERT INTO t VALUES (1, 'one', repeat('b', 9000)), (2, NULL, ''), (3, 'three', NULL)",
    "UPDATE t SET v = 'two' WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3",
    "INSERT INTO whole VALUES (1, 'x'), (2, 'x'); UPDATE whole SET v = 'y'; DELETE FROM whole WHERE id = 2",
    "COPY t (id) FROM PROGRAM 'seq 100 400'",
    "INSERT INTO t VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET v = 'upserted'",
    "INSERT INTO t SELECT n, 'maybe' FROM generate_series(395, 410) n ON CONFLICT DO NOTHING",
    "BEGIN; INSERT INTO t VALUES (30); SAVEPOINT a; INSERT INTO t VALUES (31); SAVEPOINT inner_a; INSERT INTO t VALUES (32); \
     ROLLBACK TO a; SAVEPOINT b; DELETE FROM t WHERE id = 30; SAVEPOINT c; INSERT INTO whole VALUES (33); RELEASE b; COMMIT",
    "BEGIN; INSERT INTO t VALUES (40); ROLLBACK",
    "BEGIN; INSERT INTO t VALUES (50); SAVEPOINT a; INSERT INTO whole VALUES (51); PREPARE TRANSACTION 'one'",
    "BEGIN; INSERT INTO t VALUES (60); PREPARE TRANSACTION 'two'",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'two'",
    "INSERT INTO parts VALUES (1, 'a'), (150, 'b'); UPDATE parts SET id = id + 40; UPDATE parts SET id = id + 60 WHERE id < 100; \
     INSERT INTO keyless VALUES (1), (2); SELECT pg_logical_emit_message(true, 'ours', 'inside')",
];

/// `INSERT t 1`: the action, the table, and the first column if it is known.
type Line = String;

fn first_column(data: &[u8]) -> i32 {
    i32::from_le_bytes(data[..4].try_into().unwrap())
}

fn of_new(tuple: &NewTuple<'_>) -> i32 {
    match tuple {
        NewTuple::Whole(tuple) => first_column(tuple.data()),
        other => panic!("a published table's row is whole: {other:?}"),
    }
}

/// Puts transactions together from records.
#[derive(Default)]
struct Transactions {
    names: BTreeMap<u32, String>,
    tops: BTreeMap<u32, u32>,
    open: BTreeMap<u32, Vec<(u64, Line)>>,
    speculative: BTreeMap<u32, Line>,
    committed: Vec<(Xid, Vec<Line>)>,
}

impl Transactions {
    fn see(&mut self, lsn: u64, decoded: &Decoded<'_>) {
        let xid = decoded.xid.0;
        if let Some(top) = decoded.top_level_xid {
            self.tops.insert(xid, top.0);
        }
        match &decoded.what {
            What::Insert(insert) if insert.is_logical && !insert.is_toast => {
                let Some(table) = self.name(insert.place) else { return };
                let line = format!("INSERT {table} {}", of_new(&insert.tuple));
                if insert.is_speculative {
                    self.speculative.insert(xid, line);
                } else {
                    self.add(xid, lsn, line);
                }
            }
            What::Confirm(confirm) if self.name(confirm.place).is_some() => {
                let line = self.speculative.remove(&xid).unwrap();
                self.add(xid, lsn, line);
            }
            What::MultiInsert(insert) if insert.is_logical && !insert.is_toast => {
                for (place, tuple) in insert.rows() {
                    let Some(table) = self.name(place) else { return };
                    self.add(xid, lsn, format!("INSERT {table} {}", of_new(&tuple)));
                }
            }
            What::Update(update) if update.is_logical => {
                let Some(table) = self.name(update.place) else { return };
                let old =
                    update.old.map_or(String::new(), |old| format!("{} to ", first_column(old.tuple.data())));
                self.add(xid, lsn, format!("UPDATE {table} {old}{}", of_new(&update.tuple)));
            }
            What::Delete(delete) if delete.is_super => {
                self.speculative.remove(&xid).unwrap();
            }
            What::Delete(delete) => {
                let Some(table) = self.name(delete.place) else { return };
                let old = delete
                    .old
                    .map_or("(no-tuple-data)".to_owned(), |old| first_column(old.tuple.data()).to_string());
                self.add(xid, lsn, format!("DELETE {table} {old}"));
            }
            What::Message(message) if message.transactional && message.prefix == b"ours" => {
                self.add(xid, lsn, format!("message {}", String::from_utf8_lossy(message.content)));
            }
            What::Commit(ended) => self.commit(ended.xid, ended.subxacts.iter()),
            What::Abort(ended) => {
                for xid in ended.subxacts.iter().chain([ended.xid]) {
                    self.open.remove(&xid.0);
                }
            }
            _ => {}
        }
    }

    fn commit(&mut self, xid: Xid, subxacts: impl Iterator<Item = Xid>) {
        let mut lines = Vec::new();
        for part in subxacts {
            if let Some(part_lines) = self.open.remove(&part.0) {
                // The subtransaction wrote rows, so a record has named its top-level transaction.
                assert_eq!(self.tops.get(&part.0), Some(&xid.0));
                lines.extend(part_lines);
            }
        }
        lines.extend(self.open.remove(&xid.0).unwrap_or_default());
        lines.sort_by_key(|(lsn, _)| *lsn);
        if !lines.is_empty() {
            self.committed.push((xid, lines.into_iter().map(|(_, line)| line).collect()));
        }
    }

    fn name(&self, place: Place) -> Option<String> {
        self.names.get(&place.locator.relfilenumber).cloned()
    }

    fn add(&mut self, xid: u32, lsn: u64, line: Line) {
        self.open.entry(xid).or_default().push((lsn, line));
    }
}

/// Parses lines such as
/// `table public.t: UPDATE: old-key: id[integer]:2 new-tuple: id[integer]:20 v[text]:null`.
fn theirs(cluster: &Cluster) -> Vec<(Xid, Vec<Line>)> {
    let rows = cluster
        .sql("postgres", "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '1')")
        .unwrap();
    let mut transactions: Vec<(Xid, Vec<Line>)> = Vec::new();
    for row in rows {
        let data = row[0].clone().unwrap();
        if let Some(xid) = data.strip_prefix("BEGIN ") {
            transactions.push((Xid(xid.parse().unwrap()), Vec::new()));
        } else if let Some((table, rest)) =
            data.strip_prefix("table public.").and_then(|r| r.split_once(": "))
        {
            let (action, row) = rest.split_once(": ").unwrap();
            let ids: Vec<&str> =
                row.split("id[integer]:").skip(1).map(|rest| rest.split(' ').next().unwrap()).collect();
            let ids = if ids.is_empty() { row.to_owned() } else { ids.join(" to ") };
            transactions.last_mut().unwrap().1.push(format!("{action} {table} {ids}"));
        } else if let Some(message) = data.strip_prefix("message: ").filter(|m| m.contains("prefix: ours")) {
            let content = message.split("content:").nth(1).unwrap();
            transactions.last_mut().unwrap().1.push(format!("message {content}"));
        }
    }
    transactions.retain(|(_, lines)| !lines.is_empty());
    transactions
}

#[test]
fn the_rows_of_transactions_are_those_that_test_decoding_gives() {
    for major in Major::under_test() {
        let cluster = Cluster::start(major).unwrap();
        cluster.sql("postgres", SCHEMA).unwrap();
        cluster.sql("postgres", "SELECT pg_create_logical_replication_slot('s', 'test_decoding')").unwrap();
        let from = position(&cluster);
        for query in WORK {
            cluster.sql("postgres", query).unwrap();
        }
        let to = position(&cluster);
        let names = cluster
            .sql("postgres", "SELECT pg_relation_filenode(oid), relname FROM pg_class WHERE relkind = 'r' AND oid >= 16384")
            .unwrap();
        let names =
            names.into_iter().map(|row| (row[0].clone().unwrap().parse().unwrap(), row[1].clone().unwrap()));
        let mut ours = Transactions { names: names.collect(), ..Transactions::default() };
        let stretch = Stretch { cluster, from, to };
        stretch.read(usize::MAX, |record| ours.see(record.lsn().as_u64(), &decode(record).unwrap()));
        let theirs = theirs(&stretch.cluster);
        assert_eq!(ours.committed, theirs, "{major}");
        let kinds: BTreeSet<&str> =
            theirs.iter().flat_map(|(_, lines)| lines).map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["DELETE", "INSERT", "UPDATE", "message"]);
        assert!(theirs.iter().map(|(_, lines)| lines.len()).sum::<usize>() > 330);
        assert!(ours.speculative.is_empty() && ours.tops.len() >= 5, "{major}");
    }
}
