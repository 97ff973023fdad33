-- Values of unique and exclusion constraints wander from row to row, inside transactions and across them.

--@ both
CREATE TABLE now (id int PRIMARY KEY, u int UNIQUE, v text);

CREATE TABLE later (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, n int, EXCLUDE USING btree (n WITH =) DEFERRABLE INITIALLY DEFERRED);

CREATE TABLE keys (id int PRIMARY KEY, v text);

CREATE TABLE two_keys (a int, b int, v int, PRIMARY KEY (a, b), UNIQUE (b, v));

CREATE TABLE hidden (id int PRIMARY KEY, e text, p int, active bool);

CREATE UNIQUE INDEX ON hidden (lower(e)); CREATE UNIQUE INDEX ON hidden (p) WHERE active;

--@ source
INSERT INTO now SELECT i, i, 'v' FROM generate_series(1, 10) i;

INSERT INTO later SELECT i, i, i FROM generate_series(1, 10) i;

INSERT INTO keys SELECT i, 'k' || i FROM generate_series(1, 10) i;

INSERT INTO two_keys SELECT i % 3, i, i FROM generate_series(1, 10) i;

INSERT INTO hidden SELECT i, 'E' || i, i, true FROM generate_series(1, 10) i;

--@ steps
UPDATE now SET u = -1 WHERE id = 1; UPDATE now SET u = 1 WHERE id = 2; UPDATE now SET u = 2 WHERE id = 1;

UPDATE now SET u = NULL WHERE id = 3;

UPDATE now SET u = 3 WHERE id = 4;

UPDATE now SET u = 4 WHERE id = 3;

DELETE FROM now WHERE id = 5; INSERT INTO now VALUES (50, 5, 'takes it over');

UPDATE now SET u = u + 1000; UPDATE now SET u = u - 999;

UPDATE later SET u = 11 - u, n = 11 - n;

UPDATE later SET u = u + 1, n = n - 1;

INSERT INTO later VALUES (20, 2, 20); UPDATE later SET u = 50 WHERE id <> 20 AND u = 2;

DELETE FROM later WHERE id = 3; INSERT INTO later VALUES (3, NULL, NULL);

UPDATE keys SET id = 0 WHERE id = 1; UPDATE keys SET id = 1 WHERE id = 2; UPDATE keys SET id = 2 WHERE id = 0;

DELETE FROM keys WHERE id = 3; UPDATE keys SET id = 3 WHERE id = 4; INSERT INTO keys VALUES (4, 'new');

UPDATE keys SET id = id + 100 WHERE id > 5; UPDATE keys SET id = id - 99 WHERE id > 100;

UPDATE two_keys SET v = -v WHERE a = 1; UPDATE two_keys SET a = 3 - a; UPDATE two_keys SET b = b + 100; UPDATE two_keys SET b = 11 - (b - 100);

UPDATE hidden SET active = false WHERE id = 1; UPDATE hidden SET p = 1 WHERE id = 2; UPDATE hidden SET p = 2, active = true WHERE id = 1;

UPDATE hidden SET e = 'tmp' WHERE id = 3; UPDATE hidden SET e = 'e3' WHERE id = 4; UPDATE hidden SET e = 'e4' WHERE id = 3;

DELETE FROM hidden WHERE id = 7; INSERT INTO hidden VALUES (70, 'E7', 7, true); UPDATE hidden SET e = upper(e);
