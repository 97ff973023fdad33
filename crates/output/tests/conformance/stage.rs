//! A server with its slots. The server and we decode the same WAL, and the results are compared.

use std::time::Duration;

use base::{Lsn, Oid, PgVersion, Xid};
use catalog::{Catalog, Look};
use client::ConnInfo;
use output::{Decoder, OnRefused, Options, OriginFilter, Publications, Streaming};
use testkit::{Builder, Cluster, Major, StopMode};
use tokio_postgres::{Client, NoTls};
use txn::DirSpool;
use types::Settings;

use crate::compare::{Tally, compare, compare_sides};
use crate::message::{Message, Sent};
use crate::server::bytes;
use crate::together::{self, Moves};
use crate::told::{Item, Side, Told};

pub(crate) const DB: &str = "postgres";
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a stock server may fail to decode: this often, and once more for each
/// [`STRETCHES_FOR_REFUSAL`] stretches of WAL. Beyond that, the fault is not the server's. Two
/// failures were seen. One is "invalid ordering of speculative insertion changes" while 18 streams.
/// The other is "could not map filenumber" for prepared transactions that were rolled back, in one
/// of 60 to 250 stretches.
const REFUSALS_MAX: u32 = 3;
const STRETCHES_FOR_REFUSAL: u32 = 30;

/// A slot without two-phase commit, and one with it.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const TWO_PHASE: &str = "two_phase";

/// How a stretch of WAL is decoded: pgoutput's options, and the memory of each side.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) slot: &'static str,
    pub(crate) proto: u32,
    pub(crate) streaming: Streaming,
    pub(crate) binary: bool,
    pub(crate) publications: Vec<String>,
    pub(crate) messages: bool,
    pub(crate) origin_none: bool,
    /// The server's `logical_decoding_work_mem`, at least 64 kB, and our memory limit.
    pub(crate) their_memory_kb: u32,
    pub(crate) our_memory: usize,
}

impl Form {
    pub(crate) fn new(name: &'static str, slot: &'static str, proto: u32, publications: &[&str]) -> Form {
        Form {
            name,
            slot,
            proto,
            streaming: Streaming::Off,
            binary: false,
            publications: publications.iter().map(|name| (*name).to_owned()).collect(),
            messages: false,
            origin_none: false,
            their_memory_kb: 64 << 10,
            our_memory: 64 << 20,
        }
    }

    pub(crate) fn binary(self) -> Form {
        Form { binary: true, ..self }
    }

    pub(crate) fn messages(self) -> Form {
        Form { messages: true, ..self }
    }

    /// The least memory that the server may have, and this many bytes for us.
    pub(crate) fn memory(self, our_memory: usize) -> Form {
        Form { their_memory_kb: 64, our_memory, ..self }
    }

    pub(crate) fn streaming(self, streaming: Streaming) -> Form {
        Form { streaming, ..self }
    }

    pub(crate) fn origin_none(self, origin_none: bool) -> Form {
        Form { origin_none, ..self }
    }

    /// The arguments for the server.
    fn arguments(&self, major: u32) -> String {
        let names: Vec<_> = self.publications.iter().map(|name| base::quote_ident(name)).collect();
        let mut arguments = vec![
            ("proto_version", self.proto.to_string()),
            ("publication_names", names.join(",")),
            ("binary", self.binary.to_string()),
            ("messages", self.messages.to_string()),
        ];
        match self.streaming {
            Streaming::Off => {}
            Streaming::On => arguments.push(("streaming", "on".to_owned())),
            Streaming::Parallel => arguments.push(("streaming", "parallel".to_owned())),
        }
        if major >= 16 {
            arguments.push(("origin", if self.origin_none { "none" } else { "any" }.to_owned()));
        }
        let pair = |(name, value): &(&str, String)| format!("'{name}', {}", base::quote_literal(value));
        arguments.iter().map(pair).collect::<Vec<_>>().join(", ")
    }
}

/// Our decoder, which reads all WAL as it comes, and the knowledge of a reader of its output.
pub(crate) struct Ours {
    pub(crate) form: Form,
    /// `None` while it is part of a pass.
    pub(crate) decoder: Option<Decoder>,
    pub(crate) side: Side,
    /// The output since the last comparison.
    pub(crate) sent: Vec<Sent>,
    /// The output of the last comparison.
    pub(crate) kept: Vec<Sent>,
    _spool: tempfile::TempDir,
}

