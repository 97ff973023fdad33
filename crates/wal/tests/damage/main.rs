//! Recorded WAL of every major, as it is and damaged. The records that come out are those that were
//! written, or there is an error with its LSN.
//!
//! `cargo x corpus wal` records it anew. A failure prints the recording, and the place or the seed
//! of its case. `PGSLUICE_MUTATIONS` sets the number of cases; a smoke run has time for few.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod recorded;
#[path = "../../../proto/tests/mutations/weigh.rs"]
mod weigh;

use std::collections::BTreeSet;

use base::Lsn;
use rand::Rng;
use recorded::{Copied, HEADER, PAGE, Recorded, cases, damage, random, read, recorded};
use wal::{Compression, Layout, PAGE_SIZE, Reader, Record, Start};

#[test]
fn recordings_are_read_alike_in_pieces_of_any_size() {
    for recording in recorded() {
        let whole = recording.records();
        assert!(whole.len() > 150, "{}: {} records", recording.name, whole.len());
        for piece in [1, 3, 4, 8, 23, 24, 25, 1000, 4096, 8192, 10_000] {
            let (records, end) = read(&recording.bytes, recording.start, piece);
            assert!(records == whole && end.is_ok(), "{}: pieces of {piece} bytes", recording.name);
        }
    }
}

/// The recordings must have these things, or the other tests show nothing.
#[test]
fn recordings_hold_what_is_hard() {
    let (mut majors, mut compressions) = (BTreeSet::new(), BTreeSet::new());
    for recording in recorded() {
        let crossing =
            recording.records().iter().filter(|r| page_of(r.lsn) != page_of(before(r.end))).count();
        assert!(crossing > 5, "{}: {crossing} records cross a page", recording.name);
        let segment = |lsn: Lsn| lsn.as_u64() >> 24;
        let last = recording.records().last().unwrap().end;
        assert!(segment(recording.start) < segment(last), "{}: one segment only", recording.name);
        majors.extend(recording.each(|record| record.layout().major()));
        recording.each(|record| {
            for image in record.parts().unwrap().blocks().filter_map(|block| block.image) {
                image.restore(&mut [0; PAGE_SIZE]).unwrap();
                compressions.insert(format!("{:?}", image.compression));
            }
        });
    }
    assert_eq!(majors.into_iter().collect::<Vec<_>>(), [14, 15, 16, 17, 18]);
    let all = [Compression::None, Compression::Pglz, Compression::Lz4, Compression::Zstd];
    assert_eq!(compressions, all.map(|compression| format!("{compression:?}")).into());
}

fn page_of(lsn: Lsn) -> u64 {
    lsn.as_u64() / PAGE as u64
}

fn before(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.as_u64() - 1)
}

#[test]
fn a_start_in_the_middle_gives_the_records_from_there_on() {
    for recording in recorded() {
        let all = recording.records();
        for at in [1, all.len() / 3, all.len() / 2, all.len() - 1] {
            for start in [all[at].lsn, Lsn::new(all[at - 1].lsn.as_u64() + 1)] {
                let mut reader = Reader::new(Start::at(start)).unwrap();
                let skipped = reader.position().bytes_since(recording.start) as usize;
                let mut records = reader.push(reader.position(), &recording.bytes[skipped..]).unwrap();
                let mut seen = Vec::new();
                while let Some(record) = records.poll().unwrap() {
                    seen.push(record.lsn());
                }
                let expected: Vec<Lsn> = all[at..].iter().map(|record| record.lsn).collect();
                assert!(seen == expected, "{} from {start}", recording.name);
            }
        }
    }
}

/// Whether the byte at `at` is covered: by a record's checksum, or, in a page's header, by what the
/// reader knows.
fn is_covered(recording: &Recorded, records: &[Copied], at: usize) -> bool {
    let lsn = recording.start.as_u64() + at as u64;
    let in_page = at % PAGE;
    let long = (lsn - in_page as u64).is_multiple_of(16 << 20);
    if in_page < if long { 40 } else { 24 } {
        // Timeline and system identifier are compared with what came before. Bytes 20 to 23 are
        // padding.
        return matches!(in_page, 0..=1 | 8..=19 | 32..=39);
    }
    let record = records.iter().rev().find(|record| record.lsn.as_u64() <= lsn);
    // The headers of pages in between make a record longer on disk. The padding behind it has at
    // most seven bytes.
    record.is_some_and(|record| lsn + 8 <= record.end.as_u64())
}

