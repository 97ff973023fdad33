-- Several schemas with tables of the same names, published schema by schema.

--@ since 15
--@ publish FOR TABLES IN SCHEMA one, "Two", TABLE three.t, mark

--@ both
CREATE SCHEMA one; CREATE SCHEMA "Two"; CREATE SCHEMA three;

CREATE TABLE one.t (id int PRIMARY KEY, v text);

CREATE TABLE "Two".t (id text PRIMARY KEY, v int);

CREATE TABLE three.t (v text, id int PRIMARY KEY);

CREATE TABLE t (id int PRIMARY KEY, v text);

CREATE TABLE one.other (id int PRIMARY KEY, v text);

CREATE TYPE one.mood AS ENUM ('sad', 'ok'); CREATE TYPE "Two".mood AS ENUM ('sad', 'ok', 'one more');

ALTER TABLE one.t ADD m one.mood DEFAULT 'ok'; ALTER TABLE "Two".t ADD m "Two".mood DEFAULT 'one more';

--@ source
INSERT INTO one.t SELECT i, 'one' FROM generate_series(1, 5) i;

INSERT INTO "Two".t SELECT i, i FROM generate_series(1, 5) i;

INSERT INTO three.t SELECT 'three', i FROM generate_series(1, 5) i;

INSERT INTO t SELECT i, 'not published' FROM generate_series(1, 5) i;

--@ steps
UPDATE one.t SET v = '1'; UPDATE "Two".t SET v = 2, m = 'sad'; UPDATE three.t SET v = '3'; UPDATE t SET v = '4';

DELETE FROM one.t WHERE id = 1; DELETE FROM "Two".t WHERE id = '2'; DELETE FROM three.t WHERE id = 3;

INSERT INTO one.other SELECT i, 'o' FROM generate_series(1, 5) i; TRUNCATE one.t; INSERT INTO one.t VALUES (9, 'nine', 'sad');

UPDATE "Two".t SET id = id || id; UPDATE one.other SET id = -id;

--@ holds
SELECT count(*) = 0 FROM t