impl Ours {
    /// Makes a decoder that begins where `catalog` was looked at. Transactions that ended before
    /// `start` do not come out.
    pub(crate) fn new(form: &Form, catalog: Catalog, start: Lsn, two_phase_at: Option<Lsn>) -> Ours {
        Ours::on_refused(form, catalog, start, two_phase_at, OnRefused::Stop)
    }

    /// Like [`Ours::new`], for databases with tables that cannot be rendered.
    pub(crate) fn on_refused(
        form: &Form,
        catalog: Catalog,
        start: Lsn,
        two_phase_at: Option<Lsn>,
        refused: OnRefused,
    ) -> Ours {
        let (database, major) = (catalog.databases()[0].0, catalog.server().major);
        let spool = tempfile::tempdir().unwrap();
        let settings = Settings::new(PgVersion::from_num(major * 10_000));
        let publications = Publications::Named(form.publications.clone());
        let mut options = Options::new(database, publications, start, settings);
        options.proto_version = form.proto;
        options.binary = form.binary;
        options.streaming = form.streaming;
        options.two_phase_at = two_phase_at;
        options.messages = form.messages;
        options.origin = if form.origin_none { OriginFilter::None } else { OriginFilter::Any };
        options.work_mem_bytes = form.our_memory;
        options.refused = refused;
        let dir = DirSpool::open(spool.path().to_owned()).unwrap();
        let decoder = Decoder::new(catalog, options, Box::new(dir)).unwrap();
        Ours {
            form: form.clone(),
            decoder: Some(decoder),
            side: Side::default(),
            sent: Vec::new(),
            kept: Vec::new(),
            _spool: spool,
        }
    }

    /// The decoder, which is in no pass.
    pub(crate) fn alone(&self) -> &Decoder {
        self.decoder.as_ref().expect("it reads alone")
    }

    /// Hands over all new WAL, in pieces of `piece` bytes.
    pub(crate) fn read(&mut self, cluster: &Cluster, to: Lsn, piece: usize) -> Result<(), String> {
        let from = self.alone().position();
        if from >= to {
            return Ok(());
        }
        let bytes = bytes(cluster, from, to, 1);
        self.push(&bytes, piece).map_err(|error| format!("{}: we refuse: {error}", self.form.name))
    }

    pub(crate) fn push(&mut self, bytes: &[u8], piece: usize) -> Result<(), String> {
        let told = |error: output::Error| base::with_causes(&error);
        let decoder = self.decoder.as_mut().expect("it reads alone");
        for piece in bytes.chunks(piece) {
            let mut outputs = decoder.push(piece).map_err(told)?;
            while let Some(output) = outputs.next().map_err(told)? {
                let (lsn, xid, data) = (output.lsn.as_u64(), output.xid.0, output.data.to_vec());
                self.sent.push(Sent { lsn, xid, data });
            }
        }
        Ok(())
    }

    /// The output since the last call, put together to items.
    pub(crate) fn items(&mut self) -> Result<Told, String> {
        self.kept = std::mem::take(&mut self.sent);
        self.side.read(&self.kept).map_err(|error| format!("what we send: {error}"))?;
        Ok(self.side.take())
    }
}

impl Ours {
    /// Compares the output since the last call with the server's. Returns also how many aborts were
    /// compared.
    fn compare(&mut self, theirs: &[Sent]) -> Result<(Tally, u64), String> {
        let ours = self.items()?;
        let mut side = Side::server();
        side.read(theirs).map_err(|error| format!("what the server sends: {error}"))?;
        let compared = compare(&ours, &side.take())?;
        Ok((compared.tally, compare_sides(&mut self.side, &mut side, &compared.aside)?))
    }
}

/// A session that stays open.
pub(crate) struct Talk {
    runtime: std::sync::Arc<tokio::runtime::Runtime>,
    pub(crate) client: Client,
}

