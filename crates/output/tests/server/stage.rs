//! A server, work on it, its pgoutput's messages, and ours.

use std::time::Duration;

use base::{Lsn, Oid, PgVersion, Xid};
use catalog::{Catalog, Look};
use client::ConnInfo;
use output::{Decoder, Options, Publications};
use testkit::{Cluster, Major};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use txn::DirSpool;
use types::Settings;

pub(crate) const DB: &str = "postgres";
const SEGMENT: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// One message, the server's or ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) lsn: Lsn,
    pub(crate) xid: Xid,
    pub(crate) data: Vec<u8>,
}

/// A session that stays open.
pub(crate) struct Talk<'a> {
    runtime: &'a tokio::runtime::Runtime,
    client: Client,
}

pub(crate) type Row = Vec<Option<String>>;

impl Talk<'_> {
    pub(crate) fn sql(&self, sql: &str) -> Vec<Row> {
        let messages = self.runtime.block_on(self.client.simple_query(sql));
        let messages = messages.unwrap_or_else(|error| panic!("{error:?} in: {sql}"));
        let row = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect())
            }
            _ => None,
        };
        messages.iter().filter_map(row).collect()
    }

    /// Runs each statement by itself.
    pub(crate) fn all(&self, statements: &[&str]) {
        statements.iter().for_each(|statement| {
            self.sql(statement);
        });
    }
}

/// A server whose catalogs were looked at before the work, with two slots made just after that.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) catalog: Catalog,
    pub(crate) database: Oid,
    /// Where the slots begin: both sides decode from here on.
    pub(crate) start: [Lsn; 2],
    runtime: tokio::runtime::Runtime,
}

/// A slot without two-phase commit, and one with it.
pub(crate) const SLOTS: [&str; 2] = ["plain", "two"];

impl Stage {
    pub(crate) fn start(major: Major, prepare: &[&str]) -> Stage {
        let cluster = Cluster::builder(major)
            .setting("wal_keep_size", "1GB")
            .setting("autovacuum", "off")
            .start()
            .unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for sql in prepare {
            cluster.sql(DB, sql).unwrap();
        }
        let catalog = runtime.block_on(async {
            let info = ConnInfo::parse(&cluster.url(DB)).unwrap();
            let session = client::connect(&info, "look", &[]).await.unwrap();
            Catalog::look(&[session], &Look { redo: None, wait_max: PATIENCE }).await.unwrap()
        });
        for (slot, two_phase) in SLOTS.iter().zip([false, true]) {
            let sql = format!(
                "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, {two_phase})"
            );
            cluster.sql(DB, &sql).unwrap();
        }
        let confirmed = |slot: &str| {
            let sql =
                format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'");
            cluster.one(DB, &sql).parse().unwrap()
        };
        let start = SLOTS.map(confirmed);
        let database = catalog.databases()[0].0;
        Stage { cluster, catalog, database, start, runtime }
    }

    pub(crate) fn major(&self) -> u32 {
        self.cluster.major().number()
    }

