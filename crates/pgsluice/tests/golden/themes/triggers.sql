-- Triggers of the target: ordinary ones are silent, ALWAYS and REPLICA ones see every change in the source's order.

--@ both
CREATE TABLE quiet (id int PRIMARY KEY, v text);

CREATE TABLE rows_seen (id int PRIMARY KEY, v text);

CREATE TABLE statements_seen (id int PRIMARY KEY, v text);

CREATE TABLE changed (id int PRIMARY KEY, v text);

CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE);

--@ target
CREATE TABLE log (at serial, what text);

CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.log (what) VALUES (concat_ws(' ', TG_NAME, TG_OP,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN OLD.id END, CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW.id END));
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := upper(NEW.v); RETURN NEW; END $$;

CREATE TRIGGER loud BEFORE INSERT OR UPDATE OR DELETE ON quiet FOR EACH ROW EXECUTE FUNCTION note();

CREATE TRIGGER before_row BEFORE INSERT OR UPDATE OR DELETE ON rows_seen FOR EACH ROW EXECUTE FUNCTION note();

ALTER TABLE rows_seen ENABLE ALWAYS TRIGGER before_row;

CREATE TRIGGER after_row AFTER INSERT OR UPDATE OR DELETE ON rows_seen FOR EACH ROW EXECUTE FUNCTION note();

ALTER TABLE rows_seen ENABLE REPLICA TRIGGER after_row;

CREATE TRIGGER after_truncate AFTER TRUNCATE ON rows_seen FOR EACH STATEMENT EXECUTE FUNCTION note();

ALTER TABLE rows_seen ENABLE REPLICA TRIGGER after_truncate;

CREATE TRIGGER before_statement BEFORE INSERT OR UPDATE OR DELETE ON statements_seen FOR EACH STATEMENT EXECUTE FUNCTION note();

ALTER TABLE statements_seen ENABLE REPLICA TRIGGER before_statement;

CREATE TRIGGER change BEFORE INSERT OR UPDATE ON changed FOR EACH ROW EXECUTE FUNCTION change();

ALTER TABLE changed ENABLE ALWAYS TRIGGER change;

--@ expect changed
SELECT id, upper(v) FROM changed

--@ steps
INSERT INTO quiet VALUES (0, 'copied before, which was a statement as well');

--@ target
TRUNCATE log;

--@ steps
INSERT INTO quiet SELECT i, 'q' FROM generate_series(1, 5) i; UPDATE quiet SET v = 'r'; DELETE FROM quiet WHERE id = 1;

INSERT INTO rows_seen VALUES (1, 'a'), (2, 'b'); UPDATE rows_seen SET v = 'c' WHERE id = 1; UPDATE rows_seen SET id = 3 WHERE id = 2; DELETE FROM rows_seen WHERE id = 1;

INSERT INTO rows_seen VALUES (1, 'again'); DELETE FROM rows_seen WHERE id = 1;

INSERT INTO statements_seen VALUES (1, 'a'), (2, 'b'); UPDATE statements_seen SET v = 'x'; DELETE FROM statements_seen WHERE id = 2;

INSERT INTO changed VALUES (1, 'a'), (2, 'b'); UPDATE changed SET v = 'c' WHERE id = 1; INSERT INTO quiet VALUES (10, 'between');

INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (1, 1), (2, 2); DELETE FROM parent WHERE id = 1;

TRUNCATE rows_seen; INSERT INTO rows_seen VALUES (5, 'last');

--@ holds
SELECT coalesce(string_agg(what, ', ' ORDER BY at), '') =
       'before_row INSERT 1, after_row INSERT 1, before_row INSERT 2, after_row INSERT 2, before_row UPDATE 1 1, after_row UPDATE 1 1, '
       'before_row UPDATE 2 3, after_row UPDATE 2 3, before_row DELETE 1, after_row DELETE 1, before_row INSERT 1, after_row INSERT 1, '
       'before_row DELETE 1, after_row DELETE 1, after_truncate TRUNCATE, before_row INSERT 5, after_row INSERT 5'
  FROM log WHERE what NOT LIKE 'before_statement%'

SELECT string_agg(what, ', ' ORDER BY at) =
       'before_statement INSERT, before_statement INSERT, before_statement UPDATE, before_statement UPDATE, before_statement DELETE'
  FROM log WHERE what LIKE 'before_statement%'
