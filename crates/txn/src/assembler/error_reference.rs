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
        "The bytes were altered on the way, or the source is newer than this pgsluice and sends what it does not know.",
        "Look at what stands between if it repeats (a proxy; TLS by `sslmode=require` finds altered bytes); otherwise \
         get a pgsluice that knows the server's version.",
        &[ALTERED, DAMAGED],
    ),
    Kind::Decode(_) => stream(
        "A message that is cut short",
        Kind::Decode(misread(b"I\0\0\x40\0N\0\x02t\0\0\0\x09ab")),
        "The stream was truncated or altered on the way: a message says that it is longer than it is.",
        "Look at what stands between if it repeats, and encrypt the connection: `sslmode=require` finds altered bytes.",
        &[DAMAGED, ("proto mutations", "a_changed_byte_is_an_error_or_another_value")],
    ),
    Kind::OutOfPlace { .. } => stream(
        "A message out of its place",
        Kind::OutOfPlace { message: "INSERT", state: "outside a transaction" },
        "Bytes were altered or lost on the way, or the server sends what its protocol does not allow.",
        "Look at what stands between if it repeats; give `--streaming off` to see whether only large transactions do \
         it.",
        &[],
    ),
    Kind::UnknownRelation(_) => stream(
        "A change of a table that was not described",
        Kind::UnknownRelation(Oid(16384)),
        "The server describes a table before its first change. Its description was lost or altered on the way.",
        "Look at what stands between if it repeats, and encrypt the connection: `sslmode=require`.",
        &[],
    ),
    Kind::Columns { .. } => stream(
        "A row that does not fit its table's description",
        Kind::Columns { relation: "public.accounts".to_owned(), values: 3, columns: 2 },
        "Bytes were altered on the way: the row has another number of values than its table has columns.",
        "Look at what stands between if it repeats, and encrypt the connection: `sslmode=require`.",
        &[],
    ),
    Kind::Binary { .. } => stream(
        "A value in binary form that was not asked for",
        Kind::Binary { relation: "public.accounts".to_owned() },
        "Bytes were altered on the way, or the server sends in binary what was to come as text.",
        "Look at what stands between if it repeats; give `--binary off` to see whether it matters.",
        &[],
    ),
    Kind::Commit { .. } => stream(
        "A commit that is not the one announced",
        Kind::Commit { announced: Lsn::new(0x16_B374_D848), came: Lsn::new(0x16_B374_D900) },
        "Bytes were altered on the way, or a message was lost.",
        "Look at what stands between if it repeats, and encrypt the connection: `sslmode=require`.",
        &[],
    ),
    Kind::TwoPhase(_) => stream(
        "Prepared transactions from a slot that has two-phase decoding",
        Kind::TwoPhase(b'P'),
        "The slot was made with `two_phase`, by hand or by a native subscription; pgsluice makes it without and gets \
         prepared transactions with their commit.",
        "Run `pgsluice drop` and begin anew, or make the slot without `two_phase`.",
        &[],
    ),
    Kind::Spool { .. } => entry(
        Doing::KeepingState,
        "Open transactions cannot be written to the spool",
        AssemblyError(
            Kind::Spool { xid: Xid(742), error: io::Error::other(NO_SPACE) },
            None,
        ),
        "Large transactions that are still open wait on this machine's disk, below `state_dir`; it is full, or the \
         directory may not be written.",
        "Make room there, or give a larger place by `--state-dir`; until then the source keeps the WAL.",
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
    };
    entry(Doing::Streaming, title, AssemblyError(kind, Some(begin)), cause, remedy, held_by)
}
