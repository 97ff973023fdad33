//! The work on the server. Each statement is run by itself.

pub(crate) const PREPARE: &[&str] = &[
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN word AS varchar(20); CREATE TYPE pair AS (a int, b text); \
     CREATE SCHEMA other; CREATE TYPE other.span AS RANGE (subtype = numeric)",
    "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE whole (id int, v text, big text); ALTER TABLE whole REPLICA IDENTITY FULL; \
     ALTER TABLE whole ALTER big SET STORAGE EXTERNAL; \
     INSERT INTO whole VALUES (1, 'before', NULL), (2, 'before', repeat('w', 5000))",
    "ALTER TABLE whole ADD late int DEFAULT 7, ADD list int[] DEFAULT '{1,2}', ADD doc jsonb DEFAULT '{\"a\": 1}'",
    "CREATE TABLE nokey (id int, v text)",
    "CREATE TABLE indexed (id int NOT NULL, v text, k text NOT NULL, w int); CREATE UNIQUE INDEX ik ON indexed (k, id); \
     ALTER TABLE indexed REPLICA IDENTITY USING INDEX ik",
    "CREATE TABLE typed (id int PRIMARY KEY, m mood, d word, p pair, a int[], r int4range, s other.span, j jsonb, \
     ts timestamptz, b bytea, f float8, u uuid, i interval, ms mood[])",
    "CREATE TABLE filtered (id int PRIMARY KEY, a int, v text)",
    "CREATE TABLE fullfiltered (id int, a int, v text, big text); ALTER TABLE fullfiltered REPLICA IDENTITY FULL; \
     ALTER TABLE fullfiltered ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE listed (a int, id int PRIMARY KEY, b text, c int)",
    "CREATE TABLE generated (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, v text)",
    "CREATE TABLE root (id int PRIMARY KEY, v text, k int) PARTITION BY RANGE (id); \
     CREATE TABLE part1 PARTITION OF root FOR VALUES FROM (0) TO (100); \
     CREATE TABLE part2 (v text, gone int, k int, id int NOT NULL); ALTER TABLE part2 DROP gone; \
     ALTER TABLE root ATTACH PARTITION part2 FOR VALUES FROM (100) TO (200); \
     CREATE TABLE part3 PARTITION OF root FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id); \
     CREATE TABLE part3a PARTITION OF part3 FOR VALUES FROM (200) TO (250)",
    "CREATE TABLE unpublished (id int PRIMARY KEY, v text)",
    "CREATE TABLE other.moved (id int PRIMARY KEY, v text)",
    "CREATE PUBLICATION p_main FOR TABLE t, whole, nokey, indexed, typed, filtered WHERE (id > 10 AND id IS NOT NULL), \
     fullfiltered WHERE (a > 0), listed (id, b), generated",
    "CREATE PUBLICATION p_root FOR TABLE root WITH (publish_via_partition_root = true)",
    "CREATE PUBLICATION p_rootfilter FOR TABLE root WHERE (id % 1 IS NOT NULL OR id > 105) WITH (publish = 'truncate', publish_via_partition_root = true)",
    "CREATE PUBLICATION p_filteredroot FOR TABLE root (id, k) WHERE (id > 105) WITH (publish_via_partition_root = true)",
    "CREATE PUBLICATION p_leaf FOR TABLE root",
    "CREATE PUBLICATION p_all FOR ALL TABLES",
    "CREATE PUBLICATION p_insert FOR TABLE t, whole WITH (publish = 'insert')",
    "CREATE PUBLICATION p_truncate FOR TABLE t, listed, root WITH (publish = 'truncate')",
    "CREATE PUBLICATION p_schema FOR TABLES IN SCHEMA other",
    "SELECT pg_replication_origin_create('elsewhere')",
];

