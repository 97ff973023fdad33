//! What a publication hides, reported beforehand: partitions whose root is published, and other
//! changes that are not carried.

use testkit::Pair;

use crate::tables::{CASE, Case, case};
use crate::{Ends, cured, each_major, told};

/// Two partitions below `root`, published as it. Names: what differs between root and leaf.
const CASES: &[Case] = &[
    // Their keys lack what the root is partitioned by, so it cannot have such a key.
    Case {
        name: "root_without_leaves_with_keys",
        source: "CREATE TABLE root (id int NOT NULL, at int, v text) PARTITION BY RANGE (at);
            CREATE TABLE low PARTITION OF root (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9);
            CREATE TABLE high PARTITION OF root (PRIMARY KEY (id)) FOR VALUES FROM (9) TO (99);
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int PRIMARY KEY, at int, v text)",
        expected: &[
            cured("cannot", "source", "table public.root", "no replica identity, while partitions have one"),
            told("warning", "source", "table public.root", "nor does TRUNCATE, DROP or DETACH"),
        ],
        ..CASE
    },
    // All leaves have a key that can be the root's; sub-partitions.
    Case {
        name: "root_may_have_the_leaves_key",
        source: "CREATE TABLE root (id int NOT NULL, at int NOT NULL, part int NOT NULL) PARTITION BY RANGE (at);
            CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY LIST (part);
            CREATE TABLE one PARTITION OF low (PRIMARY KEY (at, id, part)) FOR VALUES IN (1);
            CREATE TABLE high PARTITION OF root (PRIMARY KEY (at, id, part)) FOR VALUES FROM (9) TO (99);
            ALTER TABLE root REPLICA IDENTITY NOTHING;
            CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int, at int, part int, PRIMARY KEY (id, at, part))",
        expected: &[cured("cannot", "source", "table public.root", "no replica identity, while partitions have one")],
        ..CASE
    },
    // Like it, but for the order of columns: one primary key cannot take both in.
    Case {
        name: "leaves_keys_in_different_orders",
        source: "CREATE TABLE root (id int NOT NULL, at int NOT NULL, part int NOT NULL) PARTITION BY RANGE (at);
            CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY LIST (part);
            CREATE TABLE one PARTITION OF low (PRIMARY KEY (at, id, part)) FOR VALUES IN (1);
            CREATE TABLE high PARTITION OF root (PRIMARY KEY (id, at, part)) FOR VALUES FROM (9) TO (99);
            ALTER TABLE root REPLICA IDENTITY NOTHING;
            CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int, at int, part int, PRIMARY KEY (id, at, part))",
        expected: &[cured("cannot", "source", "table public.root", "no replica identity, while partitions have one")],
        ..CASE
    },
    // The root has an index that serves, but is not its identity; leaves have others.
    Case {
        name: "root_with_an_unused_key",
        since: 15,
        source: "CREATE SCHEMA far; CREATE TABLE far.\"Root\" (id int NOT NULL, at int NOT NULL) PARTITION BY RANGE (at);
            CREATE TABLE far.\"Low\" PARTITION OF far.\"Root\" (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9);
            CREATE UNIQUE INDEX \"Both\" ON far.\"Root\" (id, at);
            CREATE PUBLICATION p FOR TABLES IN SCHEMA far WITH (publish_via_partition_root)",
        target: "CREATE SCHEMA far; CREATE TABLE far.\"Root\" (id int PRIMARY KEY, at int)",
        expected: &[cured("cannot", "source", "table far.Root", "no replica identity, while partitions have one")],
        ..CASE
    },
    Case {
        name: "root_and_leaves_without",
        source: "CREATE TABLE root (id int NOT NULL) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int PRIMARY KEY)",
        expected: &[
            cured("warning", "source", "table public.low", "no replica identity"),
            cured("warning", "source", "table public.root", "once a partition has one"),
        ],
        ..CASE
    },
    Case {
        name: "root_full_leaf_with_a_key",
        source: "CREATE TABLE root (id int NOT NULL, v text) PARTITION BY RANGE (id);
            CREATE TABLE low PARTITION OF root (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9);
            CREATE TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99);
            ALTER TABLE root REPLICA IDENTITY FULL; ALTER TABLE high REPLICA IDENTITY FULL;
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int, v text)",
        expected: &[cured("cannot", "source", "table public.root", "public.root has FULL, public.low has (id)")],
        ..CASE
    },
    Case {
        name: "leaf_by_another_index",
        source: "CREATE TABLE root (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id);
            CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9); CREATE UNIQUE INDEX by_v ON low (v);
            ALTER TABLE low REPLICA IDENTITY USING INDEX by_v;
            CREATE TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99); ALTER TABLE high REPLICA IDENTITY NOTHING;
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int PRIMARY KEY, v int)",
        expected: &[
            cured("cannot", "source", "table public.root", "public.root has (id), public.low has (v)"),
            cured("warning", "source", "table public.high", "no replica identity"),
        ],
        ..CASE
    },
    Case {
        name: "leaves_that_write_no_wal",
        source: "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE UNLOGGED TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99);
            CREATE TABLE rest (id int NOT NULL) PARTITION BY RANGE (id); CREATE FOREIGN DATA WRAPPER w; CREATE SERVER elsewhere FOREIGN DATA WRAPPER w;
            CREATE FOREIGN TABLE remote PARTITION OF rest FOR VALUES FROM (0) TO (9) SERVER elsewhere;
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);
            CREATE PUBLICATION q FOR TABLE rest WITH (publish_via_partition_root, publish = 'insert')",
        target: "CREATE TABLE root (id int PRIMARY KEY); CREATE TABLE rest (id int PRIMARY KEY)",
        args: &["--publication", "p", "--publication", "q"],
        expected: &[
            cured("warning", "source", "table public.high", "unlogged partitions of public.root"),
            told("warning", "source", "table public.remote", "foreign partitions of public.rest"),
            told("warning", "source", "tables public.rest, public.root", "nor does TRUNCATE"),
        ],
        ..CASE
    },
    // Another publication, with the other setting, names a leaf.
    Case {
        name: "leaf_in_another_publication",
        source: "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root); CREATE PUBLICATION q FOR TABLE low",
        target: "CREATE TABLE root (id int PRIMARY KEY)",
        args: &["--publication", "p", "--publication", "q"],
        expected: &[told("note", "source", "table public.low", "publication q publishes it by itself, and p as public.root")],
        ..CASE
    },
    Case {
        name: "leaf_with_its_own_filter",
        since: 15,
        source: "CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9);
            CREATE TABLE high PARTITION OF root FOR VALUES FROM (9) TO (99);
            CREATE PUBLICATION p FOR TABLE root, low WHERE (id > 5), high (id) WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int PRIMARY KEY, v int)",
        expected: &[
            cured("warning", "source", "table public.low", "the row filter that publication p gives it is not used"),
            cured("warning", "source", "table public.high", "the column list that publication p gives it is not used"),
        ],
        ..CASE
    },
    // The source judges them by the leaf.
    Case {
        name: "filter_beside_the_leafs_identity",
        since: 15,
        source: "CREATE TABLE root (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
            CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9); CREATE UNIQUE INDEX by_id ON low (id);
            ALTER TABLE low REPLICA IDENTITY USING INDEX by_id;
            CREATE PUBLICATION p FOR TABLE root WHERE (at > 5) WITH (publish_via_partition_root)",
        target: "CREATE TABLE root (id int, at int, PRIMARY KEY (id, at))",
        expected: &[
            cured("cannot", "source", "table public.root", "public.root has (id, at), public.low has (id)"),
        ],
        ..CASE
    },
    Case {
        name: "not_carried_beside_partitions",
        both: "CREATE TABLE t (id serial PRIMARY KEY)",
        source: "CREATE TABLE child (id int REFERENCES t); CREATE MATERIALIZED VIEW seen AS SELECT 1 AS one; CREATE UNLOGGED TABLE scratch (id int);
            UPDATE pg_extension SET extconfig = ARRAY[1259::oid], extcondition = ARRAY[''] WHERE extname = 'plpgsql';
            CREATE PUBLICATION p FOR TABLE t",
        expected: &[
            told("note", "source", "sequences", "1 in this database (1 of columns of published tables)"),
            told("note", "source", "TRUNCATE", "public.child to public.t"),
            told("note", "source", "materialized views", "public.seen"),
            told("note", "source", "table public.scratch", "unlogged, beside published tables"),
            told("note", "source", "extensions", "plpgsql"),
        ],
        ..CASE
    },
];

