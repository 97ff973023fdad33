-- Row filters: each action, rows that move in and out, NULLs, several publications, partitions as their root.
CREATE TABLE f (id int PRIMARY KEY, n int, v text, d date, u uuid, x float8, m numeric(10,2), b boolean);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE k (id int PRIMARY KEY, v text);
CREATE TABLE p (id int, n int, v text) PARTITION BY RANGE (id);
CREATE TABLE p0 (v text, n int, id int);
ALTER TABLE p ATTACH PARTITION p0 FOR VALUES FROM (0) TO (100);
CREATE PUBLICATION row_filters FOR TABLE f WHERE (n > 10 AND (v <> 'no' OR v IS NULL)), k WHERE (id >= 100), p WHERE (n < 5) WITH (publish_via_partition_root);
CREATE PUBLICATION more FOR TABLE f WHERE (d > '2020-01-01' OR u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' OR x < -0.5 OR m IN (1.50, 2) OR b) WITH (publish = 'insert, delete');
--! publications row_filters, more
--! range
INSERT INTO f (id, n, v) VALUES (1, 5, 'in no way'), (2, 11, 'yes'), (3, 12, 'no'), (4, 13, NULL), (5, NULL, 'x');
INSERT INTO f (id, d) VALUES (10, '2020-01-01'), (11, '2020-01-02');
INSERT INTO f (id, u) VALUES (12, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), (13, 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
INSERT INTO f (id, x) VALUES (14, -1), (15, 'NaN'), (16, -0.5);
INSERT INTO f (id, m) VALUES (17, 1.5), (18, 2), (19, 2.01);
INSERT INTO f (id, b) VALUES (20, true), (21, false);
UPDATE f SET n = 20 WHERE id = 1;
UPDATE f SET n = 21 WHERE id = 2;
UPDATE f SET v = 'no' WHERE id = 2;
UPDATE f SET v = NULL WHERE id = 3;
UPDATE f SET n = NULL WHERE id = 4;
UPDATE f SET n = 1 WHERE id = 5;
UPDATE f SET n = n;
DELETE FROM f WHERE id IN (1, 2, 3);
DELETE FROM f;
INSERT INTO k VALUES (99, 'out'), (100, 'in'), (101, 'in');
UPDATE k SET v = 'still';
UPDATE k SET id = id + 5 WHERE id = 99;
UPDATE k SET id = 1 WHERE id = 100;
DELETE FROM k;
INSERT INTO p VALUES (1, 4, 'in'), (2, 5, 'out'), (3, NULL, 'out');
ALTER TABLE p REPLICA IDENTITY FULL;
ALTER TABLE p0 REPLICA IDENTITY FULL;
UPDATE p SET n = n - 1;
BEGIN; INSERT INTO k VALUES (50, 'out'); ALTER PUBLICATION row_filters SET TABLE k WHERE (id < 100 AND NOT id = 7); INSERT INTO k VALUES (51, 'in'), (7, 'out'); UPDATE k SET id = 8 WHERE id = 7; COMMIT;
UPDATE k SET id = 300 WHERE id = 51;
TRUNCATE k;
