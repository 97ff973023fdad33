//! A server, sessions on it, and its catalogs, which are followed.

use std::collections::BTreeSet;
use std::time::Duration;

use base::{Lsn, Oid, Xid};
use catalog::{Catalog, Error, Files, Followed, Look, Relation, View};
use client::ConnInfo;
use testkit::{Builder, Cluster, Major, Rows, StopMode};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use wal::{Reader, Record, Rmgr, Start};

use crate::server::bytes;

pub(crate) const DB: &str = "postgres";

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) catalog: Catalog,
    pub(crate) database: Oid,
    reader: Reader,
    runtime: tokio::runtime::Runtime,
    /// The number of followed records, and of those whose files were resolved.
    pub(crate) records: usize,
    pub(crate) resolved: usize,
}

/// A session that stays open, so that it can be in a transaction.
pub(crate) struct Talk<'a> {
    runtime: &'a tokio::runtime::Runtime,
    client: Client,
}

impl<'a> Talk<'a> {
    pub(crate) fn connect(runtime: &'a tokio::runtime::Runtime, url: &str) -> Talk<'a> {
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Talk { runtime, client }
    }

    pub(crate) fn try_sql(&self, sql: &str) -> Result<Rows, String> {
        let messages =
            self.runtime.block_on(self.client.simple_query(sql)).map_err(|error| format!("{error:?}"))?;
        let row = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
            }
            _ => None,
        };
        Ok(messages.iter().filter_map(row).collect())
    }

    pub(crate) fn sql(&self, sql: &str) -> Rows {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{error} in: {sql}"))
    }

    pub(crate) fn one(&self, sql: &str) -> String {
        self.sql(sql)[0][0].clone().unwrap_or_default()
    }

    /// The transaction's id. The call assigns one if there is none.
    pub(crate) fn xid(&self) -> Xid {
        Xid(self.one("SELECT pg_current_xact_id()::xid").parse().unwrap())
    }
}

