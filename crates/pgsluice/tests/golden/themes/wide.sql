-- 1,600 columns, which is as many as a table can have.

--@ both
DO $$
BEGIN
    EXECUTE 'CREATE TABLE t (id int PRIMARY KEY, ' || (SELECT string_agg(format('c%s %s', n, (ARRAY['int', 'text', 'int2', 'bool'])[n % 4 + 1]), ', ') FROM generate_series(1, 1599) n) || ')';
END $$;

--@ source
INSERT INTO t (id, c1, c1599) SELECT i, 'one', false FROM generate_series(1, 5) i;

--@ steps
INSERT INTO t (id, c1596, c1) SELECT i, i, 'two' FROM generate_series(6, 10) i;

UPDATE t SET c1 = 'y', c2 = 2, c3 = NOT coalesce(c3, false), c1597 = NULL WHERE id % 2 = 0;

DO $$
BEGIN
    EXECUTE 'UPDATE t SET ' || (SELECT string_agg(format('c%s = %s', n, (ARRAY['7', '''x''', '3', 'true'])[n % 4 + 1]), ', ') FROM generate_series(1, 1599) n) || ' WHERE id = 3';
END $$;

DELETE FROM t WHERE id = 4; UPDATE t SET id = -id WHERE id < 3;

ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET c4 = 1; DELETE FROM t WHERE id = 7;
