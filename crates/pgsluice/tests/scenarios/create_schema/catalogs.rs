//! A schema with everything in it, and the catalogs by which two schemas are compared.

use crate::support::Session;

/// Everything that a schema is made of and that a dump could get wrong.
pub(super) const SCHEMA: &str = r#"
CREATE SCHEMA sales; CREATE SCHEMA "Odd ""Schema; --";
CREATE TYPE sales.mood AS ENUM ('bad', 'it''s; fine', 'good');
CREATE DOMAIN sales.positive AS int CONSTRAINT is_positive CHECK (VALUE > 0);
CREATE TYPE sales.place AS (street text, number sales.positive);
CREATE FUNCTION sales.half(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    -- Name: t; Type: TABLE; Schema: public; Owner: nobody
    RETURN n / 2; /* ; */
END;
$body$;
CREATE FUNCTION sales.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN n > 0 THEN n * 2 ELSE 0 END;
END;
CREATE FUNCTION sales.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.note := 'trigger; $1'; RETURN NEW; END $$;
CREATE PROCEDURE sales.nothing() LANGUAGE sql AS 'SELECT 1; SELECT 2';
CREATE TABLE sales.customer (
    id bigint GENERATED ALWAYS AS IDENTITY (START 100) PRIMARY KEY,
    name text NOT NULL COLLATE "C", feeling sales.mood DEFAULT 'good', home sales.place, note text,
    size sales.positive, doubled int GENERATED ALWAYS AS (size * 2) STORED,
    CONSTRAINT named CHECK (name <> ''));
CREATE UNIQUE INDEX customer_name ON sales.customer (lower(name), (sales.half(size)));
CREATE INDEX customer_partly ON sales.customer USING hash (name) WHERE feeling <> 'bad';
CREATE INDEX customer_covering ON sales.customer (size DESC NULLS LAST) INCLUDE (note) WITH (fillfactor = 70);
CREATE STATISTICS sales.customer_statistics ON name, size FROM sales.customer;
CREATE TRIGGER customer_note BEFORE INSERT OR UPDATE ON sales.customer FOR EACH ROW
    WHEN (NEW.name <> 'x;y') EXECUTE FUNCTION sales.note();
CREATE TRIGGER customer_off AFTER DELETE ON sales.customer FOR EACH STATEMENT EXECUTE FUNCTION sales.note();
ALTER TABLE sales.customer DISABLE TRIGGER customer_off;
COMMENT ON TABLE sales.customer IS 'it''s; a comment';
COMMENT ON COLUMN sales.customer.name IS 'of a column';
COMMENT ON INDEX sales.customer_name IS 'of an index';
CREATE TABLE sales.item (
    customer bigint, line int, what text, during int4range,
    EXCLUDE USING gist (during WITH &&) WHERE (line > 1000000) DEFERRABLE);
ALTER TABLE sales.item ADD UNIQUE (customer, line) DEFERRABLE INITIALLY DEFERRED;
CREATE UNIQUE INDEX item_identity ON sales.item (line, customer);
ALTER TABLE sales.item ALTER line SET NOT NULL, ALTER customer SET NOT NULL;
ALTER TABLE sales.item REPLICA IDENTITY USING INDEX item_identity;
ALTER TABLE sales.item CLUSTER ON item_identity;
ALTER TABLE sales.item ADD CONSTRAINT item_customer FOREIGN KEY (customer) REFERENCES sales.customer ON DELETE CASCADE DEFERRABLE;
COMMENT ON CONSTRAINT item_customer ON sales.item IS 'of a foreign key';
ALTER TABLE sales.item ADD CONSTRAINT old_rows CHECK (what <> 'old') NOT VALID;
CREATE TABLE "Odd ""Schema; --"."Table ; $$" ("Column '1'" int PRIMARY KEY, "select" text DEFAULT 'a;b');
CREATE INDEX "Index ""; --" ON "Odd ""Schema; --"."Table ; $$" ("select");
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE INDEX whole_brin ON whole USING brin (a);
CREATE TABLE measured (at int NOT NULL, kind int NOT NULL, v text, PRIMARY KEY (at, kind)) PARTITION BY RANGE (at);
CREATE TABLE measured_1 PARTITION OF measured FOR VALUES FROM (0) TO (100);
CREATE TABLE measured_2 PARTITION OF measured FOR VALUES FROM (100) TO (MAXVALUE) PARTITION BY LIST (kind);
CREATE TABLE measured_2a PARTITION OF measured_2 FOR VALUES IN (1);
CREATE TABLE measured_2b PARTITION OF measured_2 DEFAULT;
CREATE INDEX measured_v ON measured (v);
CREATE INDEX measured_own ON measured_1 (kind);
CREATE TABLE alarm (id int PRIMARY KEY, at int, kind int, FOREIGN KEY (at, kind) REFERENCES measured);
CREATE TABLE parent (id serial PRIMARY KEY, v int CHECK (v > 0) NO INHERIT);
CREATE TABLE child (w int UNIQUE) INHERITS (parent);
CREATE SEQUENCE counter INCREMENT 7 MAXVALUE 1000 CYCLE;
CREATE VIEW by_key AS SELECT c.id, c.name, count(*) FROM sales.customer c JOIN sales.item i ON i.customer = c.id GROUP BY c.id;
CREATE MATERIALIZED VIEW kept AS SELECT id, name FROM by_key WITH NO DATA;
CREATE UNIQUE INDEX kept_id ON kept (id);
CREATE FUNCTION names() RETURNS SETOF text LANGUAGE sql BEGIN ATOMIC SELECT name FROM sales.customer GROUP BY id; END;
CREATE RULE silent AS ON UPDATE TO by_key DO INSTEAD (SELECT 1; SELECT ';');
CREATE POLICY own_rows ON sales.customer FOR SELECT USING (name <> 'secret;');
ALTER TABLE sales.customer ENABLE ROW LEVEL SECURITY;
CREATE AGGREGATE sales.total(int) (SFUNC = int4pl, STYPE = int);
CREATE UNLOGGED TABLE scratch (a int);
"#;

/// What must be alike on both ends, as queries over the catalogs.
const CATALOGS: [(&str, &str); 12] = [
    (
        "relations",
        "SELECT c.oid::regclass, c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, c.reloptions, am.amname,
                pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), pg_get_userbyid(c.relowner),
                CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END, c.relispopulated
           FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam WHERE ours(c.relnamespace)",
    ),
    (
        "columns",
        "SELECT a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                a.attgenerated, a.attcollation::regcollation, a.attstorage, pg_get_expr(d.adbin, d.adrelid), a.attinhcount
           FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
           LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          WHERE ours(c.relnamespace) AND a.attnum > 0 AND NOT a.attisdropped",
    ),
    (
        "indexes",
        "SELECT pg_get_indexdef(i.indexrelid), i.indisunique, i.indisprimary, i.indisexclusion, i.indimmediate, i.indisvalid,
                i.indisready, i.indisreplident, i.indisclustered,
                (SELECT inhparent::regclass FROM pg_inherits WHERE inhrelid = i.indexrelid)
           FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE ours(c.relnamespace)",
    ),
    (
        "constraints",
        "SELECT conrelid::regclass, contypid::regtype, conname, contype, pg_get_constraintdef(oid), convalidated, condeferrable,
                condeferred, coninhcount FROM pg_constraint WHERE ours(connamespace)",
    ),
    (
        "triggers",
        "SELECT pg_get_triggerdef(t.oid), t.tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
          WHERE ours(c.relnamespace) AND NOT t.tgisinternal",
    ),
    (
        "functions",
        "SELECT p.oid::regprocedure, p.prokind, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END
           FROM pg_proc p WHERE ours(p.pronamespace)",
    ),
    (
        "types",
        "SELECT t.oid::regtype, t.typtype, array(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
           FROM pg_type t WHERE ours(t.typnamespace)",
    ),
    (
        "sequences",
        "SELECT s.seqrelid::regclass, s.seqtypid, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle
           FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE ours(c.relnamespace)",
    ),
    ("rules", "SELECT pg_get_ruledef(r.oid) FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE ours(c.relnamespace)"),
    ("policies", "SELECT * FROM pg_policies"),
    ("statistics", "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext WHERE ours(stxnamespace)"),
    (
        "comments",
        "SELECT pg_describe_object(classoid, objoid, objsubid), description FROM pg_description
          WHERE objoid >= 16384 AND pg_describe_object(classoid, objoid, objsubid) NOT LIKE '%pgsluice%'",
    ),
];

