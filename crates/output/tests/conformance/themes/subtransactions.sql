-- Savepoints in one another, taken back in part, in the middle and by hundreds.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION subtransactions FOR TABLE t;
--! range
BEGIN; INSERT INTO t VALUES (1, 'top'); SAVEPOINT a; INSERT INTO t VALUES (2, 'a'); SAVEPOINT b; INSERT INTO t VALUES (3, 'b'); ROLLBACK TO a; INSERT INTO t VALUES (4, 'a again'); RELEASE a; INSERT INTO t VALUES (5, 'top again'); COMMIT;
BEGIN; SAVEPOINT a; SAVEPOINT b; SAVEPOINT c; INSERT INTO t VALUES (6, 'c'); RELEASE b; ROLLBACK TO a; UPDATE t SET v = 'only' WHERE id = 1; COMMIT;
BEGIN; SAVEPOINT a; INSERT INTO t VALUES (7, 'gone'); ROLLBACK TO a; COMMIT;
BEGIN; INSERT INTO t VALUES (8, 'gone'); SAVEPOINT a; INSERT INTO t VALUES (9, 'gone'); RELEASE a; ROLLBACK;
DO $$ BEGIN FOR n IN 100 .. 300 LOOP BEGIN INSERT INTO t VALUES (n, 'of ' || n); IF n % 4 = 0 THEN RAISE 'back'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$;
-- Two sessions whose subtransactions lie between one another.
BEGIN; INSERT INTO t VALUES (400, 'a top');
--! session b
BEGIN; SAVEPOINT s; INSERT INTO t VALUES (500, 'b sub');
--! session a
SAVEPOINT s; INSERT INTO t VALUES (401, 'a sub');
--! session b
ROLLBACK TO s; INSERT INTO t VALUES (501, 'b sub again');
--! session a
COMMIT;
--! session b
UPDATE t SET v = 'seen' WHERE id = 401;
COMMIT;
