//! How files are filled, read ahead and limited, and which calls are refused.

use std::sync::{Arc, Mutex};

use base::Lsn;
use store::{Disk, FileDisk, Kind, Options, Store, VALUE_BYTES_MAX};

use crate::{dated, key, load, open, options, scratch};

/// If few pages change for what is logged, the log is as long as what one checkpoint takes over and
/// what comes meanwhile. And opening finds every commit, whenever the program ends.
#[test]
fn the_log_goes_back_to_its_beginning_before_it_grows() {
    const COMMITS: u64 = 600;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), Options { background: false, log_bytes: 1 << 20, ..options() });
    let mut grown = Vec::new();
    for number in 1..=COMMITS {
        store.put(tree, &key(number), Lsn::new(number), &dated(number)).unwrap();
        store.set_horizon(Lsn::new(number));
        store.commit(Lsn::new(number)).unwrap();
        grown.push(store.stats().log_bytes);
        let copy = scratch();
        for name in ["versions", "versions.log"] {
            std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        let (again, tree) = open(copy.path(), options());
        assert_eq!(again.committed(), Lsn::new(number));
        assert_eq!(again.latest(tree, &key(number)).unwrap().unwrap().value, dated(number));
    }
    assert_eq!(store.stats().log_blocks_written, COMMITS);
    let (log_bytes, half) = (store.stats().log_bytes, grown[grown.len() / 2]);
    assert!(
        log_bytes == half && log_bytes <= 640 << 10,
        "{log_bytes} bytes, {half} after half of the commits"
    );
    store.check().unwrap();
}

