-- pg_logical_emit_message: part of a transaction, taken back with it, and not part of any.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION messages FOR TABLE t;
--! range
SELECT pg_logical_emit_message(true, 'alone', 'in a transaction of its own');
SELECT pg_logical_emit_message(false, 'alone', '');
BEGIN; INSERT INTO t VALUES (1, 'a'); SELECT pg_logical_emit_message(true, 'in', 'it'); SELECT pg_logical_emit_message(false, 'out of', 'it'); SAVEPOINT a; SELECT pg_logical_emit_message(true, 'lost', 'x'), pg_logical_emit_message(false, 'not lost', 'x'); ROLLBACK TO a; SELECT pg_logical_emit_message(true, 'sub', convert_to('bytes', 'UTF8')); INSERT INTO t VALUES (2, 'b'); COMMIT;
BEGIN; SELECT pg_logical_emit_message(true, 'lost', 'x'), pg_logical_emit_message(false, 'not lost', 'y'); ROLLBACK;
SELECT pg_logical_emit_message(true, 'large', repeat('m', 70000)), pg_logical_emit_message(false, 'large', repeat('m', 70000));
BEGIN; SELECT pg_logical_emit_message(true, 'p', 'prepared'); PREPARE TRANSACTION 'm';
COMMIT PREPARED 'm';
