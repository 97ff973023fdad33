-- Types of users and of extensions: enums, domains, composites, ranges, multiranges, arrays, hstore, citext, ltree, jsonb.

--@ both
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;

CREATE TYPE mood AS ENUM ('sad', 'so so', '"');

CREATE DOMAIN short AS varchar(5) NOT NULL CHECK (value <> 'bad');

CREATE DOMAIN numbers AS int[] CHECK (array_length(value, 1) < 4);

CREATE DOMAIN deep AS short CHECK (value <> 'worse');

CREATE TYPE pair AS (a int, b text, m mood); CREATE TYPE nested AS (p pair, ps pair[], n numbers);

CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi, multirange_type_name = floatmultirange);

CREATE TABLE t (id int PRIMARY KEY, c citext, h hstore, l ltree, m mood, ms mood[], s short DEFAULT 'x', n numbers, d deep DEFAULT 'y', p pair, ne nested, nes nested[], f floats, fm floats[], cs citext[], hs hstore[], ns numbers[], fs floatmultirange, j jsonb, js jsonb[], r int4range, rm int4multirange);

CREATE TABLE whole AS TABLE t;

ALTER TABLE whole REPLICA IDENTITY FULL;

CREATE TABLE by_mood (m mood PRIMARY KEY, d deep, v int);

CREATE TABLE by_citext (c citext PRIMARY KEY, v int);

CREATE TABLE by_composite (p pair PRIMARY KEY, v int);

--@ source
CREATE FUNCTION example(id int) RETURNS t LANGUAGE sql AS $$
    SELECT id, 'CiText'::citext, 'a=>1, "b c"=>NULL'::hstore, 'Top.Sub_1'::ltree, 'so so'::mood, ARRAY['"', NULL]::mood[],
           'short'::short, '{1,2}'::numbers, 'deep'::deep, ROW(id, 'a "q" ,()', 'sad')::pair,
           ROW(ROW(1, NULL, NULL), ARRAY[ROW(2, '', 'sad')::pair, NULL], '{3}')::nested,
           ARRAY[ROW(NULL, NULL, NULL)]::nested[], '[0.1,NaN)'::floats, ARRAY['empty', '(,)']::floats[],
           ARRAY['A', 'b']::citext[], ARRAY['x=>y']::hstore[], '{"{1}",NULL}'::numbers[], '{[1,2),[3,Infinity]}'::floatmultirange,
           '{"é": [1.10, null, {"🐜": ""}]}'::jsonb, ARRAY['1', NULL, '"\u0007"']::jsonb[], 'empty'::int4range, '{(,1),[5,)}'::int4multirange
$$;

INSERT INTO t SELECT (example(i)).* FROM generate_series(1, 10) i;

INSERT INTO whole SELECT (example(i % 4)).* FROM generate_series(1, 10) i;

INSERT INTO t (id) VALUES (1000);

--@ steps
INSERT INTO t SELECT (example(i)).* FROM generate_series(101, 110) i; INSERT INTO whole SELECT (example(5)).* FROM generate_series(1, 5) i;

UPDATE t SET p = ROW(9, 'x', NULL), ms = '{}', h = h || 'n=>1', d = 'other' WHERE id % 2 = 0;

UPDATE whole SET p = NULL, c = upper(c), m = NULL WHERE id = 3; DELETE FROM whole WHERE ctid = (SELECT max(ctid) FROM whole WHERE id = 5);

UPDATE t SET ne = NULL, nes = NULL, f = NULL, n = NULL, js = NULL WHERE id < 5; DELETE FROM t WHERE id % 4 = 0; UPDATE t SET id = -id, l = 'a.b';

UPDATE whole SET id = -id, j = j || '{"b": 2}', rm = '{}', fs = NULL; INSERT INTO whole (id, s, d) VALUES (7, '', '');

INSERT INTO by_mood VALUES ('sad', 'd', 1), ('"', 'e', 2); UPDATE by_mood SET m = 'so so' WHERE v = 1; UPDATE by_mood SET v = 3 WHERE m = '"';

INSERT INTO by_citext VALUES ('A', 1), ('b', 2); UPDATE by_citext SET v = 3 WHERE c = 'a'; UPDATE by_citext SET c = 'a' WHERE c = 'A'; DELETE FROM by_citext WHERE c = 'B'; INSERT INTO by_citext VALUES ('B', 5);

INSERT INTO by_composite VALUES (ROW(1, '', 'sad'), 1), (ROW(NULL, NULL, NULL), 2); UPDATE by_composite SET v = -v; UPDATE by_composite SET p = ROW(2, ',', '"') WHERE v = -1; DELETE FROM by_composite WHERE v = -2;

ALTER TYPE mood ADD VALUE 'unused here';

UPDATE t SET m = 'sad' WHERE id = -101;
