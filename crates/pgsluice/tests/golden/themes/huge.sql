-- Transactions larger than a batch and than the source's memory, with small ones between.

--@ both
CREATE TABLE t (id int PRIMARY KEY, v text, n int);

CREATE TABLE f (a int, b text);

ALTER TABLE f REPLICA IDENTITY FULL;

--@ source
INSERT INTO t SELECT i, 'v', 0 FROM generate_series(1, 100) i;

--@ steps
INSERT INTO t SELECT i, repeat('y', 100), i FROM generate_series(101, 1200) i;

INSERT INTO f SELECT i % 7, 'f' FROM generate_series(1, 30) i;

UPDATE t SET n = n + 1 WHERE id > 500;

UPDATE t SET v = 'short' WHERE id = 5;

UPDATE t SET id = -id WHERE id % 30 = 0; UPDATE t SET v = 'z' WHERE id < 0; DELETE FROM t WHERE id % 10 = 0; TRUNCATE f; INSERT INTO f SELECT i % 7, repeat('f', i % 4) FROM generate_series(1, 300) i; DELETE FROM f WHERE a = 3 AND b = 'f';

DELETE FROM t WHERE id > 900;

INSERT INTO t SELECT i, 'back', -i FROM generate_series(901, 1100) i;
