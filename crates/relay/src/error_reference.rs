//! Every error that ends a relay, or that it tries again after, for docs/errors.md.

use std::io;
use std::time::Duration;

use base::Lsn;
use base::error_reference::{Doing, Entry, HeldBy, carried, entry, nothing_of_its_own};
use proto::frame::ServerError;

use crate::fill::FillError;
use crate::receiver::{Kind, ReceiverError};
use crate::server::RelayError;

const SLOT: &str = "pgsluice_relay";
const HERE: Lsn = Lsn::new(0x16_B374_D848);

const ARCHIVE: HeldBy =
    ("pgsluice relay", "l2_a_segment_that_the_archive_lacks_is_named_and_nothing_is_lost_when_it_comes");
const WAL: HeldBy = ("relay receiver", "whatever_is_killed_nothing_is_missing");
const OTHER: HeldBy = ("relay receiver", "another_server_is_refused");

base::error_reference! {
    /// Every way in which a relay ends.
    #[must_use]
    pub fn error_reference() -> RelayError where error is error => RelayError;
    // Documented with connections, and with the source.
    RelayError::Publisher(_) => nothing_of_its_own(),
    RelayError::Source(_) => nothing_of_its_own(),
    RelayError::Answer(_) => entry(
        Doing::Relaying,
        "The publisher answers what no server answers",
        RelayError::Answer("no wal_segment_size".to_owned()),
        "Something else than PostgreSQL answers at that address, for instance a pool of connections that does \
        not pass on replication.",
        "Give `--source` the address of the server itself.",
        &[],
    ),
    RelayError::Files(..) => entry(
        Doing::Relaying,
        "A file of the relay's data directory cannot be used",
        RelayError::Files("/var/lib/pgsluice/slots".into(), io::Error::other("Permission denied (os error 13)")),
        "The relay's user has no rights there, the disk fails, or a file of a slot is damaged.",
        "Correct the owner and the rights of `--data-dir`, or restore the file that the message names.",
        &[("relay", "a_damaged_file_is_named")],
    ),
    RelayError::OtherSystem { .. } => entry(
        Doing::Relaying,
        "The data directory belongs to another publisher",
        RelayError::OtherSystem {
            dir: "/var/lib/pgsluice".into(),
            known: "7300000000000000001".to_owned(),
            system: 7_300_000_000_000_000_002,
        },
        "The relay's slots have positions in the WAL of one cluster. `--source` leads to another one, or that \
        cluster was set up anew.",
        "Give the `--source` that the directory belongs to. For a new cluster, give another `--data-dir`, and \
        make the subscriptions anew.",
        &[],
    ),
    RelayError::ArchiveIsPgWal(_) => entry(
        Doing::Relaying,
        "The relay's archive is a server's own directory",
        RelayError::ArchiveIsPgWal("/var/lib/postgresql/18/main/pg_wal".into()),
        "A server writes WAL to `pg_wal` before the WAL is durable. Only durable WAL is archived.",
        "Give `--wal-archive` the directory that the publisher's `archive_command` or `pg_receivewal` fills.",
        &[],
    ),
    RelayError::Wal(_) => carried(wal_dir::error_reference()),
    RelayError::Receiver(_) => receiving().into_iter().map(|entry| entry.map(RelayError::Receiver)),
}