pub(crate) fn builder(major: Major) -> Builder {
    Cluster::builder(major).setting("wal_keep_size", "1GB").setting("autovacuum", "off")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A fresh look at some databases.
pub(crate) fn try_look(
    runtime: &tokio::runtime::Runtime,
    cluster: &Cluster,
    databases: &[&str],
    wait_max: Duration,
) -> Result<Catalog, Error> {
    runtime.block_on(async {
        let mut sessions = Vec::new();
        for database in databases {
            let info = ConnInfo::parse(&cluster.url(database)).unwrap();
            sessions.push(client::connect(&info, "look", &[]).await.unwrap());
        }
        Catalog::look(&sessions, &Look { redo: None, wait_max }).await
    })
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Stage {
    /// Starts a server, runs `prepare` on it, and looks at its catalogs.
    pub(crate) fn start(major: Major, prepare: &[&str]) -> Stage {
        let cluster = builder(major).start().unwrap();
        for sql in prepare {
            cluster.sql(DB, sql).unwrap();
        }
        Stage::look(cluster, &[DB])
    }

    pub(crate) fn look(cluster: Cluster, databases: &[&str]) -> Stage {
        let runtime = runtime();
        let catalog = try_look(&runtime, &cluster, databases, PATIENCE).unwrap();
        Stage::with(cluster, runtime, catalog)
    }

    pub(crate) fn with(cluster: Cluster, runtime: tokio::runtime::Runtime, catalog: Catalog) -> Stage {
        let database = catalog.databases()[0].0;
        let reader = Reader::new(Start::at(catalog.start())).unwrap();
        Stage { cluster, catalog, database, reader, runtime, records: 0, resolved: 0 }
    }

    pub(crate) fn runtime() -> tokio::runtime::Runtime {
        runtime()
    }

    pub(crate) fn major(&self) -> u32 {
        self.cluster.major().number()
    }

    /// Runs a statement by itself.
    pub(crate) fn sql(&self, sql: &str) {
        self.cluster.sql(DB, sql).unwrap_or_else(|error| panic!("{error:#} in: {sql}"));
    }

    pub(crate) fn talk(&self) -> Talk<'_> {
        Talk::connect(&self.runtime, &self.cluster.url(DB))
    }

    /// Follows to the present end of WAL. Transactions must know all files that they change.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_and(|_, _| {});
    }

    /// Like `catch_up`, and calls `see` for each record.
    pub(crate) fn catch_up_and(&mut self, mut see: impl FnMut(&mut Catalog, &Record<'_>)) {
        let (database, mut resolved) = (self.database, 0);
        let follow = self.each(|catalog, record, _| {
            let locator = record.first_locator().filter(|locator| locator.database == database);
            let is_heap = matches!(record.rmgr(), Rmgr::Heap | Rmgr::Heap2);
            let counts = record.xid().is_valid() && !catalog.is_before(database, record.xid());
            if let Some(locator) = locator.filter(|_| is_heap && counts) {
                let files = catalog.view(database, record.xid()).unwrap().files(locator);
                assert_ne!(files, Files::Unknown, "{locator} at {} of {}", record.lsn(), record.xid());
                resolved += 1;
            }
            see(catalog, record);
        });
        follow.unwrap();
        self.resolved += resolved;
    }

    /// Like `catch_up`, and calls `see` with the catalog behind each record.
    pub(crate) fn each(
        &mut self,
        mut see: impl FnMut(&mut Catalog, &Record<'_>, Followed),
    ) -> Result<(), Error> {
        let to = self.position();
        let from = self.reader.position();
        if from >= to {
            return Ok(());
        }
        let bytes = bytes(&self.cluster, from, to, 1);
        let mut records = self.reader.push(from, &bytes).unwrap();
        while let Some(record) = records.poll().unwrap() {
            let followed = self.catalog.follow(&record)?;
            self.records += 1;
            see(&mut self.catalog, &record, followed);
        }
        Ok(())
    }

    /// Hands another catalog the WAL from its start to `to`, record by record.
    pub(crate) fn again(&self, catalog: &mut Catalog, to: Lsn) -> Result<(), Error> {
        let mut reader = Reader::new(Start::at(catalog.start())).unwrap();
        let bytes = bytes(&self.cluster, reader.position(), to, 1);
        let mut records = reader.push(reader.position(), &bytes).unwrap();
        while let Some(record) = records.poll().unwrap() {
            catalog.follow(&record)?;
        }
        Ok(())
    }

    /// Where WAL ends now, on disk. Uses another database, because a session may hold a lock on the
    /// catalogs of this database.
    pub(crate) fn position(&self) -> Lsn {
        const ASIDE: &str = "template1";
        // The record of an asynchronous commit may not be written yet.
        let flush = "SELECT pg_logical_emit_message(true, 'test', 'flush')";
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

    /// What `xid` sees. [`Xid::INVALID`] sees what has committed.
    pub(crate) fn view(&self, xid: Xid) -> View<'_> {
        self.catalog.view(self.database, xid).unwrap()
    }

    /// The relation with this name, as `xid` sees it.
    pub(crate) fn relation(&self, xid: Xid, name: &str) -> Option<Relation> {
        let view = self.view(xid);
        let mut relations = view.relations().into_iter().map(|oid| view.relation(oid).unwrap().unwrap());
        relations.find(|relation| relation.name == name)
    }

    /// Checks that a fresh look equals what was followed. No transaction may be open.
    pub(crate) fn check(&mut self, where_: &str) {
        let names: Vec<String> =
            self.catalog.databases().iter().map(|(_, name)| (*name).to_owned()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fresh = try_look(&self.runtime, &self.cluster, &names, PATIENCE).unwrap();
        self.catch_up();
        let differences = self.catalog.differences(&fresh);
        assert!(differences.is_empty(), "{}, {where_}: {differences:#?}", self.major());
    }

    /// Checks that the view of a session's transaction has the relations and columns that the
    /// session sees.
    pub(crate) fn check_view(&self, talk: &Talk<'_>, xid: Xid, where_: &str) {
        self.compare_view(&talk.sql(RELATIONS), xid, where_);
    }

    /// Like `check_view`, with what the session saw: the rows of `RELATIONS`.
    pub(crate) fn compare_view(&self, rows: &Rows, xid: Xid, where_: &str) {
        let theirs: BTreeSet<String> = rows.iter().map(|row| row[0].clone().unwrap()).collect();
        let view = self.view(xid);
        let mut ours = BTreeSet::new();
        for oid in view.relations().into_iter().filter(|oid| oid.is_user_defined()) {
            let relation = view.relation(oid).unwrap().unwrap();
            if relation.persistence != b't' && relation.kind != b't' && relation.kind != b'i' {
                lines(&relation, &mut ours);
            }
        }
        let missing: Vec<_> = theirs.difference(&ours).collect();
        let added: Vec<_> = ours.difference(&theirs).collect();
        assert!(
            missing.is_empty() && added.is_empty(),
            "{}, {where_}, transaction {xid}: missing {missing:#?}, wrong {added:#?}",
            self.major()
        );
    }

    pub(crate) fn restart(&mut self, mode: StopMode) {
        self.cluster.restart(mode).unwrap();
    }
}

fn lines(relation: &Relation, lines: &mut BTreeSet<String>) {
    let letter = |letter: u8| char::from(letter);
    let yes = |is: bool| if is { 't' } else { 'f' };
    lines.insert(format!(
        "{} {}.{} {} {} {} {}",
        relation.oid,
        relation.schema,
        relation.name,
        letter(relation.kind),
        letter(relation.persistence),
        yes(relation.is_partition),
        letter(relation.identity.letter())
    ));
    for column in &relation.columns {
        lines.insert(format!(
            "{} {} {} {} {} {} {} {} {}",
            relation.oid,
            column.number,
            column.name,
            column.stored.type_oid,
            column.typmod,
            yes(column.not_null),
            yes(column.stored.dropped),
            yes(column.in_identity),
            yes(column.missing.is_some())
        ));
    }
}

/// One line for each relation and each column, in the form of `lines`.
pub(crate) const RELATIONS: &str = "SELECT concat_ws(' ', c.oid, n.nspname || '.' || c.relname, c.relkind, c.relpersistence, \
        c.relispartition, c.relreplident) \
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.oid >= 16384 AND c.relpersistence <> 't' AND c.relkind NOT IN ('t', 'i') \
    UNION ALL \
    SELECT concat_ws(' ', c.oid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attisdropped, \
        EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL \
            AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident) \
            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])), \
        a.atthasmissing AND NOT a.attisdropped) \
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
    WHERE c.oid >= 16384 AND c.relpersistence <> 't' AND c.relkind NOT IN ('t', 'i') AND a.attnum > 0";
