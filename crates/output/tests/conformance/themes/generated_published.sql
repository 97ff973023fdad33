-- Generated columns that are published, by the publication and by a list; virtual ones never are.
--! since 18
CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, v int GENERATED ALWAYS AS (n + 1) VIRTUAL);
CREATE TABLE l (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);
CREATE PUBLICATION generated_published FOR TABLE g, l (id, twice) WITH (publish_generated_columns = stored);
--! range
INSERT INTO g (id, n) VALUES (1, 1), (2, NULL);
INSERT INTO l (id, n) VALUES (1, 1), (2, NULL);
UPDATE g SET n = 7;
UPDATE l SET n = 7;
BEGIN; INSERT INTO g (id, n) VALUES (3, 3); ALTER PUBLICATION generated_published SET (publish_generated_columns = none); INSERT INTO g (id, n) VALUES (4, 4); COMMIT;
INSERT INTO l (id, n) VALUES (5, 5);
DELETE FROM g;
