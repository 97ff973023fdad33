-- Generated columns: not published, and from 18 on published if somebody asks for it.
CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, v text);
CREATE PUBLICATION generated FOR TABLE g;
--! range
INSERT INTO g (id, n, v) VALUES (1, 1, 'a'), (2, NULL, 'b');
UPDATE g SET n = 5;
ALTER TABLE g REPLICA IDENTITY FULL;
ALTER TABLE g ADD thrice int GENERATED ALWAYS AS (n * 3) STORED;
INSERT INTO g (id, n) VALUES (3, 3);
ALTER TABLE g DROP twice;
INSERT INTO g (id, n) VALUES (4, 4);
