-- Replica identities of all four kinds, changed between and inside of transactions.
CREATE TABLE d (id int PRIMARY KEY, v text, n int);
CREATE TABLE i (id int, v text NOT NULL, n int NOT NULL);
CREATE UNIQUE INDEX i_key ON i (n, v);
ALTER TABLE i REPLICA IDENTITY USING INDEX i_key;
CREATE TABLE f (id int, v text, n int);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE n (id int PRIMARY KEY, v text);
ALTER TABLE n REPLICA IDENTITY NOTHING;
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, v text);
CREATE PUBLICATION identity FOR TABLE d, i, f;
CREATE PUBLICATION only_inserts FOR TABLE n, deferred WITH (publish = 'insert, truncate');
--! publications identity, only_inserts
--! range
INSERT INTO d VALUES (1, 'a', 1), (2, NULL, NULL);
INSERT INTO i VALUES (1, 'a', 1), (NULL, 'b', 2);
INSERT INTO f VALUES (1, 'a', 1), (NULL, NULL, NULL), (NULL, NULL, NULL);
INSERT INTO n VALUES (1, 'a');
INSERT INTO deferred VALUES (1, 'a');
UPDATE d SET v = 'b';
UPDATE d SET id = 5 WHERE id = 1;
UPDATE i SET id = 7;
UPDATE i SET v = v || '!', n = n + 1;
UPDATE f SET n = 3 WHERE id = 1;
UPDATE f SET n = 4;
DELETE FROM i WHERE n = 2;
DELETE FROM f WHERE id IS NULL;
UPDATE n SET v = 'b';
DELETE FROM deferred;
BEGIN; UPDATE d SET v = 'key'; ALTER TABLE d REPLICA IDENTITY FULL; UPDATE d SET v = 'full'; DELETE FROM d WHERE id = 5; ALTER TABLE d REPLICA IDENTITY DEFAULT; UPDATE d SET id = 9; COMMIT;
BEGIN; SAVEPOINT a; ALTER TABLE d REPLICA IDENTITY FULL; UPDATE d SET n = 1; ROLLBACK TO a; UPDATE d SET n = 2; COMMIT;
ALTER TABLE i REPLICA IDENTITY NOTHING;
--! error
DELETE FROM i;
ALTER TABLE i REPLICA IDENTITY FULL;
DELETE FROM i;
ALTER TABLE d DROP CONSTRAINT d_pkey;
--! error
UPDATE d SET n = 3;
INSERT INTO d VALUES (3, 'without key', 3);
ALTER TABLE d ADD PRIMARY KEY (id);
UPDATE d SET id = id + 1;
