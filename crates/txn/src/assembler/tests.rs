//! Messages written by hand, in every order that the walsender may choose.

use std::io::Read;

use base::Lsn;

use super::*;
use crate::DirSpool;

fn lsn_time(lsn: u64) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(lsn.to_be_bytes());
    bytes.extend((lsn + 8).to_be_bytes());
    bytes.extend(0_i64.to_be_bytes());
    bytes
}

fn begin(lsn: u64, xid: u32) -> Bytes {
    let mut bytes = vec![b'B'];
    bytes.extend(lsn.to_be_bytes());
    bytes.extend(0_i64.to_be_bytes());
    bytes.extend(xid.to_be_bytes());
    bytes.into()
}

fn commit(lsn: u64) -> Bytes {
    [vec![b'C'], lsn_time(lsn)].concat().into()
}

fn relation(subxid: Option<u32>) -> Bytes {
    let mut bytes = vec![b'R'];
    bytes.extend(subxid.iter().flat_map(|xid| xid.to_be_bytes()));
    bytes.extend(b"\0\0\x40\0s\0t\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff");
    bytes.into()
}

fn insert(subxid: Option<u32>, value: &str) -> Bytes {
    let mut bytes = vec![b'I'];
    bytes.extend(subxid.iter().flat_map(|xid| xid.to_be_bytes()));
    bytes.extend(b"\0\0\x40\0N\0\x01t");
    bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
    bytes.extend(value.bytes());
    bytes.into()
}

fn stream(kind: u8, xid: u32, rest: &[u8]) -> Bytes {
    let mut bytes = vec![kind];
    bytes.extend(xid.to_be_bytes());
    bytes.extend(rest);
    bytes.into()
}

/// Returns what came out, one word for each event.
fn drive(assembler: &mut Assembler, messages: impl IntoIterator<Item = Bytes>) -> Vec<String> {
    let mut seen = Vec::new();
    for message in messages {
        assembler.push(message).unwrap();
        while let Some(event) = assembler.next().unwrap() {
            seen.push(match event {
                Event::Begin(Begin { xid, origin: None, .. }) => format!("begin {xid}"),
                Event::Begin(Begin { xid, origin: Some(origin), .. }) => format!("begin {xid} from {origin}"),
                Event::Origin(origin) => format!("from {origin}"),
                Event::Change(Change { op: Op::Insert(new), .. }) => match new.columns().next() {
                    Some(pgoutput::Column::Text(value)) if value.len() < 10 => {
                        String::from_utf8(value.to_vec()).unwrap()
                    }
                    _ => "long".to_owned(),
                },
                Event::Change(_) | Event::Truncate(_) => unreachable!(),
                Event::Commit(commit) => format!("commit {}", commit.end_lsn),
            });
        }
    }
    seen
}

fn assembler() -> (Assembler, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let spool = DirSpool::open(dir.path().join("spool")).unwrap();
    (Assembler::new(Box::new(spool)), dir)
}

#[test]
fn blocks_of_open_transactions_come_out_whole_at_their_commit() {
    let (mut assembler, dir) = assembler();
    let stop = || Bytes::from_static(b"E");
    let seen = drive(
        &mut assembler,
        [
            stream(b'S', 7, b"\x01"),
            relation(Some(7)),
            insert(Some(7), "a"),
            insert(Some(8), "gone"),
            stop(),
            stream(b'S', 9, b"\x01"),
            relation(Some(9)),
            insert(Some(9), "x"),
            stop(),
            stream(b'A', 7, &8_u32.to_be_bytes()),
            begin(0x100, 10),
            relation(None),
            insert(None, "small"),
            commit(0x100),
            stream(b'S', 7, b"\0"),
            insert(Some(7), "b"),
            stop(),
            stream(b'A', 9, &9_u32.to_be_bytes()),
            stream(b'c', 7, &lsn_time(0x200)),
        ],
    );
    assert_eq!(seen, ["begin 10", "small", "commit 0/108", "begin 7", "a", "b", "commit 0/208"]);
    assert!(assembler.is_outside());
    assert_eq!(assembler.open_transactions(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("spool")).unwrap().count(), 0, "spool files are left");
}

fn origin() -> Bytes {
    let mut message = vec![b'O'];
    message.extend_from_slice(&0x50_u64.to_be_bytes());
    message.extend_from_slice(b"elsewhere\0");
    message.into()
}

