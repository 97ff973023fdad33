-- A source in LATIN1 and a target in UTF8: names and values arrive in the target's encoding.

--@ source database ENCODING 'LATIN1' TEMPLATE template0

--@ both
CREATE TABLE "tëst" (id int PRIMARY KEY, "größe" text, c "char", n name, x xml, j json);

CREATE TABLE keyed (k text PRIMARY KEY, v text);

--@ source
INSERT INTO "tëst" VALUES (1, 'ÀÿÆ ½ §', 'a', 'naïve', '<a>é</a>', '"\u00e9 é"'), (2, '', NULL, 'ascii', NULL, NULL);

INSERT INTO keyed VALUES ('é', 'ü'), ('e', '');

--@ steps
INSERT INTO "tëst" SELECT i, repeat('ÿ', i), 'z', 'ü', '<b>ß</b>', '{"ö": "ä"}' FROM generate_series(3, 200) i;

UPDATE keyed SET v = 'ÄÖÜ' || v; UPDATE keyed SET k = 'éé' WHERE k = 'é';

DELETE FROM keyed WHERE k = 'éé'; INSERT INTO keyed VALUES ('é', 'again'), ('ÿ', 'y');

UPDATE "tëst" SET "größe" = "größe" || '¡' WHERE id % 2 = 0; DELETE FROM "tëst" WHERE id = 1;