/// No finding for identities that differ without a loss, nor for lists that the source accepts.
fn what_fits(pair: &Pair) {
    let ends = Ends::new(pair, "identities_that_fit");
    let source = "CREATE TABLE root (id int NOT NULL, v text) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF root (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9);
        ALTER TABLE root REPLICA IDENTITY FULL;
        CREATE TABLE keyed (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
        CREATE TABLE whole PARTITION OF keyed FOR VALUES FROM (0) TO (9); ALTER TABLE whole REPLICA IDENTITY FULL;
        CREATE PUBLICATION p FOR TABLE root, keyed WITH (publish_via_partition_root)";
    pair.source.sql("identities_that_fit", source).unwrap();
    let target =
        "CREATE TABLE root (id int PRIMARY KEY, v text); CREATE TABLE keyed (id int PRIMARY KEY, v int)";
    pair.target.sql("identities_that_fit", target).unwrap();
    let said = ends.check(&[]);
    let worse = said.worse_than_a_note();
    assert_eq!(worse.len(), 1, "{worse:#?}");
    assert!(worse[0]["what"].as_str().unwrap().contains("a partition that is attached"), "{worse:#?}");
    assert!(worse[0]["remedy"].as_str().unwrap().contains("docs/not-carried.md"), "{worse:#?}");
}

#[test]
fn what_a_publication_hides_is_told_beforehand() {
    each_major(|major| {
        let pair = Pair::start(major, major).unwrap();
        let cases = CASES.iter().filter(|own| major.number() >= own.since);
        cases.for_each(|own| case(&pair, own));
        what_fits(&pair);
    });
}
