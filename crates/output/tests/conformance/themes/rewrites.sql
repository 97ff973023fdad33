-- Tables whose rows move to other files, with changes before and behind in the same transaction.
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
CREATE PUBLICATION rewrites FOR ALL TABLES;
INSERT INTO t SELECT n, 'v' || n, n FROM generate_series(1, 20) n;
--! range
BEGIN; INSERT INTO t VALUES (30, 'before', 1); ALTER TABLE t ALTER n TYPE bigint; INSERT INTO t VALUES (31, 'behind', 2); COMMIT;
UPDATE t SET n = 5000000000 WHERE id = 31;
VACUUM FULL t;
UPDATE t SET v = 'full' WHERE id < 5;
CLUSTER t USING t_pkey;
DELETE FROM t WHERE id = 6;
BEGIN; UPDATE t SET v = 'x' WHERE id = 7; CLUSTER t USING t_pkey; UPDATE t SET v = 'y' WHERE id = 7; SAVEPOINT a; ALTER TABLE t ALTER v TYPE varchar(50); INSERT INTO t VALUES (32, 'taken back', 1); ROLLBACK TO a; INSERT INTO t VALUES (33, 'kept', 1); TRUNCATE t; INSERT INTO t VALUES (34, 'last', 1); COMMIT;
BEGIN; ALTER TABLE t ADD r float8 DEFAULT random(); UPDATE t SET v = 'rewritten'; ROLLBACK;
ALTER TABLE t SET UNLOGGED;
INSERT INTO t VALUES (40, 'nobody sees it', 1);
ALTER TABLE t SET LOGGED;
INSERT INTO t VALUES (41, 'seen again', 1);
CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
REFRESH MATERIALIZED VIEW m;
DROP MATERIALIZED VIEW m;
ALTER TABLE t ALTER n TYPE text USING 'n' || n;
UPDATE t SET n = n || '!';
