-- Names that need quotes, of mixed case, of letters of other alphabets, of 63 bytes, and like our own.

--@ both
CREATE SCHEMA "Sales & Co";

CREATE TABLE "Sales & Co"."Order ""x""" ("Key" int PRIMARY KEY, "a b" text, "select" int, "ünï'; --" text, "$1" int);

CREATE TABLE "täble.with.dots" (id int PRIMARY KEY, "t" int, s int, c0 int, u int, "tableoid_" int);

CREATE TABLE "таблица" ("ключ" int PRIMARY KEY, "値" text, "🐜" int);

CREATE TABLE "a123456789b123456789c123456789d123456789e123456789f123456789xyz" ("A123456789b123456789c123456789d123456789e123456789f123456789xyz" int PRIMARY KEY, v int);

CREATE TABLE "UPPER" (id int PRIMARY KEY, "V" int, v int, "v " int);

CREATE TABLE upper (id int PRIMARY KEY, v int);

CREATE TABLE "back\slash" ("a\b" int PRIMARY KEY, "c""d" text, "e%s%I" text, "{x}" text, "n
l" text);

CREATE TABLE "user" ("order" int PRIMARY KEY, "from" text, "unnest" text, "excluded" int);

CREATE SCHEMA "pgsluice ";

CREATE TABLE "pgsluice ".progress (subscription text PRIMARY KEY, "applied_lsn" int);

--@ source
INSERT INTO "Sales & Co"."Order ""x""" SELECT i, 'a', i, 'u', i FROM generate_series(1, 10) i;

INSERT INTO "таблица" VALUES (1, 'один', 1);

INSERT INTO "back\slash" VALUES (1, '"', '%', '{}', E'\n');

--@ steps
INSERT INTO "täble.with.dots" SELECT i, i, i, i, i, i FROM generate_series(1, 10) i; UPDATE "täble.with.dots" SET t = -t, c0 = NULL, id = id + 100 WHERE id < 4;

UPDATE "Sales & Co"."Order ""x""" SET "ünï'; --" = '$1', "select" = NULL WHERE "Key" % 2 = 0; DELETE FROM "Sales & Co"."Order ""x""" WHERE "$1" = 3;

INSERT INTO "таблица" VALUES (2, '二', 2), (3, '', NULL); UPDATE "таблица" SET "値" = "値" || '🐜', "🐜" = 7; DELETE FROM "таблица" WHERE "ключ" = 3;

INSERT INTO "a123456789b123456789c123456789d123456789e123456789f123456789xyz" VALUES (1, 1), (2, 2); UPDATE "a123456789b123456789c123456789d123456789e123456789f123456789xyz" SET v = 3;

INSERT INTO "UPPER" VALUES (1, 2, 3, 4); INSERT INTO upper VALUES (1, 5); UPDATE "UPPER" SET v = 30, "v " = 40; UPDATE upper SET id = 2;

INSERT INTO "back\slash" VALUES (2, 'c\d', '%s', '{1,2}', 'l'); UPDATE "back\slash" SET "c""d" = '\', "a\b" = -"a\b"; UPDATE "back\slash" SET "n
l" = NULL WHERE "a\b" = -1;

INSERT INTO "user" VALUES (1, 'f', 'u', 1); INSERT INTO "pgsluice ".progress VALUES ('s', 1); UPDATE "user" SET "excluded" = 2, "from" = NULL; UPDATE "pgsluice ".progress SET applied_lsn = 2;

TRUNCATE "Sales & Co"."Order ""x""", "таблица";

INSERT INTO "таблица" VALUES (4, 'new', 4);
