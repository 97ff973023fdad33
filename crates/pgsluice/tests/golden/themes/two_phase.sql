-- Prepared transactions arrive with their COMMIT PREPARED, whatever came between, or never.

--@ both
CREATE TABLE t (id int PRIMARY KEY, v text, n int);

--@ source
INSERT INTO t SELECT i, 'v', 0 FROM generate_series(1, 20) i;

--@ steps
BEGIN; INSERT INTO t SELECT i, repeat('p', 300), 0 FROM generate_series(1001, 2000) i; UPDATE t SET n = 1 WHERE id < 5; PREPARE TRANSACTION 'large';

BEGIN; INSERT INTO t VALUES (3000, 'gone', 0); DELETE FROM t WHERE id = 20; PREPARE TRANSACTION 'gone';

BEGIN; UPDATE t SET id = 100 WHERE id = 10; SAVEPOINT s; DELETE FROM t WHERE id = 11; ROLLBACK TO s; PREPARE TRANSACTION 'small';

UPDATE t SET v = 'between' WHERE id = 19;

--@ holds
SELECT count(*) = 20 AND sum(n) = 0 AND max(id) = 20 FROM t

--@ steps
COMMIT PREPARED 'small';

INSERT INTO t VALUES (10, 'in its place', 0);

ROLLBACK PREPARED 'gone';

COMMIT PREPARED 'large';

UPDATE t SET n = n + 1 WHERE id BETWEEN 1001 AND 1100; DELETE FROM t WHERE id > 1900;

BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'alone', 0); PREPARE TRANSACTION 'truncate';

COMMIT PREPARED 'truncate';
