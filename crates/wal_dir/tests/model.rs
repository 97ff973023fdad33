//! The directory beside a model: any bytes in any pieces, readers anywhere, removals, other
//! timelines, and processes that end at any moment.

#![allow(clippy::unwrap_used, reason = "tests, with functions of their own")]

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::Lsn;
use proptest::prelude::*;
use wal_dir::{Older, Opened, Piece, Reader, Writer};

const SEGMENT: u64 = 1 << 12;
const BEGIN: u64 = 7 * SEGMENT;

/// The byte of a place, which is another one on another timeline.
fn byte(at: u64, timeline: u32) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (u64::from(timeline) * 101)) as u8
}

/// What was written: a byte for each place, and where a new timeline began.
#[derive(Debug, Default)]
struct Model {
    forks: Vec<u64>,
}

impl Model {
    fn timeline_at(&self, at: u64) -> u32 {
        1 + self.forks.iter().filter(|fork| **fork <= at).count() as u32
    }

    fn bytes(&self, from: u64, size: usize) -> Vec<u8> {
        (from..from + size as u64).map(|at| byte(at, self.timeline_at(at))).collect()
    }

    fn history(&self) -> String {
        let line = |(number, fork): (usize, &u64)| format!("{}\t{}\twhy\n", number + 1, Lsn::new(*fork));
        self.forks.iter().enumerate().map(line).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Sync,
    /// A reader begins at this part of what is kept.
    Read(f64),
    /// Every reader reads what there is.
    Follow,
    Remove(f64),
    Fork,
    /// The server comes back with less: this part of what is kept stays.
    Cut(f64),
    /// The process ends. What was not synced is gone, or anything.
    Crash(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..3 * SEGMENT as usize).prop_map(Step::Write),
        2 => Just(Step::Sync),
        2 => (0.0..1.0).prop_map(Step::Read),
        3 => Just(Step::Follow),
        1 => (0.0..1.2).prop_map(Step::Remove),
        1 => Just(Step::Fork),
        1 => (0.0..1.2).prop_map(Step::Cut),
        1 => any::<u8>().prop_map(Step::Crash),
    ]
}

/// Reads everything, and compares it. Returns false if the reader's place is not kept any more.
fn follow(reader: &mut Reader, model: &Model, end: u64) -> bool {
    loop {
        let at = reader.position().as_u64();
        match reader.next() {
            Ok(Piece::Bytes(from, bytes)) => {
                assert_eq!(from.as_u64(), at);
                assert_eq!(bytes, model.bytes(at, bytes.len()), "at {from}");
            }
            Ok(Piece::Dry) => {
                assert_eq!(at, end);
                return true;
            }
            Err(error) => {
                assert!(error.is_removed(), "{error}");
                return false;
            }
        }
    }
}

/// Overwrites what was not synced, as a crash of the system may leave it.
fn damage(dir: &Path, synced: u64, how: u8) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some(number) = name.strip_suffix(".partial") {
            let number = u64::from_str_radix(&number[16..], 16).unwrap();
            let keep = synced.saturating_sub(number * SEGMENT).min(SEGMENT) as usize;
            let mut bytes = fs::read(&path).unwrap();
            match how % 3 {
                0 => bytes.truncate(keep),
                1 => bytes.iter_mut().skip(keep).for_each(|byte| *byte = how),
                _ => {}
            }
            fs::write(&path, bytes).unwrap();
        }
    }
}

