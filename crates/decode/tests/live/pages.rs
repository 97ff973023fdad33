//! The bytes of rows, compared with the pages that hold them.

use std::collections::BTreeMap;

use base::RelFileLocator;
use decode::{InPlace, NewTuple, Place, RawTuple, What, decode, page_tuple};
use testkit::{Cluster, Major};
use wal::{Fork, PAGE_SIZE, Record};

use crate::server::{Stretch, position};

/// A row: `t_infomask2`'s attributes, whether it has NULLs, and everything behind the fixed header.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    infomask2: u16,
    infomask: u16,
    hoff: u8,
    bytes: Vec<u8>,
}

impl Row {
    fn of(tuple: &RawTuple<'_>) -> Row {
        let RawTuple { infomask2, infomask, hoff, bytes } = *tuple;
        Row { infomask2, infomask, hoff, bytes: bytes.to_vec() }
    }

    fn tuple(&self) -> RawTuple<'_> {
        let Row { infomask2, infomask, hoff, bytes } = self;
        RawTuple { infomask2: *infomask2, infomask: *infomask, hoff: *hoff, bytes }
    }
}

type Rows = BTreeMap<(u32, u16), Row>;

/// The rows of one relation's files, followed through WAL alone.
struct Follower {
    locator: RelFileLocator,
    rows: Rows,
    images: usize,
    spliced: usize,
    in_image: usize,
    in_place: usize,
}

impl Follower {
    fn see(&mut self, record: &Record<'_>) {
        let parts = record.parts().unwrap();
        let mut shown = Vec::new();
        let locator = self.locator;
        for block in parts.blocks().filter(|block| block.locator == locator && block.fork == Fork::Main) {
            if block.will_init {
                self.rows.retain(|(number, _), _| *number != block.number);
            }
            // The image shows the page after the change, so it already has what the record says.
            if let Some(image) = block.image.filter(|image| image.apply) {
                let mut page = [0; PAGE_SIZE];
                image.restore(&mut page).unwrap();
                self.take_page(block.number, &page);
                shown.push(block.number);
                self.images += 1;
            }
        }
        self.apply(&decode(record).unwrap().what, &shown);
    }

    fn take_page(&mut self, number: u32, page: &[u8; PAGE_SIZE]) {
        self.rows.retain(|(block, _), _| *block != number);
        for offset in 1..=300 {
            if let Some(tuple) = page_tuple(page, offset) {
                self.rows.insert((number, offset), Row::of(&tuple));
            }
        }
    }

    fn apply(&mut self, what: &What<'_>, shown: &[u32]) {
        match what {
            What::Insert(insert) if insert.place.locator == self.locator => {
                self.set(insert.place, insert.tuple)
            }
            What::MultiInsert(insert) if insert.locator == self.locator => {
                insert.rows().for_each(|(place, tuple)| self.set(place, tuple));
            }
            What::Update(update) if update.place.locator == self.locator => match update.tuple {
                NewTuple::Spliced(spliced) => {
                    let old = &self.rows[&(update.old_place.block, update.old_place.offset)];
                    let bytes = spliced.bytes(&old.tuple()).unwrap();
                    let row = Row::of(&spliced.tuple(&bytes));
                    self.rows.insert((update.place.block, update.place.offset), row);
                    self.spliced += 1;
                }
                tuple => self.set(update.place, tuple),
            },
            What::InPlace(InPlace { place, data: Some(data), .. })
                if place.locator == self.locator && !shown.contains(&place.block) =>
            {
                let row = self.rows.get_mut(&(place.block, place.offset)).unwrap();
                let start = usize::from(row.hoff) - 23;
                assert_eq!(row.bytes.len() - start, data.len());
                row.bytes[start..].copy_from_slice(data);
                self.in_place += 1;
            }
            _ => {}
        }
    }

    fn set(&mut self, place: Place, tuple: NewTuple<'_>) {
        let row = match tuple {
            NewTuple::Whole(tuple) => Row::of(&tuple),
            NewTuple::InImage(image) => {
                let mut page = [0; PAGE_SIZE];
                image.restore(&mut page).unwrap();
                self.in_image += 1;
                Row::of(&page_tuple(&page, place.offset).unwrap())
            }
            NewTuple::Spliced(_) => unreachable!("of updates only"),
        };
        self.rows.insert((place.block, place.offset), row);
    }
}

/// The bits that are compared. A page may change others without a record: hints, and bits that
/// deleting and locking set.
const INFOMASK: u16 = 0x0007;
const ATTRIBUTES: u16 = 0x07ff;

