-- Generated columns that are published arrive as values in ordinary columns of the target.

--@ since 18
--@ publish FOR TABLE t, mark WITH (publish_generated_columns = stored)

--@ source
CREATE TABLE t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED, seen int GENERATED ALWAYS AS (a + 1) VIRTUAL);

INSERT INTO t (id, a) SELECT i, i FROM generate_series(1, 10) i;

--@ target
CREATE TABLE t (id int PRIMARY KEY, b int, a int, seen int DEFAULT -1);

--@ expect t
SELECT id, b, a, -1 FROM t

--@ steps
UPDATE t SET a = a + 1 WHERE id % 2 = 0;

INSERT INTO t (id, a) VALUES (11, NULL), (12, 12);

DELETE FROM t WHERE id = 3; UPDATE t SET id = -id WHERE id = 4;