#[test]
fn a_flipped_bit_is_reported_where_a_checksum_or_the_order_covers_it() {
    for recording in recorded() {
        let whole = recording.records();
        let mut random = random(7);
        let last = whole.last().unwrap().end;
        let (mut reported, mut bytes) = (0, recording.bytes.clone());
        let tried = cases(3000);
        for _ in 0..tried {
            let (at, bit) = (random.random_range(0..bytes.len()), random.random_range(0..8));
            bytes[at] ^= 1 << bit;
            let (records, end) = read(&bytes, recording.start, usize::MAX);
            bytes[at] ^= 1 << bit;
            let context = || format!("{}: bit {bit} of byte {at}", recording.name);
            match end {
                Err(error) => {
                    reported += 1;
                    // All records before the damage came out right. The error is at most a page,
                    // and the record that the damage is in, behind it.
                    assert!(whole.starts_with(&records), "{}", context());
                    assert!(
                        page_of(error.lsn()) <= page_of(recording.start) + (at / PAGE) as u64 + 1,
                        "{error}"
                    );
                }
                // The page claims to be of an earlier time, so WAL ends before it. A caller that
                // reads up to a position sees that it was not reached.
                Ok(end) if end < last => {
                    reported += 1;
                    assert!(whole.starts_with(&records), "{}", context());
                    assert!(page_of(end) <= page_of(recording.start) + (at / PAGE) as u64, "{}", context());
                }
                Ok(_) => {
                    assert!(!is_covered(&recording, &whole, at), "{} went unseen", context());
                    assert!(records == whole, "{}", context());
                }
            }
        }
        assert!(reported > tried * 9 / 10, "{}: {reported} of {tried} reported", recording.name);
    }
}

#[test]
fn wal_that_is_cut_short_gives_its_first_records_and_says_where_it_ends() {
    for recording in recorded() {
        let whole = recording.records();
        let mut incomplete = 0;
        for length in (0..recording.bytes.len()).step_by(61) {
            let (records, end) = read(&recording.bytes[..length], recording.start, usize::MAX);
            let cut = recording.start.as_u64() + length as u64;
            // A record comes out once its own bytes are there. Its padding may be missing.
            let complete = whole.iter().take_while(|record| record.end.as_u64() < cut + 8).count();
            assert!(whole.starts_with(&records), "{} cut at {length}", recording.name);
            assert!(
                (complete.saturating_sub(1)..=complete).contains(&records.len()),
                "{} cut at {length}",
                recording.name
            );
            match end {
                Ok(end) => assert!(
                    end.as_u64() < cut + 8 && end >= records.last().map_or(recording.start, |r| r.end)
                ),
                Err(error) => {
                    assert!(error.is_incomplete(), "{} cut at {length}: {error}", recording.name);
                    incomplete += 1;
                }
            }
        }
        assert!(incomplete > 100, "{}: {incomplete}", recording.name);
    }
}

#[test]
fn zeros_behind_a_record_are_the_end_and_zeros_in_one_are_an_error() {
    for recording in recorded() {
        let whole = recording.records();
        for (number, record) in whole.iter().enumerate().step_by(7) {
            let at = record.end.bytes_since(recording.start) as usize;
            let mut bytes = recording.bytes.clone();
            bytes[at..].fill(0);
            bytes.resize(at.next_multiple_of(PAGE) + 3 * PAGE, 0);
            let (records, end) = read(&bytes, recording.start, 1000);
            let end = end.unwrap_or_else(|error| panic!("{} zeroed at {at}: {error}", recording.name));
            assert!(records == whole[..=number], "{} zeroed at {at}", recording.name);
            let header = Lsn::new(record.end.as_u64() + 40);
            assert!(end >= record.end && end <= header, "{}: {end}", recording.name);

            // The same, with something behind the zeros.
            let last = bytes.len() - PAGE + 100;
            bytes[last] = 1;
            let (records, end) = read(&bytes, recording.start, 1000);
            assert!(end.is_err() && records == whole[..=number], "{} zeroed at {at}", recording.name);

            // Zeros from the middle of the record on.
            let middle = (record.lsn.bytes_since(recording.start) as usize + 4).max(1);
            let mut bytes = recording.bytes.clone();
            bytes[middle..].fill(0);
            let (records, end) = read(&bytes, recording.start, usize::MAX);
            assert!(end.is_err() && records == whole[..number], "{} zeroed at {middle}", recording.name);
        }
    }
}

