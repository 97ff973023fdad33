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
        "The decoding of WAL failed",
        Kind::Broke("task 7 panicked".to_owned()),
        "This is a defect of pgsluice.",
        "Report it with the log of a run with `--log-level debug`. `pgsluice run` continues.",
        &[],
    ),
    Kind::Pass(_) => entry(
        Doing::Decoding,
        "Decoding for several subscriptions in one pass has ended",
        Kind::Pass("the record at 0/1A2B3C8 is damaged".to_owned()),
        "The subscriptions of one process that follow the same server with `source_mode = wal` share one \
        decoding pass. The error after the colon concerned all of them, or all of one database, and ended \
        the pass for them.",
        "Look at the log or `pgsluice status`. Each subscription continues by itself from its stored \
        position. A cause that lasts appears there as an error with its own entry.",
        &[WAL_REFUSED],
    ),
    Kind::NotYet(_) => entry(
        Doing::Decoding,
        "The catalogs cannot be read again yet",
        Kind::NotYet(
            "full_page_writes is off, or was at the latest checkpoint: switch it on, and CHECKPOINT".to_owned(),
        ),
        "With `source_mode = wal`: pgsluice cannot decode the source's WAL any further, and the source does \
        not meet the conditions for a restart of decoding yet.",
        "Do on the source what the message says, for example `CHECKPOINT`. `run` tries again until then and \
        continues by itself. The slot keeps the WAL.",
        &[NOT_YET],
    ),
    Kind::LeftTimeline { .. } => entry(
        Doing::Decoding,
        "The source is on another timeline",
        Kind::LeftTimeline { before: 1, now: 2 },
        "With `wal_stream = off` or `synchronized_standby_slots`: a standby replaced the source, or the \
        source was recovered. The next attempt follows the new timeline if it has all that was decoded, and \
        refuses otherwise.",
        "Let the new primary archive to the directory that `--wal-archive` names, if pgsluice reads one. \
        Nothing else needs to be done.",
        &[ARCHIVE_FAILED_OVER],
    ),
    Kind::Decode(_) => entry(
        Doing::Decoding,
        "The WAL of a source cannot be decoded",
        damaged(),
        "With `source_mode = wal`: the error after the colon has its own entry. pgsluice has applied nothing \
        of the transaction where the error is, and nothing after it.",
        "Do what that entry says. If pgsluice could not follow the catalogs, it reads them again by itself. \
        If the WAL is in order and only pgsluice's decoding fails, run `pgsluice drop`, empty the tables, \
        and copy them again with `pgsluice run --source-mode logical`.",
        &[WAL_REFUSED],
    ),
    Kind::Archive(_) => entry(
        Doing::Decoding,
        "The archive of the source's WAL cannot be read",
        Kind::Archive(archived()),
        "The slot has lost WAL that pgsluice needs, so it reads `wal_archive`; or it reads all WAL from \
        there (`wal_stream = off`). The error after the colon has its own entry.",
        "Do what that entry says, or give `wal_archive` the directory that has the segments; `run` tries \
        again. A new subscription needs the segment of the latest checkpoint. If the archive starts later, \
        run `CHECKPOINT` on the source. If that segment is not full yet, run `SELECT pg_switch_wal()`.",
        &[WAL_ARCHIVE, FOLLOWED_ARCHIVE],
    ),
    Kind::Unfit(Unfit::NoRestart { .. }) => starting(
        "The stored catalogs are missing",
        Unfit::NoRestart {
            path: "/var/lib/pgsluice/orders.wal".into(),
            why: "there is no such file".to_owned(),
        },
        "With `source_mode = wal` the state directory holds the catalogs as they were at the place where \
        decoding goes on. That file is gone, is damaged or belongs to another slot.",
        "Start the subscription where it ran before, with the same `state_dir`. Otherwise run `pgsluice \
        drop`, empty the tables on the target, and copy them again with `pgsluice run`.",
        &[WAL_STATE],
    ),
    Kind::Unfit(Unfit::ArchiveIsPgWal(_)) => starting(
        "The archive is a server's own directory",
        Unfit::ArchiveIsPgWal("/var/lib/postgresql/18/main/pg_wal".into()),
        "With `wal_stream = off` all WAL comes from `wal_archive`. A server writes WAL to `pg_wal` before \
        the WAL is durable. Only durable WAL is archived, or sent to `pg_receivewal`.",
        "Give `--wal-archive` the directory that the source's `archive_command` or `pg_receivewal` fills.",
        &[FOLLOWED_ARCHIVE],
    ),
    Kind::Unfit(Unfit::ArchiveOfAnother { .. }) => starting(
        "The archive belongs to another server",
        Unfit::ArchiveOfAnother {
            dir: "/archive".into(),
            own: 7_300_000_000_000_000_001,
            found: 7_300_000_000_000_000_002,
        },
        "With `wal_stream = off` all WAL comes from `wal_archive`. Another cluster wrote the WAL there.",
        "Give `--wal-archive` the directory that the source's `archive_command` or `pg_receivewal` fills.",
        &[FOLLOWED_ARCHIVE],
    ),
    Kind::OtherCatalogs(_) => entry(
        Doing::Decoding,
        "The followed catalogs differ from the source's",
        Kind::OtherCatalogs(vec![
            "pg_class (0,7): relation \"orders\" was not followed".to_owned(),
        ]),
        "With `source_mode = wal`, pgsluice follows tables, columns and publications through the WAL. It \
        compares them with the source at each start and every `catalog_check_interval`, and now they differ. \
        Either somebody changed files of the source underneath the server, or pgsluice has a defect.",
        "Run `pgsluice verify`. Look for damaged pages in the source's log; if there are none, report the \
        message. `pgsluice relook` allows the next `pgsluice run` to read the catalogs again and to copy all \
        tables again.",
        &[OTHER_CATALOGS, OTHER_CATALOGS_LEFT],
    ),
    Kind::Unfit(Unfit::Undecodable(_)) => starting(
        "Published tables cannot be decoded outside the server",
        Unfit::Undecodable(vec![
            "table public.places cannot be decoded because of its column \"at\": type public.geometry".to_owned(),
        ]),
        "With `source_mode = wal` pgsluice renders values and evaluates row filters without the server's \
        code. It does not know the types of extensions, nor every function.",
        "Give `--source-mode logical`, or move the tables to another subscription.",
        &[WAL_REFUSED],
    ),
    Kind::Unfit(Unfit::OtherTimeline { .. }) => starting(
        "The source's WAL continues on another timeline",
        Unfit::OtherTimeline { before: 1, now: 2, fork: Some(HERE), kept: LATER },
        "With `source_mode = wal`: the source was restored, or a standby was promoted that had not received \
        all WAL that pgsluice decoded. The stored catalogs may include transactions that this source never \
        had. pgsluice follows a failover only if the new primary has all that was decoded.",
        "Compare with `pgsluice verify`. Then run `pgsluice drop`, empty the tables, and copy them again \
        with `pgsluice run`. To be safe next time, name the standby's slot in `synchronized_standby_slots`.",
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
