-- More than memory holds: beside one another, with subtransactions that come and go, aborted, with COPY's rows.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, v text);
CREATE PUBLICATION large FOR TABLE t, u;
--! range
BEGIN; INSERT INTO t SELECT n, repeat('a', 200) FROM generate_series(1, 400) n;
--! session b
BEGIN; INSERT INTO u SELECT n, repeat('b', 200) FROM generate_series(1, 400) n;
--! session c
BEGIN; INSERT INTO u SELECT n, repeat('c', 200) FROM generate_series(5001, 5400) n;
--! session a
SAVEPOINT a; INSERT INTO t SELECT n, repeat('taken back', 20) FROM generate_series(1001, 1400) n;
--! session b
UPDATE u SET v = v || '!' WHERE id < 100; SAVEPOINT x; DELETE FROM u WHERE id < 50;
--! session a
ROLLBACK TO a; SAVEPOINT b; INSERT INTO t SELECT n, repeat('kept', 50) FROM generate_series(2001, 2400) n; SAVEPOINT c; UPDATE t SET v = 'back' WHERE id > 2000; ROLLBACK TO c; DELETE FROM t WHERE id > 2300;
--! session c
ROLLBACK;
--! session b
ROLLBACK TO x; INSERT INTO u SELECT n, repeat('more', 40) FROM generate_series(9001, 9300) n;
COMMIT;
--! session a
ALTER TABLE t ADD n int DEFAULT 4; UPDATE t SET n = 5 WHERE id % 3 = 0;
COMMIT;
DO $$ BEGIN FOR n IN 1 .. 120 LOOP BEGIN INSERT INTO u SELECT 20000 + n * 10 + m, repeat('s', 100) FROM generate_series(0, 5) m; IF n % 3 = 0 THEN RAISE 'back'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$;
