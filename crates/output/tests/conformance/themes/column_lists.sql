-- Lists of columns, in another order than the table's, changed, and of partitions as their root.
CREATE TABLE t (id int PRIMARY KEY, a text, b text, c int, d int DEFAULT 9);
CREATE TABLE u (id int PRIMARY KEY, a text, b text);
CREATE TABLE p (id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id);
CREATE TABLE p0 (b text, id int NOT NULL, a text);
ALTER TABLE p ATTACH PARTITION p0 FOR VALUES FROM (0) TO (100);
CREATE PUBLICATION column_lists FOR TABLE t (c, id, a), u, p (b, id) WITH (publish_via_partition_root);
--! range
INSERT INTO t VALUES (1, 'a', 'hidden', 3), (2, NULL, 'hidden', NULL);
UPDATE t SET b = 'still hidden';
UPDATE t SET id = 3, c = 4 WHERE id = 1;
DELETE FROM t WHERE id = 3;
INSERT INTO u VALUES (1, 'a', 'b');
INSERT INTO p VALUES (1, 'a', 'b');
UPDATE p SET a = 'hidden';
UPDATE p SET id = 2;
ALTER TABLE t ADD e int DEFAULT 1;
INSERT INTO t VALUES (5, 'a', 'b', 5, 5, 5);
BEGIN; ALTER PUBLICATION column_lists SET TABLE t (id, e), u (id, b); INSERT INTO t VALUES (6, 'a', 'b', 6, 6, 6); UPDATE u SET a = 'hidden now'; COMMIT;
INSERT INTO p VALUES (9, 'not', 'published');
UPDATE t SET e = 7;
ALTER TABLE t DROP a;
UPDATE t SET e = 8;
ALTER PUBLICATION column_lists SET TABLE t;
UPDATE t SET e = 9;
ALTER PUBLICATION column_lists SET TABLE t (id), u;
ALTER TABLE t REPLICA IDENTITY FULL;
--! error
UPDATE t SET e = 1;
ALTER PUBLICATION column_lists SET TABLE t, u;
UPDATE t SET e = 1;
