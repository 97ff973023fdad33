//! A crash in the middle of a record.

use base::Lsn;
use testkit::{Cluster, Major};
use wal::{Error, Reader, Rmgr, Start};

use crate::server::{bytes, position};

/// Resource manager, info and LSN of each record.
type Seen = Vec<(Rmgr, u8, Lsn)>;

const OVERWRITE_CONTRECORD: (Rmgr, u8) = (Rmgr::Xlog, 0xD0);

fn read(bytes: &[u8], start: Lsn) -> (Seen, Result<Lsn, Error>, Reader) {
    let mut reader = Reader::new(Start::at(start)).unwrap();
    let mut seen = Seen::new();
    let mut records = reader.push(reader.position(), bytes).unwrap();
    let error = loop {
        match records.poll() {
            Ok(Some(record)) => seen.push((record.rmgr(), record.info() & 0xf0, record.lsn())),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let end = error.map_or_else(|| reader.finish(), Err);
    (seen, end, reader)
}

fn page_start(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.as_u64() / 8192 * 8192)
}

fn has(seen: &Seen, kind: (Rmgr, u8)) -> Option<Lsn> {
    seen.iter().find(|(rmgr, info, _)| (*rmgr, *info) == kind).map(|(_, _, lsn)| *lsn)
}

/// A long record that nobody waits for goes to disk page by page as its buffers are needed; killed then, the server
/// finds the start of a record without its end, and says so where the rest would have been.
#[test]
fn a_record_that_a_crash_cut_off_is_passed_over_because_the_wal_says_so() {
    for major in Major::under_test() {
        let mut cluster = Cluster::builder(major).setting("wal_buffers", "64kB").start().unwrap();
        let from = page_start(position(&cluster));
        // Once is enough, unless something else flushed the record's end in that moment.
        let cut_off = (0..5).find_map(|_| {
            let before = position(&cluster);
            let emit = "SELECT pg_logical_emit_message(false, 'lost', repeat('x', 2000000))";
            cluster.sql("postgres", emit).unwrap();
            cluster.kill9();
            cluster.start_again().unwrap();
            let to = position(&cluster);
            let (seen, end, _) = read(&bytes(&cluster, from, to, 1), from);
            assert_eq!(end.unwrap(), to, "{major}");
            has(&seen, OVERWRITE_CONTRECORD).filter(|at| *at > before).map(|at| (at, to))
        });
        let (at, to) = cut_off.unwrap_or_else(|| panic!("{major}: no record was cut off"));
        // The page after the one where the lost record starts is not the one that was expected: without the word of
        // the record that names it, it is an error.
        let mut wrong = bytes(&cluster, from, to, 1);
        let page = at.bytes_since(from) as usize / 8192 * 8192;
        wrong[page + 2] &= !0x08;
        let error = read(&wrong, from).1.unwrap_err();
        assert_eq!(error.lsn(), page_start(at), "{major}: {error}");
        assert!(error.to_string().contains("bytes are left"), "{major}: {error}");
    }
}
