-- Transactions that were made elsewhere, with where and when, also prepared and large.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION origins FOR TABLE t;
SELECT pg_replication_origin_create('upstream');
--! range
INSERT INTO t VALUES (1, 'here');
SELECT pg_replication_origin_session_setup('upstream');
INSERT INTO t VALUES (2, 'there, nobody says when');
BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCD', '2020-02-29 12:00Z'); INSERT INTO t VALUES (3, 'there'); SAVEPOINT a; INSERT INTO t VALUES (4, 'sub'); COMMIT;
BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCE', '2020-02-29 12:01Z'); INSERT INTO t VALUES (5, 'lost'); ROLLBACK;
BEGIN; SELECT pg_replication_origin_xact_setup('0/ABCF', '2020-02-29 12:02Z'); INSERT INTO t VALUES (6, 'prepared'); PREPARE TRANSACTION 'o';
COMMIT PREPARED 'o';
BEGIN; SELECT pg_replication_origin_xact_setup('0/ABD1', '2020-02-29 12:04Z'); INSERT INTO t SELECT n, repeat('large', 30) FROM generate_series(100, 700) n; COMMIT;
SELECT pg_logical_emit_message(true, 'origin', 'in'), pg_logical_emit_message(false, 'origin', 'out');
TRUNCATE t;
SELECT pg_replication_origin_session_reset();
INSERT INTO t VALUES (7, 'here again');
-- The first commit of a session: nobody has said a time, and there is none from a commit before.
--! session b
SELECT pg_replication_origin_session_setup('upstream');
INSERT INTO t VALUES (9, 'there, at no time');
BEGIN; INSERT INTO t VALUES (10, 'there, prepared at no time'); PREPARE TRANSACTION 'no time';
COMMIT PREPARED 'no time';
SELECT pg_replication_origin_session_reset();
--! session a
SELECT pg_replication_origin_drop('upstream');
INSERT INTO t VALUES (8, 'nobody upstream');
