-- The world of the walk. Tables come in all identities, and columns come and go; what stays of each is what the
-- statements name. Values follow from a number, so that a seed is all there is to say.

CREATE SCHEMA conf;
CREATE SCHEMA s1;
CREATE SCHEMA s2;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN short AS text CHECK (length(value) < 40);
CREATE TYPE pair AS (x int, y text, m mood);
CREATE TYPE span AS RANGE (subtype = float8);

-- Text that does not become shorter, and text that does.
CREATE FUNCTION conf.hard(seed int, bytes int) RETURNS text LANGUAGE sql AS
$$ SELECT left(string_agg(md5(seed || ' ' || n), ''), bytes) FROM generate_series(0, bytes / 32) n $$;

-- The expression of a value of a type.
CREATE FUNCTION conf.lit(kind text, seed int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE n int := abs(hashint4(seed)) % 100000;
BEGIN
    IF n % 13 = 0 THEN RETURN 'NULL'; END IF;
    RETURN CASE kind
        WHEN 'integer' THEN n::text
        WHEN 'bigint' THEN (n::bigint * 1000003 - 50000000000)::text
        WHEN 'smallint' THEN (n % 32000)::text
        WHEN 'numeric(10,2)' THEN (n / 7.0)::numeric(10,2)::text
        WHEN 'numeric' THEN format('%s.%s', n * n::bigint, n)
        WHEN 'boolean' THEN (n % 2 = 0)::text
        WHEN 'double precision' THEN format('(%s::float8 / 7)', n)
        WHEN 'real' THEN format('(%s::real / 3)', n)
        WHEN 'uuid' THEN quote_literal(md5(n::text)::uuid)
        WHEN 'date' THEN format('(date ''2000-01-01'' + %s)', n % 9999)
        WHEN 'timestamp with time zone' THEN format('(timestamptz ''2000-01-01 UTC'' + %s * interval ''1h 1.000001s'')', n)
        WHEN 'timestamp without time zone' THEN format('(timestamp ''1990-01-01'' + %s * interval ''1h 1.5s'')', n)
        WHEN 'interval' THEN format('(%s * interval ''1 mon -3 days 04:05:06.7'')', n % 50 - 25)
        WHEN 'bytea' THEN format('decode(%L, ''hex'')', repeat(md5(n::text), n % 4))
        WHEN 'jsonb' THEN format('jsonb_build_object(''n'', %s, ''a'', array[%s, null])', n, n % 7)
        WHEN 'inet' THEN format('(inet ''10.0.0.0/24'' + %s)', n % 250)
        WHEN 'int4range' THEN format('int4range(%s, %s)', n % 50, 50 + n % 50)
        WHEN 'span' THEN format('span(%s, %s)', n % 50, 50.5 + n % 50)
        WHEN 'mood' THEN format('(enum_range(NULL::mood))[%s]', 1 + n % 3)
        WHEN 'mood[]' THEN format('ARRAY[(enum_range(NULL::mood))[%s], NULL]', 1 + n % 3)
        WHEN 'integer[]' THEN format('ARRAY[%s, NULL, %s]', n % 5, n)
        WHEN 'text[]' THEN format('ARRAY[%L, ''a,"b'', NULL]', n)
        WHEN 'pair' THEN format('ROW(%s, %L, ''ok'')::pair', n % 9, 'y ' || n)
        WHEN 'short' THEN quote_literal(left(md5(n::text), n % 30))
        WHEN 'text' THEN CASE n % 17
            WHEN 1 THEN format('conf.hard(%s, %s)', n, 2100 + n % 4000)
            WHEN 2 THEN format('repeat(%L, %s)', 'ab' || n, 1000 + n % 500)
            WHEN 3 THEN format('conf.hard(%s, 900) || repeat(%L, 300)', n, 'x' || n % 7)
            WHEN 4 THEN ''''''
            ELSE quote_literal(left(md5(n::text), 1 + n % 20)) END
        ELSE 'NULL' END;
END $$;

-- A row of all columns that there are; half of the columns of a row that is there.
CREATE FUNCTION conf.put(target text, key int, seed int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE names text; vals text;
BEGIN
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum),
           string_agg(CASE attname WHEN 'id' THEN key::text
               ELSE conf.lit(format_type(atttypid, atttypmod), seed * 31 + attnum) END, ', ' ORDER BY attnum)
      INTO names, vals FROM pg_attribute
      WHERE attrelid = to_regclass(target) AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    EXECUTE format('INSERT INTO %s (%s) VALUES (%s) ON CONFLICT DO NOTHING', target, names, vals);
END $$;

CREATE FUNCTION conf.alter(target text, key int, seed int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE sets text;
BEGIN
    SELECT string_agg(quote_ident(attname) || ' = ' || conf.lit(format_type(atttypid, atttypmod), seed * 37 + attnum), ', ')
      INTO sets FROM pg_attribute
      WHERE attrelid = to_regclass(target) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attname <> 'id'
        AND (seed + attnum) % 2 = 0;
    EXECUTE format('UPDATE %s SET %s WHERE id = %s', target, coalesce(sets, 'id = id'), key);
END $$;

-- What fails is taken back, and nothing else.
CREATE FUNCTION conf.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END $$;

-- A subtransaction for each row; each third is taken back.
CREATE FUNCTION conf.subs(target text, first int, count int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN first .. first + count - 1 LOOP
        BEGIN
            PERFORM conf.put(target, n, n);
            IF n % 3 = 0 THEN RAISE 'back'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$;

-- Subtransactions in one another; the one at a depth is taken back with all below it.
CREATE FUNCTION conf.nest(target text, key int, depth int, back int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM conf.put(target, key, key + depth);
    IF depth > 0 THEN
        BEGIN
            PERFORM conf.nest(target, key + 1, depth - 1, back);
            IF depth = back THEN RAISE 'back'; END IF;
        EXCEPTION WHEN raise_exception THEN PERFORM conf.alter(target, key, depth);
        END;
    END IF;
END $$;

-- More than 64 kB of changes, also of subtransactions, some taken back behind changes that were too much to keep.
CREATE FUNCTION conf.bulk(target text, first int, count int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %s (id, a) SELECT n, repeat(md5(n::text), 8) FROM generate_series(%s, %s) n
        ON CONFLICT DO NOTHING', target, first, first + count);
    FOR part IN 1 .. 3 LOOP
        BEGIN
            EXECUTE format('INSERT INTO %s (id, a) SELECT n, repeat(md5(n::text), 8) FROM generate_series(%s, %s) n
                ON CONFLICT DO NOTHING', target, first + count * part + 1, first + count * (part + 1));
            IF part = 2 THEN RAISE 'back'; END IF;
        EXCEPTION WHEN raise_exception THEN
            EXECUTE format('UPDATE %s SET b = %L WHERE id = %s', target, 'kept', first);
        END;
    END LOOP;
    EXECUTE format('DELETE FROM %s WHERE id BETWEEN %s AND %s', target, first, first + count * 4);
END $$;

-- Of an index that is asked for the same key twice, before an upsert inserts and while it does. In between somebody
-- else has inserted the key: the upsert takes its speculative insertion back.
CREATE FUNCTION conf.race(key text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('conf.race', true) = '1' THEN
        PERFORM set_config('conf.race', '2', false);
    ELSIF current_setting('conf.race', true) = '2' THEN
        PERFORM set_config('conf.race', '', false);
        INSERT INTO public.sp (k, v) VALUES (key, 'other');
    END IF;
END $$;
CREATE FUNCTION conf.key(key text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN PERFORM conf.race(key); RETURN lower(key); END $$;
CREATE TABLE sp (id serial PRIMARY KEY, k text, v text);
CREATE UNIQUE INDEX sp_key ON sp (conf.key(k));

-- The tables that DDL is about: identities by number, in three schemas.
CREATE FUNCTION conf.make(target text, kind int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE IF NOT EXISTS %s (id int PRIMARY KEY, a text, b text)', target);
    EXECUTE format('ALTER TABLE %s ALTER b SET STORAGE EXTERNAL', target);
    IF kind = 1 THEN EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', target); END IF;
    IF kind = 2 THEN
        EXECUTE format('ALTER TABLE %s ADD u int NOT NULL DEFAULT 1', target);
        EXECUTE format('CREATE UNIQUE INDEX %s ON %s (u, id)', replace(target, '.', '_') || '_u', target);
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %s', target, replace(target, '.', '_') || '_u');
    END IF;
    IF kind = 3 THEN EXECUTE format('ALTER TABLE %s REPLICA IDENTITY NOTHING', target); END IF;
END $$;
SELECT conf.make(s || '.t' || n, n) FROM unnest(ARRAY['public', 's1', 's2']) s, generate_series(0, 3) n;

CREATE TABLE tk (key text PRIMARY KEY, v int, w text);
ALTER TABLE tk ALTER key SET STORAGE EXTERNAL;
CREATE TABLE tf (id int PRIMARY KEY, a text, b text, c text);
ALTER TABLE tf ALTER a SET STORAGE EXTERNAL;
ALTER TABLE tf REPLICA IDENTITY FULL;
CREATE TABLE f (id int PRIMARY KEY, n int, v text);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE f2 (id int PRIMARY KEY, n int NOT NULL, v text);
CREATE UNIQUE INDEX f2_n ON f2 (n, id);
ALTER TABLE f2 REPLICA IDENTITY USING INDEX f2_n;
CREATE TABLE l (id int PRIMARY KEY, a text, b text, c int);
CREATE TABLE par (id int PRIMARY KEY, v text);
CREATE TABLE chi (id int PRIMARY KEY, par int REFERENCES par ON DELETE CASCADE ON UPDATE CASCADE, v text);
CREATE TABLE q (id serial PRIMARY KEY, v text);
CREATE UNLOGGED TABLE un (id int PRIMARY KEY, v text);
CREATE TABLE g (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, v text);
CREATE TABLE np (id int, v text);
CREATE TABLE ty (id int PRIMARY KEY, c1 mood, c2 short, c3 pair, c4 span, c5 int[], c6 mood[], c7 jsonb, c8 timestamptz,
    c9 numeric, c10 uuid, c11 bytea, c12 interval, c13 inet, c14 int4range, c15 float8, c16 real, c17 date, c18 boolean,
    c19 timestamp, c20 text[], c21 smallint, c22 bigint, c23 numeric(10,2), c24 text);
CREATE TABLE p (id int, v text, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p_0 PARTITION OF p FOR VALUES FROM (0) TO (20);
CREATE TABLE p_1 (gone int, n int, v text, id int NOT NULL) PARTITION BY RANGE (id);
ALTER TABLE p_1 DROP gone;
CREATE TABLE p_1_0 PARTITION OF p_1 FOR VALUES FROM (20) TO (30);
CREATE TABLE s1.p_1_1 (v text, n int, id int NOT NULL);
ALTER TABLE p_1 ATTACH PARTITION s1.p_1_1 FOR VALUES FROM (30) TO (40);
ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (20) TO (40);
CREATE TABLE p_x (id int NOT NULL, n int, v text);

-- Other publications come and go; these are what is decoded, so they stay.
CREATE PUBLICATION p_all FOR ALL TABLES;
CREATE PUBLICATION p_root FOR TABLE p, f, f2, TABLES IN SCHEMA s1 WITH (publish_via_partition_root);
CREATE PUBLICATION p_list FOR TABLE l (id, a, c), f WHERE (n > 50), f2 WHERE (n > 50 OR n IN (1, 2)), t0, t1, ty;
CREATE PUBLICATION p_ins FOR TABLE f WHERE (v <> 'no' AND n IS NOT NULL), np WITH (publish = 'insert');
CREATE PUBLICATION p_upd FOR TABLE f WHERE (n < 30) WITH (publish = 'update');
CREATE PUBLICATION p_schema FOR TABLES IN SCHEMA s1, s2 WITH (publish = 'insert, update, delete, truncate');
SELECT pg_replication_origin_create('elsewhere'), pg_replication_origin_create('nowhere');
