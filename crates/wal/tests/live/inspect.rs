//! Comparison with pg_walinspect.

use std::collections::{BTreeMap, BTreeSet};

use base::Lsn;
use testkit::{Cluster, Major};
use wal::{Fork, PAGE_SIZE, Record};

use crate::server::Stretch;

/// What both sides say of a record.
#[derive(Debug, PartialEq, Clone)]
struct Facts {
    lsn: Lsn,
    end: Lsn,
    previous: Lsn,
    xid: u32,
    rmgr: String,
    length: usize,
    main_length: usize,
    /// The bytes of all page images in the record.
    images: usize,
    blocks: Vec<BlockFacts>,
}

#[derive(Debug, PartialEq, Clone)]
struct BlockFacts {
    id: u8,
    locator: String,
    fork: &'static str,
    number: u32,
    has_image: bool,
}

const FORKS: [(&str, Fork); 4] =
    [("main", Fork::Main), ("fsm", Fork::FreeSpaceMap), ("vm", Fork::VisibilityMap), ("init", Fork::Init)];

fn ours(record: &Record<'_>) -> Facts {
    let parts = record.parts().unwrap();
    let blocks: Vec<_> = parts.blocks().collect();
    let facts = |block: &wal::Block<'_>| BlockFacts {
        id: block.id,
        locator: block.locator.to_string(),
        fork: FORKS.iter().find(|(_, fork)| *fork == block.fork).unwrap().0,
        number: block.number,
        has_image: block.image.is_some(),
    };
    assert!(
        record.first_locator().is_none()
            || record.first_locator() == blocks.first().map(|block| block.locator)
    );
    Facts {
        lsn: record.lsn(),
        end: record.end(),
        previous: record.previous(),
        xid: record.xid().0,
        rmgr: record.rmgr().to_string(),
        length: record.bytes().len(),
        main_length: parts.main().len(),
        images: blocks.iter().filter_map(|block| block.image).map(|image| image.bytes.len()).sum(),
        blocks: blocks.iter().map(facts).collect(),
    }
}

fn theirs(stretch: &Stretch) -> Vec<Facts> {
    let sql = format!(
        "SELECT start_lsn, end_lsn, prev_lsn, xid, resource_manager, record_length, main_data_length, \
         coalesce(fpi_length, 0), coalesce(block_ref, '') FROM pg_get_wal_records_info('{}', '{}')",
        stretch.from, stretch.to
    );
    let rows = stretch.cluster.sql("postgres", &sql).unwrap();
    let facts = |row: &Vec<Option<String>>| {
        let text = |column: usize| row[column].clone().unwrap();
        let number = |column: usize| text(column).parse::<u32>().unwrap();
        Facts {
            lsn: text(0).parse().unwrap(),
            end: text(1).parse().unwrap(),
            previous: text(2).parse().unwrap(),
            xid: number(3),
            rmgr: text(4),
            length: number(5) as usize,
            main_length: number(6) as usize,
            images: number(7) as usize,
            blocks: blocks(&text(8)),
        }
    };
    rows.iter().map(facts).collect()
}

/// Parses `blkref #0: rel 1663/5/1249 fork main blk 3 (FPW); hole: offset: 108, length: 7744`,
/// then `blkref #1: ...`.
fn blocks(text: &str) -> Vec<BlockFacts> {
    let block = |text: &str| {
        let word = |before: &str| {
            let rest = text.split_once(before).unwrap_or_else(|| panic!("{text}")).1;
            rest.split([' ', ',', ';', ':']).next().unwrap()
        };
        let fork = FORKS.iter().find(|(name, _)| *name == word("fork ")).unwrap().0;
        BlockFacts {
            id: text.split(':').next().unwrap().parse().unwrap(),
            locator: word("rel ").to_owned(),
            fork,
            number: word("blk ").parse().unwrap(),
            has_image: text.contains("FPW"),
        }
    };
    text.split("blkref #").skip(1).map(block).collect()
}

fn majors() -> impl Iterator<Item = Major> {
    Major::under_test().into_iter().filter(|major| *major > Major::V14)
}

