//! Real tuples with bits flipped, bytes cut off and bytes inserted: an error or another value,
//! never a panic.

use base::Oid;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use types::{Attribute, Codec, HeapTuple, Settings};

use crate::oracle::Oracle;

/// One of each kind of value, small enough that most damage changes something.
const TABLE: &str = "CREATE TYPE pair AS (a int, b text, c int[]); CREATE TYPE mood AS ENUM ('a', 'b'); \
    CREATE TABLE t (a text, b bytea, n numeric, j jsonb, p jsonpath, q tsquery, v tsvector, i inet, bits varbit, pa path, po polygon, \
        s pg_snapshot, ia int[], ta text[], pr pair, prs pair[], r numrange, m int4multirange, m2 nummultirange, mo mood, x xml, ov oidvector, \
        d date, ts timestamptz, iv interval, ti time, tz timetz, na name, mac macaddr, compressed text, lz text COMPRESSION pglz); \
    INSERT INTO t SELECT 'text', '\\x00ff', 12.345, '{\"a\": [1, {\"b\": null}], \"c\": \"d\"}', '$.a[0 to 2] ? (@.b > 1 && @ like_regex \"x\").size()', \
        'a & !(b | c:*A) <2> d', 'a:1A,2 b c:3', '1.2.3.4/5', '10101', '((1,2),(3,4))', '((1,2),(3,4))', '10:20:11,12', '{1,NULL,3}', \
        '[0:1][2:2]={{a},{\"b c\"}}', ROW(1, 'x', '{1}')::pair, ARRAY[ROW(NULL, 'y', NULL)::pair], '[1.5,2)', '{[1,2),[5,)}', '{[1,2),(5.25,)}', 'b', \
        '<?xml version=\"1.1\"?><a/>', '1 2', '2020-01-01', 'now', '1 mon -1 day', '10:11', '10:11+2', 'name', '08:00:2b:01:02:03', \
        repeat('compress ', 300), repeat('x', 3000) \
      FROM generate_series(1, 3)";

struct Damaged {
    attributes: Vec<Attribute>,
    codecs: Vec<Codec>,
    settings: Settings,
}

impl Damaged {
    /// Reads everything that can be read from a tuple.
    fn read(&self, item: &[u8]) -> usize {
        let Ok(tuple) = HeapTuple::from_page(item) else { return 0 };
        let mut values = Vec::new();
        if tuple.deform(&self.attributes, &mut values).is_err() {
            return 0;
        }
        let mut rendered = 0;
        for (value, codec) in values.iter().zip(&self.codecs) {
            self.render(value, codec, &mut rendered);
        }
        rendered
    }

    fn render(&self, value: &types::Value<'_>, codec: &Codec, rendered: &mut usize) {
        let Ok(Some(payload)) = value.payload() else { return };
        let mut out = Vec::new();
        *rendered += usize::from(codec.text(&payload, &self.settings, &mut out).is_ok());
        out.clear();
        *rendered += usize::from(codec.binary(&payload, &self.settings, &mut out).is_ok());
    }
}

#[test]
fn no_damage_panics() {
    Oracle::each(|oracle| {
        oracle.sql(TABLE);
        let (_, attributes) = oracle.attributes("t");
        let types = oracle.types();
        let settings = oracle.settings.clone();
        let compile = |oid: Oid| Codec::compile(oid, &types, &settings).unwrap();
        let codecs: Vec<Codec> = attributes.iter().map(|attribute| compile(attribute.type_oid)).collect();
        let tuple = oracle.tuples("t").remove(0);
        let damaged = Damaged { attributes, codecs, settings };
        let whole = damaged.read(&tuple);
        assert_eq!(whole, damaged.codecs.len() * 2, "undamaged");
        // Every byte with each of its bits flipped and with all of them, and every shorter length.
        for at in 0..tuple.len() {
            let mut bytes = tuple.clone();
            for turn in (0..8).map(|bit| 1 << bit).chain([0xff]) {
                bytes[at] ^= turn;
                damaged.read(&bytes);
                bytes[at] ^= turn;
            }
            damaged.read(&tuple[..at]);
        }
        let config = Config { cases: 3_000, failure_persistence: None, ..Config::default() };
        let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6);
        let result = TestRunner::new(config).run(&edits, |edits| {
            let mut bytes = tuple.clone();
            for (at, byte, how) in edits {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes.insert(at, byte),
                    1 => drop(bytes.remove(at)),
                    _ => bytes[at] = byte,
                }
            }
            damaged.read(&bytes);
            Ok(())
        });
        result.unwrap();
        every_payload_as_every_type(&damaged, &tuple);
    });
}

fn every_payload_as_every_type(damaged: &Damaged, tuple: &[u8]) {
    let mut values = Vec::new();
    HeapTuple::from_page(tuple).unwrap().deform(&damaged.attributes, &mut values).unwrap();
    let mut rendered = 0;
    for value in &values {
        for codec in &damaged.codecs {
            damaged.render(value, codec, &mut rendered);
        }
    }
    assert!(rendered > damaged.codecs.len() * 2);
}
