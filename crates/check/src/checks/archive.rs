//! The archive that is followed instead of a slot and a stream.

use crate::archive::Archive;
use crate::finding::{End, Finding, Refuses};
use crate::publisher::Publisher;
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

pub(super) fn archive(_: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(archive) = &source.archive else { return Vec::new() };
    vec![of(archive, target.state.is_begun())]
}

fn of(archive: &Archive, is_begun: bool) -> Finding {
    let object = format!("wal_archive {}", archive.dir.display());
    let cannot = |what: String| Finding::cannot(End::Source, &object, what).refusing(Refuses::Never);
    if archive.is_pg_wal {
        let what =
            "is the pg_wal of a server, which has WAL that is not flushed yet and that a crash takes back";
        return cannot(what.to_owned())
            .remedy("give the directory that archive_command or pg_receivewal fills");
    }
    let span = match &archive.span {
        Ok((begin, end)) => format!("has WAL from {begin} to {end}"),
        Err(why) => {
            let remedy = "start archive_command or pg_receivewal, and let this machine read what it writes";
            return cannot(why.clone()).remedy(remedy);
        }
    };
    match (&archive.latest_checkpoint, is_begun) {
        (Some(Err(why)), false) => {
            let what = format!("{span}; {why}, and a new subscription begins at the latest checkpoint");
            cannot(what)
                .remedy("let it have segments that begin now")
                .sql("CHECKPOINT")
                .sql("SELECT pg_catalog.pg_switch_wal()")
        }
        _ => Finding::note(End::Source, object, format!("{span}: no slot is made, and no stream begun")),
    }
}