/// The server's own view of every row on the pages of `table`: place, attributes, flags, bitmap and
/// data.
fn on_pages(cluster: &Cluster, table: &str) -> BTreeMap<(u32, u16), (u16, u16, u8, String)> {
    let sql = format!(
        "SELECT b, lp, t_infomask2::int & {ATTRIBUTES}, t_infomask::int & {INFOMASK}, t_hoff, encode(t_data, 'hex') \
         FROM generate_series(0, pg_relation_size('{table}') / 8192 - 1) AS b, \
         heap_page_items(get_raw_page('{table}', b::int)) WHERE lp_flags = 1"
    );
    let rows = cluster.sql("postgres", &sql).unwrap();
    let row = |row: Vec<Option<String>>| {
        let text = |column: usize| row[column].clone().unwrap();
        let number = |column: usize| text(column).parse::<u32>().unwrap();
        let key = (number(0), number(1) as u16);
        (key, (number(2) as u16, number(3) as u16, number(4) as u8, text(5)))
    };
    rows.into_iter().map(row).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Follows `table` through `work`. Returns the follower.
fn follow(major: Major, prepare: &str, table: &str, work: &[&str], all: bool) -> Follower {
    let cluster = Cluster::builder(major).setting("autovacuum", "off").start().unwrap();
    cluster.sql("postgres", "CREATE EXTENSION pageinspect").unwrap();
    cluster.sql("postgres", prepare).unwrap();
    cluster.sql("postgres", "CHECKPOINT").unwrap();
    let from = position(&cluster);
    for query in work {
        cluster.sql("postgres", query).unwrap();
    }
    let to = position(&cluster);
    let locator = cluster.one(
        "postgres",
        &format!(
            "SELECT (CASE reltablespace WHEN 0 THEN 1663::oid ELSE reltablespace END) || '/' || (SELECT oid FROM pg_database WHERE datname = \
             current_database()) || '/' || pg_relation_filenode(oid) FROM pg_class WHERE oid = '{table}'::regclass"
        ),
    );
    let stretch = Stretch { cluster, from, to };
    let mut follower = None;
    stretch.read(usize::MAX, |record| {
        for block in record.parts().unwrap().blocks().filter(|block| block.locator.to_string() == locator) {
            follower.get_or_insert(Follower {
                locator: block.locator,
                rows: Rows::new(),
                images: 0,
                spliced: 0,
                in_image: 0,
                in_place: 0,
            });
        }
        if let Some(follower) = &mut follower {
            follower.see(record);
        }
    });
    let follower = follower.unwrap();
    let pages = on_pages(&stretch.cluster, table);
    let mut compared = 0;
    for (place, row) in &follower.rows {
        // Pruned meanwhile. Decoding does not need such rows.
        let Some(page) = pages.get(place) else { continue };
        let tuple = row.tuple();
        let ours = (row.infomask2 & ATTRIBUTES, row.infomask & INFOMASK, row.hoff, hex(tuple.data()));
        assert_eq!(&ours, page, "{major}: {table} {place:?}");
        compared += 1;
    }
    if all {
        assert_eq!(compared, pages.len(), "{major}: rows of {table} that WAL did not show");
    }
    assert!(compared > 50, "{major}: {compared} rows of {table}");
    follower
}

/// Rows of a table that can be published are whole: for every way of writing them, with NULLs and
/// without.
#[test]
fn a_row_of_a_table_is_in_wal_byte_by_byte() {
    for major in Major::under_test() {
        let follower = follow(
            major,
            "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric)",
            "t",
            &[
                "INSERT INTO t SELECT n, repeat('v', n), nullif(n % 3, 0) FROM generate_series(1, 200) n",
                "COPY t (id) FROM PROGRAM 'seq 1000 1200'",
                "UPDATE t SET v = 'hot' WHERE id % 10 = 0; UPDATE t SET id = id + 5000 WHERE id % 10 = 1",
                "CHECKPOINT; UPDATE t SET n = 7 WHERE id % 10 = 2; ALTER TABLE t ADD later int",
                "INSERT INTO t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'upserted', later = 1",
            ],
            true,
        );
        assert!(follower.images > 3, "{major}: {} images", follower.images);
        assert_eq!((follower.spliced, follower.in_image), (0, 0), "{major}: it is logged for decoding");
    }
}

/// Rows of a catalog: from page images, spliced with the row before, and overwritten in place.
#[test]
fn a_row_of_a_catalog_follows_from_wal_alone() {
    for major in Major::under_test() {
        let work: Vec<String> = (0..40)
            .map(|n| {
                format!(
                    "CREATE TABLE a_rather_long_name_{n} (a int PRIMARY KEY, b text); \
                     INSERT INTO a_rather_long_name_{n} SELECT 1; \
                     ALTER TABLE a_rather_long_name_{n} RENAME TO b_rather_long_name_{n}; \
                     ALTER TABLE b_rather_long_name_{n} REPLICA IDENTITY FULL"
                )
            })
            .chain(["ANALYZE".to_owned(), "REINDEX TABLE b_rather_long_name_1".to_owned()])
            .collect();
        let work: Vec<&str> = work.iter().map(String::as_str).collect();
        let follower = follow(major, "SELECT 1", "pg_class", &work, false);
        let Follower { images, spliced, in_image, in_place, .. } = follower;
        assert!(
            images > 3 && spliced > 20 && in_image > 0 && in_place > 20,
            "{major}: {images} images, {spliced} spliced, {in_image} in an image, {in_place} in place"
        );
    }
}