fn play(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, opened) = Writer::open(dir.path(), SEGMENT).unwrap();
    assert_eq!(opened, Opened::Empty);
    let mut model = Model::default();
    let mut end = writer.begin(1, Lsn::new(BEGIN + 1234)).as_u64();
    assert_eq!(end, BEGIN);
    let mut synced = end;
    let mut readers: Vec<Reader> = Vec::new();
    for step in steps {
        match *step {
            Step::Write(size) => {
                writer.write(Lsn::new(end), &model.bytes(end, size)).unwrap();
                end += size as u64;
            }
            Step::Sync => {
                synced = writer.sync().unwrap().as_u64();
                assert_eq!(synced, end);
            }
            Step::Read(part) => {
                let oldest = writer.oldest().as_u64();
                let from = oldest + ((end - oldest) as f64 * part) as u64;
                readers.push(writer.reader(Lsn::new(from)).unwrap());
            }
            Step::Follow => readers.retain_mut(|reader| follow(reader, &model, end)),
            Step::Remove(part) => {
                let oldest = writer.oldest().as_u64();
                let before = oldest + ((end - oldest) as f64 * part) as u64;
                writer.remove_before(Lsn::new(before)).unwrap();
                let now = writer.oldest().as_u64();
                assert!(
                    now <= before.max(oldest) && before.min(end) <= now + SEGMENT,
                    "{now} {before} {end}"
                );
            }
            // A server leaves a timeline behind the place where it came to it.
            Step::Fork if model.forks.last().is_some_and(|fork| *fork > end) => {}
            Step::Fork => {
                readers.retain_mut(|reader| follow(reader, &model, end));
                model.forks.push(end);
                let timeline = model.forks.len() as u32 + 1;
                writer.follow_timeline(timeline, Lsn::new(end), &model.history()).unwrap();
                synced = end;
            }
            Step::Cut(part) => {
                let oldest = writer.oldest().as_u64();
                let least = model.forks.last().map_or(oldest, |fork| oldest.max(*fork));
                let at = least + ((end.max(least) - least) as f64 * part) as u64;
                readers.clear();
                writer.cut(Lsn::new(at)).unwrap();
                end = end.min(at);
                synced = synced.min(end);
            }
            Step::Crash(how) => {
                readers.clear();
                let (oldest, timeline) = (writer.oldest(), writer.timeline());
                drop(writer);
                damage(dir.path(), synced, how);
                let opened;
                (writer, opened) = Writer::open(dir.path(), SEGMENT).unwrap();
                match opened {
                    Opened::Empty => {
                        // Nothing had been written, so nothing is known either.
                        assert!(synced < BEGIN + SEGMENT, "{synced}");
                        model.forks.clear();
                        end = writer.begin(1, Lsn::new(BEGIN)).as_u64();
                    }
                    Opened::GoesOn { timeline: on, at } => {
                        assert!(
                            at.as_u64() <= synced.max(end) && synced < at.as_u64() + SEGMENT,
                            "{at} {synced}"
                        );
                        assert_eq!(writer.oldest().min(at), oldest.min(at));
                        // A fork that nothing was written behind comes again.
                        while model.forks.len() as u32 + 1 > on {
                            assert!(timeline > on && model.forks.pop().unwrap() == synced);
                        }
                        end = at.as_u64();
                    }
                }
                synced = end;
            }
        }
        // After a crash, WAL may come again from before the fork, on the newer timeline.
        assert_eq!((writer.end().as_u64(), writer.timeline()), (end, model.forks.len() as u32 + 1));
    }
    if end > writer.oldest().as_u64() {
        let mut all = writer.reader(writer.oldest()).unwrap();
        assert!(follow(&mut all, &model, end));
        assert!(all.looks() <= 2, "the end is asked for when it is reached, and not before");
    }
}

#[test]
fn all_wal_is_taken_back_and_a_crash_does_not_forget_where_it_goes_on() {
    let (write, remove) = (Step::Write(SEGMENT as usize + 1), Step::Remove(1.1));
    for how in 0..3 {
        play(&[write.clone(), remove.clone(), Step::Cut(0.0), Step::Fork, Step::Crash(how)]);
        play(&[write.clone(), Step::Cut(0.0), Step::Crash(how), write.clone()]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_happens_readers_see_what_was_written(steps in prop::collection::vec(step(), 1..60)) {
        play(&steps);
    }
}

#[test]
fn a_reader_waits_for_more() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let at = writer.begin(1, Lsn::new(BEGIN));
    let mut reader = writer.reader(at).unwrap();
    assert_eq!(reader.next().unwrap(), Piece::Dry);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let short = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(short, reader.more()).await.is_err(), "nothing has come");
        writer.write(at, b"more").unwrap();
        reader.more().await;
    });
    assert_eq!(reader.next().unwrap(), Piece::Bytes(at, b"more"));
}

/// What was removed, as an archive has it.
#[derive(Debug)]
struct Archived {
    segments: Mutex<HashMap<(u32, u64), Vec<u8>>>,
}

impl Older for Archived {
    fn open(&self, timeline: u32, at: Lsn) -> io::Result<Box<dyn Read + Send>> {
        let (number, within) = (at.as_u64() / SEGMENT, (at.as_u64() % SEGMENT) as usize);
        let segments = self.segments.lock().unwrap();
        let segment = segments.get(&(timeline, number)).ok_or_else(|| io::Error::other("no such segment"))?;
        Ok(Box::new(io::Cursor::new(segment[within..].to_vec())))
    }
}

