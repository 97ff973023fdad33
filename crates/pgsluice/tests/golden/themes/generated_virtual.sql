-- Virtual generated columns are never sent; each end computes its own, beside stored ones.

--@ since 18

--@ both
CREATE TABLE t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 2), s int GENERATED ALWAYS AS (a * 3) STORED, b text);

--@ source
INSERT INTO t (id, a, b) SELECT i, i, 'b' FROM generate_series(1, 10) i;

--@ steps
INSERT INTO t (id, a) VALUES (11, 1), (12, NULL); UPDATE t SET a = a + 1 WHERE v > 10; DELETE FROM t WHERE v = 4;

UPDATE t SET id = -id, b = v::text WHERE s % 2 = 0;

DELETE FROM t WHERE v IS NULL; UPDATE t SET a = NULL WHERE v = 12;
