//! Every error that ends the decoding of a source's WAL, for docs/errors.md.

use base::Lsn;
use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};

use crate::Error;
use crate::error::Kind;
use crate::unfit::Unfit;

const HERE: Lsn = Lsn::new(0x16_B374_D848);
const LATER: Lsn = Lsn::new(0x16_B400_0028);

const ARCHIVE_FAILED_OVER: HeldBy = ("pgsluice scenarios", "w3_an_archive_is_followed_onto_another_timeline");
const FAILED_OVER: HeldBy = ("pgsluice scenarios", "w3_what_the_new_primary_never_received_is_refused");
const WAL_STATE: HeldBy = ("pgsluice scenarios", "without_what_was_kept_nothing_is_decoded");
const FOLLOWED_ARCHIVE: HeldBy = ("pgsluice scenarios", "without_a_slot_all_comes_from_the_archive");
const WAL_ARCHIVE: HeldBy = ("pgsluice scenarios", "what_the_source_has_removed_comes_from_its_archive");
const OTHER_CATALOGS: HeldBy = ("pgsluice scenarios", "catalogs_that_are_not_the_sources_stop_it");
const WAL_REFUSED: HeldBy = ("pgsluice scenarios", "what_cannot_be_decoded_outside_is_refused_at_the_start");
const OTHER_CATALOGS_LEFT: HeldBy =
    ("pgsluice scenarios", "w1_after_catalogs_that_differ_all_tables_are_copied_again");
const NOT_YET: HeldBy =
    ("pgsluice scenarios", "w1_full_page_writes_off_for_a_moment_costs_no_table_that_nobody_wrote");

