-- Subtransactions by the thousand, nested, some rolled back, in transactions small and streamed.

--@ both
CREATE TABLE t (id int PRIMARY KEY, v text, n int);

CREATE TABLE described (id int PRIMARY KEY, v text);

CREATE TABLE altered (id int PRIMARY KEY, v text);

--@ target
ALTER TABLE altered ADD extra text;

--@ source
INSERT INTO t SELECT i, 'v', 0 FROM generate_series(1, 50) i;

--@ steps
DO $$
BEGIN
    FOR i IN 1..2000 LOOP
        BEGIN
            INSERT INTO t VALUES (1000 + i, repeat('s', i % 50), i);
            IF i % 8 = 0 THEN
                UPDATE t SET n = n + 1 WHERE id = i % 50 + 1;
            END IF;
            IF i % 3 = 0 THEN
                RAISE EXCEPTION 'undone';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            IF i % 9 = 0 THEN
                UPDATE t SET v = 'undone ' || i WHERE id = i % 50 + 1;
            END IF;
        END;
    END LOOP;
END $$;

BEGIN; SAVEPOINT a; INSERT INTO t VALUES (1, 'conflict', 0) ON CONFLICT DO NOTHING; INSERT INTO t VALUES (5001, 'a', 1); SAVEPOINT b; UPDATE t SET n = -1; SAVEPOINT c; DELETE FROM t WHERE id < 10; ROLLBACK TO c; INSERT INTO t VALUES (5002, 'c', 1); RELEASE b; ROLLBACK TO a; INSERT INTO t VALUES (5001, 'once more', 2); COMMIT;

DO $$
BEGIN
    FOR i IN 1..200 LOOP
        BEGIN
            UPDATE t SET id = -id WHERE id = 1000 + i;
            BEGIN
                DELETE FROM t WHERE id = 1200 + i;
                IF i % 2 = 0 THEN
                    RAISE EXCEPTION 'undone';
                END IF;
            EXCEPTION WHEN raise_exception THEN NULL;
            END;
            IF i % 5 = 0 THEN
                RAISE EXCEPTION 'undone';
            END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$;

BEGIN; SAVEPOINT a; INSERT INTO t SELECT i, repeat('x', 200), 0 FROM generate_series(6001, 6300) i; SAVEPOINT b; UPDATE t SET v = repeat('y', 200) WHERE id > 6000; ROLLBACK TO b; UPDATE t SET n = 9 WHERE id > 6200; SAVEPOINT d; DELETE FROM t WHERE id > 6250; COMMIT;

BEGIN; SAVEPOINT a; INSERT INTO t SELECT i, repeat('x', 200), 0 FROM generate_series(7001, 7300) i; ROLLBACK;

-- session a
BEGIN; SAVEPOINT a; INSERT INTO described SELECT i, repeat('x', 200) FROM generate_series(1, 1000) i;

INSERT INTO t VALUES (8001, 'while it is open', 0);

-- session a
ROLLBACK TO a; INSERT INTO described SELECT i, repeat('y', 200) FROM generate_series(1, 300) i; COMMIT;

-- session a
BEGIN; INSERT INTO altered SELECT i, repeat('x', 200) FROM generate_series(1, 300) i; SAVEPOINT a; ALTER TABLE altered ADD extra text; INSERT INTO altered SELECT i, repeat('y', 200), 'e' FROM generate_series(301, 600) i;

INSERT INTO t VALUES (8002, 'while it is open', 0);

-- session a
ROLLBACK TO a; INSERT INTO altered SELECT i, repeat('z', 200) FROM generate_series(301, 600) i; COMMIT;

INSERT INTO altered VALUES (2000, 'in the shape that never changed'); UPDATE altered SET v = 'here' WHERE id < 10;
