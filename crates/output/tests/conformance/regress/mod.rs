//! PostgreSQL's own regression SQL as a load: the server and we decode the result of each file, and
//! the outputs are compared.
//!
//! The SQL is not kept in this repository. `cargo x conformance --regress` fetches it and sets
//! these variables. `PGSLUICE_CONFORMANCE_REGRESS` names `src/test/regress` of a source tree, and
//! `PGSLUICE_CONFORMANCE_SQL` the version of that. `PGSLUICE_CONFORMANCE_ONLY` names the files to
//! run, separated by commas; without it, the whole schedule runs.
//!
//! The files run one after the other in one database, read by a real `psql`. The SQL is of one
//! major and runs on all. A statement that fails is part of the load; only what was written counts.
//! Two things are added to the database. Tables without a primary key get REPLICA IDENTITY FULL as
//! they are made, because the server would refuse to change them while all tables are published.
//! And the types that only the server can render are recorded. The rows of tables with such a type
//! are left out of the comparison and counted.
//!
//! A difference names the file, the statement that wrote the record, and its LSN ([`tap`]).

mod load;
mod record;
mod tap;

use std::collections::HashSet;

use base::Lsn;
use output::{OnRefused, Streaming};
use testkit::{Cluster, Major};

use crate::compare::{Tally, compare, compare_sides, stale};
use crate::message::{At, Sent, tell};
use crate::stage::{DB, Form, Ours, PLAIN, Stage, TWO_PHASE, builder, look};
use crate::told::{Side, Told};
use load::{Load, Ran};
use tap::Tap;

/// The database's name in `pg_regress`.
const REGRESSION: &str = "regression";

/// With less than this, something that the SQL needs was missing, and the run shows nothing.
const STATEMENTS_MIN: usize = 20_000;
const ROWS_MIN: u64 = 100_000;

/// Gives tables an identity, and records types that only the server renders: base types that are
/// not built in, those whose text is a name, and every type made of such types.
const PREPARE: &str = "
    CREATE SCHEMA conformance;
    CREATE UNLOGGED TABLE conformance.only_here (type oid PRIMARY KEY);
    INSERT INTO conformance.only_here SELECT oid FROM pg_type
     WHERE typname ~ '^reg' OR typname IN ('aclitem', 'gtsvector', 'pg_node_tree', 'pg_ndistinct', 'pg_dependencies',
           'pg_mcv_list', 'pg_brin_bloom_summary', 'pg_brin_minmax_multi_summary');
    CREATE FUNCTION conformance.note() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog SET client_min_messages = error AS $$
    DECLARE made record; found bigint;
    BEGIN
        LOOP
            INSERT INTO conformance.only_here SELECT t.oid FROM pg_type t
             WHERE (t.typtype = 'b' AND t.typelem = 0 AND t.oid >= 16384
                    OR t.typelem IN (SELECT type FROM conformance.only_here) AND t.typtype = 'b'
                    OR t.typbasetype IN (SELECT type FROM conformance.only_here)
                    OR EXISTS (SELECT FROM pg_range r JOIN conformance.only_here o ON r.rngsubtype = o.type
                                WHERE t.oid IN (r.rngtypid, r.rngmultitypid))
                    OR t.typtype = 'c' AND EXISTS (SELECT FROM pg_attribute a JOIN conformance.only_here o ON a.atttypid = o.type
                                WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped))
               AND t.oid NOT IN (SELECT type FROM conformance.only_here);
            GET DIAGNOSTICS found = ROW_COUNT;
            EXIT WHEN found = 0;
        END LOOP;
        FOR made IN
            SELECT DISTINCT c.oid FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
             WHERE d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
               AND d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
               AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
        LOOP
            EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.oid::regclass);
        END LOOP;
    EXCEPTION WHEN others THEN NULL;
    END $$;
    CREATE EVENT TRIGGER conformance_note ON ddl_command_end
        WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE TYPE', 'CREATE DOMAIN', 'ALTER TABLE', 'ALTER TYPE')
        EXECUTE FUNCTION conformance.note();
    GRANT USAGE ON SCHEMA conformance TO PUBLIC;
    CREATE PUBLICATION conformance_all FOR ALL TABLES;
    CREATE PUBLICATION conformance_root FOR ALL TABLES WITH (publish_via_partition_root = true)";

