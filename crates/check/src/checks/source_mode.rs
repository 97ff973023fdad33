//! Which of the two source modes a server allows, what each costs, and which one is recommended.

use super::names::few;
use crate::finding::{End, Finding};
use crate::publisher::{Publisher, Undecoded};
use crate::server::{Server, Service};
use crate::subscriber::Subscriber;
use crate::wanted::Wanted;

/// Below it decoding takes a small part of a core: see [`DECODING_PER_GIGABYTE`].
const BUSY_BYTES_PER_SECOND: f64 = 1e6;
/// CPU seconds of a walsender that decodes a GB of WAL of published rows of 1 KB:
/// docs/benchmarks/catchup.md, `updates`. Narrow rows, each a transaction, cost several times as
/// much: docs/benchmarks/publisher-cost.md.
const DECODING_PER_GIGABYTE: f64 = 10.0;

const LOGICAL: &str = "source_mode = logical";
const WAL: &str = "source_mode = wal";

pub(super) fn source_mode(wanted: &Wanted, source: &Publisher, target: &Subscriber) -> Vec<Finding> {
    let Some(server) = source.server.as_ref().filter(|_| !target.state.is_begun()) else { return Vec::new() };
    let against = against_wal(server, &source.undecoded);
    let note = |what| Finding::note(End::Source, "source_mode", what);
    if against.is_empty() {
        let (costs, recommended) = costs(source);
        return vec![note(format!("both logical and wal are possible; {costs}")).remedy(recommended)];
    }
    let reasons = few(&against);
    if wanted.physical_slot {
        let finding = Finding::cannot(End::Source, "source_mode", format!("wal is not possible: {reasons}"));
        return vec![finding.remedy(format!("use {LOGICAL}, or do not publish what cannot be decoded"))];
    }
    vec![note(format!("only logical is possible: {reasons}"))]
}

/// Why WAL of this server cannot be decoded outside the server.
pub(super) fn against_wal(server: &Server, undecoded: &[Undecoded]) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(service) = server.service {
        let name = match service {
            Service::Rds => "Amazon RDS",
            Service::CloudSql => "Google Cloud SQL",
            Service::Azure => "Azure Database",
        };
        reasons.push(format!("{name} sends physical WAL to no client"));
    }
    if server.in_recovery {
        reasons
            .push("it is a standby, whose snapshots do not tell which transactions are running: connect to its primary".to_owned());
    }
    if server.encoding != "UTF8" {
        reasons.push(format!("the database is in {}, not in UTF8", server.encoding));
    }
    if server.setting("full_page_writes") == "off" {
        reasons.push("full_page_writes is off".to_owned());
    }
    for setting in ["block_size", "wal_block_size"] {
        if server.number(setting).is_some_and(|size| size != 8192) {
            reasons.push(format!("{setting} is {}, not 8192", server.setting(setting)));
        }
    }
    reasons.extend(undecoded.iter().map(|own| {
        format!("table {}, column \"{}\": type {}, {}", own.table, own.column, own.type_name, own.reason)
    }));
    reasons
}

/// The cost of both modes by the server's own counters, and the recommendation.
fn costs(source: &Publisher) -> (String, String) {
    let recommended = |mode: &str, why: &str| format!("recommended: {mode}, because {why}");
    let Some(load) = source.load.as_ref().filter(|load| load.seconds > 0.0) else {
        let what = "how much WAL it writes is not known";
        return (what.to_owned(), recommended(LOGICAL, "it works everywhere"));
    };
    let rate = load.wal_bytes / load.seconds;
    let decoders = load.logical_slots + 1;
    let cores = rate / 1e9 * DECODING_PER_GIGABYTE;
    let share = match load.rows {
        rows if rows > 0.0 => {
            format!("{:.0} % of the rows that it writes are published", load.published_rows / rows * 100.0)
        }
        _ => "no rows were written".to_owned(),
    };
    let costs = format!(
        "it writes {} of WAL a second on average, and {share}; logical: each of {decoders} logical slots decodes all of \
         it, about {:.1} % of a core each, more where rows are narrow; wal: all of it is sent to each pgsluice process, \
         and decoded there once for all of its subscriptions",
        bytes(rate),
        cores * 100.0
    );
    let because = if rate < BUSY_BYTES_PER_SECOND {
        recommended(LOGICAL, "so little WAL is cheap to decode, and nothing is kept outside the servers")
    } else if decoders > 1 {
        recommended(WAL, "the source decodes the same WAL several times, if the network carries all of it")
    } else {
        recommended(WAL, "decoding is taken off the source, if the network carries all of its WAL")
    };
    (costs, because)
}

fn bytes(count: f64) -> String {
    match count {
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count => format!("{:.1} kB", count / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_unit_that_says_something() {
        assert_eq!([bytes(0.0), bytes(999_949.0), bytes(1.25e6)], ["0.0 kB", "999.9 kB", "1.2 MB"]);
    }
}
