//! Tables of the streaming clients, and transactions that use every kind of message.

use testkit::Cluster;

/// The publication `p` has `t` and `whole`, and not `hidden`.
pub(crate) const TABLES: &str = "
    CREATE TYPE mood AS ENUM ('calm', 'angry');
    CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, at timestamptz, bytes bytea, doc jsonb,
                    list int[], feels mood, large text);
    ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
    CREATE TABLE whole (a int, b text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE hidden (id int);
    CREATE PUBLICATION p FOR TABLE t, whole";

/// Transactions of a round. `ROUND` is its number.
///
/// Values have line feeds, because pg_recvlogical puts one behind each message.
const TRANSACTIONS: [&str; 9] = [
    "INSERT INTO t SELECT ROUND * 1000 + n, E'two\\nlines ' || n, n / 7.0, '2026-11-28'::timestamptz + n * '1 h'::interval,
            decode('0a0d00ff', 'hex'), jsonb_build_object('n', n), ARRAY[n, NULL, 10], 'angry',
            CASE WHEN n % 10 = 0 THEN repeat(md5(n::text), 200) END
       FROM generate_series(1, 50) n",
    // Of some rows, the large value is not sent.
    "UPDATE t SET v = v || '!', feels = 'calm' WHERE id % 5 = 0",
    "UPDATE t SET id = id + 500 WHERE id = ROUND * 1000 + 7; DELETE FROM t WHERE id = ROUND * 1000 + 8",
    "BEGIN; INSERT INTO whole VALUES (ROUND, 'kept'), (NULL, E'\\n'); SAVEPOINT a;
     INSERT INTO whole VALUES (ROUND, 'rolled back'); ROLLBACK TO a;
     UPDATE whole SET b = b || '.' WHERE a = ROUND; DELETE FROM whole WHERE a IS NULL; COMMIT",
    "SELECT pg_logical_emit_message(true, 'test', E'in a\\ntransaction ROUND'),
            pg_logical_emit_message(false, 'test', 'at once ROUND'); INSERT INTO whole VALUES (ROUND, 'with it')",
    "INSERT INTO hidden VALUES (ROUND)",
    "BEGIN; INSERT INTO t (id) VALUES (-1); ROLLBACK",
    // Its relation is described anew.
    "ALTER TABLE t ADD COLUMN added_ROUND int DEFAULT ROUND; INSERT INTO t (id, v) VALUES (ROUND * 1000, 'added')",
    "TRUNCATE whole",
];

/// Writes a round.
pub(crate) fn write(publisher: &Cluster, database: &str, round: u32) {
    for sql in TRANSACTIONS {
        publisher.sql(database, &sql.replace("ROUND", &round.to_string())).unwrap();
    }
}
