//! The statements of the walk, made from random numbers alone: the same numbers make the same
//! statements.
//!
//! Some statements fail, because their objects do not exist or are in another state. Most of those
//! are undone alone (`conf.try`), as a subtransaction. The others abort their transaction.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Makes the next statement.
pub(crate) struct Statements {
    pub(crate) rng: StdRng,
    pub(crate) major: u32,
    /// No transaction is open or prepared. A publication changes only then. The server's pgoutput
    /// remembers what it found out for a later transaction, and uses it for older changes of one
    /// that was open, in one form and not in another.
    pub(crate) alone: bool,
    /// Makes names and values unique.
    serial: u32,
}

/// Types of columns that are added and dropped.
const KINDS: [&str; 18] = [
    "int",
    "bigint",
    "text",
    "numeric(10,2)",
    "mood",
    "timestamptz",
    "int[]",
    "short",
    "pair",
    "span",
    "jsonb",
    "boolean",
    "uuid",
    "bytea",
    "date",
    "interval",
    "float8",
    "inet",
];

/// Catalogs that a transaction may rewrite, each with one of its indexes.
pub(crate) const CLUSTERED: [(&str, &str); 9] = [
    ("pg_class", "pg_class_oid_index"),
    ("pg_attribute", "pg_attribute_relid_attnum_index"),
    ("pg_type", "pg_type_oid_index"),
    ("pg_index", "pg_index_indrelid_index"),
    ("pg_namespace", "pg_namespace_oid_index"),
    ("pg_inherits", "pg_inherits_parent_index"),
    ("pg_enum", "pg_enum_oid_index"),
    ("pg_publication", "pg_publication_oid_index"),
    ("pg_publication_rel", "pg_publication_rel_oid_index"),
];

/// Statements outside of transactions.
const UPKEEP: [&str; 22] = [
    "CHECKPOINT",
    "CHECKPOINT",
    "CHECKPOINT",
    "CHECKPOINT",
    "VACUUM pg_class",
    "VACUUM pg_attribute",
    "VACUUM FREEZE pg_type",
    "VACUUM FULL pg_class",
    "VACUUM FULL pg_attribute",
    "VACUUM FULL pg_type",
    "VACUUM FULL pg_namespace",
    "VACUUM FULL pg_publication",
    "VACUUM FULL pg_publication_rel",
    "VACUUM FULL pg_publication_namespace",
    "VACUUM FULL pg_index",
    "REINDEX TABLE pg_class",
    "VACUUM FULL t0",
    "VACUUM s1.t1",
    "VACUUM FULL tf",
    "ANALYZE t1",
    "SELECT pg_switch_wal()",
    "VACUUM FULL p_0",
];

impl Statements {
    pub(crate) fn new(rng: StdRng, major: u32) -> Statements {
        Statements { rng, major, alone: false, serial: 0 }
    }

    /// A new number.
    pub(crate) fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn chance(&mut self, of_hundred: u32) -> bool {
        self.rng.random_range(0..100) < of_hundred
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.rng.random_range(0..end)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        from.choose(&mut self.rng).expect("there is something to choose")
    }

