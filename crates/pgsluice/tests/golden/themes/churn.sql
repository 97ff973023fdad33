-- The same keys again and again, inside transactions and across them: what a fold makes of them is what happened.

--@ both
CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 7);

CREATE TABLE two (a int, b text, n numeric, PRIMARY KEY (b, a));

--@ source
INSERT INTO t SELECT i, 'v' || i, i FROM generate_series(1, 40) i;

INSERT INTO two SELECT i % 5, 'b' || i, i / 3.0 FROM generate_series(1, 40) i;

--@ steps
INSERT INTO t VALUES (100, 'a', 1); UPDATE t SET n = 2 WHERE id = 100; DELETE FROM t WHERE id = 100;

INSERT INTO t VALUES (100, 'b', 1); DELETE FROM t WHERE id = 100; INSERT INTO t VALUES (100, 'c', 2);

UPDATE t SET n = n + 1; UPDATE t SET n = n * 2 WHERE id % 2 = 0; UPDATE t SET v = NULL WHERE id % 3 = 0;

DELETE FROM t WHERE id = 1; INSERT INTO t (id, v) VALUES (1, 'again');

DELETE FROM t WHERE id = 1;

INSERT INTO t (id) VALUES (1);

UPDATE t SET id = 200 WHERE id = 2; INSERT INTO t VALUES (2, 'new', 2); UPDATE t SET n = -1 WHERE id = 200;

UPDATE t SET id = id + 1000; UPDATE t SET id = id - 1000;

DELETE FROM t WHERE id = 200; UPDATE t SET id = 200 WHERE id = 3; UPDATE t SET id = 3 WHERE id = 200;

UPDATE two SET n = n + 1 WHERE a = 1; UPDATE two SET a = a + 10 WHERE b < 'b2'; UPDATE two SET b = b || '!' WHERE a > 10;

DELETE FROM two WHERE a = 2; INSERT INTO two VALUES (2, 'b2', NULL), (2, 'b7', 'NaN');

DELETE FROM two; INSERT INTO two SELECT i % 5, 'b' || i, i FROM generate_series(1, 40) i;

UPDATE t SET n = 1 WHERE id = 4;

UPDATE t SET n = 2 WHERE id = 4;

DELETE FROM t WHERE id = 4;

INSERT INTO t VALUES (4, 'four', 4);

UPDATE t SET v = v, n = n WHERE id = 4;

--@ steps
DO $$
DECLARE
    k int;
BEGIN
    PERFORM setseed(0.25);
    FOR i IN 1..300 LOOP
        k := 5000 + floor(random() * 9);
        CASE floor(random() * 4)::int
            WHEN 0 THEN INSERT INTO t VALUES (k, 'walk', i) ON CONFLICT DO NOTHING;
            WHEN 1 THEN UPDATE t SET n = i WHERE id = k;
            WHEN 2 THEN DELETE FROM t WHERE id = k;
            ELSE DELETE FROM t WHERE id = k; INSERT INTO t VALUES (k, 'replaced', i);
        END CASE;
    END LOOP;
END $$;

DELETE FROM t WHERE id >= 5000;

INSERT INTO t SELECT i, 'back', i FROM generate_series(5000, 5010) i;
