-- TRUNCATE of one and of several, of those that refer to them, of partitions, published or not.
CREATE TABLE a (id serial PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);
CREATE TABLE c (id int PRIMARY KEY);
CREATE TABLE unpublished (id int);
CREATE TABLE p (id int, v text) PARTITION BY LIST (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
CREATE PUBLICATION truncate FOR TABLE a, b, c, p;
CREATE PUBLICATION no_truncate FOR TABLE unpublished WITH (publish = 'insert');
--! publications truncate, no_truncate
--! range
INSERT INTO a (v) VALUES ('x'), ('y');
INSERT INTO b VALUES (1, 1);
--! error
TRUNCATE a;
TRUNCATE a CASCADE;
INSERT INTO a (v) VALUES ('x');
TRUNCATE a, b, c, unpublished RESTART IDENTITY;
INSERT INTO a (v) VALUES ('again');
INSERT INTO p VALUES (1, 'one'), (2, 'two');
TRUNCATE p1;
INSERT INTO p VALUES (1, 'one');
TRUNCATE p;
INSERT INTO unpublished VALUES (1);
TRUNCATE unpublished;
BEGIN; INSERT INTO c VALUES (1); TRUNCATE c; INSERT INTO c VALUES (2); SAVEPOINT s; TRUNCATE c; INSERT INTO c VALUES (3); ROLLBACK TO s; INSERT INTO c VALUES (4); TRUNCATE c RESTART IDENTITY; INSERT INTO c VALUES (5); COMMIT;
BEGIN; TRUNCATE c; ROLLBACK;
UPDATE c SET id = 6;