#[test]
fn every_record_is_what_the_server_says_of_it() {
    for major in majors() {
        let stretch = Stretch::of_work(Cluster::builder(major));
        let mut theirs = theirs(&stretch);
        let ours = stretch.read(usize::MAX, ours);
        // Up to 15, the function stops before a record that ends where the range does.
        theirs.truncate(ours.len());
        assert!(theirs.len() + 1 >= ours.len() && ours.len() > 3000, "{major}: {} records", ours.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{major}");
        }
        let rmgrs: BTreeSet<&str> = ours.iter().map(|facts| facts.rmgr.as_str()).collect();
        for rmgr in
            ["XLOG", "Transaction", "Storage", "Standby", "Heap2", "Heap", "Btree", "Hash", "Gin", "Gist"]
                .into_iter()
                .chain(["Sequence", "SPGist", "BRIN", "LogicalMessage"])
        {
            assert!(rmgrs.contains(rmgr), "{major}: no record of {rmgr}");
        }
        assert!(ours.iter().any(|facts| facts.blocks.len() > 1 && facts.images > 0), "{major}");
        compare_blocks(&stretch);
    }
}

/// From 16 on, the server gives each block's data and page image. Both must equal ours, byte by
/// byte.
fn compare_blocks(stretch: &Stretch) {
    if stretch.cluster.major() < Major::V16 {
        return;
    }
    let sql = format!(
        "SELECT start_lsn, block_id, coalesce(md5(block_data), ''), coalesce(md5(block_fpi_data), ''), \
         coalesce(block_fpi_info::text, '') FROM pg_get_wal_block_info('{}', '{}')",
        stretch.from, stretch.to
    );
    let rows = stretch.cluster.sql("postgres", &sql).unwrap();
    let mut theirs: BTreeMap<(Lsn, u8), (String, String, String)> = rows
        .into_iter()
        .map(|row| {
            let [lsn, id, data, image, info] =
                <[_; 5]>::try_from(row.into_iter().map(Option::unwrap).collect::<Vec<_>>()).unwrap();
            ((lsn.parse().unwrap(), id.parse().unwrap()), (data, image, info))
        })
        .collect();
    let major = stretch.cluster.major();
    let (mut hashes, mut images) = (Vec::new(), 0);
    stretch.read(usize::MAX, |record| {
        for block in record.parts().unwrap().blocks() {
            let Some((data, image, info)) = theirs.remove(&(record.lsn(), block.id)) else {
                assert!(record.end() == stretch.to, "{major}: {} block {}", record.lsn(), block.id);
                continue;
            };
            if let Some(ours) = block.image {
                assert_eq!(info.contains("APPLY"), ours.apply, "{major}: {}", record.lsn());
                assert_eq!(info.contains("HAS_HOLE"), ours.hole_length > 0, "{major}: {}", record.lsn());
                let mut page = [0; PAGE_SIZE];
                ours.restore(&mut page).unwrap();
                hashes.push((page.to_vec(), image));
                images += 1;
            } else {
                assert_eq!(image, "", "{major}: {}", record.lsn());
            }
            if !block.data.is_empty() || !data.is_empty() {
                hashes.push((block.data.to_vec(), data));
            }
        }
    });
    assert!(theirs.is_empty(), "{major}: blocks that we do not have: {:?}", theirs.keys().next());
    assert!(images > 50, "{major}: {images} page images");
    // The server hashes our bytes as it hashed its own.
    for chunk in hashes.chunks(500) {
        let values = chunk.iter().map(|(bytes, _)| format!("('\\x{}'::bytea)", hex(bytes)));
        let sql = format!("SELECT md5(v) FROM (VALUES {}) AS ours (v)", values.collect::<Vec<_>>().join(","));
        let rows = stretch.cluster.sql("postgres", &sql).unwrap();
        for (row, (_, theirs)) in rows.iter().zip(chunk) {
            assert_eq!(row[0].as_ref(), Some(theirs), "{major}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn pieces_of_any_size_give_the_same_records() {
    for major in Major::under_test() {
        let stretch = Stretch::of_work(Cluster::builder(major));
        let all = |record: &Record<'_>| (record.lsn(), record.end(), record.bytes().to_vec());
        let whole = stretch.read(usize::MAX, all);
        for piece in [1, 7, 24, 8191, 8192, 8193, 131_072] {
            assert!(stretch.read(piece, all) == whole, "{major}: pieces of {piece} bytes");
        }
    }
}
