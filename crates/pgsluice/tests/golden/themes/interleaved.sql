-- Transactions that are open at the same time, streamed in turns; some come to nothing, and they commit in another order.

--@ both
CREATE TABLE t (id int PRIMARY KEY, v text, n int);

CREATE TABLE log (n int, v text);

--@ source
INSERT INTO t SELECT i, 'v', 0 FROM generate_series(1, 100) i;

--@ steps
-- session a
BEGIN; INSERT INTO t SELECT i, repeat('a', 200), 1 FROM generate_series(1001, 1500) i;

-- session b
BEGIN; INSERT INTO t SELECT i, repeat('b', 200), 1 FROM generate_series(2001, 2500) i;

INSERT INTO log VALUES (1, 'between');

-- session c
BEGIN; UPDATE t SET v = 'never' WHERE id <= 50; INSERT INTO t SELECT i, repeat('c', 200), 1 FROM generate_series(3001, 3500) i;

-- session a
SAVEPOINT s; INSERT INTO t SELECT i, repeat('x', 200), 1 FROM generate_series(4001, 4500) i; ROLLBACK TO s; INSERT INTO log VALUES (2, 'a');

-- session b
UPDATE t SET n = n + 1 WHERE id BETWEEN 2001 AND 2300; DELETE FROM t WHERE id BETWEEN 2100 AND 2200; INSERT INTO log VALUES (3, 'b');

-- session c
ROLLBACK;

UPDATE t SET v = 'small', n = 5 WHERE id <= 10;

-- session b
COMMIT;

-- session a
UPDATE t SET n = n + 1 WHERE id > 1000; COMMIT;

INSERT INTO log VALUES (4, 'last');
