//! Every error of decoding, for docs/errors.md.

use std::fs::File;
use std::io;

use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};
use base::{Lsn, Oid, Xid};
use txn::reorder::{At, Options, ReorderBuffer};

use crate::error::{Error, Kind, RefusedTable};

const MISSING: HeldBy = ("output server", "a_publication_that_is_missing_stops_both_sides");
const DAMAGED: HeldBy = ("pgsluice decode", "archives_are_read_as_they_are_and_what_they_lack_is_named");
const REFUSED: HeldBy = ("pgsluice decode", "ranges_of_wal_are_printed_without_a_slot");
const AT: Lsn = Lsn::new(0x1A0_0028);

base::error_reference! {
    /// Every way in which WAL cannot be decoded.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Options(_) => entry(
        Doing::Configuring,
        "Options of decoding that contradict one another",
        Error::options("database 16384 is none that was looked at"),
        "The options ask for another database than the catalog file describes.",
        "Run `pgsluice catalog export` for the database that you want to decode.",
        &[],
    ),
    Kind::Wal(_) => decoding(
        "WAL that is damaged or has an unknown version",
        wal(),
        "A page or a record is not what a server of PostgreSQL 14 to 18 writes there. The file is damaged or \
        cut short, comes from another cluster or timeline, or comes from a newer server.",
        "Restore the segment with this LSN from the archive, and name it with `--wal`. `pg_waldump` should \
        be able to read it too.",
        &[DAMAGED],
    ),
    // Its text is that of `decode`. It comes about like the next error.
    Kind::Decode(_) => nothing_of_its_own(),
    Kind::Catalog(_) => decoding(
        "The catalogs cannot be followed",
        catalog::Catalog::from_bytes(b"something else").map_or_else(Error::from, |_| Error::new(Kind::Over)),
        "The catalog file is damaged, or `pgsluice catalog export` did not write it. Or a record about a \
        catalog does not fit what is known: `full_page_writes` or `wal_level` was lowered, or a database was \
        moved.",
        "Run `pgsluice run` again if it has stopped: it reads the catalogs again by itself, or says what \
        must be copied again. For `pgsluice decode`, run `pgsluice catalog export` again, and decode the WAL \
        from then on.",
        &[("catalog server", "damaged_files")],
    ),
    Kind::Reorder(_) => decoding(
        "Changes of open transactions cannot be kept",
        spool_full(),
        "Transactions that do not fit in memory wait on disk, in the directory for temporary files.",
        "Give `TMPDIR` a directory with room, and run the command again.",
        &[("txn reorder", "every_failing_call_of_the_spool_is_an_error")],
    ),
    Kind::Refused { .. } => decoding(
        "A table that cannot be decoded outside the server",
        Error::new(Kind::Refused {
            lsn: AT,
            refused: RefusedTable {
                schema: "public".to_owned(),
                table: "orders".to_owned(),
                published_as: Box::new(("public".to_owned(), "orders".to_owned())),
                column: Some("place".to_owned()),
                is_filter: false,
                reason: "values of type geometry cannot be rendered outside the server: it is a base type of an \
                         extension, whose output function only the server has"
                    .to_owned(),
            },
        }),
        "A published column has a type from an extension, or a type whose text depends on the catalogs; or a \
        row filter calls a function.",
        "Leave `pgsluice run` alone: it continues without the table, and copies it once the table can be \
        decoded. For `pgsluice decode`, give `--skip-refused`, or publish the table with a column list \
        without that column.",
        &[REFUSED, ("output server", "what_cannot_be_rendered_is_refused_by_name")],
    ),
    Kind::Publication { .. } => decoding(
        "A publication is missing at the decoded place",
        Error::new(Kind::Publication { lsn: AT, what: "publication \"orders\" does not exist".to_owned() }),
        "At this place in the WAL the publication did not exist, or two publications published different \
        columns of a table. The server's own decoding stops there too.",
        "Name publications with `--publication` that existed then, or start later with `--from`.",
        &[MISSING],
    ),
    Kind::Value { .. } => decoding(
        "A value that is damaged",
        Error::new(Kind::Value {
            lsn: AT,
            table: "public.orders".to_owned(),
            column: Some("note".to_owned()),
            cause: damaged(),
        }),
        "The record's checksum is right, but its bytes are not a value of the column's type. The row was \
        damaged on the server, or the catalogs do not belong to this WAL.",
        "Look at the row on the server. If it is right, run `pgsluice catalog export` again and report this \
        error.",
        &[],
    ),
    Kind::Filter { .. } => decoding(
        "A row filter fails for a row",
        Error::new(Kind::Filter { lsn: AT, table: "public.orders".to_owned(), cause: damaged().into() }),
        "A cast in the filter cannot represent the row's value, which also stops the server's decoding; or a \
        value is damaged.",
        "Alter the publication's filter, and start after this LSN with `--from`.",
        &[],
    ),
    // Only reported after another error.
    Kind::Over => nothing_of_its_own(),
}

fn decoding(
    title: &'static str,
    error: Error,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Decoding, title, error, cause, remedy, held_by)
}

/// Makes the error for a page with the number of an unknown version.
fn wal() -> Error {
    let mut page = [0; 8192];
    page[..2].copy_from_slice(&0xD0FF_u16.to_le_bytes());
    let begin = Lsn::new(0x1A0_0000);
    let read = || {
        let mut reader = wal::Reader::new(wal::Start::at(begin))?;
        reader.push(begin, &page)?.poll().map(drop)
    };
    read().map_or_else(Error::from, |()| Error::new(Kind::Over))
}

fn damaged() -> types::Error {
    types::payload(&[]).expect_err("a value has a header")
}

/// A disk that is full.
struct Full;

impl txn::Spool for Full {
    fn append(&mut self, _xid: Xid, _bytes: &[u8]) -> io::Result<()> {
        const NO_SPACE: i32 = 28;
        Err(io::Error::from_raw_os_error(NO_SPACE))
    }

    fn read(&mut self, _xid: Xid) -> io::Result<Box<dyn io::Read + Send>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&mut self, _xid: Xid) -> io::Result<()> {
        Ok(())
    }

    fn scratch(&mut self) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn spool_full() -> Error {
    let options = Options { work_mem_bytes: 0, ..Options::new(Oid(5), Lsn::INVALID) };
    let mut buffer = ReorderBuffer::<u32>::new(options, Box::new(Full));
    let at = At { lsn: AT, xid: Xid(735), origin: None };
    let grown = buffer.message(at, AT, true, b"", b"").and_then(|()| buffer.next().map(drop));
    grown.map_or_else(Error::from, |()| Error::new(Kind::Over))
}
