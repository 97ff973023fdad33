//! A store that the first program of a format wrote must open as long as that format can be read.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use base::Lsn;
use store::{Kind, Options, Store};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format");

/// The versions in a commit at the time the file was written. They put the last commit in its
/// place.
const COMMITTED: u64 = 25;

fn options() -> Options {
    Options { cache_bytes: 1 << 20, log_bytes: 1 << 16, background: false, ..Options::default() }
}

/// Writes what the file holds: versions in pages, a long value, a deletion, and a commit that is
/// only in the log. From format 3 on, that commit is at the beginning of the log's ring.
fn write(path: &Path) {
    let mut store = Store::open(path, options()).unwrap();
    let history = store.tree("history", Kind::History).unwrap();
    let window = store.tree("window", Kind::Window).unwrap();
    for number in 0..300_u64 {
        let key = format!("key/{:03}", number % 100);
        store.put(history, key.as_bytes(), Lsn::new(number + 1), &number.to_le_bytes()).unwrap();
        if number % COMMITTED == 0 {
            store.commit(Lsn::new(number + 1)).unwrap();
        }
    }
    store.put(history, b"long", Lsn::new(301), &[7; 5000]).unwrap();
    store.delete(history, b"key/050", Lsn::new(302), b"gone").unwrap();
    store.delete(window, b"row", Lsn::new(303), b"when and by whom").unwrap();
    store.set_horizon(Lsn::new(100));
    store.commit(Lsn::new(303)).unwrap();
    store.checkpoint().unwrap();
    store.put(history, b"key/000", Lsn::new(304), b"in the log").unwrap();
    store.commit(Lsn::new(304)).unwrap();
}

/// Checks that the file `name` has everything that `write` wrote.
fn read(name: &str) -> Store {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    for file in [name.to_owned(), format!("{name}.log")] {
        std::fs::copy(Path::new(DIR).join(&file), dir.path().join(file)).unwrap();
    }
    let mut store = Store::open(&path, options()).unwrap();
    assert_eq!((store.committed(), store.horizon()), (Lsn::new(304), Lsn::new(100)));
    let history = store.tree("history", Kind::History).unwrap();
    let window = store.tree("window", Kind::Window).unwrap();
    let at =
        |store: &Store, tree, key: &[u8], lsn: u64| store.get(tree, key, Lsn::new(lsn)).unwrap().unwrap();
    assert_eq!(at(&store, history, b"key/000", 304).value, b"in the log");
    assert_eq!(at(&store, history, b"key/000", 303).value, 200_u64.to_le_bytes());
    assert_eq!(at(&store, history, b"key/000", 150).value, 100_u64.to_le_bytes());
    assert_eq!(at(&store, history, b"long", 304).value, [7; 5000]);
    assert!(at(&store, history, b"key/050", 304).is_delete);
    assert_eq!(at(&store, window, b"row", 303).value, b"when and by whom");
    assert_eq!(store.scan(history, .., Lsn::new(304)).unwrap().count(), 101);
    store.check().unwrap();
    store
}

#[test]
fn the_first_format_is_read() {
    let mut store = read("format-1");
    // Changed pages are written in today's form, beside pages in the old form.
    let history = store.tree("history", Kind::History).unwrap();
    for (lsn, number) in (305..).zip([0, 50, 99]) {
        store.put(history, format!("key/{number:03}").as_bytes(), Lsn::new(lsn), b"later").unwrap();
    }
    store.commit(Lsn::new(307)).unwrap();
    store.checkpoint().unwrap();
    store.check().unwrap();
    store.compact().unwrap();
    store.check().unwrap();
    assert_eq!(store.latest(history, b"key/099").unwrap().unwrap().value, b"later");
    assert_eq!(store.scan(history, .., Lsn::new(307)).unwrap().count(), 101);
}

#[test]
fn the_second_format_is_read() {
    read("format-2");
}

/// Whether the block numbers in a log have a gap, which means that a commit went back to the
/// beginning of the ring.
fn has_gap(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    let number = |block: &[u8]| u64::from_le_bytes(block[16..24].try_into().unwrap());
    let mut numbers: Vec<u64> = bytes.chunks(4096).skip(1).map(number).collect();
    numbers.sort_unstable();
    numbers.windows(2).last().is_some_and(|last| last[1] - last[0] > 1)
}

#[test]
fn the_third_format_is_read() {
    assert!(has_gap(&Path::new(DIR).join("format-3.log")));
    read("format-3");
}

#[test]
#[ignore = "writes the file that the other tests read; only for a new format"]
fn write_the_file_of_this_format() {
    let dir = Path::new(DIR);
    std::fs::create_dir_all(dir).unwrap();
    for name in ["format-3", "format-3.log"] {
        assert!(!dir.join(name).exists(), "{name} is there; an old format's file is never written again");
    }
    write(&dir.join("format-3"));
    assert!(has_gap(&dir.join("format-3.log")), "choose another COMMITTED");
}