const ALL: &[&str] = &["conformance_all"];
const ROOT: &[&str] = &["conformance_root"];

/// The forms in which the load is decoded.
fn forms(major: Major) -> Vec<Form> {
    let mut forms = vec![
        Form::new("text", PLAIN, 1, ALL).messages(),
        Form::new("binary", PLAIN, 1, ALL).messages().binary().memory(16 << 10),
        Form::new("streaming", PLAIN, 2, ROOT).streaming(Streaming::On).memory(8 << 10),
    ];
    if major > Major::V14 {
        let (proto, parallel) =
            if major >= Major::V16 { (4, Streaming::Parallel) } else { (3, Streaming::On) };
        forms.push(Form::new("two-phase", TWO_PHASE, 3, ALL).messages());
        forms.push(
            Form::new("two-phase + streaming + binary", TWO_PHASE, proto, ALL)
                .streaming(parallel)
                .binary()
                .memory(8 << 10),
        );
    }
    forms
}

/// The result of the comparison in one form.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    compared: Tally,
    /// Rows that only the server can render.
    left_out: u64,
    /// Files that the server could not decode completely, so that there was nothing to compare
    /// with.
    server_refused: u64,
    differences: u64,
}

struct Run {
    stage: Stage,
    load: Load,
    tap: Tap,
    ours: Vec<Ours>,
    totals: Vec<Totals>,
    differences: Vec<String>,
    /// The state at the end of one file.
    from: Lsn,
    statements: usize,
    failed: usize,
    wal_bytes: u64,
}

