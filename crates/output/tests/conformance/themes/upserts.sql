-- ON CONFLICT: inserted, updated, left alone, and taken back as somebody else was faster.
CREATE TABLE t (id int PRIMARY KEY, k text, v text);
CREATE FUNCTION faster(key text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$ BEGIN IF current_setting('themes.race', true) = '1' THEN PERFORM set_config('themes.race', '2', false); ELSIF current_setting('themes.race', true) = '2' THEN PERFORM set_config('themes.race', '', false); INSERT INTO upserts.t VALUES ((SELECT max(id) + 100 FROM upserts.t), key, 'faster'); END IF; END $$;
CREATE FUNCTION key_of(key text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM upserts.faster(key); RETURN lower(key); END $$;
CREATE UNIQUE INDEX t_k ON t (key_of(k));
CREATE PUBLICATION upserts FOR TABLE t;
--! range
INSERT INTO t VALUES (1, 'a', 'new') ON CONFLICT (id) DO NOTHING;
INSERT INTO t VALUES (1, 'b', 'again'), (2, 'b', 'new') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
INSERT INTO t VALUES (1, 'c', 'ignored') ON CONFLICT DO NOTHING;
SET themes.race = '1';
INSERT INTO t VALUES (5, 'raced', 'taken back') ON CONFLICT DO NOTHING;
SET themes.race = '1';
BEGIN; INSERT INTO t VALUES (6, 'before', 'x'); SELECT set_config('themes.race', '1', false); INSERT INTO t VALUES (7, 'raced too', repeat(md5('1'), 100)) ON CONFLICT DO NOTHING; INSERT INTO t VALUES (8, 'behind', 'y'); COMMIT;
SELECT set_config('themes.race', '1', false);
INSERT INTO t VALUES (9, 'raced twice', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n)) ON CONFLICT DO NOTHING;
SELECT set_config('themes.race', '1', false);
INSERT INTO t VALUES (10, 'in conflict', 'z') ON CONFLICT (upserts.key_of(k)) DO NOTHING;
SET themes.race = '';
INSERT INTO t SELECT n % 7, 'many ' || n, 'x' FROM generate_series(20, 40) n ON CONFLICT (id) DO NOTHING;
