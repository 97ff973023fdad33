-- Publications that change while transactions are open, also in the transactions themselves.
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text);
CREATE SCHEMA other_schema;
CREATE TABLE other_schema.c (id int PRIMARY KEY, v text);
CREATE PUBLICATION publications_altered FOR TABLE a;
CREATE PUBLICATION every FOR ALL TABLES WITH (publish = 'delete');
--! publications publications_altered, every
--! range
INSERT INTO a VALUES (1, 'published');
INSERT INTO b VALUES (1, 'not');
BEGIN; INSERT INTO b VALUES (2, 'not'); ALTER PUBLICATION publications_altered ADD TABLE b; INSERT INTO b VALUES (3, 'published'); SAVEPOINT s; ALTER PUBLICATION publications_altered DROP TABLE a; INSERT INTO a VALUES (2, 'not'); ROLLBACK TO s; INSERT INTO a VALUES (3, 'published'); COMMIT;
BEGIN; INSERT INTO a VALUES (4, 'published');
--! session b
ALTER PUBLICATION publications_altered DROP TABLE a;
--! session a
INSERT INTO a VALUES (5, 'not, as that has committed');
--! session b
BEGIN; ALTER PUBLICATION publications_altered ADD TABLE a;
--! session a
INSERT INTO a VALUES (6, 'not');
--! session b
COMMIT;
--! session a
INSERT INTO a VALUES (7, 'published');
COMMIT;
ALTER PUBLICATION publications_altered SET (publish = 'insert');
UPDATE a SET v = 'not';
DELETE FROM a WHERE id = 1;
ALTER PUBLICATION every SET (publish = 'delete, truncate');
TRUNCATE b;
INSERT INTO other_schema.c VALUES (1, 'not');
ALTER PUBLICATION publications_altered ADD TABLES IN SCHEMA other_schema;
INSERT INTO other_schema.c VALUES (2, 'published');
BEGIN; ALTER TABLE a SET SCHEMA other_schema; ALTER PUBLICATION publications_altered DROP TABLE other_schema.a; INSERT INTO other_schema.a VALUES (8, 'published by schema'); ALTER TABLE other_schema.a SET SCHEMA publications_altered; INSERT INTO a VALUES (9, 'not'); COMMIT;
ALTER PUBLICATION publications_altered RENAME TO renamed;
ALTER PUBLICATION renamed RENAME TO publications_altered;
INSERT INTO b VALUES (9, 'published');