#[test]
#[ignore = "the SQL is not kept here: `cargo x conformance --regress` fetches it and runs this"]
fn the_regression_sql_is_decoded_as_the_server_does() {
    let mut differences = Vec::new();
    for major in Major::under_test() {
        let mut run = Run::new(major);
        let is_whole = run.load.is_whole();
        run.all();
        run.print(major);
        if is_whole {
            record::add(major, &run);
            assert!(run.statements >= STATEMENTS_MIN, "{major}: {} statements are too few", run.statements);
            for (form, totals) in run.ours.iter().zip(&run.totals) {
                let rows = totals.compared.rows;
                assert!(rows >= ROWS_MIN, "{major}, {}: {rows} rows are too few", form.form.name);
            }
        }
        differences.append(&mut run.differences);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

impl Run {
    fn new(major: Major) -> Run {
        let cluster = builder(major).setting("max_locks_per_transaction", "256").start().unwrap();
        let create = format!(
            "CREATE DATABASE {REGRESSION} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        cluster.sql(DB, &create).unwrap();
        cluster.sql(REGRESSION, PREPARE).unwrap();
        let tap = Tap::to(&cluster);
        let stage = Stage::in_database(cluster, REGRESSION, &[]);
        let from = stage.position();
        stage.confirm(from);
        let totals = vec![Totals::default(); forms(major).len()];
        let mut run = Run {
            load: Load::read(),
            tap,
            ours: Vec::new(),
            totals,
            differences: Vec::new(),
            from,
            statements: 0,
            failed: 0,
            wal_bytes: 0,
            stage,
        };
        run.begin();
        run
    }

    fn cluster(&self) -> &Cluster {
        &self.stage.cluster
    }

    /// Decodes every form from here on, whatever happened to it before.
    fn begin(&mut self) {
        // A look waits for prepared transactions.
        let rest = "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database()";
        for row in self.cluster().sql(REGRESSION, rest).unwrap() {
            self.cluster().sql(REGRESSION, row[0].as_ref().unwrap()).unwrap();
        }
        self.from = self.stage.position();
        self.stage.confirm(self.from);
        let catalog = look(&self.cluster().url(REGRESSION)).unwrap();
        let decoder = |form: &Form| {
            let two_phase_at = (form.slot == TWO_PHASE).then_some(self.stage.start);
            Ours::on_refused(form, catalog.clone(), self.from, two_phase_at, OnRefused::LeaveOut)
        };
        self.ours = forms(self.cluster().major()).iter().map(decoder).collect();
    }

    fn all(&mut self) {
        let files = self.load.files().to_vec();
        for (number, file) in files.iter().enumerate() {
            let ran = self.load.run(file, &self.tap, REGRESSION);
            self.statements += ran.statements.len();
            self.failed += ran.failed;
            self.load.assert_set_up(file, self.cluster(), REGRESSION);
            let began = std::time::Instant::now();
            let to = self.stage.position();
            let before: Tally = self.totals[0].compared;
            let is_lost = self.compare(&ran, to);
            let rows = self.totals[0].compared.rows - before.rows;
            println!(
                "{}: {}/{} {file}: {} statements, {} failed, {} kB of WAL, {rows} rows; ran {:.1?}, compared {:.1?}",
                self.cluster().major(),
                number + 1,
                files.len(),
                ran.statements.len(),
                ran.failed,
                (to.as_u64() - self.from.as_u64()) >> 10,
                ran.took,
                began.elapsed(),
            );
            self.wal_bytes += to.as_u64() - self.from.as_u64();
            self.stage.confirm(to);
            self.from = to;
            if is_lost {
                self.begin();
            }
        }
    }

    /// Compares what a file has written, in every form. Returns whether one of our decoders cannot
    /// go on.
    fn compare(&mut self, ran: &Ran, to: Lsn) -> bool {
        let only_here = self.cluster().sql(REGRESSION, "SELECT type FROM conformance.only_here").unwrap();
        let only_here: HashSet<u32> =
            only_here.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect();
        let mut is_lost = false;
        for at in 0..self.ours.len() {
            let theirs = self.stage.peek(&self.ours[at].form);
            let read = self.ours[at].read(&self.stage.cluster, to, 1 << 20);
            let theirs = match theirs {
                Ok(theirs) => theirs,
                Err(refusal) => {
                    println!("{}: {}: {refusal}", self.cluster().major(), ran.file);
                    self.totals[at].server_refused += 1;
                    is_lost = true;
                    continue;
                }
            };
            let ours = &mut self.ours[at];
            let place = ours.alone().position().as_u64();
            let compared = read
                .map_err(|refusal| (Some(place), refusal))
                .and_then(|()| one_form(&self.stage, ours, &theirs, &only_here));
            match compared {
                Ok((tally, left_out)) => {
                    self.totals[at].compared += tally;
                    self.totals[at].left_out += left_out;
                }
                Err((place, difference)) => {
                    self.totals[at].differences += 1;
                    is_lost = true;
                    let told = self.tell(at, ran, place, &difference, &theirs);
                    println!("{told}");
                    self.differences.push(told);
                }
            }
        }
        is_lost
    }

    /// Reports file, statement and place of a difference, and writes the output of both sides to
    /// files.
    fn tell(&self, at: usize, ran: &Ran, place: Option<u64>, difference: &str, theirs: &[Sent]) -> String {
        let ours = &self.ours[at];
        let (major, form) = (self.cluster().major(), ours.form.name);
        let name = format!("pgsluice-regress-{major}-{}-{}", ran.file, form.replace(' ', ""));
        let path = std::env::temp_dir().join(name);
        for (sent, whose) in [(&ours.kept[..], "ours"), (theirs, "theirs")] {
            std::fs::write(path.with_extension(whose), tell(sent)).unwrap();
        }
        let place = place.map_or_else(|| "no place".to_owned(), |lsn| ran.place(Lsn::new(lsn)));
        format!(
            "{major}, {form}: {}, {place}: {difference}\n(beside it what both sent: {}.ours and .theirs)",
            ran.file,
            path.display()
        )
    }

    fn print(&self, major: Major) {
        println!(
            "{major}: {} statements, {} of them failed, {} MB of WAL",
            self.statements,
            self.failed,
            self.wal_bytes >> 20
        );
        for (ours, totals) in self.ours.iter().zip(&self.totals) {
            let Totals { compared, left_out, server_refused, differences } = totals;
            println!(
                "{major}, {}: {} transactions ({} streamed), {} rows, {} others equal; {left_out} rows left out, {server_refused} \
                 files that the server refuses, {} rows in which it contradicts itself, {differences} differences",
                ours.form.name,
                compared.transactions,
                compared.streamed,
                compared.rows,
                compared.others,
                compared.stale
            );
        }
    }
}

/// Compares our output with the server's. Returns also how many rows only the server can render. A
/// difference has its place.
fn one_form(
    stage: &Stage,
    ours: &mut Ours,
    theirs: &[Sent],
    only_here: &HashSet<u32>,
) -> Result<(Tally, u64), (Option<u64>, String)> {
    let untold = |words: String| (None, words);
    let mut our_items = ours.items().map_err(untold)?;
    let mut side = Side::server();
    side.read(theirs).map_err(|error| untold(format!("what the server sends: {error}")))?;
    let mut their_items = side.take();
    let left_out = their_items.leave_out(only_here);
    our_items.without_emptied(&left_out);
    let major = stage.cluster.major();
    if major == Major::V14 {
        [&mut our_items, &mut their_items].into_iter().for_each(Told::as_begun_by_14);
    }
    let form = ours.form.clone();
    stale::mark(major, &our_items, &mut their_items, |commit| {
        afresh(stage, &form, commit, only_here)
            .inspect_err(|error| println!("{major}: {}: it does not say afresh: {error}", form.name))
            .ok()
    });
    let compared = compare(&our_items, &their_items)
        .map_err(|difference| (difference.place.map(|at| at.0), difference.to_string()))?
        .beside(&left_out);
    compare_sides(&mut ours.side, &mut side, &compared.aside).map_err(untold)?;
    Ok((compared.tally, left_out.rows))
}

/// The output of a server's session that begins with the transaction.
fn afresh(stage: &Stage, form: &Form, commit: [At; 2], only_here: &HashSet<u32>) -> Result<Told, String> {
    let [from, to] = commit.map(|at| Lsn::new(at.0));
    let mut side = Side::server();
    side.read(&stage.peek_afresh(form, from, to)?)?;
    let mut items = side.take();
    items.leave_out(only_here);
    Ok(items)
}

/// A row of each partition is sent before the partition is attached or detached. The old row of the
/// update has one column less than the root.
#[test]
fn a_session_of_14_contradicts_itself_where_partitions_come_and_go_and_no_later_one_does() {
    const TABLES: &str = "CREATE TABLE root (id int, b int NOT NULL DEFAULT 1) PARTITION BY RANGE (id);
        CREATE TABLE comes (id int);
        CREATE TABLE goes PARTITION OF root FOR VALUES FROM (10) TO (20);
        ALTER TABLE root REPLICA IDENTITY FULL;
        ALTER TABLE comes REPLICA IDENTITY FULL;
        CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)";
    const WORK: [&str; 7] = [
        "INSERT INTO comes VALUES (1)",
        "ALTER TABLE comes ADD b int NOT NULL DEFAULT 1",
        "ALTER TABLE root ATTACH PARTITION comes FOR VALUES FROM (0) TO (10)",
        "UPDATE comes SET id = 2",
        "INSERT INTO goes VALUES (10)",
        "ALTER TABLE root DETACH PARTITION goes",
        "INSERT INTO goes VALUES (11, 2)",
    ];
    for major in Major::under_test() {
        let cluster = builder(major).start().unwrap();
        cluster.sql(DB, TABLES).unwrap();
        let forms = [
            Form::new("whole", PLAIN, 1, &["p"]),
            Form::new("streamed", PLAIN, 2, &["p"]).streaming(Streaming::On).memory(0),
        ];
        let mut stage = Stage::new(cluster, &forms);
        for sql in WORK {
            stage.cluster.sql(DB, sql).unwrap();
        }
        let to = stage.position();
        for mut ours in std::mem::take(&mut stage.ours) {
            let theirs = stage.peek(&ours.form).unwrap();
            ours.read(&stage.cluster, to, 1 << 20).unwrap();
            let (tally, _) = one_form(&stage, &mut ours, &theirs, &HashSet::new()).unwrap();
            let stale = if major == Major::V14 { 2 } else { 0 };
            assert_eq!((tally.rows, tally.stale), (4 - stale, stale), "{major}, {}", ours.form.name);
        }
    }
}
