-- Who commits when decides what others see: definitions and rows of sessions in between one another.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY, v text);
CREATE PUBLICATION interleaved FOR ALL TABLES;
--! range
BEGIN; INSERT INTO u VALUES (1, 'first');
--! session b
ALTER TABLE t ADD n int DEFAULT 1;
INSERT INTO t VALUES (1, 'b', 2);
--! session a
INSERT INTO t VALUES (2, 'a', 3);
--! session c
BEGIN; CREATE TABLE w (id int); INSERT INTO w VALUES (1);
--! session b
CREATE TABLE x (id int);
INSERT INTO x VALUES (1);
--! session a
INSERT INTO x VALUES (2);
COMMIT;
--! session c
INSERT INTO x VALUES (3);
COMMIT;
--! session a
INSERT INTO w VALUES (2);
BEGIN; SELECT 1; INSERT INTO t VALUES (5, 'long', 1);
--! session b
BEGIN; ALTER TABLE u RENAME TO u2; INSERT INTO u2 VALUES (2, 'renamed'); COMMIT;
CREATE TYPE later AS ENUM ('x');
ALTER TABLE u2 ADD l later;
--! session a
INSERT INTO u2 VALUES (3, 'now so', 'x');
COMMIT;
