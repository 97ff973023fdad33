-- A source in SQL_ASCII, which knows no encoding: bytes that are UTF-8 arrive as they are, others stop with a word.

--@ source database ENCODING 'SQL_ASCII' TEMPLATE template0

--@ both
CREATE TABLE "tëst" (id int PRIMARY KEY, "größe" text, b bytea);

--@ source
INSERT INTO "tëst" VALUES (1, 'ÀÿÆ ½ 🐜', '\x00ff'), (2, '', NULL);

--@ steps
INSERT INTO "tëst" SELECT i, repeat('ÿ', i), '\xff' FROM generate_series(3, 50) i;

UPDATE "tëst" SET "größe" = "größe" || '¡' WHERE id % 2 = 0; DELETE FROM "tëst" WHERE id = 1;

--@ stops invalid byte sequence for encoding "UTF8": 0xff
INSERT INTO "tëst" VALUES (1000, E'\xff', NULL);

--@ holds
SELECT count(*) = 0 FROM "tëst" WHERE id = 1000
