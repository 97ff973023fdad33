-- What tables are changes between and inside of transactions that change rows.
CREATE TABLE t (id int PRIMARY KEY, a text, b int);
CREATE SCHEMA elsewhere;
CREATE PUBLICATION definitions FOR ALL TABLES;
--! range
INSERT INTO t VALUES (1, 'a', 1);
BEGIN; INSERT INTO t VALUES (2, 'a', 1); ALTER TABLE t ADD c text; INSERT INTO t VALUES (3, 'a', 1, 'c'); ALTER TABLE t DROP b; INSERT INTO t VALUES (4, 'a', 'c'); ALTER TABLE t RENAME a TO z; UPDATE t SET z = 'zz'; ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (5, 'x', 'y'); ALTER TABLE t2 SET SCHEMA elsewhere; DELETE FROM elsewhere.t2 WHERE id = 1; COMMIT;
BEGIN; CREATE TABLE t (id int, n numeric); INSERT INTO t VALUES (1, 1.5); DROP TABLE t; CREATE TABLE t (n text); INSERT INTO t VALUES ('x'); COMMIT;
BEGIN; SAVEPOINT a; ALTER TABLE t ADD id int; INSERT INTO t VALUES ('y', 1); ROLLBACK TO a; INSERT INTO t VALUES ('z'); ALTER TABLE t ADD id bigint; INSERT INTO t VALUES ('w', 2); COMMIT;
BEGIN; DROP TABLE t; ROLLBACK;
INSERT INTO t VALUES ('still there', 3);
DELETE FROM elsewhere.t2;
--! error
DELETE FROM t;
UPDATE elsewhere.t2 SET z = 'nobody';
CREATE TABLE s (id serial PRIMARY KEY, v varchar(5) COLLATE "C", "Quoted ""name""" int);
INSERT INTO s (v) VALUES ('a'), ('b');
ALTER TABLE s ALTER v TYPE varchar(9);
INSERT INTO s (v) VALUES ('c');
SELECT setval('s_id_seq', 100);
CREATE TABLE made AS SELECT * FROM s;
SELECT id, v INTO made_too FROM s;
CREATE VIEW w AS SELECT * FROM s;
INSERT INTO w (v) VALUES ('view');
CREATE TABLE child (x int) INHERITS (s);
INSERT INTO child (v, x) VALUES ('child', 1);
UPDATE ONLY s SET v = v || '+' WHERE id > 0;
CREATE TEMP TABLE temporary (id int);
INSERT INTO temporary VALUES (1);
CREATE UNLOGGED TABLE unlogged (id int);
INSERT INTO unlogged VALUES (1);
CREATE TABLE no_columns ();
INSERT INTO no_columns DEFAULT VALUES;
DROP SCHEMA elsewhere CASCADE;
DROP TABLE s CASCADE;
INSERT INTO made VALUES (9, 'x', 9);
