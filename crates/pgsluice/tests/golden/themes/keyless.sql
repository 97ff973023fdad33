-- Tables without any key take what is inserted, and TRUNCATE; a column list or no column at all makes no difference.

--@ publish FOR TABLE t, duplicates, empty, mark WITH (publish = 'insert, truncate')

--@ both
CREATE TABLE t (a int, b text);

CREATE TABLE duplicates (v numeric);

CREATE TABLE empty ();

--@ source
INSERT INTO t SELECT i % 3, 'b' FROM generate_series(1, 20) i;

INSERT INTO empty SELECT FROM generate_series(1, 3);

--@ steps
INSERT INTO t SELECT i % 3, NULL FROM generate_series(1, 20) i;

INSERT INTO duplicates SELECT 1.00 FROM generate_series(1, 500);

INSERT INTO empty SELECT FROM generate_series(1, 4);

INSERT INTO duplicates VALUES ('NaN'), (NULL); INSERT INTO t VALUES (NULL, NULL); INSERT INTO duplicates VALUES (1);

TRUNCATE t, empty; INSERT INTO t VALUES (1, 'after'); INSERT INTO empty DEFAULT VALUES;

--@ compare
SELECT count(*) FROM empty
