//! Every error in reading a stream, for docs/errors.md.

use std::io;
use std::time::SystemTime;

use base::error_reference::{Doing, Entry, HeldBy, entry};
use base::{Lsn, Oid, Xid};
use bytes::Bytes;
use proto::pgoutput::{DecodeError, decode};

use super::error::{AssemblyError, Kind};
use super::event::Begin;

const ALTERED: HeldBy = ("pgsluice scenarios", "a_stream_that_is_altered_or_cut_is_read_again");
const DAMAGED: HeldBy = ("proto mutations", "damaged_messages_are_errors_or_what_they_say");
const FULL: HeldBy = ("pgsluice scenarios", "a_full_disk_under_the_spool_is_waited_for");

base::error_reference! {
    /// Every way in which a stream cannot be made into transactions.
    #[must_use]
    pub fn error_reference() -> AssemblyError where error is &error.0 => Kind;
    Kind::Decode(_) => stream(
        "A message of an unknown type",
        Kind::Decode(misread(b"?")),
        "The bytes changed on the way; or the source is newer than this pgsluice and sends a message that \
        pgsluice does not know.",
        "Look for a proxy between if this repeats; with TLS (`sslmode=require`) the connection detects \
        altered bytes. Otherwise install a pgsluice that supports the server's version.",
        &[ALTERED, DAMAGED],
    ),
    Kind::Decode(_) => stream(
        "A message that is cut short",
        Kind::Decode(misread(b"I\0\0\x40\0N\0\x02t\0\0\0\x09ab")),
        "The stream was truncated or altered on the way: a message is shorter than the length that it \
        states.",
        "Look at the devices between if this repeats, and encrypt the connection: `sslmode=require` detects \
        altered bytes.",
        &[DAMAGED, ("proto mutations", "a_changed_byte_is_an_error_or_another_value")],
    ),
    Kind::OutOfPlace { .. } => stream(
        "A message out of its place",
        Kind::OutOfPlace { message: "INSERT", state: "outside a transaction" },
        "Bytes changed or got lost on the way, or the server sends what its protocol does not allow.",
        "Look at the devices between if this repeats. Give `--streaming off` to see whether only large \
        transactions cause it.",
        &[],
    ),
    Kind::UnknownRelation(_) => stream(
        "A change for a table without a description",
        Kind::UnknownRelation(Oid(16384)),
        "The server describes a table before its first change. That description got lost or changed on the \
        way.",
        "Look at the devices between if this repeats, and encrypt the connection with `sslmode=require`.",
        &[],
    ),
    Kind::Columns { .. } => stream(
        "A row that does not fit its table's description",
        Kind::Columns { relation: "public.accounts".to_owned(), values: 3, columns: 2 },
        "Bytes changed on the way: the row has another number of values than its table has columns.",
        "Look at the devices between if this repeats, and encrypt the connection with `sslmode=require`.",
        &[],
    ),
    Kind::Binary { .. } => stream(
        "A value in binary form where text was expected",
        Kind::Binary { relation: "public.accounts".to_owned() },
        "Bytes changed on the way, or the server sends a value in binary where pgsluice asked for text.",
        "Look at the devices between if this repeats. Give `--binary off` to see whether the form of values \
        matters.",
        &[],
    ),
    Kind::Commit { .. } => stream(
        "A commit at another place than announced",
        Kind::Commit { announced: Lsn::new(0x16_B374_D848), came: Lsn::new(0x16_B374_D900) },
        "Bytes changed on the way, or a message got lost.",
        "Look at the devices between if this repeats, and encrypt the connection with `sslmode=require`.",
        &[],
    ),
    Kind::TwoPhase(_) => stream(
        "Prepared transactions from a slot that has two-phase decoding",
        Kind::TwoPhase(b'P'),
        "The slot was created with `two_phase`, by hand or by a native subscription. pgsluice creates it \
        without, and receives prepared transactions when they commit.",
        "Run `pgsluice drop` and start again from nothing, or create the slot without `two_phase`.",
        &[],
    ),
    Kind::Spool { .. } => entry(
        Doing::KeepingState,
        "Open transactions cannot be written to the spool",
        AssemblyError(
            Kind::Spool { xid: Xid(742), error: io::Error::other(NO_SPACE) },
            None,
        ),
        "Large open transactions wait on this machine's disk, below `state_dir`. The disk is full, or \
        pgsluice may not write to the directory.",
        "Make room there, or give a larger place with `--state-dir`. Until then the source keeps the WAL.",
        &[FULL],
    ),
}

fn misread(bytes: &'static [u8]) -> DecodeError {
    decode(Bytes::from_static(bytes), false).expect_err("the example is damaged on purpose")
}

const NO_SPACE: &str = "spool file /var/lib/pgsluice/orders/742.spool: No space left on device (os error 28)";

/// An error in the middle of a transaction.
fn stream(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<AssemblyError>; 1] {
    let begin = Begin {
        xid: Xid(742),
        final_lsn: Lsn::new(0x16_B374_D848),
        commit_time: SystemTime::UNIX_EPOCH.into(),
        origin: None,
    };
    entry(Doing::Streaming, title, AssemblyError(kind, Some(begin)), cause, remedy, held_by)
}