base::error_reference! {
    /// Every way in which decoding WAL outside the server fails.
    #[must_use]
    pub fn error_reference() -> Error where error is error.kind() => Kind;
    // Documented with connections, with the source, and with the pipeline.
    Kind::Client(_) => nothing_of_its_own(),
    Kind::Source(_) => nothing_of_its_own(),
    Kind::Spool(_) => nothing_of_its_own(),
    Kind::OtherSource(_) => nothing_of_its_own(),
    Kind::Broke(_) => entry(
        Doing::Decoding,
        "The decoding of WAL broke down",
        Kind::Broke("task 7 panicked".to_owned()),
        "A mistake of pgsluice itself. What was committed on the target counts.",
        "Report it with a log of `--log-level debug`; `pgsluice run` goes on.",
        &[],
    ),
    Kind::Pass(_) => entry(
        Doing::Decoding,
        "Decoding for several subscriptions in one pass has ended",
        Kind::Pass("the record at 0/1A2B3C8 is damaged".to_owned()),
        "Subscriptions of one process that follow the same server with `source_mode = wal` are decoded in one pass. What \
         stands behind the colon concerned all of them, or all of a database, and ended the pass for these.",
        "Look at the log or `pgsluice status`: each goes on by itself from what it has kept, and what lasts it tells as an \
         error with an entry of its own.",
        &[WAL_REFUSED],
    ),
    Kind::NotYet(_) => entry(
        Doing::Decoding,
        "The catalogs cannot be looked at anew yet",
        Kind::NotYet(
            "full_page_writes is off, or was at the latest checkpoint: switch it on, and CHECKPOINT".to_owned(),
        ),
        "With `source_mode = wal`: the source's WAL cannot be decoded any further, and the source is not yet again as it must be \
         for decoding to go on.",
        "Do on the source what the message says, such as `CHECKPOINT`. It is tried again until then, and goes on by itself; the \
         slot keeps the WAL.",
        &[NOT_YET],
    ),
    Kind::LeftTimeline { .. } => entry(
        Doing::Decoding,
        "The source is on another timeline",
        Kind::LeftTimeline { before: 1, now: 2 },
        "With `wal_stream = off` or `synchronized_standby_slots`: a standby took the place of the source, or it was recovered. \
         The next attempt goes on along the new timeline, if that has all that was decoded, and refuses otherwise.",
        "Let the new primary archive to the directory that `--wal-archive` names, if one is followed; nothing else needs to be \
         done.",
        &[ARCHIVE_FAILED_OVER],
    ),
    Kind::Decode(_) => entry(
        Doing::Decoding,
        "The WAL of a source cannot be decoded",
        damaged(),
        "With `source_mode = wal`: what stands behind the colon has an entry of its own. Nothing of the transaction that it \
         is met in, and nothing behind that, has been applied.",
        "Do what that entry says. Where the catalogs could not be followed, they are looked at anew by itself. If the WAL is in \
         order and only our decoding is not, `pgsluice drop`, empty the tables, and `pgsluice run --source-mode logical` copies \
         them again.",
        &[WAL_REFUSED],
    ),
    Kind::Archive(_) => entry(
        Doing::Decoding,
        "The archive of the source's WAL cannot be read",
        Kind::Archive(archived()),
        "The slot has lost WAL that is needed, and `wal_archive` is read instead; or all WAL is read from there \
         (`wal_stream = off`). What stands behind the colon has an entry of its own.",
        "Do what that entry says, or give the directory that has the segments as `wal_archive`; it is tried again. A new \
         subscription needs the segment of the latest checkpoint: where the archive was begun later, run `CHECKPOINT` on the \
         source; where that segment is not full yet, `SELECT pg_switch_wal()`.",
        &[WAL_ARCHIVE, FOLLOWED_ARCHIVE],
    ),
    Kind::Unfit(Unfit::NoRestart { .. }) => starting(
        "What the catalogs were is not known",
        Unfit::NoRestart {
            path: "/var/lib/pgsluice/orders.wal".into(),
            why: "there is no such file".to_owned(),
        },
        "With `source_mode = wal`, the catalogs as they were where WAL is needed from are kept in the state directory; \
         the file is gone, damaged or not the slot's.",
        "Start it where it ran before, with the same `state_dir`. Otherwise run `pgsluice drop`, empty the tables on \
         the target, and `pgsluice run` copies them again.",
        &[WAL_STATE],
    ),
    Kind::Unfit(Unfit::ArchiveIsPgWal(_)) => starting(
        "The archive is a server's own directory",
        Unfit::ArchiveIsPgWal("/var/lib/postgresql/18/main/pg_wal".into()),
        "With `wal_stream = off` all WAL comes from `wal_archive`. A server writes WAL to `pg_wal` before it makes it durable; \
         only what is durable is archived, or sent to `pg_receivewal`.",
        "Give the directory that the source's `archive_command` or `pg_receivewal` fills.",
        &[FOLLOWED_ARCHIVE],
    ),
    Kind::Unfit(Unfit::ArchiveOfAnother { .. }) => starting(
        "The archive is of another server",
        Unfit::ArchiveOfAnother {
            dir: "/archive".into(),
            own: 7_300_000_000_000_000_001,
            found: 7_300_000_000_000_000_002,
        },
        "With `wal_stream = off` all WAL comes from `wal_archive`. What is there was written by another cluster.",
        "Give the directory that the source's `archive_command` or `pg_receivewal` fills.",
        &[FOLLOWED_ARCHIVE],
    ),
    Kind::OtherCatalogs(_) => entry(
        Doing::Decoding,
        "The catalogs that were followed are not the source's",
        Kind::OtherCatalogs(vec![
            "pg_class (0,7): relation \"orders\" was not followed".to_owned(),
        ]),
        "With `source_mode = wal`, what tables, columns and publications are is followed through the WAL and compared with \
         the source, at each start and every `catalog_check_interval`. They differ: somebody changed files of the source \
         beneath the server, or following them is wrong, which is a defect of pgsluice.",
        "Run `pgsluice verify`. Look into the source's log for damaged pages; if there are none, report the message. \
         `pgsluice relook` allows the next `pgsluice run` to look at the catalogs anew and to copy all tables again.",
        &[OTHER_CATALOGS, OTHER_CATALOGS_LEFT],
    ),
    Kind::Unfit(Unfit::Undecodable(_)) => starting(
        "Published tables cannot be decoded outside the server",
        Unfit::Undecodable(vec![
            "table public.places cannot be decoded because of its column \"at\": type public.geometry".to_owned(),
        ]),
        "`source_mode = wal` renders values and evaluates row filters without the server's code; an extension's type \
         or another function it does not know.",
        "Give `--source-mode logical`, or leave the tables to another subscription.",
        &[WAL_REFUSED],
    ),
    Kind::Unfit(Unfit::OtherTimeline { .. }) => starting(
        "The source's WAL goes on on another timeline",
        Unfit::OtherTimeline { before: 1, now: 2, fork: Some(HERE), kept: LATER },
        "With `source_mode = wal`: the source was restored, or a standby was promoted that had not received what was decoded \
         here. What is kept of the catalogs may be of transactions that this source never had. A failover behind it is \
         followed.",
        "Compare with `pgsluice verify`; then `pgsluice drop`, empty the tables and copy them again by `pgsluice run`. For \
         the next time, name the standby's slot by `synchronized_standby_slots`.",
        &[FAILED_OVER],
    ),
}

fn starting(
    title: &'static str,
    unfit: Unfit,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Starting, title, unfit, cause, remedy, held_by)
}

fn damaged() -> Error {
    let mut all = output::error_reference().into_iter().map(|entry| entry.error);
    all.find(|error| error.lsn().is_some()).expect("decoding has such errors").into()
}

fn archived() -> source::segments::Error {
    let mut all = source::segments_error_reference().into_iter().map(|entry| entry.error);
    all.find(source::segments::Error::is_missing).expect("files of WAL have such errors")
}
