//! Any bytes as the body of a file of catalogs, with the right length and checksum.
#![no_main]

use base::Xid;
use catalog::Catalog;

/// Length of magic, version and length field.
const HEADER: usize = 28;
const LENGTH_AT: usize = 20;
const CHECKSUM: usize = 4;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(body) = data.len().checked_sub(HEADER + CHECKSUM) else { return };
    let mut bytes = data.to_vec();
    bytes[LENGTH_AT..HEADER].copy_from_slice(&(body as u64).to_le_bytes());
    let end = HEADER + body;
    let checksum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    let Ok(catalog) = Catalog::from_bytes(&bytes) else { return };
    for (database, _) in catalog.databases() {
        let Some(view) = catalog.view(database, Xid::INVALID) else { continue };
        for oid in view.relations() {
            let Ok(Some(relation)) = view.relation(oid) else { continue };
            let _ = view.types(relation.columns.iter().map(|column| column.stored.type_oid));
        }
        for name in view.publications() {
            for oid in view.relations() {
                let _ = view.published(&[name], oid);
            }
        }
    }
    assert_eq!(catalog.difference(&catalog), None);
    // A catalog that was read can be written and read again.
    assert!(Catalog::from_bytes(&catalog.to_bytes()).is_ok());
});
