//! Every error of the publisher's side, for docs/errors.md.

use std::time::Duration;

use base::error_reference::{Doing, HeldBy, entry};
use proto::frame::ServerError;

use crate::error::Kind;
use crate::{Error, segments};

/// An error of a slot, for the error reference of crates that wrap it in words of their own.
#[must_use]
pub fn slot_not_dropped() -> Error {
    Error::client(
        "drop replication slot \"pgsluice_orders\" on the source",
        ServerError::new("ERROR", "42501", "permission denied to use replication slots"),
    )
}

base::error_reference! {
    /// Every way in which files are not the expected WAL.
    #[must_use]
    pub fn segments_error_reference() -> segments::Error where error is error.kind() => segments::Kind;
    segments::Kind::Io { .. } => entry(
        Doing::Decoding,
        "A file of WAL cannot be read",
        segments::Error::new(segments::Kind::Io {
            path: SEGMENT.into(),
            error: std::io::Error::other("Permission denied (os error 13)"),
        }),
        "The file does not exist, this user may not read it, or its compression is not the one that its name \
        says.",
        "Correct the path in `--wal`, or the file's owner and mode.",
        &[FILES],
    ),
    segments::Kind::None { .. } => entry(
        Doing::Decoding,
        "The directory has no WAL segment",
        segments::Error::new(segments::Kind::None { places: vec!["/archive".into()] }),
        "The name of a segment has 24 hexadecimal digits. The directory has no file with such a name.",
        "Give `--wal` the directory with the segments, or the segments themselves.",
        &[FILES],
    ),
    segments::Kind::Name(_) => entry(
        Doing::Decoding,
        "A file that is not a WAL segment",
        segments::Error::new(segments::Kind::Name("/archive/base.tar".into())),
        "Only the name of a file says which part of the WAL it holds.",
        "Name segments, or their directory, with `--wal`.",
        &[FILES],
    ),
    segments::Kind::Header(_) => entry(
        Doing::Decoding,
        "A WAL segment without the first page of one",
        segments::Error::new(segments::Kind::Header(SEGMENT.into())),
        "The first page of a segment has the size of segments. This file is empty, cut short or damaged.",
        "Restore the file from the archive, and name it with `--wal`.",
        &[FILES],
    ),
    segments::Kind::Missing { .. } => entry(
        Doing::Decoding,
        "A WAL segment is missing",
        segments::Error::new(segments::Kind::Missing {
            name: "0000000100000000000000A5".to_owned(),
            lsn: base::Lsn::new(0xA500_0028),
            place: "/archive".into(),
        }),
        "pgsluice reads WAL without a gap, from the place of the catalogs. The server has removed the \
        segment, or did not archive it.",
        "Restore the segment, and name it or its directory with `--wal`. To start later, run `pgsluice \
        catalog export` later too.",
        &[FILES, DECODE],
    ),
    segments::Kind::Short { .. } => entry(
        Doing::Decoding,
        "A WAL segment that is cut short",
        segments::Error::new(segments::Kind::Short { path: SEGMENT.into(), bytes: 8192, wanted: 16 << 20 }),
        "Only the last segment may be shorter than the others.",
        "Restore the file from the archive, and name it with `--wal`.",
        &[FILES],
    ),
    segments::Kind::History(_) => entry(
        Doing::Decoding,
        "A timeline history file that cannot be read",
        segments::Error::new(segments::Kind::History("/archive/00000002.history".into())),
        "The file says which timelines the newest one came from, and has lines in another format.",
        "Restore the file from the archive, or give `--wal` a directory without it.",
        &[("source", "the_newest_timeline_counts_from_where_it_begins")],
    ),
}

const SEGMENT: &str = "/archive/0000000100000000000000A5";
const FILES: HeldBy = ("source", "what_is_not_there_is_named");
const DECODE: HeldBy = ("pgsluice decode", "archives_are_read_as_they_are_and_what_they_lack_is_named");

const STREAM: &str = "read the replication stream of slot \"pgsluice_orders\"";
const PUBLICATION: HeldBy =
    ("pgsluice scenarios", "a_publication_dropped_and_made_again_is_noticed_where_it_costs_rows");
const MISSING: HeldBy = ("pgsluice scenarios", "what_is_missing_is_named_and_nothing_is_left");

