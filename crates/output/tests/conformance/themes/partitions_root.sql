-- Partitions as their root, whose columns are in another order; two publications that name other ancestors.
CREATE TABLE p (id int, v text, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p1 (gone int, n int, id int NOT NULL, v text) PARTITION BY RANGE (id);
ALTER TABLE p1 DROP gone;
CREATE TABLE p10 PARTITION OF p1 FOR VALUES FROM (10) TO (15);
CREATE TABLE p11 (v text, id int NOT NULL, n int);
ALTER TABLE p1 ATTACH PARTITION p11 FOR VALUES FROM (15) TO (20);
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (10) TO (20);
CREATE PUBLICATION partitions_root FOR TABLE p WITH (publish_via_partition_root);
CREATE PUBLICATION middle FOR TABLE p1 WITH (publish_via_partition_root, publish = 'insert, truncate');
--! publications partitions_root, middle
--! range
INSERT INTO p SELECT n, 'v' || n, n FROM generate_series(0, 19) n;
UPDATE p SET n = n + 1 WHERE id > 12;
UPDATE p11 SET v = 'direct' WHERE id = 16;
DELETE FROM p WHERE id IN (3, 18);
UPDATE p SET id = 18 WHERE id = 4;
UPDATE p SET id = 3 WHERE id = 17;
TRUNCATE p11;
TRUNCATE p1;
TRUNCATE p;
INSERT INTO p VALUES (1, 'a', 1), (11, 'b', 2), (16, 'c', 3);
BEGIN; ALTER PUBLICATION partitions_root SET (publish_via_partition_root = false); INSERT INTO p VALUES (2, 'leaf', 1), (17, 'leaf', 2); COMMIT;
INSERT INTO p VALUES (12, 'leaf', 1);
ALTER PUBLICATION partitions_root SET (publish_via_partition_root = true);
INSERT INTO p VALUES (5, 'root', 1), (13, 'root', 2);
BEGIN; ALTER TABLE p DETACH PARTITION p1; INSERT INTO p1 (id, v) VALUES (14, 'middle'); COMMIT;
INSERT INTO p1 (id, v) VALUES (18, 'middle');
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (10) TO (20);
INSERT INTO p (id, v) VALUES (19, 'root');
ALTER TABLE p ADD m int DEFAULT 3;
UPDATE p SET m = 4 WHERE id > 15;
ALTER TABLE p REPLICA IDENTITY FULL;
ALTER TABLE p11 REPLICA IDENTITY FULL;
UPDATE p SET m = 5;
DELETE FROM p;