#[test]
fn with_local_only_what_has_an_origin_comes_out_without_changes() {
    let stop = || Bytes::from_static(b"E");
    let messages = || {
        [
            begin(0x100, 10),
            origin(),
            relation(None),
            insert(None, "echo"),
            commit(0x100),
            begin(0x200, 11),
            insert(None, "own"),
            commit(0x200),
            stream(b'S', 12, b"\x01"),
            origin(),
            relation(Some(12)),
            insert(Some(12), "echo"),
            stop(),
            stream(b'S', 13, b"\x01"),
            relation(Some(13)),
            insert(Some(13), "own"),
            stop(),
            stream(b'S', 12, b"\0"),
            insert(Some(12), "echo"),
            stop(),
            stream(b'c', 12, &lsn_time(0x300)),
            stream(b'c', 13, &lsn_time(0x400)),
            begin(0x500, 14),
            insert(None, "own"),
            commit(0x500),
        ]
    };
    let (assembler, _dir) = assembler();
    let seen = drive(&mut assembler.with_local_only(true), messages());
    let small = ["begin 10", "from elsewhere", "commit 0/108", "begin 11", "own", "commit 0/208"];
    let streamed = ["begin 12 from elsewhere", "commit 0/308", "begin 13", "own", "commit 0/408"];
    assert_eq!(seen, [&small[..], &streamed[..], &["begin 14", "own", "commit 0/508"]].concat());
    let (mut assembler, _dir) = self::assembler();
    let all = drive(&mut assembler, messages());
    assert_eq!(all.iter().filter(|event| *event == "echo").count(), 3);
    assert_eq!(all.iter().filter(|event| event.ends_with("from elsewhere")).count(), 2);
}

fn grown(assembler: &mut Assembler) -> (u64, usize) {
    match assembler.notice() {
        Some(Notice::Grown { xid: Xid(7), bytes, relations }) => (bytes, relations.len()),
        notice => panic!("{notice:?}"),
    }
}

fn values(streamed: &mut Streamed, end: u64) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(event) = streamed.next(end).unwrap() {
        let Event::Change(Change { op: Op::Insert(new), .. }) = event else { panic!("{event:?}") };
        let Some(pgoutput::Column::Text(value)) = new.columns().next() else { panic!("no value") };
        seen.push(String::from_utf8(value.to_vec()).unwrap());
    }
    seen
}

#[test]
fn an_open_transaction_is_read_as_far_as_it_has_come_and_taken_over_at_its_end() {
    let (mut assembler, dir) = assembler();
    let stop = || Bytes::from_static(b"E");
    drive(&mut assembler, [stream(b'S', 7, b"\x01"), relation(Some(7)), insert(Some(7), "a"), stop()]);
    let (first, described) = grown(&mut assembler);
    assert_eq!(described, 1);
    let mut early = assembler.streamed(Xid(7)).unwrap();
    assert_eq!(values(&mut early, first), ["a"]);
    drive(&mut assembler, [stream(b'S', 7, b"\0"), insert(Some(7), "b"), insert(Some(8), "c"), stop()]);
    // Nothing beyond the reported bytes is read.
    assert_eq!(values(&mut early, first), [""; 0]);
    let (second, _) = grown(&mut assembler);
    assert_eq!(values(&mut early, second), ["b", "c"]);

    assembler.push(stream(b'c', 7, &lsn_time(0x200))).unwrap();
    assert!(assembler.take_over().unwrap().is_none(), "its begin was not seen");
    assert!(matches!(assembler.next(), Ok(Some(Event::Begin(_)))));
    let (mut whole, ended) = assembler.take_over().unwrap().unwrap();
    assert_eq!(ended.end_lsn, Lsn::new(0x208));
    assert!(assembler.is_outside() && assembler.next().unwrap().is_none());
    assert_eq!(std::fs::read_dir(dir.path().join("spool")).unwrap().count(), 0);
    assert_eq!(values(&mut whole, u64::MAX), ["a", "b", "c"]);
    // The relations that it described now hold for all transactions.
    let seen = drive(&mut assembler, [begin(0x300, 9), insert(None, "d"), commit(0x300)]);
    assert_eq!(seen, ["begin 9", "d", "commit 0/308"]);
}

#[test]
fn of_what_was_aborted_in_part_nothing_is_taken_over() {
    let (mut assembler, _dir) = assembler();
    let stop = || Bytes::from_static(b"E");
    drive(&mut assembler, [stream(b'S', 7, b"\x01"), relation(Some(7)), insert(Some(8), "a"), stop()]);
    grown(&mut assembler);
    drive(&mut assembler, [stream(b'A', 7, &8_u32.to_be_bytes())]);
    assert!(matches!(assembler.notice(), Some(Notice::Aborted(Xid(7)))));
    drive(&mut assembler, [stream(b'S', 7, b"\0"), insert(Some(7), "b"), stop()]);
    assert!(assembler.notice().is_none());
    assembler.push(stream(b'c', 7, &lsn_time(0x200))).unwrap();
    assert!(matches!(assembler.next(), Ok(Some(Event::Begin(_)))));
    assert!(assembler.take_over().unwrap().is_none());
    assert_eq!(drive(&mut assembler, []), [""; 0]);
    let mut rest = Vec::new();
    while let Some(event) = assembler.next().unwrap() {
        rest.push(matches!(event, Event::Commit(_)));
    }
    assert_eq!(rest, [false, true]);
}