/// Readers notice nothing when segments go that an archive has: before they come to them, while
/// they are in them, and after another process.
#[test]
fn what_was_removed_is_read_where_an_archive_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let mut model = Model::default();
    let at = writer.begin(1, Lsn::new(BEGIN));
    writer.write(at, &model.bytes(BEGIN, 3 * SEGMENT as usize + 100)).unwrap();
    let fork = writer.end().as_u64();
    model.forks.push(fork);
    writer.follow_timeline(2, Lsn::new(fork), &model.history()).unwrap();
    writer.write(writer.end(), &model.bytes(fork, 4 * SEGMENT as usize)).unwrap();
    writer.sync().unwrap();
    let end = writer.end().as_u64();
    let segment = |number: u64, timeline| {
        let bytes = (number * SEGMENT..(number + 1) * SEGMENT).map(|at| byte(at, model.timeline_at(at)));
        ((timeline, number), bytes.collect::<Vec<u8>>())
    };
    // The archive also has the old timeline's own segment of the fork.
    let mut segments: HashMap<_, _> = (7..10).map(|number| segment(number, 1)).collect();
    segments.extend((10..14).map(|number| segment(number, 2)));
    segments.insert((1, 10), vec![0; SEGMENT as usize]);
    let missing = segments.remove(&(2, 11)).unwrap();
    let archived = Arc::new(Archived { segments: Mutex::new(segments) });
    let readers = writer.readers();
    let removed = Lsn::new(12 * SEGMENT + 5);
    let mut within = writer.reader(Lsn::new(BEGIN + 50)).unwrap();
    assert!(matches!(within.next(), Ok(Piece::Bytes(..))));
    writer.remove_before(removed).unwrap();
    assert!(readers.reader(at).is_err_and(|error| error.is_removed()));
    readers.fall_back_on(Arc::<Archived>::clone(&archived));
    for reader in [&mut within, &mut readers.reader(at).unwrap()] {
        let error = loop {
            let from = reader.position().as_u64();
            match reader.next() {
                Ok(Piece::Bytes(_, bytes)) => assert_eq!(bytes, model.bytes(from, bytes.len()), "at {from}"),
                Ok(Piece::Dry) => panic!("nothing is missing"),
                Err(error) => break error,
            }
        };
        assert!(!error.is_removed() && error.to_string().contains("no such segment"), "{error}");
        assert_eq!(reader.position(), Lsn::new(11 * SEGMENT));
    }
    archived.segments.lock().unwrap().insert((2, 11), missing);
    assert!(follow(&mut within, &model, end), "it goes on where it was");
    // What standbys lack is not read there either.
    readers.limit(Lsn::new(BEGIN + 70));
    assert!(follow(&mut readers.reader(at).unwrap(), &model, BEGIN + 70));
    drop((within, readers, writer));
    let (writer, opened) = Writer::open(dir.path(), SEGMENT).unwrap();
    let Opened::GoesOn { at: end, .. } = opened else { panic!("{opened:?}") };
    writer.readers().fall_back_on(archived);
    assert!(follow(&mut writer.reader(at).unwrap(), &model, end.as_u64()));
}

/// The server went on from a place before everything that is kept.
#[test]
fn a_cut_before_all_that_is_kept_begins_that_segment_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let mut model = Model::default();
    let at = writer.begin(1, Lsn::new(BEGIN));
    writer.write(at, &model.bytes(BEGIN, 5 * SEGMENT as usize + 100)).unwrap();
    writer.sync().unwrap();
    writer.remove_before(writer.end()).unwrap();
    let fork = BEGIN + SEGMENT + 1000;
    writer.cut(Lsn::new(fork)).unwrap();
    let begin = Lsn::new(BEGIN + SEGMENT);
    assert_eq!((writer.end(), writer.oldest(), writer.timeline()), (begin, begin, 1));
    // Another process knows as well where WAL goes on.
    drop(writer);
    let (mut writer, opened) = Writer::open(dir.path(), SEGMENT).unwrap();
    assert_eq!(opened, Opened::GoesOn { timeline: 1, at: begin });
    writer.write(begin, &model.bytes(begin.as_u64(), 1000)).unwrap();
    model.forks.push(fork);
    writer.follow_timeline(2, Lsn::new(fork), &model.history()).unwrap();
    writer.write(Lsn::new(fork), &model.bytes(fork, 2 * SEGMENT as usize)).unwrap();
    assert!(follow(&mut writer.reader(begin).unwrap(), &model, writer.end().as_u64()));
}

