-- The server stops in the middle of things. What was open is gone, and its ids and files come to nothing.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE PUBLICATION crash FOR ALL TABLES;
--! range
INSERT INTO t VALUES (1, 'before');
--! session b
BEGIN; CREATE TABLE lost (id int); INSERT INTO lost VALUES (1); ALTER TABLE t ADD lost int; INSERT INTO t VALUES (2, 'lost', 1); SAVEPOINT a; INSERT INTO t VALUES (3, 'lost', 2);
--! session c
BEGIN; CREATE TABLE lost_too (id int); INSERT INTO lost_too SELECT n FROM generate_series(1, 5000) n;
--! crash
--! session a
INSERT INTO t VALUES (2, 'behind');
CREATE TABLE lost (id int, v text);
INSERT INTO lost VALUES (1, 'another');
ALTER TABLE t ADD kept int DEFAULT 3;
UPDATE t SET v = 'changed';
--! session b
BEGIN; CLUSTER pg_class USING pg_class_oid_index; CREATE TABLE gone (id int); INSERT INTO gone VALUES (1);
--! crash
--! session a
CREATE TABLE gone (id int, v int);
INSERT INTO gone VALUES (1, 2);
CHECKPOINT;
INSERT INTO gone VALUES (2, 3);