pub(crate) const ROWS: &[&str] = &[
    "INSERT INTO t VALUES (1, 'one', 1.50, NULL), (2, 'two', 'NaN', repeat('b', 10000))",
    "INSERT INTO t SELECT n, 'row ' || n, n / 7.0, CASE WHEN n % 5 = 0 THEN repeat(chr(97 + n % 26), 3000) END \
     FROM generate_series(10, 60) n",
    "COPY t (id, v, big) FROM PROGRAM 'for n in $(seq 100 140); do printf \"%d\\tcopied\\t\" $n; head -c 2500 /dev/zero | tr \"\\\\0\" c; echo; done'",
    "UPDATE t SET v = 'changed' WHERE id IN (1, 2)",
    "UPDATE t SET big = repeat('c', 9000) WHERE id = 2",
    "UPDATE t SET id = 3 WHERE id = 2",
    "DELETE FROM t WHERE id IN (1, 3)",
    "UPDATE whole SET v = 'after' WHERE id = 1",
    "UPDATE whole SET v = 'after' WHERE id = 2",
    "DELETE FROM whole WHERE id = 1",
    "INSERT INTO whole (id, v, late, list, doc) VALUES (3, NULL, NULL, NULL, NULL)",
    "INSERT INTO nokey VALUES (1, 'x'), (1, 'x')",
    "INSERT INTO indexed VALUES (1, 'v', 'key', 4)",
    "UPDATE indexed SET w = 5",
    "UPDATE indexed SET k = 'other', v = NULL",
    "DELETE FROM indexed",
    "INSERT INTO typed VALUES (1, 'ok', 'w', (1, 'b \"q\"'), '{1,NULL,3}', '[1,5)', '(1.5,2.5]', '{\"k\": [1, null]}', \
     '2024-02-29 12:34:56.789+02', '\\x00ff', 1e-7, '00112233-4455-6677-8899-aabbccddeeff', '1 mon 2 days 03:04:05', '{ok,sad}')",
    "INSERT INTO typed (id) VALUES (2)",
    "UPDATE typed SET m = 'sad', p = NULL WHERE id = 1",
    "INSERT INTO listed VALUES (1, 2, 'b', 3)",
    "UPDATE listed SET a = 5",
    "UPDATE listed SET id = 7, b = NULL",
    "DELETE FROM listed",
    "INSERT INTO generated (id, a) VALUES (1, 21)",
    "UPDATE generated SET a = 22, v = 'x'",
    "DELETE FROM generated",
    "INSERT INTO unpublished SELECT n, repeat('u', 100) FROM generate_series(1, 500) n",
    "INSERT INTO t VALUES (10, 'upserted') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    "INSERT INTO t VALUES (70, 'new', 0, repeat('s', 5000)) ON CONFLICT (id) DO NOTHING",
    "BEGIN; DELETE FROM unpublished; COMMIT",
    "INSERT INTO other.moved VALUES (1, 'in its schema')",
];

pub(crate) const FILTERS: &[&str] = &[
    "INSERT INTO filtered VALUES (1, 1, 'out'), (11, 1, 'in'), (12, NULL, 'in')",
    "UPDATE filtered SET a = 2",
    "UPDATE filtered SET id = 2 WHERE id = 11",
    "UPDATE filtered SET id = 20 WHERE id = 1",
    "UPDATE filtered SET id = 21 WHERE id = 20",
    "UPDATE filtered SET id = 3 WHERE id = 2",
    "DELETE FROM filtered",
    "INSERT INTO fullfiltered VALUES (1, 0, 'out', repeat('f', 4000)), (2, 1, 'in', repeat('g', 4000)), (3, NULL, 'null', NULL)",
    "UPDATE fullfiltered SET a = 5 WHERE id = 1",
    "UPDATE fullfiltered SET a = 6, v = 'still in' WHERE id = 2",
    "UPDATE fullfiltered SET a = -1 WHERE id = 2",
    "UPDATE fullfiltered SET v = 'still out' WHERE id = 2",
    "DELETE FROM fullfiltered",
];

pub(crate) const PARTITIONS: &[&str] = &[
    "INSERT INTO root VALUES (1, 'first', 10), (101, 'second', 20), (201, 'third', 30)",
    "UPDATE root SET k = k + 1",
    "UPDATE root SET id = 150 WHERE id = 1",
    "UPDATE root SET id = 151 WHERE id = 150",
    "DELETE FROM root WHERE id = 101",
    "BEGIN; CREATE TABLE part4 (LIKE root INCLUDING ALL); INSERT INTO part4 VALUES (301, 'alone', 1); \
     ALTER TABLE root ATTACH PARTITION part4 FOR VALUES FROM (300) TO (400); INSERT INTO root VALUES (302, 'attached', 2); \
     COMMIT",
    "INSERT INTO root VALUES (303, 'later', 3)",
    "ALTER TABLE root DETACH PARTITION part4",
    "INSERT INTO part4 VALUES (304, 'alone again', 4)",
    "ALTER TABLE root ADD extra text DEFAULT 'x'",
    "INSERT INTO root VALUES (2, 'extra', 1), (102, 'extra', 2)",
    "UPDATE root SET v = 'more'",
    "TRUNCATE part1",
    "TRUNCATE root",
];

