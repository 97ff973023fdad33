-- The schemas of both ends drift apart and come together; what the target lacks is named before a row is lost.

--@ both
CREATE TABLE t (id int PRIMARY KEY, a text, b int);

CREATE TABLE u (id int PRIMARY KEY, v int);

--@ source
INSERT INTO t SELECT i, 'a', i FROM generate_series(1, 10) i;

--@ target
ALTER TABLE t ADD c text DEFAULT 'here', ADD d int;

--@ steps
INSERT INTO t VALUES (11, 'b', 2); UPDATE t SET b = 0 WHERE id = 1;

ALTER TABLE t ADD c text DEFAULT 'here'

INSERT INTO t VALUES (12, 'c', 3, 'c');

INSERT INTO t VALUES (13, 'd', 4, 'd'); ALTER TABLE t ADD d int; INSERT INTO t VALUES (14, 'e', 5, 'e', 5); UPDATE t SET d = 1 WHERE id = 13;

ALTER TABLE t DROP b; INSERT INTO t VALUES (15, 'f', 'f', 6); UPDATE t SET c = 'x' WHERE id = 1;

ALTER TABLE t ALTER d TYPE bigint; UPDATE t SET d = 7 WHERE id % 2 = 0;

ALTER TABLE t RENAME c TO other; ALTER TABLE t RENAME other TO c;

UPDATE t SET a = 'after the names came back', id = id + 100 WHERE id < 4;

ALTER TABLE t REPLICA IDENTITY FULL; DELETE FROM t WHERE id = 5; UPDATE t SET a = NULL WHERE id = 6;

ALTER TABLE t REPLICA IDENTITY DEFAULT; DELETE FROM t WHERE id = 7;

--@ target
ALTER TABLE t DROP b;

--@ stops table "public.u" on the target is missing replicated column "fresh"
INSERT INTO u VALUES (1, 1);

ALTER TABLE u ADD fresh int DEFAULT 5; UPDATE u SET v = 2; INSERT INTO u VALUES (2, 2, 2);

UPDATE t SET a = 'behind it' WHERE id = 8;

--@ holds
SELECT string_agg(concat_ws(' ', id, v), ', ') = '1 1' FROM u

SELECT a = 'a' FROM t WHERE id = 8

--@ target
ALTER TABLE u ADD fresh int DEFAULT 5;

--@ steps
INSERT INTO u VALUES (3, 3, 3);

--@ stops table "public.u" on the target is missing replicated columns "one", "two"
ALTER TABLE u ADD one int, ADD two int; INSERT INTO u VALUES (4, 4, 4, 4, 4);

--@ target
ALTER TABLE u ADD two int, ADD one int;

--@ steps
UPDATE u SET one = id, two = -id;
