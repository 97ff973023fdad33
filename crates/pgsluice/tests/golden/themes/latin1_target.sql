-- A source in UTF8 and a target in LATIN1: what fits arrives, and what does not fit stops before a row is lost.

--@ target database ENCODING 'LATIN1' TEMPLATE template0

--@ both
CREATE TABLE "tëst" (id int PRIMARY KEY, v text);

--@ source
INSERT INTO "tëst" VALUES (1, 'ÀÿÆ ½ §'), (2, '');

--@ steps
INSERT INTO "tëst" SELECT i, repeat('ÿ', i) FROM generate_series(3, 100) i;

UPDATE "tëst" SET v = v || '¡' WHERE id % 2 = 0; DELETE FROM "tëst" WHERE id = 1;

--@ stops has no equivalent in encoding "LATIN1"
INSERT INTO "tëst" VALUES (1000, '🐜');

--@ holds
SELECT count(*) = 0 FROM "tëst" WHERE id = 1000
