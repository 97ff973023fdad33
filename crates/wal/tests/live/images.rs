//! Page images compared with the pages themselves.

use base::Lsn;
use testkit::{Cluster, Major};
use wal::{Compression, Fork, PAGE_SIZE, Record};

use crate::server::{Stretch, position};

/// A restored page, and where it is.
struct Restored {
    end: Lsn,
    number: u32,
    page: Box<[u8; PAGE_SIZE]>,
    compression: Compression,
}

fn restored(record: &Record<'_>, relfilenumber: u32) -> Vec<Restored> {
    let blocks = record.parts().unwrap().blocks();
    let blocks =
        blocks.filter(|block| block.locator.relfilenumber == relfilenumber && block.fork == Fork::Main);
    blocks
        .filter_map(|block| {
            let image = block.image.filter(|image| image.apply)?;
            let mut page = Box::new([0; PAGE_SIZE]);
            image.restore(&mut page).unwrap();
            Some(Restored { end: record.end(), number: block.number, page, compression: image.compression })
        })
        .collect()
}

/// The page as the server has it, and the LSN on it.
fn page(cluster: &Cluster, number: u32) -> (Vec<u8>, Lsn) {
    let hex = cluster.one("postgres", &format!("SELECT get_raw_page('t', {number})"));
    let digits = hex.strip_prefix("\\x").unwrap().as_bytes();
    let page: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let half = |at: usize| u64::from(u32::from_le_bytes(page[at..at + 4].try_into().unwrap()));
    let lsn = Lsn::new(half(0) << 32 | half(4));
    (page, lsn)
}

#[test]
fn an_image_is_the_page_in_every_compression_the_server_has() {
    for major in Major::under_test() {
        for setting in ["off", "pglz", "lz4", "zstd"] {
            let Some((compared, compression)) = compare(major, setting) else {
                println!("PostgreSQL {major} of these packages has no wal_compression = {setting}");
                continue;
            };
            assert!(compared > 5, "{major}, {setting}: {compared} pages");
            assert_eq!(format!("{compression:?}").to_lowercase().replace("none", "off"), setting);
        }
    }
}

/// How many images were compared, and how they were compressed. `None` if the server does not have
/// this compression.
fn compare(major: Major, setting: &str) -> Option<(usize, Compression)> {
    let setting = if major == Major::V14 { setting.replace("pglz", "on") } else { setting.to_owned() };
    let cluster = Cluster::builder(major).setting("autovacuum", "off").start().unwrap();
    cluster.sql("postgres", "CREATE EXTENSION pageinspect").unwrap();
    if cluster.sql("postgres", &format!("SET wal_compression = '{setting}'")).is_err() {
        return None;
    }
    // Frozen, so that only the deletion changes the pages, and no hint bits do.
    cluster
        .sql(
            "postgres",
            "CREATE TABLE t (id int, v text); \
             INSERT INTO t SELECT n, repeat('v', n % 50) FROM generate_series(1, 2000) n",
        )
        .unwrap();
    cluster.sql("postgres", "VACUUM FREEZE t").unwrap();
    cluster.sql("postgres", "CHECKPOINT").unwrap();
    let from = position(&cluster);
    // One row of each page.
    let delete = format!("SET wal_compression = '{setting}'; DELETE FROM t WHERE (ctid::text::point)[1] = 3");
    cluster.sql("postgres", &delete).unwrap();
    let to = position(&cluster);
    let file = cluster.one("postgres", "SELECT pg_relation_filenode('t')").parse().unwrap();
    let stretch = Stretch { cluster, from, to };
    let images: Vec<Restored> =
        stretch.read(usize::MAX, |record| restored(record, file)).into_iter().flatten().collect();
    let compression = images.first().map_or(Compression::None, |image| image.compression);
    let mut compared = 0;
    for image in images {
        let (page, lsn) = page(&stretch.cluster, image.number);
        // Otherwise a later record has changed the page again.
        if lsn == image.end {
            // The image was taken before the page was given its LSN.
            assert!(page[8..] == image.page[8..], "{major}, {setting}: block {}", image.number);
            assert_eq!(image.compression, compression);
            compared += 1;
        }
    }
    Some((compared, compression))
}
