-- Row filters and column lists: what leaves a filter is deleted, what enters it is inserted, the rest is not ours.

--@ since 15
--@ publish FOR TABLE t (id, v) WHERE (id > 10 AND v IS NOT NULL), TABLE f WHERE (n < 100), TABLE listed (b, a), TABLE parted (id, k) WHERE (id % 2 = 0), TABLE mark WITH (publish_via_partition_root = true)

--@ source
CREATE TABLE t (id int, secret text, v int NOT NULL, PRIMARY KEY (id, v));

CREATE TABLE f (n int, v text);

ALTER TABLE f REPLICA IDENTITY FULL;

CREATE TABLE listed (c text, a int PRIMARY KEY, b text);

CREATE TABLE parted (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);

CREATE TABLE parted1 PARTITION OF parted FOR VALUES IN (1);

CREATE TABLE parted2 PARTITION OF parted FOR VALUES IN (2);

INSERT INTO t SELECT i, 'secret', i FROM generate_series(1, 20) i;

INSERT INTO f SELECT i * 10, 'v' FROM generate_series(1, 20) i, generate_series(1, 2);

INSERT INTO listed SELECT 'c', i, 'b' FROM generate_series(1, 10) i;

INSERT INTO parted SELECT i, i % 2 + 1, 'v' FROM generate_series(1, 10) i;

--@ target
CREATE TABLE t (v int NOT NULL, id int, PRIMARY KEY (id, v));

CREATE TABLE f (n int, v text);

CREATE TABLE listed (a int PRIMARY KEY, b text);

CREATE TABLE parted (id int, k int, PRIMARY KEY (id, k));

--@ expect t
SELECT v, id FROM t WHERE id > 10

--@ expect f
SELECT n, v FROM f WHERE n < 100

--@ expect listed
SELECT a, b FROM listed

--@ expect parted
SELECT id, k FROM parted WHERE id % 2 = 0

--@ steps
UPDATE t SET id = id + 100 WHERE id < 5;

UPDATE t SET id = -id WHERE id > 15 AND id < 100;

UPDATE t SET secret = 'other';

UPDATE t SET v = v + 1, secret = 'x' WHERE id % 2 = 0;

DELETE FROM t WHERE id % 3 = 0;

INSERT INTO t SELECT i, 's', i FROM generate_series(1, 20) i ON CONFLICT DO NOTHING;

UPDATE f SET n = n + 55 WHERE v = 'v';

UPDATE f SET n = n - 55, v = 'w';

DELETE FROM f WHERE n IN (20, 150); UPDATE f SET n = NULL WHERE n = 30;

UPDATE listed SET c = 'unseen'; UPDATE listed SET b = c || b, a = -a WHERE a % 2 = 0;

DELETE FROM listed WHERE a = 3; INSERT INTO listed VALUES ('c', 3, 'again'); UPDATE listed SET c = NULL WHERE a = 3;

UPDATE parted SET k = 3 - k; UPDATE parted SET id = id + 1 WHERE k = 1; INSERT INTO parted VALUES (20, 1, 'v'), (21, 2, 'v');

TRUNCATE listed;

INSERT INTO listed VALUES ('c', 1, 'b');
