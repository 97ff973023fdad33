//! A server, its rows as its pages store them, and its own rendering of them.

use std::collections::HashMap;
use std::fmt;
use std::ops::AddAssign;

use base::{Oid, PgVersion};
use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use testkit::{Cluster, Major, Rows};
use tokio_postgres::{Client, NoTls};
use types::{Attribute, Codec, Generated, HeapTuple, Settings, ToastPointer, TypeInfo, Value, Varlena};

use crate::catalog;

const DB: &str = "postgres";

/// The settings of pgsluice's replication connections, with the zone that values are rendered in.
const SESSION: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3; \
    SET timezone = 'UTC'; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET synchronize_seqscans = off";

/// Counts of what was compared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) rows: usize,
    pub(crate) values: usize,
    pub(crate) compressed: usize,
    pub(crate) external: usize,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.rows += other.rows;
        self.values += other.values;
        self.compressed += other.compressed;
        self.external += other.external;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { rows, values, compressed, external } = self;
        write!(
            f,
            "{rows} rows, {values} values in text and binary, {compressed} of them compressed, {external} external"
        )
    }
}

pub(crate) struct Oracle {
    pub(crate) cluster: Cluster,
    pub(crate) settings: Settings,
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Oracle {
    pub(crate) fn start(major: Major) -> Oracle {
        let cluster = Cluster::builder(major).setting("autovacuum", "off").start().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&cluster.url(DB), NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(SESSION).await.unwrap();
            client.batch_execute("CREATE EXTENSION pageinspect").await.unwrap();
            client
        });
        let version = PgVersion::from_num(major.number() * 10_000);
        Oracle { cluster, settings: Settings::new(version), runtime, client }
    }

    /// Runs the test on each major under test.
    pub(crate) fn each(test: impl Fn(&mut Oracle)) {
        for major in Major::under_test() {
            test(&mut Oracle::start(major));
        }
    }

    pub(crate) fn major(&self) -> u32 {
        self.cluster.major().number()
    }

    pub(crate) fn sql(&self, sql: &str) {
        let done = self.runtime.block_on(self.client.batch_execute(sql));
        done.unwrap_or_else(|error| panic!("{error:?} in: {sql}"));
    }

    pub(crate) fn rows(&self, sql: &str) -> Rows {
        let messages = self.runtime.block_on(self.client.simple_query(sql));
        let messages = messages.unwrap_or_else(|error| panic!("{error:?} in: {sql}"));
        let rows = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        });
        rows.collect()
    }

    /// Sends rows of binary fields into `table`.
    pub(crate) fn copy_in(&self, table: &str, rows: &[Vec<Option<Vec<u8>>>]) {
        let mut data = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
        for row in rows {
            data.extend_from_slice(&(row.len() as i16).to_be_bytes());
            for field in row {
                data.extend_from_slice(&field.as_ref().map_or(-1, |field| field.len() as i32).to_be_bytes());
                data.extend_from_slice(field.as_deref().unwrap_or_default());
            }
        }
        data.extend_from_slice(&(-1_i16).to_be_bytes());
        let sent = self.runtime.block_on(async {
            let sink =
                self.client.copy_in::<_, Bytes>(&format!("COPY {table} FROM STDIN (FORMAT binary)")).await?;
            let mut sink = std::pin::pin!(sink);
            sink.send(data.into()).await?;
            sink.finish().await
        });
        assert_eq!(sent.unwrap_or_else(|error| panic!("{table}: {error:?}")), rows.len() as u64);
    }

    fn copy_out(&self, query: &str) -> Vec<Vec<Option<Vec<u8>>>> {
        let data = self.runtime.block_on(async {
            let stream = self.client.copy_out(&format!("COPY ({query}) TO STDOUT (FORMAT binary)")).await?;
            stream.try_collect::<Vec<Bytes>>().await
        });
        let data = data.unwrap_or_else(|error| panic!("{error:?} in: {query}")).concat();
        parse_copy(&data)
    }

    pub(crate) fn types(&self) -> HashMap<Oid, TypeInfo> {
        catalog::types(&self.cluster, DB)
    }

    /// The tuples of `table`, each with its header, in the order of its pages.
    pub(crate) fn tuples(&self, table: &str) -> Vec<Vec<u8>> {
        let pages = self.rows(&format!(
            "SELECT encode(get_raw_page('{table}', p::int), 'hex') \
               FROM generate_series(0, pg_relation_size('{table}') / 8192 - 1) p"
        ));
        pages.iter().flat_map(|row| page_tuples(&unhex(row[0].as_ref().unwrap()))).collect()
    }

    /// The columns of `table`, with their missing values from `pg_attribute`.
    pub(crate) fn attributes(&self, table: &str) -> (Vec<String>, Vec<Attribute>) {
        let rows = self.rows(&format!(
            "SELECT attname, atttypid, attlen, attalign, attisdropped, attgenerated FROM pg_attribute \
              WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        ));
        let rows: Vec<Vec<String>> =
            rows.into_iter().map(|row| row.into_iter().map(Option::unwrap).collect()).collect();
        let names = rows.iter().map(|row| row[0].clone()).collect();
        let mut attributes: Vec<Attribute> = rows.iter().map(|row| catalog::attribute(&row[1..])).collect();
        for (number, array) in self.missing(table) {
            let attribute = &mut attributes[number - 1];
            attribute.missing = Some(types::missing_value(&array, attribute.len, attribute.align).unwrap());
        }
        (names, attributes)
    }

    /// `attnum` and the payload of `attmissingval`, from the pages of `pg_attribute`.
    fn missing(&self, table: &str) -> Vec<(usize, Vec<u8>)> {
        if table == "pg_attribute" {
            return Vec::new();
        }
        let wanted = self.rows(&format!(
            "SELECT attnum, encode(get_raw_page('pg_attribute', (ctid::text::point)[0]::int), 'hex'), \
                    (ctid::text::point)[1]::int \
               FROM pg_attribute WHERE attrelid = '{table}'::regclass AND atthasmissing"
        ));
        let (names, attributes) =
            if wanted.is_empty() { return Vec::new() } else { self.attributes("pg_attribute") };
        let missing = names.iter().position(|name| name == "attmissingval").unwrap();
        let value = |row: &Vec<Option<String>>| {
            let [number, page, line] = [0, 1, 2].map(|index| row[index].as_ref().unwrap());
            let item = page_item(&unhex(page), line.parse().unwrap()).unwrap();
            let mut values = Vec::new();
            HeapTuple::from_page(&item).unwrap().deform(&attributes, &mut values).unwrap();
            (number.parse().unwrap(), values[missing].payload().unwrap().unwrap().into_owned())
        };
        wanted.iter().map(value).collect()
    }

    fn chunks(&self, table: &str) -> HashMap<Oid, Vec<u8>> {
        let toast = self.rows(&format!("SELECT reltoastrelid FROM pg_class WHERE oid = '{table}'::regclass"));
        let toast = toast[0][0].clone().unwrap();
        if toast == "0" {
            return HashMap::new();
        }
        let chunks = self.rows(&format!(
            "SELECT chunk_id, encode(string_agg(chunk_data, '' ORDER BY chunk_seq), 'hex') \
               FROM pg_toast.pg_toast_{} GROUP BY 1",
            self.rows(&format!("SELECT '{table}'::regclass::oid"))[0][0].clone().unwrap()
        ));
        let chunk = |row: &Vec<Option<String>>| {
            (Oid(row[0].as_ref().unwrap().parse().unwrap()), unhex(row[1].as_ref().unwrap()))
        };
        chunks.iter().map(chunk).collect()
    }

    /// Renders every value of `table` as text and as binary, and compares both with the server.
    pub(crate) fn compare(&self, table: &str) -> Totals {
        let types = self.types();
        self.compare_with(table, &types)
    }

    /// The same, with types that were read before.
    pub(crate) fn compare_with(&self, table: &str, types: &HashMap<Oid, TypeInfo>) -> Totals {
        let (names, attributes) = self.attributes(table);
        let shown: Vec<usize> = (0..names.len())
            .filter(|&index| !attributes[index].dropped && attributes[index].generated != Generated::Virtual)
            .collect();
        let codecs: Vec<Codec> = shown
            .iter()
            .map(|&index| Codec::compile(attributes[index].type_oid, types, &self.settings).unwrap())
            .collect();
        let columns: Vec<String> = shown.iter().map(|&index| base::quote_ident(&names[index])).collect();
        let query = format!("SELECT {} FROM {table} ORDER BY ctid", columns.join(", "));
        let (text, binary) = (self.rows(&query), self.copy_out(&query));
        let (tuples, chunks) = (self.tuples(table), self.chunks(table));
        assert_eq!((tuples.len(), binary.len()), (text.len(), text.len()), "rows of {table}");
        let mut totals = Totals { rows: tuples.len(), ..Totals::default() };
        for (row, item) in tuples.iter().enumerate() {
            let mut values = Vec::new();
            HeapTuple::from_page(item).unwrap().deform(&attributes, &mut values).unwrap();
            for (column, (&index, codec)) in shown.iter().zip(&codecs).enumerate() {
                let place = || format!("{table}.{} row {row} on {}", names[index], self.major());
                let Some(payload) = payload(&values[index], &chunks, &mut totals) else {
                    assert_eq!((&text[row][column], &binary[row][column]), (&None, &None), "{}", place());
                    continue;
                };
                totals.values += 1;
                let mut ours = Vec::new();
                codec
                    .text(&payload, &self.settings, &mut ours)
                    .unwrap_or_else(|error| panic!("{}: {error}", place()));
                let expected = text[row][column].as_deref();
                assert_eq!(Some(String::from_utf8_lossy(&ours).as_ref()), expected, "{}", place());
                ours.clear();
                codec
                    .binary(&payload, &self.settings, &mut ours)
                    .unwrap_or_else(|error| panic!("{}: {error}", place()));
                assert_eq!(Some(&ours), binary[row][column].as_ref(), "{}, shown as {expected:?}", place());
            }
        }
        totals
    }
}

/// The payload of a value, put together from chunks if it is in a TOAST table.
fn payload(value: &Value<'_>, chunks: &HashMap<Oid, Vec<u8>>, totals: &mut Totals) -> Option<Vec<u8>> {
    match value {
        Value::Varlena(Varlena::External(pointer)) => {
            totals.external += 1;
            Some(assemble(pointer, chunks, totals))
        }
        Value::Varlena(Varlena::Compressed { .. }) => {
            totals.compressed += 1;
            value.payload().unwrap().map(Into::into)
        }
        value => value.payload().unwrap().map(Into::into),
    }
}

fn assemble(pointer: &ToastPointer, chunks: &HashMap<Oid, Vec<u8>>, totals: &mut Totals) -> Vec<u8> {
    let varlena = pointer.assemble(&chunks[&pointer.value]).unwrap();
    if matches!(varlena, Varlena::Compressed { .. }) {
        totals.compressed += 1;
    }
    varlena.payload().unwrap().into_owned()
}

fn page_tuples(page: &[u8]) -> Vec<Vec<u8>> {
    let lower = u16::from_le_bytes([page[12], page[13]]);
    (1..=usize::from(lower).saturating_sub(24) / 4).filter_map(|line| page_item(page, line)).collect()
}

/// The item of line pointer `line` (from 1), if it is in use.
fn page_item(page: &[u8], line: usize) -> Option<Vec<u8>> {
    let at = 20 + line * 4;
    let pointer = u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let (offset, state, length) = (pointer & 0x7fff, pointer >> 15 & 3, pointer >> 17);
    (state == 1).then(|| page[offset as usize..(offset + length) as usize].to_vec())
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The rows of COPY's binary format.
fn parse_copy(data: &[u8]) -> Vec<Vec<Option<Vec<u8>>>> {
    let mut rest = &data[19..];
    let mut next = |length: usize| {
        let (taken, behind) = rest.split_at(length);
        rest = behind;
        taken
    };
    let mut rows = Vec::new();
    loop {
        let count = i16::from_be_bytes(next(2).try_into().unwrap());
        if count < 0 {
            return rows;
        }
        let mut row = Vec::new();
        for _ in 0..count {
            let length = i32::from_be_bytes(next(4).try_into().unwrap());
            row.push(usize::try_from(length).ok().map(|length| next(length).to_vec()));
        }
        rows.push(row);
    }
}