/// A segment that is used again still has pages of an earlier time behind the end of WAL.
#[test]
fn pages_of_an_earlier_time_are_the_end() {
    for recording in recorded() {
        let end_page = 3 * PAGE;
        let earlier: Vec<u8> = recording.bytes[..end_page].to_vec();
        let record_end = |bytes: &[u8]| read(bytes, recording.start, usize::MAX);
        let (records, _) = record_end(&recording.bytes[..end_page]);
        let bytes = [&recording.bytes[..end_page], &earlier].concat();
        let (seen, end) = record_end(&bytes);
        assert!(seen == records, "{}", recording.name);
        let lsn = Lsn::new(recording.start.as_u64() + end_page as u64);
        match end {
            Ok(end) => assert_eq!(end, lsn),
            // A record was open where the earlier pages begin.
            Err(error) => assert!(error.is_incomplete(), "{}: {error}", recording.name),
        }
        // The next page of the present time, behind them, shows that WAL went on.
        let bytes = [&bytes[..], &recording.bytes[2 * end_page..7 * PAGE]].concat();
        let (seen, end) = record_end(&bytes);
        assert!(seen == records && end.is_err_and(|error| !error.is_incomplete()), "{}", recording.name);
    }
}

#[test]
fn lost_doubled_and_swapped_pages_are_errors() {
    for recording in recorded() {
        let whole = recording.records();
        let pages: Vec<&[u8]> = recording.bytes.chunks(PAGE).collect();
        for at in 1..pages.len() - 1 {
            let mut lost = pages.clone();
            lost.remove(at);
            let mut swapped = pages.clone();
            swapped.swap(at, at + 1);
            for (what, pages) in [("lost", lost), ("swapped", swapped)] {
                let (records, end) = read(&pages.concat(), recording.start, usize::MAX);
                assert!(end.is_err() && whole.starts_with(&records), "{}: page {at} {what}", recording.name);
            }
            // A repeated page looks like the end. The pages behind it show that it is not.
            let mut doubled = pages.clone();
            doubled.insert(at, pages[at - 1]);
            let (records, _) = read(&doubled.concat(), recording.start, usize::MAX);
            assert!(
                whole.starts_with(&records) && records.len() < whole.len(),
                "{}: page {at}",
                recording.name
            );
        }
    }
}

fn error(bytes: &[u8], start: Start) -> wal::Error {
    let mut reader = Reader::new(start).unwrap();
    let mut records = reader.push(reader.position(), bytes).unwrap();
    loop {
        match records.poll() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("nothing is wrong"),
            Err(error) => {
                assert_eq!(records.poll().unwrap_err(), error, "an error stays");
                return error;
            }
        }
    }
}

#[test]
fn wal_of_elsewhere_is_refused_with_its_place() {
    let all = recorded();
    let recording = all.iter().find(|recording| recording.name == "15-off.wal").unwrap();
    let start = Start::at(recording.start);
    let page = |number: u64| Lsn::new(recording.start.as_u64() + number * PAGE as u64);

    let mut unknown = recording.bytes.clone();
    unknown[2 * PAGE..2 * PAGE + 2].copy_from_slice(&0xD119_u16.to_le_bytes());
    let wrong = error(&unknown, start);
    assert!(wrong.is_unknown_version() && wrong.lsn() == page(2), "{wrong}");
    assert!(wrong.to_string().contains("D119"), "{wrong}");

    let mut other = recording.bytes.clone();
    other[2 * PAGE..2 * PAGE + 2].copy_from_slice(&0xD118_u16.to_le_bytes());
    let wrong = error(&other, start);
    assert!(wrong.to_string().contains("written by 18, the pages before by 15"), "{wrong}");

    let wrong = error(&recording.bytes, Start { system_id: Some(1), ..start });
    assert!(wrong.to_string().contains("system identifier"), "{wrong}");
    let wrong = error(&recording.bytes, Start { timeline: Some(2), ..start });
    assert!(wrong.to_string().contains("timeline 1"), "{wrong}");
    let wrong = error(&recording.bytes, Start { segment_size: 1 << 20, ..start });
    assert!(wrong.to_string().contains("segment"), "{wrong}");

    // A later timeline that no record starts.
    let mut forked = recording.bytes.clone();
    forked[2 * PAGE + 4] = 2;
    let wrong = error(&forked, start);
    assert!(wrong.to_string().contains("should start timeline 2"), "{wrong}");
    forked[3 * PAGE + 4] = 1;
    assert!(error(&forked, start).lsn() <= page(3));
}