impl Talk {
    pub(crate) fn try_sql(&self, sql: &str) -> Result<(), String> {
        let done = self.runtime.block_on(self.client.simple_query(sql));
        done.map(drop).map_err(|error| match error.as_db_error() {
            Some(error) => format!("{} {}", error.code().code(), error.message()),
            None => error.to_string(),
        })
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{error} in: {sql}"));
    }
}

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    /// The database in which everything happens.
    db: &'static str,
    pub(crate) runtime: std::sync::Arc<tokio::runtime::Runtime>,
    pub(crate) database: Oid,
    /// Where both slots begin.
    pub(crate) start: Lsn,
    /// Our decoders, one for each form.
    pub(crate) ours: Vec<Ours>,
    /// The server's output by form since the last comparison, for the counts of traps and for
    /// canaries.
    pub(crate) theirs: Vec<Vec<Sent>>,
    pub(crate) aborts_compared: u64,
    pub(crate) moves: Moves,
    /// Stretches of WAL that were compared.
    stretches: u32,
    /// Stretches that the server could not decode itself, so that there was nothing to compare
    /// with, or after which it did not start.
    refusals: u32,
    /// The output of both sides where they differed.
    pub(crate) differing: Option<[Vec<Sent>; 2]>,
}

pub(crate) fn builder(major: Major) -> Builder {
    Cluster::builder(major)
        .setting("wal_keep_size", "2GB")
        .setting("autovacuum", "off")
        .setting("max_prepared_transactions", "50")
        .setting("synchronous_commit", "off")
        .setting("max_wal_size", "4GB")
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The name of a look in `pg_stat_activity`.
pub(crate) const LOOK: &str = "look";

/// A look at the catalogs at `url`.
pub(crate) fn look(url: &str) -> Result<Catalog, String> {
    runtime().block_on(async {
        let info = ConnInfo::parse(url).unwrap();
        let session = client::connect(&info, LOOK, &[]).await.map_err(|error| error.to_string())?;
        let look = Look { redo: None, wait_max: PATIENCE };
        Catalog::look(&[session], &look).await.map_err(|error| base::with_causes(&error))
    })
}

impl Stage {
    /// Sets up a prepared server: a look, the slots, and a decoder for each form.
    pub(crate) fn new(cluster: Cluster, forms: &[Form]) -> Stage {
        Stage::in_database(cluster, DB, forms)
    }

    /// Like [`Stage::new`], in a database with another name.
    pub(crate) fn in_database(cluster: Cluster, db: &'static str, forms: &[Form]) -> Stage {
        cluster.sql(db, "CHECKPOINT").unwrap();
        let catalog = look(&cluster.url(db)).unwrap();
        // pgoutput of 14 has no prepared transactions.
        let two_phase = (cluster.major() > Major::V14).then_some((TWO_PHASE, true));
        for (slot, two_phase) in [(PLAIN, false)].into_iter().chain(two_phase) {
            let create = format!(
                "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, {two_phase})"
            );
            cluster.sql(db, &create).unwrap();
        }
        let confirmed = "SELECT max(confirmed_flush_lsn) FROM pg_replication_slots";
        let start: Lsn = cluster.one(db, confirmed).parse().unwrap();
        let database = catalog.databases()[0].0;
        let mut stage = Stage {
            cluster,
            db,
            runtime: std::sync::Arc::new(runtime()),
            database,
            start,
            ours: Vec::new(),
            theirs: Vec::new(),
            aborts_compared: 0,
            moves: Moves::default(),
            stretches: 0,
            refusals: 0,
            differing: None,
        };
        stage.ours = forms.iter().map(|form| stage.decoder(form, catalog.clone(), start)).collect();
        stage
    }

    /// Forgets what was decoded, looks at the catalogs again, and decodes these forms from here on.
    /// No transaction may be open, and everything before must be confirmed.
    pub(crate) fn begin(&mut self, forms: &[Form]) -> Catalog {
        let start = self.position();
        let catalog = look(&self.cluster.url(self.db)).unwrap();
        self.ours = forms.iter().map(|form| self.decoder(form, catalog.clone(), start)).collect();
        catalog
    }

    /// Makes a decoder of `form` from a look. `start` is as in [`Ours::new`].
    pub(crate) fn decoder(&self, form: &Form, catalog: Catalog, start: Lsn) -> Ours {
        Ours::new(form, catalog, start, (form.slot == TWO_PHASE).then_some(self.start))
    }

    pub(crate) fn talk(&self) -> Talk {
        let client = self.runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&self.cluster.url(self.db), NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Talk { runtime: std::sync::Arc::clone(&self.runtime), client }
    }

    /// Where WAL ends now, on disk. Uses another database, because a session may hold a lock on the
    /// catalogs of this database.
    pub(crate) fn position(&self) -> Lsn {
        const ASIDE: &str = "template1";
        // The record of an asynchronous commit may not be written yet.
        let flush = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'test', 'flush')";
        self.cluster.sql(ASIDE, flush).unwrap();
        let mut lsn = None;
        let query =
            "SELECT pg_current_wal_insert_lsn() = pg_current_wal_flush_lsn(), pg_current_wal_flush_lsn()";
        testkit::wait_for("all WAL on disk", PATIENCE, || {
            let rows = self.cluster.sql(ASIDE, query)?;
            lsn = (rows[0][0].as_deref() == Some("t")).then(|| rows[0][1].clone().unwrap().parse().unwrap());
            Ok(lsn.is_some())
        })
        .unwrap();
        lsn.unwrap()
    }

    /// The server's output for everything that was not confirmed.
    pub(crate) fn peek(&self, form: &Form) -> Result<Vec<Sent>, String> {
        self.peek_in(&self.talk(), form, None)
    }

    /// The server's output for the transaction whose commit record is from `from` to `to`, not
    /// streamed and in a session that has decoded nothing before. The form's slot stays as it is.
    pub(crate) fn peek_afresh(&self, form: &Form, from: Lsn, to: Lsn) -> Result<Vec<Sent>, String> {
        const AFRESH: &str = "afresh";
        let talk = self.talk();
        talk.try_sql(&format!("SELECT pg_copy_logical_replication_slot('{}', '{AFRESH}', true)", form.slot))?;
        // Transactions that commit before the slot's position do not come out.
        let advanced = talk.try_sql(&format!("SELECT pg_replication_slot_advance('{AFRESH}', '{from}')"));
        let whole = Form { slot: AFRESH, streaming: Streaming::Off, ..form.clone() };
        let sent = advanced.and_then(|()| self.peek_in(&talk, &whole, Some(to)));
        talk.sql(&format!("SELECT pg_drop_replication_slot('{AFRESH}')"));
        sent
    }

    fn peek_in(&self, talk: &Talk, form: &Form, to: Option<Lsn>) -> Result<Vec<Sent>, String> {
        let query = format!(
            "SELECT (lsn - '0/0'::pg_lsn)::int8, xid::text::int8, data \
             FROM pg_logical_slot_peek_binary_changes('{}', {}, NULL, {})",
            form.slot,
            to.map_or_else(|| "NULL".to_owned(), |to| format!("'{to}'")),
            form.arguments(self.cluster.major().number())
        );
        talk.sql(&format!("SET logical_decoding_work_mem = '{}kB'", form.their_memory_kb));
        let rows = self.runtime.block_on(talk.client.query(&query, &[]));
        let rows = rows.map_err(|error| {
            let words = error.as_db_error().map_or_else(|| error.to_string(), |error| format!("{error:?}"));
            format!("{}: the server refuses: {words}", form.name)
        })?;
        let sent = |row: &tokio_postgres::Row| Sent {
            lsn: row.get::<_, i64>(0).cast_unsigned(),
            xid: u32::try_from(row.get::<_, i64>(1)).unwrap(),
            data: row.get(2),
        };
        Ok(rows.iter().map(sent).collect())
    }

    /// Compares all forms from the last comparison to the present end of WAL: each alone, or, with
    /// a seed, in one pass. Only prepared transactions may be open.
    pub(crate) fn compare(&mut self, piece: usize, together: Option<u64>) -> Result<(Lsn, Tally), String> {
        let to = self.position();
        let mut tally = Tally::default();
        if let Some(seed) = together {
            let moves = together::read(&mut self.ours, &self.cluster, to, piece, seed)?;
            self.moves.joined += moves.joined;
            self.moves.split += moves.split;
        }
        self.stretches += 1;
        let (may_refuse, mut refused) = (self.may_refuse(), false);
        self.theirs.clear();
        for at in 0..self.ours.len() {
            let theirs = self.peek(&self.ours[at].form);
            let ours = &mut self.ours[at];
            ours.read(&self.cluster, to, piece)?;
            let theirs = match theirs {
                Ok(theirs) => theirs,
                // Stock servers sometimes fail where we do not. There is nothing to compare with
                // then.
                Err(refusal) if may_refuse => {
                    println!("{}: {refusal}", self.cluster.major());
                    refused = true;
                    ours.items()?;
                    ours.side.skip();
                    self.theirs.push(Vec::new());
                    continue;
                }
                Err(refusal) => return Err(refusal),
            };
            match ours.compare(&theirs) {
                Ok((one, aborts)) => {
                    tally += one;
                    self.aborts_compared += aborts;
                }
                Err(difference) => {
                    let difference = format!("{}: {difference}", ours.form.name);
                    self.differing = Some([std::mem::take(&mut ours.kept), theirs]);
                    return Err(difference);
                }
            }
            self.theirs.push(theirs);
        }
        self.refusals += u32::from(refused);
        Ok((to, tally))
    }

    /// Whether the server may fail another time.
    fn may_refuse(&self) -> bool {
        self.refusals < REFUSALS_MAX + self.stretches / STRETCHES_FOR_REFUSAL
    }

    /// Checks a decoder that begins with a look in the middle of the last stretch. Its output must
    /// be the server's, without the transactions that the look saw.
    pub(crate) fn compare_from(
        &self,
        form: &Form,
        catalog: &Catalog,
        to: Lsn,
        piece: usize,
    ) -> Result<Tally, String> {
        let at = self.ours.iter().position(|ours| ours.form.name == form.name).unwrap();
        if self.theirs[at].is_empty() {
            return Ok(Tally::default());
        }
        let mut ours = self.decoder(form, catalog.clone(), catalog.looked());
        let told = |difference: String| {
            format!(
                "{}, begun at {} with {} bytes, in pieces of {piece}: {difference}",
                form.name,
                catalog.looked(),
                form.our_memory
            )
        };
        ours.read(&self.cluster, to, piece).map_err(told)?;
        let our_items = ours.items().map_err(told)?;
        let mut side = Side::server();
        side.read(&self.theirs[at])?;
        let mut items = side.take();
        let database = catalog.databases()[0].0;
        let is_new = |xid: u32| !catalog.is_before(database, Xid(xid));
        items.items.retain(|item| match item {
            Item::Transaction(transaction) => is_new(transaction.xid),
            Item::Alone(lsn, _, Message::Logical { .. }) => lsn.0 > catalog.looked().as_u64(),
            Item::Alone(_, _, Message::CommitPrepared { prepared, .. }) => is_new(prepared.xid),
            Item::Alone(_, _, Message::RollbackPrepared { xid, .. }) => is_new(*xid),
            Item::Alone(..) => true,
        });
        let compared = compare(&our_items, &items).map_err(|difference| told(difference.into()))?;
        Ok(compared.tally)
    }

    /// Confirms everything that was compared, so that it does not come again, not even after a
    /// crash.
    pub(crate) fn confirm(&self, to: Lsn) {
        let advance =
            format!("SELECT pg_replication_slot_advance(slot_name, '{to}') FROM pg_replication_slots");
        self.cluster.sql(self.db, &advance).unwrap();
        self.cluster.sql(self.db, "CHECKPOINT").unwrap();
    }

    /// Stops the server immediately and lets it recover.
    pub(crate) fn crash(&mut self) {
        self.cluster.stop(StopMode::Immediate).unwrap();
        while let Err(error) = self.cluster.start_again() {
            let error = error.to_string();
            let file = in_the_way(&error).filter(|_| self.may_refuse());
            let Some(file) = file else { panic!("{error}") };
            println!("{}: the server does not start: {file} exists", self.cluster.major());
            std::fs::remove_file(self.cluster.data_dir().join(file)).unwrap();
            self.refusals += 1;
        }
    }
}

/// The file for which recovery failed at its end, when it empties unlogged relations from their
/// init forks. Stock servers sometimes leave such a file behind themselves.
fn in_the_way(error: &str) -> Option<&str> {
    let (_, behind) = error.rsplit_once("FATAL:  could not create file \"")?;
    behind.split_once("\": File exists").map(|(file, _)| file)
}