pub(crate) const DEFINITIONS: &[&str] = &[
    "BEGIN; ALTER TABLE t ADD x int DEFAULT 5; INSERT INTO t (id) VALUES (201); ALTER TABLE t RENAME v TO w; \
     UPDATE t SET w = 'renamed' WHERE id = 201; ALTER TABLE t RENAME w TO v; ALTER TABLE t DROP x; \
     INSERT INTO t (id, v) VALUES (202, 'after'); COMMIT",
    "BEGIN; ALTER TABLE t ADD y int; INSERT INTO t (id, y) VALUES (203, 1); ROLLBACK",
    "INSERT INTO t (id) VALUES (204)",
    "BEGIN; SAVEPOINT a; ALTER TABLE t ADD z int; INSERT INTO t (id, z) VALUES (205, 1); ROLLBACK TO a; \
     INSERT INTO t (id) VALUES (206); COMMIT",
    "ALTER TABLE t ALTER n TYPE float8; ALTER TABLE t ALTER n TYPE numeric(12, 3)",
    "INSERT INTO t (id, n) VALUES (207, 1.2345)",
    "VACUUM FULL t",
    "UPDATE t SET v = 'rewritten' WHERE id = 207",
    "CLUSTER t USING t_pkey",
    "BEGIN; CREATE TABLE fresh (id int PRIMARY KEY, m mood); INSERT INTO fresh VALUES (1, 'ok'); COMMIT",
    "INSERT INTO fresh VALUES (2, 'sad')",
    "ALTER PUBLICATION p_main ADD TABLE fresh",
    "INSERT INTO fresh VALUES (3, NULL)",
    "ALTER TYPE mood ADD VALUE 'great'",
    "INSERT INTO fresh VALUES (4, 'great')",
    "ALTER TYPE mood RENAME TO feeling",
    "INSERT INTO fresh VALUES (5, 'ok')",
    "ALTER PUBLICATION p_main DROP TABLE fresh",
    "INSERT INTO fresh VALUES (6, 'ok')",
    "BEGIN; ALTER PUBLICATION p_main ADD TABLE fresh; INSERT INTO fresh VALUES (7, 'ok'); COMMIT",
    "ALTER PUBLICATION p_main SET (publish = 'insert, delete')",
    "UPDATE fresh SET m = NULL WHERE id = 7",
    "ALTER PUBLICATION p_main SET (publish = 'insert, update, delete, truncate')",
    "ALTER TABLE fresh REPLICA IDENTITY FULL",
    "DELETE FROM fresh WHERE id = 1",
    "ALTER TABLE fresh SET SCHEMA other",
    "UPDATE other.fresh SET m = 'sad' WHERE id = 2",
    "ALTER SCHEMA other RENAME TO another",
    "INSERT INTO another.moved VALUES (2, 'renamed')",
    "ALTER SCHEMA another RENAME TO other",
    "BEGIN; DROP TABLE other.fresh; COMMIT",
    "CREATE TABLE rewritten AS SELECT n AS id, 'made' AS v FROM generate_series(1, 30) n",
    "CREATE TEMP TABLE temporary (id int); INSERT INTO temporary VALUES (1); DROP TABLE temporary",
    "CREATE UNLOGGED TABLE unlogged (id int); INSERT INTO unlogged VALUES (1); ALTER TABLE unlogged SET LOGGED; \
     INSERT INTO unlogged VALUES (2); DROP TABLE unlogged",
    "CREATE MATERIALIZED VIEW seen AS SELECT * FROM t; REFRESH MATERIALIZED VIEW seen; DROP MATERIALIZED VIEW seen",
    "VACUUM FULL pg_class",
    "INSERT INTO t (id, v) VALUES (208, 'catalogs moved')",
    "BEGIN; CLUSTER pg_attribute USING pg_attribute_relid_attnum_index; CREATE TABLE inside (id int PRIMARY KEY); \
     INSERT INTO inside VALUES (1); INSERT INTO t (id) VALUES (209); COMMIT",
];