#[test]
fn a_transaction_larger_than_every_buffer_reads_back() {
    let (mut assembler, _dir) = assembler();
    let long = "y".repeat(3 * BLOCK);
    let mut messages = vec![stream(b'S', 7, b"\x01"), relation(Some(7))];
    for i in 0..50_000 {
        messages.push(if i % 20_000 == 7 { insert(Some(7), &long) } else { insert(Some(7), &i.to_string()) });
    }
    messages.push(Bytes::from_static(b"E"));
    messages.push(stream(b'c', 7, &lsn_time(0x200)));
    let seen = drive(&mut assembler, messages);
    assert_eq!(seen.len(), 50_002);
    assert_eq!(seen.iter().filter(|word| *word == "long").count(), 3);
    assert_eq!(seen[1], "0");
    assert_eq!(seen[50_000], "49999");
}

#[test]
fn what_does_not_belong_is_an_error() {
    for messages in [
        vec![commit(1)],
        vec![insert(None, "a")],
        vec![begin(1, 1), begin(2, 2)],
        vec![begin(1, 1), insert(None, "a")],
        vec![stream(b'c', 7, &lsn_time(0x200))],
        vec![Bytes::from_static(b"b")],
    ] {
        let (mut assembler, _dir) = assembler();
        let result = messages.into_iter().try_for_each(|message| {
            assembler.push(message)?;
            while assembler.next()?.is_some() {}
            Ok::<_, AssemblyError>(())
        });
        assert!(result.is_err());
    }
}

#[test]
fn errors_say_what_came_and_in_which_transaction() {
    let two_values: Bytes = [b"I\0\0\x40\0N\0\x02n".as_slice(), b"n"].concat().into();
    let binary = Bytes::from_static(b"I\0\0\x40\0N\0\x01b\0\0\0\x01x");
    let cut = insert(None, "abc").slice(..9);
    let inside = |message: Bytes| vec![begin(0x100, 7), relation(None), message];
    let stop = || Bytes::from_static(b"E");
    for (messages, expected) in [
        (
            inside(two_values),
            "a row with 2 values came for relation \"s.t\", which has 1 columns, in transaction 7 that finished at 0/100",
        ),
        (
            inside(binary),
            "a binary value that was not asked for came for relation \"s.t\", in transaction 7 that finished at 0/100",
        ),
        (
            inside(cut),
            "pgoutput message 'I', byte 8: a column's length is cut short, in transaction 7 that finished at 0/100",
        ),
        (
            inside(commit(0x200)),
            "a commit at 0/200 came where 0/100 was announced, in transaction 7 that finished at 0/100",
        ),
        (vec![stream(b'S', 7, b"\x01"), stop(), stream(b'S', 7, b"\x01")], "stream start came a second time"),
        (vec![stream(b'S', 7, b"\0")], "stream start came without the blocks before it"),
        (
            vec![stream(b'S', 7, b"\x01"), insert(Some(7), "a"), stop(), stream(b'c', 7, &lsn_time(0x200))],
            "a change came for relation 16384, which the source has not described, in transaction 7 that finished at 0/200",
        ),
    ] {
        let (assembler, _dir) = assembler();
        let mut assembler = assembler.with_binary(false);
        let result = messages.into_iter().try_for_each(|message| {
            assembler.push(message)?;
            while assembler.next()?.is_some() {}
            Ok::<_, AssemblyError>(())
        });
        let told = result.unwrap_err().to_string();
        let told = told.strip_prefix("the source's stream cannot be read: ").expect("the object");
        let (told, remedy) = told.split_once("; ").expect("a remedy");
        assert_eq!(told, expected);
        assert!(remedy.starts_with("pgsluice reads it again from the last commit"), "{remedy}");
    }
}

/// A disk that is full after some bytes.
struct FullDisk(usize);

impl Spool for FullDisk {
    fn append(&mut self, _: Xid, bytes: &[u8]) -> io::Result<()> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }

    fn read(&mut self, _: Xid) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(io::Cursor::new(vec![0, 0, 1, 0, 1])))
    }

    fn remove(&mut self, _: Xid) -> io::Result<()> {
        Ok(())
    }

    fn scratch(&mut self) -> io::Result<std::fs::File> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_full_disk_and_a_short_file_are_errors_of_the_disk() {
    let blocks = || [stream(b'S', 7, b"\x01"), relation(Some(7)), Bytes::from_static(b"E")];
    let mut full = Assembler::new(Box::new(FullDisk(10)));
    let failed = blocks().into_iter().find_map(|message| full.push(message).err()).unwrap();
    assert!(failed.is_disk());

    let mut short = Assembler::new(Box::new(FullDisk(1000)));
    blocks().into_iter().for_each(|message| short.push(message).unwrap());
    short.push(stream(b'c', 7, &lsn_time(1))).unwrap();
    assert!(matches!(short.next(), Ok(Some(Event::Begin(_)))));
    assert!(short.next().unwrap_err().is_disk());
}
