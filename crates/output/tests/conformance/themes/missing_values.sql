-- Rows that are older than a column: as old rows, in keys, and read again after rewrites.
CREATE TABLE t (id int PRIMARY KEY, v text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 9) n;
ALTER TABLE t ADD before_range int DEFAULT 7;
CREATE TABLE k (id int);
INSERT INTO k VALUES (1), (2), (3);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE PUBLICATION missing_values FOR TABLE t, k;
--! range
UPDATE t SET v = 'w1' WHERE id = 1;
ALTER TABLE t ADD c int DEFAULT 42, ADD d text DEFAULT 'd', ADD e mood DEFAULT 'ok', ADD f int[] DEFAULT '{1,NULL}', ADD g jsonb DEFAULT '{"a": 1}', ADD h numeric DEFAULT -1.50, ADD i timestamptz DEFAULT '2020-02-29 12:00Z';
UPDATE t SET v = 'w2' WHERE id = 2;
DELETE FROM t WHERE id = 3;
UPDATE t SET c = 1, d = NULL WHERE id = 4;
ALTER TABLE t ALTER c DROP DEFAULT, DROP d;
UPDATE t SET v = 'w5' WHERE id IN (4, 5);
BEGIN; ALTER TABLE t ADD j text DEFAULT 'j'; UPDATE t SET v = 'w6' WHERE id = 6; SAVEPOINT a; ALTER TABLE t ADD k bytea DEFAULT '\x00ff'; UPDATE t SET v = 'w7' WHERE id = 7; ROLLBACK TO a; UPDATE t SET v = 'w8' WHERE id = 8; COMMIT;
VACUUM FULL t;
UPDATE t SET v = 'w9';
ALTER TABLE k ADD key int NOT NULL DEFAULT 5;
CREATE UNIQUE INDEX k_key ON k (key, id) WHERE false;
ALTER TABLE k ALTER id SET NOT NULL;
CREATE UNIQUE INDEX k_id ON k (key, id);
ALTER TABLE k REPLICA IDENTITY USING INDEX k_id;
UPDATE k SET id = id + 10;
DELETE FROM k WHERE id = 11;
