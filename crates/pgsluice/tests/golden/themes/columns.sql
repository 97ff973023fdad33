-- Columns stand in another order on the target, have other types that take the same text, and there are more of them.

--@ source
CREATE TABLE t (id int PRIMARY KEY, a int, b float4, c text, d varchar(10), gone int, e text, f timestamptz);

ALTER TABLE t DROP gone;

CREATE TABLE extra (id int PRIMARY KEY, v text);

CREATE TABLE few (id int PRIMARY KEY);

INSERT INTO t SELECT i, i, i / 4.0, 'c' || i, 'd', '{"a": 1}', '2020-01-01 00:00:00+00' FROM generate_series(1, 20) i;

INSERT INTO extra SELECT i, 'v' FROM generate_series(1, 20) i;

--@ target
CREATE TABLE t (f text, was int, e jsonb, d text, c varchar(100), b float8, a bigint, id bigint PRIMARY KEY);

ALTER TABLE t DROP was;

CREATE TABLE extra (created text NOT NULL DEFAULT 'by default', n int GENERATED ALWAYS AS IDENTITY, v text,
                    doubled text GENERATED ALWAYS AS (v || v) STORED, empty int, id int PRIMARY KEY);

CREATE TABLE few (id int PRIMARY KEY, v text DEFAULT 'x');

--@ steps
INSERT INTO t SELECT i, -i, i / 8.0, NULL, 'd', '[]', 'infinity' FROM generate_series(21, 40) i;

UPDATE t SET a = a * 2, c = NULL WHERE id % 2 = 0;

DELETE FROM t WHERE id % 3 = 0; UPDATE t SET id = -id;

INSERT INTO extra SELECT i, 'w' FROM generate_series(21, 30) i; UPDATE extra SET v = 'x' WHERE id % 2 = 0;

INSERT INTO few SELECT generate_series(1, 10); DELETE FROM few WHERE id = 3; UPDATE few SET id = 30 WHERE id = 4;

UPDATE extra SET id = id + 100 WHERE id < 5; DELETE FROM extra WHERE id = 10; INSERT INTO extra VALUES (10, 'again');

--@ holds
SELECT bool_and(created = 'by default' AND empty IS NULL AND doubled = v || v) AND count(n) = 30 FROM extra

SELECT count(*) = 9 AND bool_and(v = 'x') FROM few

--@ target
UPDATE extra SET created = 'changed here', empty = 5 WHERE id IN (11, 12, 13);

--@ steps
UPDATE extra SET v = 'kept' WHERE id = 11;

UPDATE extra SET id = 1200 WHERE id = 12;

DELETE FROM extra WHERE id = 13; INSERT INTO extra VALUES (13, 'a new row');

--@ holds
SELECT string_agg(concat_ws(' ', id, created, empty), ', ' ORDER BY id) =
       '11 changed here 5, 13 by default, 1200 changed here 5' FROM extra WHERE id IN (11, 13, 1200)
