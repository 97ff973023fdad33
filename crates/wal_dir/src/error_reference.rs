//! Every error of a directory of WAL, for docs/errors.md.

use std::io;

use base::Lsn;
use base::error_reference::{Doing, Entry, HeldBy, entry, nothing_of_its_own};

use crate::Error;
use crate::error::Kind;

const SEGMENT: &str = "000000010000001600000065";
const PATH: &str = "/var/lib/pgsluice/wal/000000010000001600000065";

/// `ENOSPC`
const NO_SPACE: i32 = 28;

const REFUSALS: HeldBy = ("wal_dir model", "refusals_name_their_object");
const FULL: HeldBy = ("pgsluice relay_faults", "h14_a_full_disk_confirms_nothing_and_loses_nothing");

base::error_reference! {
    /// Every way in which WAL cannot be kept.
    #[must_use]
    pub fn error_reference() -> Error where error is &error.0 => Kind;
    Kind::Io { .. } => relaying(
        "The relay cannot use a file of its WAL",
        Error::io("write", PATH)(io::Error::from_raw_os_error(NO_SPACE)),
        "The disk is full or fails, or the relay's user has no rights there. While the disk is full, the \
        relay confirms nothing to the publisher, sends what it has, and goes on by itself once there is room.",
        "Make room, or correct the rights, and start `pgsluice relay` again if it has ended. Nothing is lost: \
        the publisher's slot has all WAL that was not confirmed.",
        &[FULL],
    ),
    Kind::Locked(_) => relaying(
        "Two relays have one data directory",
        Kind::Locked("/var/lib/pgsluice/wal".into()),
        "Another `pgsluice relay` runs with this data directory.",
        "Stop the other one, or give `--data-dir` another directory.",
        &[REFUSALS],
    ),
    Kind::Size { .. } => relaying(
        "A file of the relay's WAL has another length than its name says",
        Kind::Size { path: PATH.into(), size: 4_711, wanted: 16 << 20 },
        "Somebody copied or cut the file, or the publisher has another `wal_segment_size` than before.",
        "Move the file away. If the relay needs its WAL, restore it from the publisher's archive: `cp` the \
        segment of the same name.",
        &[REFUSALS],
    ),
    Kind::Hole { .. } => relaying(
        "A segment of the relay's WAL is missing",
        Kind::Hole { path: "/var/lib/pgsluice/wal".into(), name: SEGMENT.to_owned() },
        "Somebody removed the file. The relay itself removes only segments before all others.",
        "Restore the segment of this name from the publisher's archive with `cp`. Without one, begin with \
        another `--data-dir` and make the subscriptions anew.",
        &[REFUSALS],
    ),
    Kind::OutOfPlace { .. } => relaying(
        "WAL came at another place than expected",
        Kind::OutOfPlace { at: Lsn::new(0x16_6500_0000), end: Lsn::new(0x16_6500_2000) },
        "The publisher sent WAL that does not go on where the last bytes ended. No server does that.",
        "Report it with the log of a run with `--log-level debug`. Nothing is written, and nothing confirmed.",
        &[REFUSALS],
    ),
    // Told to one subscriber, as a server tells it.
    Kind::Removed { .. } => nothing_of_its_own(),
    Kind::Older { .. } => nothing_of_its_own(),
    // The relay takes back what is behind.
    Kind::PastFork { .. } => nothing_of_its_own(),
    Kind::History(_) => relaying(
        "A history file of the relay is damaged",
        Kind::History("/var/lib/pgsluice/wal/00000002.history".into()),
        "A file of this name says where a timeline began. This one cannot be read.",
        "Restore the file of the same name from `pg_wal` of the publisher.",
        &[],
    ),
}

fn relaying(
    title: &'static str,
    error: impl Into<Error>,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<Error>; 1] {
    entry(Doing::Relaying, title, error, cause, remedy, held_by)
}