/// Rows of one of [`CATALOGS`], as texts in an order.
fn catalog(session: &mut Session, sql: &str) -> Vec<String> {
    session.run(
        "SET search_path TO ''; CREATE OR REPLACE FUNCTION pg_temp.ours(oid) RETURNS bool LANGUAGE sql AS
         $$ SELECT nspname !~ '^(pg_|information_schema$|pgsluice$)' FROM pg_catalog.pg_namespace WHERE oid = $1 $$",
    );
    let sql = sql.replace("ours(", "pg_temp.ours(");
    let rows = session.query(&format!("SELECT q::text FROM ({sql}) q ORDER BY q::text COLLATE \"C\""));
    let rows = rows.unwrap_or_else(|error| panic!("{error}"));
    rows.into_iter().flatten().flatten().collect()
}

/// Asserts that both databases have the same schema, except for what `leave_out` finds. Returns the
/// catalogs that had nothing to compare.
#[track_caller]
pub(super) fn assert_same_schema(
    source: &str,
    target: &str,
    leave_out: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let mut empty = Vec::new();
    let (mut source, mut target) = (Session::to(source), Session::to(target));
    for (name, sql) in CATALOGS {
        let [expected, found] = [&mut source, &mut target].map(|session| {
            catalog(session, sql).into_iter().filter(|row| !leave_out(row)).collect::<Vec<_>>()
        });
        if expected.is_empty() {
            empty.push(name);
        }
        let lacking: Vec<_> = expected.iter().filter(|row| !found.contains(row)).collect();
        let extra: Vec<_> = found.iter().filter(|row| !expected.contains(row)).collect();
        assert!(lacking.is_empty() && extra.is_empty(), "{name}: lacks {lacking:#?}, has {extra:#?}");
    }
    empty
}