base::error_reference! {
    fn receiving() -> ReceiverError where error is &error.0 => Kind;
    Kind::Client { .. } => receiver(
        "The publisher's WAL cannot be received",
        Kind::Client {
            doing: format!("stream WAL from {HERE} on timeline 1"),
            error: ServerError::new("ERROR", "55006", "replication slot \"pgsluice_relay\" is active for PID 4711")
                .into(),
        },
        "The publisher is away or refuses. Here another process uses the relay's slot.",
        "Repair what the publisher's words name: `pgsluice relay` tries again every second. It serves what it \
        has until then. If two relays follow one publisher, give each its own `--primary-slot-name`.",
        &[WAL],
    ),
    Kind::Source(_) => nothing_of_its_own(),
    Kind::Wal(_) => nothing_of_its_own(),
    Kind::Answer { .. } => receiver(
        "The publisher's answer is none of a server",
        Kind::Answer {
            doing: "use the physical slot \"pgsluice_relay\"".to_owned(),
            answer: "that it is no physical slot".to_owned(),
        },
        "A logical slot has the name, or something between the relay and the publisher changes messages.",
        "Give another name with `--primary-slot-name`, or drop the slot: `SELECT \
        pg_drop_replication_slot('...')`.",
        &[],
    ),
    Kind::Silent(_) => receiver(
        "The publisher is silent",
        Kind::Silent(Duration::from_secs(60)),
        "Nothing came for `wal_receiver_timeout`, and the publisher did not answer when it was asked. The \
        network is cut, or the publisher hangs.",
        "Look at the publisher and the network. `pgsluice relay` connects again by itself.",
        &[("pgsluice relay_faults", "a_network_cut_inside_of_messages_loses_nothing")],
    ),
    Kind::Ended => receiver(
        "The publisher ended the stream of WAL",
        Kind::Ended,
        "The publisher shuts down.",
        "Start the publisher again. `pgsluice relay` connects again by itself.",
        &[WAL],
    ),
    Kind::OtherSystem { .. } => receiver(
        "Another server answers in the publisher's place",
        Kind::OtherSystem { known: 7_300_000_000_000_000_001, found: 7_300_000_000_000_000_002 },
        "The address leads to another cluster than before.",
        "Give the `--source` of the publisher. For another cluster, give another `--data-dir`.",
        &[OTHER],
    ),
    Kind::Left { .. } => receiver(
        "The publisher left its timeline",
        Kind::Left { timeline: 3, fork: HERE },
        "A standby was promoted in its place. The relay first finds the slots whose subscribers have more than the \
        standby had, and goes on by itself.",
        "Look at `pgsluice slots list`. Make subscriptions anew whose slots cannot be used any more.",
        &[("pgsluice relay", "l2_a_subscriber_that_was_away_during_the_failover_is_refused_too")],
    ),
    Kind::OtherHistory { .. } => receiver(
        "The publisher's history lacks the relay's timeline",
        Kind::OtherHistory { kept: 3, end: HERE, found: 4 },
        "The publisher was restored to a time before that timeline, or a standby was promoted that did not \
        follow it.",
        "Give `--source` a server that comes from that timeline. Otherwise give another `--data-dir`, and make \
        the subscriptions anew.",
        &[],
    ),
    Kind::Gone { .. } => receiver(
        "The publisher has removed WAL that the relay needs",
        Kind::Gone {
            slot: SLOT.to_owned(),
            needed: HERE,
            error: ServerError::new(
                "ERROR",
                "58P01",
                "requested WAL segment 0000000100000016000000B3 has already been removed",
            )
            .into(),
        },
        "The relay's slot was dropped, or lost WAL while the relay was away, by `max_slot_wal_keep_size`.",
        "Give `--wal-archive` the directory that the publisher's `archive_command` fills. Without an archive, give \
        another `--data-dir`, and make the subscriptions anew.",
        &[ARCHIVE],
    ),
    Kind::Fill { .. } => receiver(
        "The archive lacks WAL that the relay needs",
        Kind::Fill {
            needed: HERE,
            error: FillError::Read(
                "/archive/0000000100000016000000B3".into(),
                io::Error::other("Input/output error (os error 5)"),
            ),
        },
        "The publisher has removed this WAL, so the relay reads it in `--wal-archive`. There, the segment is \
        missing, damaged or of another server.",
        "Restore the segment that the message names to `--wal-archive`. The relay looks for it every second.",
        &[ARCHIVE],
    ),
}

fn receiver(
    title: &'static str,
    kind: Kind,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<ReceiverError>; 1] {
    entry(Doing::Relaying, title, ReceiverError(kind), cause, remedy, held_by)
}