    pub(crate) fn upkeep(&mut self) -> &'static str {
        UPKEEP[self.below(UPKEEP.len() as u32) as usize]
    }

    /// One of the tables for DDL. Each session mostly has its own tables, or sessions would wait
    /// for one another.
    fn table(&mut self, session: u32) -> String {
        let schema = *self.pick(&["public", "s1", "s2"]);
        let own = self.chance(90);
        let number = if own { session % 4 } else { self.below(4) };
        format!("{schema}.t{number}")
    }

    /// A statement that changes something, mostly the tables of `session`.
    pub(crate) fn statement(&mut self, session: u32) -> String {
        let sql = if self.chance(82) { self.rows(session) } else { self.definition(session) };
        if self.chance(85) { format!("SELECT conf.try($q${sql}$q$)") } else { sql }
    }

    /// Changes of rows that need no name to exist twice.
    pub(crate) fn rows(&mut self, session: u32) -> String {
        let (k, n) = (self.below(40), self.serial());
        // In shared tables, each session has rows of its own.
        let k_own = self.below(10) * 4 + session % 4;
        let table = self.table(session);
        match self.below(56) {
            0..9 => format!("SELECT conf.put('{table}', {k}, {n})"),
            9..15 => format!("SELECT conf.alter('{table}', {k}, {n})"),
            15..17 => format!("DELETE FROM {table} WHERE id = {k}"),
            17 => format!("UPDATE {table} SET id = id + 100 WHERE id = {k}"),
            18 => format!(
                "INSERT INTO {table} (id, a, b) VALUES ({k}, 'u{n}', NULL) ON CONFLICT (id) DO UPDATE SET a = excluded.a"
            ),
            19 => {
                format!("INSERT INTO {table} (id, a) SELECT n, 'm' || n FROM generate_series({n}0, {n}6) n")
            }
            20 => format!("UPDATE {table} SET a = a || '+' WHERE id % 5 = {}", k % 5),
            21 => format!("DELETE FROM {table} WHERE id > 60"),
            22..24 => format!("SELECT conf.put('tf', {k_own}, {n})"),
            24..26 => format!("SELECT conf.alter('tf', {k_own}, {n})"),
            26 => format!(
                "UPDATE tf SET a = conf.hard({n}, 3000), b = repeat('z', {n} % 900) WHERE id = {k_own}"
            ),
            27 => format!("DELETE FROM tf WHERE id = {k_own}"),
            28 => format!(
                "INSERT INTO tk VALUES (conf.hard({k_own}, 2300), {n}, 'w') ON CONFLICT (key) DO UPDATE SET v = excluded.v"
            ),
            29 => format!("UPDATE tk SET w = 'w{n}' WHERE key = conf.hard({k_own}, 2300)"),
            30 => match n % 2 {
                0 => format!("DELETE FROM tk WHERE key = conf.hard({k_own}, 2300)"),
                _ => format!(
                    "UPDATE tk SET key = conf.hard({}, 2300) WHERE key = conf.hard({k_own}, 2300)",
                    k_own + 4
                ),
            },
            31..33 => format!("SELECT conf.put('{}', {k_own}, {n})", self.pick(&["f", "f2"])),
            33..37 => {
                let (table, to) =
                    (*self.pick(&["f", "f2", "f"]), *self.pick(&["10", "20", "40", "70", "1", "80", "90"]));
                match n % 4 {
                    0 => format!(
                        "INSERT INTO {table} VALUES ({k_own}, {to}, 'no') ON CONFLICT (id) DO UPDATE SET n = {to}"
                    ),
                    _ => format!("UPDATE {table} SET n = {to}, v = 'v{n}' WHERE id = {k_own}"),
                }
            }
            37 => format!("DELETE FROM f WHERE id = {k_own}"),
            38 => format!("SELECT conf.put('l', {k_own}, {n}), conf.alter('l', {}, {n})", (k_own + 4) % 40),
            39 => format!("INSERT INTO par VALUES ({k_own}, 'p') ON CONFLICT DO NOTHING"),
            40 => format!("INSERT INTO chi VALUES ({n}, {k_own}, 'c')"),
            41 => format!("DELETE FROM par WHERE id = {k_own}"),
            42 => format!("INSERT INTO q (v) VALUES ('q{n}'); SELECT nextval('q_id_seq')"),
            43 => format!("SELECT conf.put('g', {k_own}, {n}), conf.alter('g', {}, {n})", (k_own + 4) % 40),
            44 => match n % 3 {
                0 => format!("UPDATE np SET v = 'n{n}' WHERE id = {k}"),
                _ => format!("INSERT INTO np VALUES ({k}, 'n{n}'), ({k}, NULL)"),
            },
            45 => format!("INSERT INTO un VALUES ({n}, 'u'); DELETE FROM ty WHERE id = {k_own}"),
            46..48 => {
                format!("SELECT conf.put('ty', {k_own}, {n}), conf.alter('ty', {}, {n})", (k_own + 4) % 40)
            }
            48..50 => format!(
                "INSERT INTO p (id, v, n) VALUES ({k_own}, 'p{n}', {n}) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            ),
            50..52 => {
                format!("UPDATE p SET id = {}, n = {n} WHERE id = {k_own}", (k_own + 4 * (1 + n % 9)) % 40)
            }
            52 => match n % 2 {
                0 => format!("DELETE FROM p WHERE id = {k_own}"),
                _ => format!(
                    "INSERT INTO s1.p_1_1 (id, v) VALUES ({}, 'direct') ON CONFLICT DO NOTHING",
                    30 + n % 10
                ),
            },
            53 => format!("SELECT pg_logical_emit_message(true, 'conf', 'in {n}')"),
            54 => format!("SELECT pg_logical_emit_message(false, 'conf', 'out {n}')"),
            _ => self.race(),
        }
    }

    /// An upsert that inserts a row and takes it back.
    pub(crate) fn race(&mut self) -> String {
        let n = self.serial();
        format!(
            "SELECT set_config('conf.race', '1', false); INSERT INTO sp (k, v) VALUES ('r{n}', conf.hard({n}, 2200 * ({n} % 2))) \
            ON CONFLICT DO NOTHING; SELECT set_config('conf.race', '', false)"
        )
    }

    /// DDL, and other statements with as large an effect.
    pub(crate) fn definition(&mut self, session: u32) -> String {
        let (n, table) = (self.serial(), self.table(session));
        let (column, other) = (format!("c{}", self.below(5)), format!("c{}", self.below(5)));
        let kind = *self.pick(&KINDS);
        let number = table.as_bytes()[table.len() - 1] - b'0';
        let renamed = format!("t{number}_away");
        let schema = table.split('.').next().unwrap_or("public").to_owned();
        match self.below(48) {
            0..5 => format!("ALTER TABLE {table} ADD {column} {kind}"),
            5..8 => format!("ALTER TABLE {table} ADD {column} int DEFAULT {n}"),
            8..10 => format!("ALTER TABLE {table} ADD {column} text NOT NULL DEFAULT 'd{n}'"),
            10 => format!(
                "ALTER TABLE {table} ADD {column} mood DEFAULT 'ok', ADD {other} jsonb DEFAULT '[{n}]'"
            ),
            11..15 => format!("ALTER TABLE {table} DROP COLUMN IF EXISTS {column}"),
            15 => format!("ALTER TABLE {table} RENAME {column} TO {other}"),
            16 => format!("ALTER TABLE {table} ALTER {column} TYPE text"),
            17 => format!("ALTER TABLE {table} ALTER a TYPE varchar(9000), ALTER b SET STORAGE EXTENDED"),
            18 => format!("ALTER TABLE {table} RENAME TO {renamed}"),
            19..21 => format!("ALTER TABLE {schema}.{renamed} RENAME TO t{number}"),
            21 => format!(
                "ALTER TABLE {table} REPLICA IDENTITY {}",
                self.pick(&["FULL", "DEFAULT", "NOTHING", "FULL"])
            ),
            22 => format!("TRUNCATE {table}"),
            23 => (*self.pick(&[
                "TRUNCATE par CASCADE",
                "TRUNCATE q, l RESTART IDENTITY",
                "TRUNCATE p",
                "TRUNCATE np, un",
            ]))
            .to_owned(),
            24 => format!("DROP TABLE IF EXISTS {table}"),
            25..27 => format!("SELECT conf.make('{table}', {number})"),
            27 => format!("CREATE INDEX ON {table} (a)"),
            28 => format!("CLUSTER {table} USING {}_pkey", table.split('.').nth(1).unwrap_or_default()),
            29 => match n % 3 {
                0 => "ALTER TABLE p DETACH PARTITION p_x".to_owned(),
                1 => "ALTER TABLE p ATTACH PARTITION p_x FOR VALUES FROM (40) TO (60)".to_owned(),
                _ => format!("INSERT INTO p_x VALUES (40 + {n} % 20, {n}, 'x') ON CONFLICT DO NOTHING"),
            },
            30 => match n % 2 {
                0 => "ALTER TABLE p_1 DETACH PARTITION s1.p_1_1".to_owned(),
                _ => "ALTER TABLE p_1 ATTACH PARTITION s1.p_1_1 FOR VALUES FROM (30) TO (40)".to_owned(),
            },
            31 => format!("ALTER TABLE p ADD {column} int DEFAULT {n}"),
            32 => format!("ALTER TABLE p DROP COLUMN IF EXISTS {column}"),
            33 => format!("ALTER TYPE mood ADD VALUE 'm{n}'"),
            34 => format!(
                "CREATE TYPE e{n} AS ENUM ('a', 'b'); CREATE DOMAIN d{n} AS e{n}; CREATE TABLE of_e{n} (id d{n}); \
                INSERT INTO of_e{n} VALUES ('a'); ALTER TYPE e{n} RENAME TO x{n}; INSERT INTO of_e{n} VALUES ('b')"
            ),
            35 => format!(
                "CREATE TABLE made{n} (id int PRIMARY KEY, v text); INSERT INTO made{n} VALUES (1, 'x'); DROP TABLE made{n}"
            ),
            36 => {
                format!("CREATE TEMP TABLE temp{n} (id serial, v text); INSERT INTO temp{n} (v) VALUES ('t')")
            }
            37 => format!(
                "CREATE MATERIALIZED VIEW v{n} AS SELECT * FROM pg_class LIMIT 3; DROP MATERIALIZED VIEW v{n}"
            ),
            38 => format!(
                "CREATE SCHEMA more{n} CREATE TABLE inside (id int); INSERT INTO more{n}.inside VALUES ({n})"
            ),
            39 => format!("ALTER TABLE {table} SET SCHEMA {}", self.pick(&["public", "s1", "s2"])),
            40..45 if self.alone => self.publication(&table),
            40..45 => format!("ALTER TABLE {table} ALTER a SET STATISTICS {}", n % 100),
            45 => format!(
                "CREATE SEQUENCE IF NOT EXISTS seq{n}; SELECT nextval('seq{n}'); COMMENT ON TABLE {table} IS '{n}'"
            ),
            46 => format!("ALTER TABLE un SET LOGGED; INSERT INTO un VALUES ({n}, 'logged')"),
            _ => format!(
                "CREATE TABLE like{n} AS SELECT * FROM {table}; ALTER TABLE like{n} ADD PRIMARY KEY (id); \
                UPDATE like{n} SET a = 'l'; DROP TABLE like{n}"
            ),
        }
    }

    fn publication(&mut self, table: &str) -> String {
        let n = self.serial();
        let bound = self.below(90);
        match self.below(12) {
            0 => format!(
                "ALTER PUBLICATION p_list SET TABLE l (id, a, c), f WHERE (n > {bound}), f2 WHERE (n > {bound}), t0, t1, ty"
            ),
            1 => format!("ALTER PUBLICATION p_list ADD TABLE {table}"),
            2 => format!("ALTER PUBLICATION p_list DROP TABLE {table}"),
            3 => format!("ALTER PUBLICATION p_upd SET TABLE f WHERE (n < {bound} OR v IS NULL)"),
            4 => "ALTER PUBLICATION p_schema DROP TABLES IN SCHEMA s2".to_owned(),
            5 => "ALTER PUBLICATION p_schema ADD TABLES IN SCHEMA s2".to_owned(),
            6 => {
                format!("ALTER PUBLICATION p_root SET (publish_via_partition_root = {})", n.is_multiple_of(3))
            }
            7 => "ALTER PUBLICATION p_all SET (publish = 'insert, truncate')".to_owned(),
            8 | 9 => "ALTER PUBLICATION p_all SET (publish = 'insert, update, delete, truncate')".to_owned(),
            10 => format!("CREATE PUBLICATION other{n} FOR TABLE {table}; DROP PUBLICATION other{n}"),
            _ if self.major >= 18 => {
                format!(
                    "ALTER PUBLICATION p_all SET (publish_generated_columns = {})",
                    self.pick(&["stored", "none"])
                )
            }
            _ => format!("ALTER PUBLICATION p_ins SET TABLE f WHERE (v <> 'v{n}' OR n > {bound}), np"),
        }
    }

    /// A transaction that goes on after it has rewritten a catalog, with DDL and rows before and
    /// after.
    pub(crate) fn rewrite(&mut self) -> String {
        let n = self.serial();
        let (catalog, index) = *self.pick(&CLUSTERED);
        format!(
            "CREATE TABLE rw{n} (id int PRIMARY KEY, v mood); INSERT INTO rw{n} VALUES (1, 'ok'); CLUSTER {catalog} USING {index}; \
             ALTER TABLE rw{n} ADD w text DEFAULT 'w{n}'; INSERT INTO rw{n} VALUES (2, 'sad'); CREATE TABLE rx{n} (id int); \
             INSERT INTO rx{n} VALUES ({n}); UPDATE rw{n} SET w = 'x' WHERE id = 1; DROP TABLE rw{n}, rx{n}"
        )
    }

    /// More than a hundred subtransactions, nested ones, or more changes than fit into little
    /// memory.
    pub(crate) fn many(&mut self, session: u32) -> String {
        let (n, table) = (self.serial(), self.table(session));
        match n % 4 {
            0 => format!("SELECT conf.subs('{table}', 200, {})", 70 + n % 60),
            1 => format!("SELECT conf.nest('{table}', 300, {}, {})", 3 + n % 6, n % 7),
            _ => format!("SELECT conf.bulk('{table}', 1000, {})", 90 + n % 60),
        }
    }

    /// Rows that are inserted a page at a time.
    pub(crate) fn copy(&mut self, session: u32) -> String {
        let (n, table) = (self.serial(), self.table(session));
        let (first, count) = (2000 + n * 40, 2 + self.below(30));
        let program = format!("seq -f '%.0f,copied {n}' {first} {}", first + count);
        format!("COPY {table} (id, a) FROM PROGRAM $p${program}$p$ (FORMAT csv)")
    }
}