#[test]
fn a_gap_is_refused_and_so_is_what_was_not_polled() {
    let recording = &recorded()[0];
    let mut reader = Reader::new(Start::at(recording.start)).unwrap();
    let mut records = reader.push(recording.start, &recording.bytes[..3 * PAGE]).unwrap();
    while records.poll().unwrap().is_some() {}
    let later = Lsn::new(recording.start.as_u64() + 4 * PAGE as u64);
    let wrong = reader.push(later, &recording.bytes[4 * PAGE..]).unwrap_err();
    assert!(wrong.is_gap(), "{wrong}");
    assert_eq!(wrong.lsn(), Lsn::new(recording.start.as_u64() + 3 * PAGE as u64));

    let mut reader = Reader::new(Start::at(recording.start)).unwrap();
    reader.push(recording.start, &recording.bytes[..PAGE]).unwrap().poll().unwrap();
    let next = Lsn::new(recording.start.as_u64() + PAGE as u64);
    assert!(reader.push(next, &recording.bytes[PAGE..]).unwrap_err().is_gap());
}

/// A length is believed only when the bytes are there.
#[test]
fn a_length_beyond_the_input_allocates_nothing() {
    for recording in recorded() {
        // Otherwise the next page says how much is left, which is less.
        let in_one_page = |record: &Copied| page_of(record.lsn) == page_of(before(record.end));
        let last = recording.records().into_iter().rfind(in_one_page).unwrap();
        let at = last.lsn.bytes_since(recording.start) as usize;
        let mut bytes = recording.bytes[..at + last.bytes.len()].to_vec();
        bytes[at..at + 4].copy_from_slice(&0x3fff_0000_u32.to_le_bytes());
        let start = Start::at(recording.start);
        let mut reader = Reader::new(start).unwrap();
        let held = weigh::most_held(|| {
            let mut records = reader.push(recording.start, &bytes).unwrap();
            while records.poll().unwrap().is_some() {}
        });
        assert!(reader.finish().unwrap_err().is_incomplete());
        // The bytes so far of the longest record, doubled as vectors grow.
        assert!(held < 256 << 10, "{}: {held} bytes", recording.name);
        // Longer than any record, or shorter than its header.
        for length in [0x4000_0000_u32, u32::MAX, 23, 1] {
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            let wrong = error(&bytes, start);
            assert!(wrong.lsn() == last.lsn && wrong.to_string().contains("length"), "{wrong}");
        }
    }
}

/// Records with a right checksum and contents that no server wrote.
#[test]
fn sealed_damage_is_an_error_or_what_it_says() {
    let (mut errors, mut values) = (0, 0);
    for recording in recorded() {
        let major = recording.each(|record| record.layout().major())[0];
        for (number, record) in recording.records().iter().enumerate() {
            for case in 0..cases(40) {
                let seed = (number as u64) << 32 | case;
                let damaged = damage(&record.bytes, &mut random(seed));
                let layout = Layout::of_major(major).unwrap();
                let held = weigh::most_held(|| {
                    let read = std::panic::catch_unwind(|| take_apart(&damaged, record, layout));
                    match read {
                        Ok(true) => values += 1,
                        Ok(false) => errors += 1,
                        Err(_) => panic!("{}: seed {seed}", recording.name),
                    }
                });
                assert!(held < 4 << 20, "{}: {held} bytes, seed {seed}", recording.name);
            }
        }
    }
    assert!(errors > 10_000 && values > 10_000, "{errors} errors, {values} values");
}

/// Whether the record can be taken apart. Looks at everything in it.
fn take_apart(bytes: &[u8], of: &Copied, layout: &'static Layout) -> bool {
    let Ok(record) = Record::read(bytes, of.lsn, of.end, layout) else { return false };
    let locator = record.first_locator();
    let top_level = record.top_level_xid();
    let Ok(parts) = record.parts() else { return false };
    assert_eq!(top_level, Ok(parts.top_level_xid()));
    let mut length = HEADER + parts.main().len();
    for block in parts.blocks() {
        if let Some(image) = block.image {
            length += image.bytes.len();
            let _ = image.restore(&mut [0; PAGE_SIZE]);
        }
        length += block.data.len();
    }
    assert!(length <= bytes.len());
    if let Some(first) = parts.blocks().next()
        && first.fork == wal::Fork::Main
    {
        assert_eq!(locator, Some(first.locator));
    }
    true
}
