//! `pgsluice decode --wal DIR|FILE... (--source URL | --catalog FILE)`.
//!
//! The changes in a range of WAL go to stdout. A summary of what was decoded and what was not goes
//! to stderr.

mod render;

use std::io::{self, Write};
use std::path::PathBuf;

use base::{Lsn, Oid, PgVersion, Xid};
use catalog::Catalog;
use output::{Decoder, OnRefused, Options, Publications};
use source::segments::{self, Segments};
use txn::DirSpool;
use types::Settings;

use crate::cli::DecodeArgs;
use crate::command::catalog::{from_catalog, look};
use crate::exit::{Code, exit};
use crate::failure::Failure;
use crate::settings::SettingsTable;
use crate::subject::end;
use crate::units::{show_bytes, show_count};
use render::Renderer;

/// Prints what a range of WAL changed.
pub(crate) async fn decode(table: &SettingsTable, args: &DecodeArgs) -> anyhow::Result<Code> {
    let catalog = match &args.catalog {
        Some(file) => Catalog::open(file).map_err(|error| from_catalog(&error))?,
        None => look(&end("source", table.ends.source.as_deref())?, args.timeout.0).await?,
    };
    let segments = Segments::find(&args.wal).map_err(|error| from_segments(&error))?;
    let options = options(&catalog, &segments, table, args)?;
    let database = options.database;
    let spool = SpoolDir::new();
    let out = io::BufWriter::new(io::stdout().lock());
    let mut renderer = Renderer::new(args.format, &options.settings, out);
    let opened = DirSpool::open(spool.0.clone());
    let opened = opened.map_err(|error| exit(Code::Failed, error.to_string()))?;
    let mut decoder =
        Decoder::new(catalog, options, Box::new(opened)).map_err(|error| from_output(&error))?;
    let end = read(&mut decoder, &segments, args, &mut renderer)?;
    renderer.flush()?;
    warn_of_missing(&decoder, database, &table.stream.publication);
    tell(&mut decoder, args, end)
}

/// Warns about missing publications. From 18 on a server does the same, and leaves them out.
fn warn_of_missing(decoder: &Decoder, database: Oid, publications: &[String]) {
    let view = decoder.place().catalog.view(database, Xid::INVALID);
    let known = view.map(|view| view.publications()).unwrap_or_default();
    for name in publications.iter().filter(|name| !known.contains(&name.as_str())) {
        eprintln!("pgsluice: publication \"{name}\" does not exist where this WAL ends");
    }
}

fn options(
    catalog: &Catalog,
    segments: &Segments,
    table: &SettingsTable,
    args: &DecodeArgs,
) -> anyhow::Result<Options> {
    let databases = catalog.databases();
    let found = match &args.database {
        Some(wanted) => databases.iter().find(|(_, name)| name == wanted),
        None => databases.first(),
    };
    let Some((database, _)) = found else {
        let names = databases.iter().map(|(_, name)| (*name).to_owned()).collect();
        return Err(Failure::NoDatabase { wanted: args.database.clone().unwrap_or_default(), names }.into());
    };
    let publications = match table.stream.publication.as_slice() {
        [] => Publications::EveryTable,
        names => Publications::Named(names.to_vec()),
    };
    let version = PgVersion::from_num(catalog.server().major * 10_000);
    let start = args.from.unwrap_or(Lsn::INVALID).max(catalog.looked());
    let mut options = Options::new(*database, publications, start, Settings::new(version));
    options.messages = true;
    options.segment_size = segments.segment_size();
    options.refused = if args.skip_refused { OnRefused::LeaveOut } else { OnRefused::Stop };
    options.early_filter = !args.no_early_filter;
    Ok(options)
}

/// Decodes up to the requested position, or to the end of WAL. Returns the position reached.
fn read(
    decoder: &mut Decoder,
    segments: &Segments,
    args: &DecodeArgs,
    renderer: &mut Renderer<impl Write>,
) -> anyhow::Result<Lsn> {
    let to = args.to.unwrap_or(Lsn::new(u64::MAX));
    let begin = decoder.position();
    let named = |error: &segments::Error| {
        let error = from_segments(error);
        match error {
            error if begin < segments.span().0 => {
                let why = format!("WAL is needed from {begin} on, where the catalogs begin");
                exit(Code::Failed, format!("{error}; {why}"))
            }
            error => error,
        }
    };
    let mut bytes = segments.read(begin).map_err(|error| named(&error))?;
    while decoder.position() < to && decoder.end_of_wal().is_none() {
        let Some(piece) = bytes.next().map_err(|error| from_segments(&error))? else { break };
        let wanted = usize::try_from(to.bytes_since(decoder.position())).unwrap_or(usize::MAX);
        let mut outputs =
            decoder.push(&piece[..wanted.min(piece.len())]).map_err(|error| from_output(&error))?;
        while let Some(output) = outputs.next().map_err(|error| from_output(&error))? {
            renderer.message(&output)?;
        }
    }
    match decoder.finish() {
        Ok(end) => Ok(end),
        // A segment or a range may end in the middle of a record.
        Err(error) if error.is_incomplete() => Ok(error.lsn().unwrap_or(decoder.position())),
        Err(error) => Err(from_output(&error)),
    }
}

/// Prints what was decoded and what was left out.
fn tell(decoder: &mut Decoder, args: &DecodeArgs, end: Lsn) -> anyhow::Result<Code> {
    let (begin, looked) = (decoder.place().catalog.start(), decoder.place().catalog.looked());
    let counters = decoder.counters();
    eprintln!(
        "pgsluice: decoded {begin} to {end}: {} rows in {} transactions",
        show_count(counters.rows),
        show_count(counters.transactions)
    );
    if counters.seen_by_look > 0 {
        eprintln!(
            "pgsluice: decode left out {} transactions that had ended before the catalogs were read at {looked}: \
             what their tables looked like is not known; for earlier ones export the catalogs earlier",
            show_count(counters.seen_by_look)
        );
    }
    if decoder.open_count() > 0 {
        eprintln!("pgsluice: {} transactions are open at {end} and were left out", decoder.open_count());
    }
    let dropped = decoder
        .dropped()
        .iter()
        .fold((0, 0), |(records, bytes), (_, dropped)| (records + dropped.records, bytes + dropped.bytes));
    if dropped.0 > 0 {
        let (records, bytes) = (show_count(dropped.0), show_bytes(dropped.1));
        eprintln!("pgsluice: {records} records ({bytes}) were of tables that nobody asked for");
    }
    if args.skip_refused {
        for refused in decoder.refused().map_err(|error| from_output(&error))? {
            eprintln!("pgsluice: left out: {refused}");
        }
    }
    match args.to {
        Some(to) if end < to => Err(exit(Code::Failed, format!("WAL ends at {end}, before {to} (--to)"))),
        _ => Ok(Code::Done),
    }
}

/// An error of decoding with its exit code.
pub(crate) fn from_output(error: &output::Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}

/// An error of files with its exit code.
pub(crate) fn from_segments(error: &segments::Error) -> anyhow::Error {
    exit(Code::Failed, base::with_causes(error))
}

/// Directory for transactions that do not fit in memory. It is removed when the command ends.
struct SpoolDir(PathBuf);

impl SpoolDir {
    fn new() -> SpoolDir {
        SpoolDir(std::env::temp_dir().join(format!("pgsluice-decode-{}", std::process::id())))
    }
}

impl Drop for SpoolDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
