-- Updates that a filter turns into something else, with large values that did not change.
CREATE FUNCTION hard(seed int, bytes int) RETURNS text LANGUAGE sql AS $$ SELECT left(string_agg(md5(seed || ' ' || n), ''), bytes) FROM generate_series(0, bytes / 32) n $$;
CREATE TABLE f (id int PRIMARY KEY, n int, v text);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE i (id int NOT NULL, n int NOT NULL, v text);
CREATE UNIQUE INDEX i_key ON i (n, id);
ALTER TABLE i REPLICA IDENTITY USING INDEX i_key;
CREATE PUBLICATION filters_toast FOR TABLE f WHERE (n > 10), i WHERE (n > 10);
--! range
INSERT INTO f VALUES (1, 5, hard(1, 5000)), (2, 15, hard(2, 5000));
INSERT INTO i VALUES (1, 5, hard(1, 5000)), (2, 15, hard(2, 5000));
UPDATE f SET n = 20 - n;
UPDATE f SET n = 20 - n;
UPDATE i SET n = 20 - n;
UPDATE i SET n = 20 - n;
UPDATE i SET v = 'small';
UPDATE f SET id = id + 10;
