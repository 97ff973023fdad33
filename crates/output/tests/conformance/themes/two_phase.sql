-- Prepared transactions: committed, rolled back, with subtransactions and DDL, empty, across a crash.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE unpublished (id int);
CREATE PUBLICATION two_phase FOR TABLE t;
--! range
BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION 'p1';
INSERT INTO t VALUES (2, 'in between');
COMMIT PREPARED 'p1';
BEGIN; INSERT INTO t VALUES (3, 'lost'); PREPARE TRANSACTION 'p2';
ROLLBACK PREPARED 'p2';
BEGIN; INSERT INTO t VALUES (4, 'top'); SAVEPOINT a; INSERT INTO t VALUES (5, 'lost'); ROLLBACK TO a; INSERT INTO t VALUES (6, 'sub'); PREPARE TRANSACTION 'a longer name, "quoted"';
BEGIN; ALTER TABLE unpublished ADD v text; INSERT INTO unpublished VALUES (1, 'x'); PREPARE TRANSACTION 'nothing published';
BEGIN; CREATE TABLE made (id int); PREPARE TRANSACTION 'only ddl';
BEGIN; SELECT 1; PREPARE TRANSACTION 'nothing';
BEGIN; UPDATE t SET v = 'nobody' WHERE id = -1; PREPARE TRANSACTION 'nothing either';
ROLLBACK PREPARED 'nothing';
BEGIN; INSERT INTO t VALUES (7, 'across'); PREPARE TRANSACTION 'across';
BEGIN; INSERT INTO t VALUES (8, 'lost across'); PREPARE TRANSACTION 'lost across';
BEGIN; INSERT INTO t VALUES (9, 'not prepared');
--! crash
COMMIT PREPARED 'a longer name, "quoted"';
COMMIT PREPARED 'nothing published';
COMMIT PREPARED 'nothing either';
ROLLBACK PREPARED 'only ddl';
UPDATE t SET v = 'changed' WHERE id = 6;
COMMIT PREPARED 'across';
ROLLBACK PREPARED 'lost across';
BEGIN; INSERT INTO t SELECT n, repeat('large', 20) FROM generate_series(100, 800) n; SAVEPOINT a; INSERT INTO t SELECT n, repeat('taken back', 20) FROM generate_series(1000, 1800) n; ROLLBACK TO a; UPDATE t SET v = 'large' WHERE id > 100; PREPARE TRANSACTION 'large';
COMMIT PREPARED 'large';
BEGIN; INSERT INTO t VALUES (10, 'last'); PREPARE TRANSACTION 'p1';
COMMIT PREPARED 'p1';
