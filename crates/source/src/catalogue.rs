//! Every error of the publisher's side, for docs/errors.md.

use std::time::Duration;

use base::catalogue::{Doing, HeldBy, entry};
use proto::frame::ServerError;

use crate::Error;
use crate::error::Kind;

/// An error of a slot, for the catalogue of who carries it under words of its
/// own.
#[must_use]
pub fn slot_not_dropped() -> Error {
    Error::client(
        "drop replication slot \"pgsluice_orders\" on the source",
        ServerError::new("ERROR", "42501", "permission denied to use replication slots"),
    )
}

const STREAM: &str = "read the replication stream of slot \"pgsluice_orders\"";
const PUBLICATION: HeldBy =
    ("pgsluice scenarios", "a_publication_dropped_and_made_again_is_noticed_where_it_costs_rows");
const MISSING: HeldBy = ("pgsluice scenarios", "what_is_missing_is_named_and_nothing_is_left");

base::catalogue! {
    /// Every way in which a request to the publisher fails.
    #[must_use]
    pub fn catalogue() -> Error where error is error.kind() => Kind;
    Kind::Client(_) => entry(
        Doing::Streaming,
        "A command on the source fails",
        Error::client(
            "create replication slot \"pgsluice_orders\" on the source",
            ServerError::new("ERROR", "53400", "all replication slots are in use"),
        ),
        "The source refused what the message names, in its own words: a limit, a right, or a slot in use.",
        "Run `pgsluice check`: it counts slots and walsenders and names `max_replication_slots`, `max_wal_senders` \
         and every missing GRANT.",
        &[("pgsluice check", "limits_and_settings")],
    ),
    Kind::NoneNamed => entry(
        Doing::Configuring,
        "No publication is named",
        Error::new("look up publications", Kind::NoneNamed),
        "Neither flag nor environment nor file names a publication.",
        "Give `--publication`, once for each.",
        &[],
    ),
    Kind::Missing(_) => entry(
        Doing::Starting,
        "A publication is missing",
        Error::new("look up publications", Kind::Missing(vec!["orders".to_owned()])),
        "The name is wrong, the publication was dropped, or the connection leads to another database of the source.",
        "Create it on the source: `CREATE PUBLICATION`; or correct `--publication`, or the database in `--source`.",
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
        "PostgreSQL cannot send one stream of publications whose column lists differ for a table.",
        "Make the lists equal with `ALTER PUBLICATION ... SET TABLE`, or run a subscription for each by \
         `--subscription`.",
        &[("source publisher", "a_publisher_is_read_as_its_walsender_reads_it")],
    ),
    Kind::Reply(_) => entry(
        Doing::Streaming,
        "An answer that no PostgreSQL server gives",
        Error::reply(
            "read the replication stream",
            proto::replication::WalsenderMessage::decode(bytes::Bytes::from_static(b"?"))
                .expect_err("the example is damaged on purpose")
                .to_string(),
        ),
        "Bytes were altered on the way, or what answers is no PostgreSQL server but a proxy that does not know \
         replication.",
        "Connect to the server itself by `--source`, and look at what stands between.",
        &[],
    ),
    Kind::Unpublished(_) => entry(
        Doing::Streaming,
        "A publication was dropped, and perhaps made again",
        Error::unpublished(STREAM, "ERROR: publication \"orders\" does not exist (SQLSTATE 42704)"),
        "At the point of WAL that is read now the publication did not exist: changes of its tables that were written \
         then cannot be decoded, also if it has been created again since.",
        "Create the publication if it is missing, run `pgsluice drop`, empty the tables on the target, and \
         `pgsluice run` copies them again.",
        &[PUBLICATION],
    ),
    Kind::Ended => entry(
        Doing::Streaming,
        "The source ended the stream",
        Error::ended(STREAM),
        "A server that shuts down ends its streams in order, after everything was sent.",
        "Start the server again if it was not meant to stop; `pgsluice stop` ends this side.",
        &[("pgsluice scenarios", "the_publisher_stops_promptly_and_comes_back")],
    ),
    Kind::Silent(_) => entry(
        Doing::Streaming,
        "Nothing is heard of the source",
        Error::silent(STREAM, Duration::from_secs(60)),
        "Neither data nor an answer came: the network drops packets without a word, or the server stands still.",
        "Look at what stands between; raise `wal_receiver_timeout` if the server is only slow to answer.",
        &[("pgsluice scenarios", "a_network_to_the_source_that_stalls_is_noticed")],
    ),
}