/// A file that notes prefetches and reads.
#[derive(Debug)]
struct Noting(FileDisk, Mutex<Vec<(&'static str, u64)>>);

impl Noting {
    fn take(&self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

impl Disk for Noting {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.1.lock().unwrap().push(("read", offset));
        self.0.read_at(offset, buffer)
    }
    fn prefetch(&self, offset: u64, length: usize) {
        assert_eq!(length, 4096);
        self.1.lock().unwrap().push(("prefetch", offset));
        self.0.prefetch(offset, length);
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn write_durably(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_durably(offset, bytes)
    }
    fn size_bytes(&self) -> std::io::Result<u64> {
        self.0.size_bytes()
    }
    fn set_size(&self, bytes: u64) -> std::io::Result<()> {
        self.0.set_size(bytes)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

/// For a leaf that is not in memory, exactly the page that the look-up then reads is prefetched.
/// For a leaf in memory, none is. A version whose leaf is not in memory has it prefetched, and the
/// leaf is read when the version goes into it.
#[test]
fn what_is_prefetched_is_what_is_read() {
    let dir = scratch();
    let file = |name: &str| FileDisk::open(&dir.path().join(name)).unwrap();
    let data = Arc::new(Noting(file("versions"), Mutex::default()));
    let small = Options { cache_bytes: 1 << 18, background: false, ..options() };
    let mut store = Store::open_on(data.clone(), Arc::new(file("versions.log")), small).unwrap();
    let tree = store.tree("history", Kind::History).unwrap();
    let lsn = load(&mut store, tree, 20_000);
    store.checkpoint().unwrap();
    let snapshot = store.reader().snapshot().unwrap();
    let mut prefetched = 0;
    for number in (0..20_000).step_by(333) {
        let key = key(number);
        data.take();
        if number % 2 == 0 {
            store.prefetch(tree, &key)
        } else {
            snapshot.prefetch(tree, &key)
        }
        let asked = data.take();
        assert!(snapshot.get(tree, &key).unwrap().is_some());
        let read = data.take();
        let offsets = |notes: &[(&str, u64)]| notes.iter().map(|(_, offset)| *offset).collect::<Vec<_>>();
        assert_eq!(offsets(&asked), offsets(&read[..asked.len()]), "{number}");
        prefetched += asked.len();
        store.prefetch(tree, &key);
        assert_eq!(data.take(), [], "it is in memory");
    }
    assert!(prefetched > 40, "{prefetched}");
    // The leaf of this key was not prefetched.
    store.put(tree, &key(150), Lsn::new(lsn), b"later").unwrap();
    let asked = data.take();
    assert_eq!((asked.len(), store.stats().pending), (1, 1), "{asked:?}");
    store.commit(Lsn::new(lsn)).unwrap();
    assert_eq!(data.take(), [], "it waits for nothing");
    store.checkpoint().unwrap();
    assert!(data.take().contains(&("read", asked[0].1)));
    assert_eq!(store.latest(tree, &key(150)).unwrap().unwrap().value, b"later");
}

/// Keys that come in order leave a tenth of their leaves free, and less in a tree that outgrows
/// memory.
#[test]
fn keys_in_order_fill_their_leaves() {
    const KEYS: u64 = 40_000;
    let mut pages = Vec::new();
    for cache_bytes in [64 << 20, 1 << 20] {
        let dir = scratch();
        let (mut store, tree) = open(dir.path(), Options { cache_bytes, ..options() });
        load(&mut store, tree, KEYS);
        pages.push(store.stats().pages);
    }
    // Slot, lengths, an LSN of two or three bytes, two or three digits of the key, the value.
    let cells = KEYS * (2 + 3 + 3 + 2 + 60);
    let fill = |pages: u64| cells as f64 / (pages * 4048) as f64;
    assert!((0.84..0.91).contains(&fill(pages[0])), "{} pages, {}", pages[0], fill(pages[0]));
    assert!(pages[1] * 100 <= pages[0] * 97, "{pages:?}");
}

/// A leaf in the middle holds twice as many long keys with a common beginning as the last leaf,
/// which stores them whole.
#[test]
fn long_keys_in_order_fill_their_leaves_too() {
    const KEYS: u64 = 20_000;
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    let long = |number: u64| format!("{}{number:010}", "relation/".repeat(10)).into_bytes();
    for number in 0..KEYS {
        store.put(tree, &long(number), Lsn::new(number + 1), &[b'v'; 20]).unwrap();
    }
    store.commit(Lsn::new(KEYS)).unwrap();
    let pages = store.stats().pages;
    // Slot, lengths, an LSN of two or three bytes, two or three digits of the key, the value. The
    // fences have a hundred bytes.
    let fill = (KEYS * (2 + 3 + 3 + 3 + 20)) as f64 / (pages * (4048 - 200)) as f64;
    assert!(fill > 0.8, "{pages} pages, {fill}");
    store.compact().unwrap();
    store.check().unwrap();
    assert!(store.stats().pages <= pages);
}

#[test]
fn a_size_limit_is_answered_and_kept() {
    let dir = scratch();
    let limit = 4 << 20;
    let limited = Options { size_bytes_max: Some(limit), cache_bytes: 1 << 20, ..options() };
    let (mut store, tree) = open(dir.path(), limited.clone());
    let mut lsn = 1;
    let full = loop {
        let value = vec![1; if lsn % 50 == 0 { 20_000 } else { 80 }];
        match store.put(tree, &key(lsn % 700), Lsn::new(lsn), &value) {
            Ok(()) => lsn += 1,
            Err(error) => break error,
        }
        if lsn % 100 == 0 {
            store.commit(Lsn::new(lsn)).unwrap();
            lsn += 1;
        }
    };
    assert!(full.is_full(), "{full}");
    assert!(full.to_string().contains("size limit"), "{full}");
    store.commit(Lsn::new(lsn)).unwrap();
    store.check().unwrap();
    let versions = store.check().unwrap().versions;
    drop(store);
    // After a crash at the limit, the store still opens, and nothing that was accepted is missing.
    let (mut store, tree) = open(dir.path(), limited);
    assert_eq!(store.check().unwrap().versions, versions);
    store.set_horizon(Lsn::new(lsn));
    store.commit(Lsn::new(lsn + 1)).unwrap();
    store.sweep_all().unwrap();
    for more in 0..5000 {
        store.put(tree, &key(more % 700), Lsn::new(lsn + 2 + more), &[2; 80]).unwrap();
    }
    store.commit(Lsn::new(lsn + 10_000)).unwrap();
    store.checkpoint().unwrap();
    assert!(std::fs::metadata(dir.path().join("versions")).unwrap().len() <= limit);
}

#[test]
fn wrong_calls_are_refused_by_name() {
    let dir = scratch();
    let (mut store, tree) = open(dir.path(), options());
    store.put(tree, b"a", Lsn::new(5), b"").unwrap();
    let early = store.commit(Lsn::new(4)).unwrap_err();
    assert!(early.to_string().contains("0/4 is before 0/5"), "{early}");
    store.commit(Lsn::new(5)).unwrap();
    assert!(
        store.put(tree, b"a", Lsn::new(5), b"").unwrap_err().to_string().contains("after the last commit")
    );
    assert!(store.put(tree, &[0; 769], Lsn::new(6), b"").unwrap_err().to_string().contains("too long"));
    store.put(tree, &[0; 768], Lsn::new(6), &vec![7; VALUE_BYTES_MAX]).unwrap();
    assert_eq!(store.latest(tree, &[0; 768]).unwrap().unwrap().value, vec![7; VALUE_BYTES_MAX]);
    assert!(
        store.tree("new", Kind::Window).unwrap_err().to_string().contains("between a change and its commit")
    );
    assert!(
        store
            .tree("history", Kind::Window)
            .unwrap_err()
            .to_string()
            .contains("is a history tree, not a window tree")
    );
    assert!(store.reader().snapshot_at(Lsn::new(6)).unwrap_err().to_string().contains("not committed"));
    let second = Store::open(&dir.path().join("versions"), options()).unwrap_err();
    assert!(second.is_io(), "it is open already: {second}");
    store.commit(Lsn::new(6)).unwrap();
    store.check().unwrap();
}
