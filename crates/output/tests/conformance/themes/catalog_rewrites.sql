-- Catalogs get other files: between transactions, in them, while others are open, and taken back.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE PUBLICATION catalog_rewrites FOR ALL TABLES;
--! range
VACUUM FULL pg_class;
INSERT INTO t VALUES (1, 'a');
BEGIN; CREATE TABLE c1 (id int PRIMARY KEY, m mood); INSERT INTO c1 VALUES (1, 'ok'); CLUSTER pg_class USING pg_class_oid_index; CREATE TABLE c2 (id int); INSERT INTO c2 VALUES (2); ALTER TABLE c1 ADD v text DEFAULT 'x'; INSERT INTO c1 VALUES (3, 'sad'); COMMIT;
INSERT INTO c2 VALUES (3);
BEGIN; CREATE TABLE c3 (id int); CLUSTER pg_attribute USING pg_attribute_relid_attnum_index; ALTER TABLE c3 ADD v text; INSERT INTO c3 VALUES (1, 'x'); ROLLBACK;
BEGIN; ALTER TABLE t ADD n int DEFAULT 1; CLUSTER pg_type USING pg_type_oid_index; CREATE TYPE pair AS (a int, b mood); CREATE TABLE c4 (id int, p pair); INSERT INTO c4 VALUES (1, ROW(1, 'ok')); CLUSTER pg_namespace USING pg_namespace_oid_index; CREATE SCHEMA within; CREATE TABLE within.c5 (id int); INSERT INTO within.c5 VALUES (1); COMMIT;
INSERT INTO t VALUES (2, 'b', 2);
BEGIN; CREATE TABLE c6 (id int); INSERT INTO c6 VALUES (1);
--! session b
VACUUM FULL pg_class;
VACUUM FULL pg_attribute;
VACUUM FULL pg_publication;
--! session a
ALTER TABLE c6 ADD v text; INSERT INTO c6 VALUES (2, 'behind');
SAVEPOINT s; ALTER TABLE c6 ADD w text; INSERT INTO c6 VALUES (3, 'x', 'y');
--! session b
VACUUM FULL pg_attribute;
CHECKPOINT;
--! session a
ROLLBACK TO s; INSERT INTO c6 VALUES (4, 'z');
COMMIT;
BEGIN; CLUSTER pg_class USING pg_class_oid_index; CREATE TABLE lost (id int); INSERT INTO lost VALUES (1); ROLLBACK;
CREATE TABLE c7 (id int);
INSERT INTO c7 VALUES (1);
VACUUM FULL pg_index;
VACUUM FULL pg_inherits;
VACUUM FULL pg_type;
INSERT INTO c7 VALUES (2);
