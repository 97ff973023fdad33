-- Partitioned tables published as their leaves: what moves between them is deleted there and inserted here.

--@ publish FOR TABLE p, deep, other_shape, mark WITH (publish_via_partition_root = false)

--@ both
CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);

CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);

CREATE TABLE p2 (v text, gone int, k int NOT NULL, id int NOT NULL);

ALTER TABLE p2 DROP gone; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);

CREATE TABLE deep (id int, k text, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);

CREATE TABLE deep_a PARTITION OF deep FOR VALUES IN ('a') PARTITION BY HASH (id);

CREATE TABLE deep_a0 PARTITION OF deep_a FOR VALUES WITH (MODULUS 2, REMAINDER 0);

CREATE TABLE deep_a1 PARTITION OF deep_a FOR VALUES WITH (MODULUS 2, REMAINDER 1);

CREATE TABLE deep_rest PARTITION OF deep DEFAULT;

--@ source
CREATE TABLE other_shape (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);

CREATE TABLE other_low PARTITION OF other_shape FOR VALUES FROM (MINVALUE) TO (50);

CREATE TABLE other_high PARTITION OF other_shape FOR VALUES FROM (50) TO (MAXVALUE);

INSERT INTO p SELECT i, i, 'v' FROM generate_series(1, 199) i;

INSERT INTO deep SELECT i, chr(96 + i % 3 + 1), i FROM generate_series(1, 60) i;

INSERT INTO other_shape SELECT i, 'v' FROM generate_series(1, 99) i;

--@ target
CREATE TABLE other_low (v text, id int PRIMARY KEY);

CREATE TABLE other_high (id int PRIMARY KEY, v text) PARTITION BY LIST (id);

CREATE TABLE other_rest PARTITION OF other_high DEFAULT;

--@ steps
UPDATE p SET v = 'w' WHERE id % 2 = 0;

UPDATE p SET k = 199 - k WHERE id % 3 = 0;

DELETE FROM p WHERE id % 5 = 0; INSERT INTO p SELECT i, i % 200, 'n' FROM generate_series(200, 260) i;

UPDATE p SET k = (k + 100) % 200, v = v || '!' WHERE id % 7 = 0; UPDATE p SET v = v || '?';

UPDATE p SET k = 199 - k, id = id + 1000 WHERE k IN (10, 110); UPDATE p SET k = 199 - k, id = id - 1000 WHERE id > 1000;

UPDATE deep SET k = 'a' WHERE k = 'b'; UPDATE deep SET id = id + 100 WHERE k = 'a' AND id % 2 = 0; DELETE FROM deep WHERE id % 7 = 0;

UPDATE deep SET k = 'z', v = NULL WHERE k = 'a' AND id < 30; UPDATE deep SET k = 'a' WHERE k = 'c';

UPDATE other_shape SET id = id + 100 WHERE id % 10 = 1; UPDATE other_shape SET id = id - 200 WHERE id BETWEEN 60 AND 70; UPDATE other_shape SET v = NULL WHERE id % 4 = 0; DELETE FROM other_shape WHERE id BETWEEN 45 AND 55;

TRUNCATE p2, deep_a1;

INSERT INTO p SELECT i + 500, i, 'v' FROM generate_series(1, 199) i;

DELETE FROM p1 WHERE id % 4 = 1; INSERT INTO p1 VALUES (9000, 1, 'into the leaf');
