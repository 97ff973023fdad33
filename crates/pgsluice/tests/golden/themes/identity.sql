-- Rows are found by a primary key, by another index, by the whole row with duplicates, or not at all.

--@ both
CREATE TABLE by_key (a int, b text, c int, PRIMARY KEY (b, a));

CREATE TABLE by_index (id int, u text NOT NULL, v int, UNIQUE (u));

ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u_key;

CREATE TABLE whole (a int, b text, n numeric, r float8);

ALTER TABLE whole REPLICA IDENTITY FULL;

CREATE TABLE whole_with_key (id int PRIMARY KEY, v text);

ALTER TABLE whole_with_key REPLICA IDENTITY FULL;

CREATE TABLE nothing (id int PRIMARY KEY, v text);

ALTER TABLE nothing REPLICA IDENTITY NOTHING;

CREATE TABLE found_by_less (id int, v text);

--@ source
ALTER TABLE found_by_less ADD PRIMARY KEY (id);

INSERT INTO by_key SELECT i, 'b' || i % 3, i FROM generate_series(1, 30) i;

INSERT INTO by_index SELECT i % 4, 'u' || i, i FROM generate_series(1, 30) i;

INSERT INTO whole SELECT i % 3, CASE WHEN i % 4 > 0 THEN 'b' END, i % 2, 'NaN' FROM generate_series(1, 60) i;

INSERT INTO whole_with_key SELECT i, 'v' FROM generate_series(1, 30) i;

INSERT INTO nothing SELECT i, 'v' FROM generate_series(1, 5) i;

INSERT INTO found_by_less SELECT i, 'v' FROM generate_series(1, 30) i;

--@ steps
UPDATE by_key SET c = -c WHERE a % 2 = 0; UPDATE by_key SET b = 'moved' WHERE a % 3 = 0; UPDATE by_key SET a = a + 100, c = NULL WHERE a < 10;

DELETE FROM by_key WHERE b = 'moved' AND a < 20; INSERT INTO by_key SELECT i, 'moved', 0 FROM generate_series(12, 18, 3) i;

UPDATE by_index SET v = v + 1 WHERE id = 2; UPDATE by_index SET u = u || '!' WHERE id = 1; DELETE FROM by_index WHERE u LIKE 'u1%';

UPDATE by_index SET u = 'x' WHERE u = 'u2'; UPDATE by_index SET u = 'u2' WHERE u = 'u20'; UPDATE by_index SET u = 'u20' WHERE u = 'x';

UPDATE whole SET n = n + 1 WHERE ctid = (SELECT min(ctid) FROM whole WHERE a = 1);

DELETE FROM whole WHERE ctid IN (SELECT ctid FROM whole WHERE a = 2 LIMIT 5);

UPDATE whole SET r = '-0' WHERE b IS NULL; UPDATE whole SET r = 0 WHERE r = '-0' AND a = 0; INSERT INTO whole SELECT 0, NULL, 1.0, 0 FROM generate_series(1, 3);

DELETE FROM whole WHERE ctid = (SELECT max(ctid) FROM whole); UPDATE whole SET a = NULL, b = NULL, n = NULL, r = NULL WHERE a = 1;

UPDATE whole SET b = 'twice' WHERE ctid = (SELECT min(ctid) FROM whole WHERE a IS NULL); UPDATE whole SET b = 'twice' WHERE ctid = (SELECT min(ctid) FROM whole WHERE a IS NULL AND b IS NULL);

UPDATE whole_with_key SET v = NULL WHERE id % 2 = 0; UPDATE whole_with_key SET id = id + 100 WHERE id < 10; DELETE FROM whole_with_key WHERE v IS NULL AND id > 20;

INSERT INTO nothing SELECT i, 'w' FROM generate_series(6, 10) i;

TRUNCATE nothing; INSERT INTO nothing VALUES (1, 'only');

UPDATE found_by_less SET v = 'w' WHERE id % 2 = 0; UPDATE found_by_less SET id = -id WHERE id % 5 = 0; DELETE FROM found_by_less WHERE id % 3 = 0;

ALTER TABLE by_index REPLICA IDENTITY FULL; UPDATE by_index SET v = NULL; DELETE FROM by_index WHERE id = 3;

ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u_key; UPDATE by_index SET v = 1;
