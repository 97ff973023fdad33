-- A schema gets another name, between transactions and while one is open.
--! since 16
CREATE SCHEMA moving;
CREATE TABLE moving.t (id int PRIMARY KEY, v text);
CREATE PUBLICATION schema_renamed FOR TABLES IN SCHEMA moving;
--! range
INSERT INTO moving.t VALUES (1, 'a');
ALTER SCHEMA moving RENAME TO moved;
INSERT INTO moved.t VALUES (2, 'b');
BEGIN; INSERT INTO moved.t VALUES (3, 'c'); ALTER SCHEMA moved RENAME TO moving; INSERT INTO moving.t VALUES (4, 'd'); COMMIT;