base::error_reference! {
    /// Every way in which a request to the publisher fails.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    Kind::Client(_) => entry(
        Doing::Streaming,
        "A command on the source fails",
        Error::client(
            "create replication slot \"pgsluice_orders\" on the source",
            ServerError::new("ERROR", "53400", "all replication slots are in use"),
        ),
        "The source refused the command that the message names, and the message has its reason: a limit, a \
        right, or a slot in use.",
        "Run `pgsluice check`. It counts slots and walsenders, and names `max_replication_slots`, \
        `max_wal_senders` and every missing GRANT.",
        &[("pgsluice check", "limits_and_settings")],
    ),
    Kind::NoneNamed => entry(
        Doing::Configuring,
        "No publication is named",
        Error::new("look up publications", Kind::NoneNamed),
        "No flag, environment variable or file names a publication.",
        "Give `--publication` once for each publication.",
        &[],
    ),
    Kind::Missing(_) => entry(
        Doing::Starting,
        "A publication is missing",
        Error::new("look up publications", Kind::Missing(vec!["orders".to_owned()])),
        "The name is wrong, the publication was dropped, or the connection leads to another database of the \
        source.",
        "Create it on the source with `CREATE PUBLICATION`; or correct `--publication`, or the database in \
        `--source`.",
        &[PUBLICATION, MISSING],
    ),
    Kind::ColumnLists { .. } => entry(
        Doing::Starting,
        "Publications with different column lists of one table",
        Error::new(
            "publish table \"public.accounts\"",
            Kind::ColumnLists {
                publications: ["orders".to_owned(), "everything".to_owned()],
                column: "balance".to_owned(),
            },
        ),
        "PostgreSQL cannot send one stream for publications that have different column lists for a table.",
        "Make the lists equal with `ALTER PUBLICATION ... SET TABLE`; or run one subscription for each \
        publication, with `--subscription`.",
        &[("source publisher", "a_publisher_is_read_as_its_walsender_reads_it")],
    ),
    Kind::Reply(_) => entry(
        Doing::Streaming,
        "The answer is not that of a PostgreSQL server",
        Error::reply(
            "read the replication stream",
            proto::replication::WalsenderMessage::decode(bytes::Bytes::from_static(b"?"))
                .expect_err("the example is damaged on purpose")
                .to_string(),
        ),
        "Bytes changed on the way; or the peer is not a PostgreSQL server but a proxy that does not support \
        replication.",
        "Connect to the server itself with `--source`, and look at the devices between.",
        &[],
    ),
    Kind::Unpublished(_) => entry(
        Doing::Streaming,
        "A publication was dropped, and perhaps created again",
        Error::unpublished(STREAM, "ERROR: publication \"orders\" does not exist (SQLSTATE 42704)"),
        "At the place in WAL that pgsluice reads now, the publication did not exist. The server cannot \
        decode changes of its tables that were written then, even if the publication exists again.",
        "Create the publication if it is missing. Then run `pgsluice drop`, empty the tables on the target, \
        and copy them again with `pgsluice run`.",
        &[PUBLICATION],
    ),
    Kind::Removed(_) => entry(
        Doing::Streaming,
        "The source has removed WAL that pgsluice needs",
        Error::removed(STREAM, "ERROR: requested WAL segment 000000010000000000000002 has already been removed"),
        "With `source_mode = wal`, after a failover: the promoted standby did not have the subscription's \
        slot. Nothing else has kept the WAL from the place where decoding must start.",
        "Give a directory that has the segment as `wal_archive`. Otherwise run `pgsluice drop`, empty the \
        tables on the target, and run `pgsluice run`. To be safe next time, create the slot on the standby \
        too: see docs/operations/fail-over.md.",
        &[("pgsluice scenarios", "w3_a_primary_without_our_slot_is_followed_while_it_has_the_wal")],
    ),
    Kind::Ended => entry(
        Doing::Streaming,
        "The source ended the stream",
        Error::ended(STREAM),
        "A server that shuts down sends everything and then ends its streams in order.",
        "Start the server again if it should run. `pgsluice stop` ends pgsluice's side.",
        &[("pgsluice scenarios", "the_publisher_stops_promptly_and_comes_back")],
    ),
    Kind::Silent(_) => entry(
        Doing::Streaming,
        "The source is silent",
        Error::silent(STREAM, Duration::from_secs(60)),
        "The source sent neither data nor an answer. The network drops packets without an error, or the \
        server stands still.",
        "Look at the devices between. If the server is only slow to answer, raise `wal_receiver_timeout`.",
        &[("pgsluice scenarios", "a_network_to_the_source_that_stalls_is_noticed")],
    ),
}