pub(crate) const TRANSACTIONS: &[&str] = &[
    "BEGIN; INSERT INTO t (id) VALUES (301); SAVEPOINT a; INSERT INTO t (id) VALUES (302); SAVEPOINT b; \
     INSERT INTO t (id) VALUES (303); ROLLBACK TO b; INSERT INTO t (id) VALUES (304); RELEASE a; \
     SAVEPOINT c; DELETE FROM t WHERE id = 301; ROLLBACK TO c; UPDATE t SET v = 'kept' WHERE id = 302; COMMIT",
    "BEGIN; INSERT INTO t (id) VALUES (305); ROLLBACK",
    "BEGIN; INSERT INTO unpublished VALUES (1001, 'only'); SAVEPOINT a; INSERT INTO t (id) VALUES (306); COMMIT",
    "SELECT pg_logical_emit_message(true, 'prefix', 'transactional'), pg_logical_emit_message(false, 'prefix', 'not')",
    "BEGIN; SELECT pg_logical_emit_message(false, 'lost', 'not'), pg_logical_emit_message(true, 'lost', 'yes'); \
     INSERT INTO t (id) VALUES (307); SAVEPOINT a; SELECT pg_logical_emit_message(true, 'sub', ''); ROLLBACK",
    "BEGIN; INSERT INTO t (id) VALUES (308); SELECT pg_logical_emit_message(true, 'with rows', repeat('m', 20000)); COMMIT",
    "BEGIN; SAVEPOINT a; INSERT INTO t (id) VALUES (309); \
     SELECT pg_logical_emit_message(false, 'of a subtransaction', 'x'); RELEASE a; COMMIT",
    "SELECT pg_replication_origin_session_setup('elsewhere')",
    "BEGIN; SELECT pg_replication_origin_xact_setup('0/1234567', '2020-01-02 03:04:05+00'); \
     INSERT INTO t (id, v) VALUES (310, 'from elsewhere'); COMMIT",
    "INSERT INTO t (id, v) VALUES (311, 'without a position')",
    "SELECT pg_replication_origin_session_reset()",
    "TRUNCATE nokey, whole RESTART IDENTITY CASCADE",
    "BEGIN; TRUNCATE t; INSERT INTO t (id, v) VALUES (312, 'after truncation'); COMMIT",
    "TRUNCATE unpublished",
    "TRUNCATE listed, unpublished, generated",
];

pub(crate) const TWO_PHASES: &[&str] = &[
    "BEGIN; INSERT INTO t (id, v) VALUES (401, 'prepared'); PREPARE TRANSACTION 'one'",
    "BEGIN; INSERT INTO t (id, v) VALUES (402, 'prepared'); SAVEPOINT a; INSERT INTO t (id) VALUES (403); \
     ROLLBACK TO a; INSERT INTO t (id) VALUES (404); PREPARE TRANSACTION 'it''s two'",
    "INSERT INTO t (id, v) VALUES (405, 'between')",
    "COMMIT PREPARED 'one'",
    "ROLLBACK PREPARED 'it''s two'",
    "BEGIN; INSERT INTO unpublished VALUES (1, 'prepared'); PREPARE TRANSACTION 'nothing published'",
    "COMMIT PREPARED 'nothing published'",
    "BEGIN; ALTER TABLE listed ADD d int; INSERT INTO listed (id, b) VALUES (1, 'b'); PREPARE TRANSACTION 'defined'",
    "COMMIT PREPARED 'defined'",
    "BEGIN; INSERT INTO t SELECT n, repeat('l', 200) FROM generate_series(5000, 6500) n; SAVEPOINT a; \
     INSERT INTO t SELECT n, repeat('l', 200) FROM generate_series(7000, 8500) n; ROLLBACK TO a; \
     INSERT INTO t (id) VALUES (9000); PREPARE TRANSACTION 'large'",
    "COMMIT PREPARED 'large'",
    "INSERT INTO listed (id, b) VALUES (2, 'b')",
];

/// For two sessions: a transaction larger than the memory stays open while others commit.
pub(crate) const LARGE: &[(usize, &str)] = &[
    (0, "BEGIN; INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(10001, 11500) n"),
    (1, "INSERT INTO t (id, v) VALUES (20001, 'small')"),
    (0, "SAVEPOINT a; INSERT INTO t SELECT n, repeat('y', 300), n FROM generate_series(11501, 12500) n"),
    (
        1,
        "BEGIN; UPDATE t SET v = 'also large' WHERE id BETWEEN 300 AND 320; \
        INSERT INTO filtered SELECT n, n, repeat('z', 500) FROM generate_series(1, 1500) n",
    ),
    (0, "ROLLBACK TO a; SAVEPOINT b; INSERT INTO t (id, big) VALUES (12600, repeat('t', 200000))"),
    (1, "SAVEPOINT s; INSERT INTO typed (id, m) SELECT n, 'ok' FROM generate_series(100, 2100) n"),
    (0, "RELEASE b; UPDATE t SET n = 1 WHERE id = 12600; ALTER TABLE indexed ADD more int"),
    (0, "INSERT INTO indexed SELECT n, 'v', 'k' || n, n, n FROM generate_series(1, 1500) n"),
    (1, "ROLLBACK"),
    (0, "COMMIT"),
    (1, "INSERT INTO indexed VALUES (0, 'small', 'k', 0, 0)"),
];
