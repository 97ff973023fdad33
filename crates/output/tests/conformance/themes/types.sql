-- Types of users: enums that grow, domains, composites, ranges, arrays of them, renamed and moved.
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN dm AS mood;
CREATE DOMAIN dt AS varchar(10) CHECK (value <> '');
CREATE TYPE pair AS (x int, m mood, l dm[]);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TABLE t (id int PRIMARY KEY, a mood, b dm, c pair, d span, e mood[], f pair[], g int4multirange, h dt);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE b (id int PRIMARY KEY, b1 boolean, i2 smallint, i8 bigint, f4 real, f8 float8, n numeric, n2 numeric(12,3), d date, t time, tz timetz, ts timestamp, tstz timestamptz, iv interval, u uuid, by bytea, c char(5), vc varchar(9), nm name, j json, jb jsonb, i inet, ci cidr, ma macaddr, bi bit(5), vb varbit, p point, bx box, r int4range, nr numrange, tr tstzrange, ia int[], ta text[], m2 int[][], o oid, x xid, l pg_lsn, mo money, tv tsvector, q tsquery);
CREATE TABLE v (k int8 PRIMARY KEY, o oidvector, i int2vector);
CREATE PUBLICATION types FOR TABLE t, b, v;
--! range
INSERT INTO t VALUES (1, 'ok', 'sad', ROW(1, 'ok', '{sad,NULL}'), '[1,2.5)', '{ok,NULL}', ARRAY[ROW(1, NULL, NULL)::pair], '{[1,3),[5,)}', 'text');
ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok';
INSERT INTO t (id, a, b) VALUES (2, 'new', 'new');
UPDATE t SET a = 'new', e = '{new,sad}' WHERE id = 1;
ALTER TYPE mood RENAME VALUE 'sad' TO 'glad';
DELETE FROM t WHERE id = 1;
BEGIN; CREATE TYPE inner_type AS ENUM ('one'); CREATE DOMAIN di AS inner_type; ALTER TABLE t ADD i di, ADD k inner_type[]; INSERT INTO t (id, i, k) VALUES (3, 'one', '{one}'); COMMIT;
ALTER TABLE t ALTER a TYPE text;
UPDATE t SET a = 'free';
INSERT INTO b VALUES (1, true, -1, 9223372036854775807, 1.1, 1e-300, -12345.678900, 1.5, '0044-03-15 BC', '23:59:59.999', '12:00+05:30', 'infinity', '2020-02-29 12:00:00.000001+02', '1 year -2 mons 3 days -04:05:06.7', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\x00ff', 'ab', 'v', 'nm', '{"a" : 1}', '{"b": [1, {"c": null}], "a": 1.50}', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', B'10101', B'101', '(1,2)', '(3,4),(1,2)', '[1,5]', '(,1.5]', '[2020-01-01,)', '{1,NULL,3}', '{"a,b","c\"d",NULL,""}', '[0:1][2:3]={{1,2},{3,4}}', 4294967295, '7', '16/B374D848', '-$1,234.50', 'a fat cat'::tsvector, 'fat & !rat'::tsquery);
INSERT INTO b (id, n, f8, f4, ts, d) VALUES (2, 'NaN', '-Infinity', 'NaN', '-infinity', 'infinity'), (3, 1e100, 0.1, -0.0, '294276-12-31 23:59:59.999999', '5874897-12-31'), (4, 0.000000000000000000001, 123456789012345678, 1e20, '4713-01-01 00:00:00 BC', '4713-01-01 BC');
INSERT INTO v VALUES (1, '1 2 4294967295', '1 -2 3'), (2, '', ''), (3, NULL, NULL);
