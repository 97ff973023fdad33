-- Large values that do not change are not sent, and stay as they are whatever else happens to their rows.

--@ both
CREATE TABLE t (id int PRIMARY KEY, big text, n int, other text);

ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;

CREATE TABLE compressed (id int PRIMARY KEY, big text, j jsonb, a text[]);

CREATE TABLE whole (a int, big text);

ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;

CREATE TABLE keyed (id text PRIMARY KEY, n int);

ALTER TABLE keyed ALTER id SET STORAGE EXTERNAL;

CREATE TABLE row_by_row (id int PRIMARY KEY, big text, n int GENERATED ALWAYS AS IDENTITY);

ALTER TABLE row_by_row ALTER big SET STORAGE EXTERNAL;

--@ source
INSERT INTO t SELECT i, repeat(md5(i::text), 100), i, repeat('o', 3000) FROM generate_series(1, 20) i;

INSERT INTO compressed SELECT i, repeat('c', 100000), jsonb_build_object('k', repeat(i::text, 5000)), ARRAY[repeat('a', 50000)] FROM generate_series(1, 10) i;

INSERT INTO whole SELECT i % 3, repeat(chr(97 + i % 3), 3000) FROM generate_series(1, 12) i;

INSERT INTO keyed SELECT repeat(chr(97 + i), 2100), i FROM generate_series(1, 5) i;

INSERT INTO row_by_row (id, big) SELECT i, repeat('r', 3000) FROM generate_series(1, 10) i;

--@ steps
UPDATE t SET n = n + 1;

UPDATE t SET other = 'short' WHERE id % 2 = 0; UPDATE t SET n = 0 WHERE id % 3 = 0; UPDATE t SET big = repeat('new', 1000) WHERE id % 5 = 0;

UPDATE t SET id = id + 100 WHERE id < 5; UPDATE t SET n = -1 WHERE id > 100;

INSERT INTO t VALUES (30, repeat('i', 5000), 1, NULL); UPDATE t SET n = 2 WHERE id = 30; UPDATE t SET id = 31 WHERE id = 30; UPDATE t SET n = 3 WHERE id = 31;

DELETE FROM t WHERE id = 10; INSERT INTO t VALUES (10, repeat('j', 5000), 1, NULL); UPDATE t SET n = 5 WHERE id = 10;

UPDATE t SET big = NULL WHERE id = 11; UPDATE t SET n = 6 WHERE id = 11; UPDATE t SET big = repeat('k', 4000) WHERE id = 11; UPDATE t SET n = 7 WHERE id = 11;

UPDATE t SET id = 200 WHERE id = 12; UPDATE t SET id = 12 WHERE id = 13; UPDATE t SET id = 13 WHERE id = 200;

UPDATE compressed SET j = '{}' WHERE id % 2 = 0; UPDATE compressed SET id = -id; UPDATE compressed SET a = a || 'b'::text WHERE id % 3 = 0;

UPDATE whole SET a = a + 10; UPDATE whole SET big = repeat('w', 2500) WHERE a = 11; DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole WHERE a = 12);

UPDATE keyed SET n = -n; UPDATE keyed SET id = 'short' WHERE n = -1; UPDATE keyed SET id = id || 'x' WHERE n = -2; DELETE FROM keyed WHERE n = -3;

UPDATE row_by_row SET n = DEFAULT; UPDATE row_by_row SET id = id + 100 WHERE id % 2 = 0;