    pub(crate) fn talk(&self) -> Talk<'_> {
        self.talk_to(DB)
    }

    pub(crate) fn talk_to(&self, db: &str) -> Talk<'_> {
        let client = self.runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.cluster.url(db), NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Talk { runtime: &self.runtime, client }
    }

    /// Our options for the slot with this index.
    pub(crate) fn options(&self, slot: usize, publications: &[&str]) -> Options {
        let version = PgVersion::from_num(self.major() * 10_000);
        let names = publications.iter().map(|name| (*name).to_owned()).collect();
        let mut options =
            Options::new(self.database, Publications::Named(names), self.start[slot], Settings::new(version));
        options.two_phase_at = (slot == 1).then_some(self.start[slot]);
        options
    }

    /// The messages of the server's pgoutput, under this `logical_decoding_work_mem`.
    pub(crate) fn theirs(&self, slot: usize, options: &str, work_mem: &str) -> Vec<Message> {
        let talk = self.talk();
        talk.sql(&format!("SET logical_decoding_work_mem = '{work_mem}'"));
        let sql = format!(
            "SELECT lsn, xid, data FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, {options})",
            SLOTS[slot]
        );
        let text = |row: &Row, column: usize| row[column].clone().unwrap();
        let message = |row: &Row| Message {
            lsn: text(row, 0).parse().unwrap(),
            xid: Xid(text(row, 1).parse().unwrap()),
            data: unhex(text(row, 2).strip_prefix("\\x").unwrap()),
        };
        talk.sql(&sql).iter().map(message).collect()
    }

    /// The WAL from where the catalogs begin to where it ends now.
    pub(crate) fn wal(&self) -> Vec<u8> {
        let talk = self.talk();
        talk.sql("SELECT pg_logical_emit_message(true, 'test', 'flush')");
        let mut end = Lsn::INVALID;
        testkit::wait_for("all WAL on disk", PATIENCE, || {
            let rows = talk.sql(
                "SELECT pg_current_wal_insert_lsn() = pg_current_wal_flush_lsn(), pg_current_wal_flush_lsn()",
            );
            end = rows[0][1].clone().unwrap().parse().unwrap();
            Ok(rows[0][0].as_deref() == Some("t"))
        })
        .unwrap();
        let start = self.catalog.start().as_u64() / 8192 * 8192;
        let mut bytes = Vec::new();
        for segment in start / SEGMENT..=(end.as_u64() - 1) / SEGMENT {
            let name = format!("pg_wal/00000001{:08X}{:08X}", segment / 256, segment % 256);
            let file = std::fs::read(self.cluster.data_dir().join(name)).unwrap();
            let first = start.saturating_sub(segment * SEGMENT) as usize;
            let last = (end.as_u64() - segment * SEGMENT).min(SEGMENT) as usize;
            bytes.extend_from_slice(&file[first..last]);
        }
        bytes
    }

    pub(crate) fn decoder(&self, options: Options) -> (Decoder, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let spool = DirSpool::open(dir.path().join("spool")).unwrap();
        (Decoder::new(self.catalog.clone(), options, Box::new(spool)).unwrap(), dir)
    }

    /// Our messages for WAL that is handed over in pieces of this size.
    pub(crate) fn ours(&self, options: Options, wal: &[u8], piece: usize) -> Vec<Message> {
        let (mut decoder, _dir) = self.decoder(options);
        let messages = decode(&mut decoder, wal, piece).unwrap();
        decoder.finish().unwrap();
        messages
    }
}

impl Stage {
    /// The same, with a restart wherever no transaction was open, and the catalogs as they were
    /// there.
    pub(crate) fn restarted(&self, mut options: Options, wal: &[u8]) -> Vec<Message> {
        let (mut messages, mut restarts, begin) =
            (Vec::new(), 0, self.catalog.start().as_u64() / 8192 * 8192);
        let (mut decoder, mut _dir) = self.decoder(options.clone());
        loop {
            let at = (decoder.position().as_u64() - begin) as usize;
            let piece = &wal[at..wal.len().min(at + 30_000)];
            if piece.is_empty() {
                assert!(restarts > 5, "{restarts} restarts");
                return messages;
            }
            messages.extend(decode(&mut decoder, piece, usize::MAX).unwrap());
            if decoder.decoded() > options.start && decoder.restart_lsn() == decoder.decoded() {
                options.start = decoder.decoded();
                let catalog = Catalog::from_bytes(&decoder.place().catalog.to_bytes()).unwrap();
                _dir = tempfile::tempdir().unwrap();
                let spool = DirSpool::open(_dir.path().join("spool")).unwrap();
                decoder = Decoder::new(catalog, options.clone(), Box::new(spool)).unwrap();
                restarts += 1;
            }
        }
    }
}

pub(crate) fn decode(decoder: &mut Decoder, wal: &[u8], piece: usize) -> Result<Vec<Message>, output::Error> {
    let mut messages = Vec::new();
    for piece in wal.chunks(piece) {
        let mut outputs = decoder.push(piece)?;
        while let Some(output) = outputs.next()? {
            messages.push(Message { lsn: output.lsn, xid: output.xid, data: output.data.to_vec() });
        }
    }
    Ok(messages)
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