/// Standbys may have less than what came.
#[test]
fn nothing_behind_a_limit_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let at = writer.begin(1, Lsn::new(BEGIN));
    let readers = writer.readers();
    readers.limit(Lsn::INVALID);
    let mut reader = readers.reader(at).unwrap();
    writer.write(at, b"abcdef").unwrap();
    assert_eq!((readers.end(), reader.next().unwrap()), (Lsn::INVALID, Piece::Dry));
    readers.limit(Lsn::new(BEGIN + 2));
    assert_eq!(reader.next().unwrap(), Piece::Bytes(at, b"ab"));
    assert_eq!(reader.next().unwrap(), Piece::Dry);
    // What nobody has read may be taken back.
    writer.cut(Lsn::new(BEGIN + 2)).unwrap();
    writer.write(Lsn::new(BEGIN + 2), b"XY").unwrap();
    readers.limit(Lsn::new(u64::MAX));
    assert_eq!(reader.next().unwrap(), Piece::Bytes(Lsn::new(BEGIN + 2), b"XY"));
}

#[test]
fn refusals_name_their_object() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let error = Writer::open(dir.path(), SEGMENT).unwrap_err().to_string();
    assert!(error.contains("another process uses the WAL directory"), "{error}");
    let at = writer.begin(1, Lsn::new(BEGIN));
    writer.write(at, &[1; 3 * SEGMENT as usize + 5]).unwrap();
    let error = writer.write(at, b"again").unwrap_err().to_string();
    assert!(error.starts_with("WAL of 0/7000 came where 0/A005"), "{error}");
    let error = writer.follow_timeline(2, Lsn::new(BEGIN + 5), "1\t0/7005\tx").unwrap_err().to_string();
    assert!(error.contains("the server that was promoted lacks what is between"), "{error}");
    writer.remove_before(Lsn::new(BEGIN + SEGMENT)).unwrap();
    let error = writer.reader(at).unwrap_err();
    assert!(error.is_removed() && error.to_string().contains("the oldest that is kept is 0/8000"), "{error}");
    drop(writer);
    let middle = dir.path().join("000000010000000000000009");
    let bytes = fs::read(&middle).unwrap();
    fs::write(&middle, &bytes[1..]).unwrap();
    let error = Writer::open(dir.path(), SEGMENT).unwrap_err().to_string();
    assert!(error.contains("has 4095 bytes and not 4096"), "{error}");
    fs::remove_file(&middle).unwrap();
    fs::write(dir.path().join("00000001000000000000000A"), &bytes).unwrap();
    let error = Writer::open(dir.path(), SEGMENT).unwrap_err().to_string();
    assert!(error.contains("segment 000000010000000000000009 is missing"), "{error}");
}

#[test]
fn a_full_disk_loses_nothing() {
    // A file system of its own would need mounting; a limit on the size of files fails alike.
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(dir.path(), SEGMENT).unwrap();
    let at = writer.begin(1, Lsn::new(BEGIN));
    writer.write(at, &[1; 100]).unwrap();
    // The next segment cannot be made.
    let blocked = dir.path().join("000000010000000000000008.partial");
    fs::create_dir(&blocked).unwrap();
    let bytes = [2; SEGMENT as usize];
    let error = writer.write(Lsn::new(BEGIN + 100), &bytes).unwrap_err();
    assert!(error.to_string().contains("000000010000000000000008.partial"), "{error}");
    let end = writer.end();
    assert_eq!(end, Lsn::new(BEGIN + SEGMENT), "what fits is written, and can be read");
    fs::remove_dir(&blocked).unwrap();
    let written = (end.as_u64() - BEGIN - 100) as usize;
    writer.write(end, &bytes[written..]).unwrap();
    let mut reader = writer.reader(at).unwrap();
    let mut all = Vec::new();
    while let Piece::Bytes(_, bytes) = reader.next().unwrap() {
        all.extend_from_slice(bytes);
    }
    assert_eq!(all, [&[1; 100][..], &bytes].concat());
}
