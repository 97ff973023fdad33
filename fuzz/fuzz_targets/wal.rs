//! Any bytes as pages of WAL, whole and in pieces. Both give the same records and the same end, or
//! the same error. The first byte is the pieces' size.
#![no_main]

#[path = "../../crates/wal/tests/damage/recorded.rs"]
#[allow(dead_code, reason = "only a part is for fuzzing")]
mod recorded;

use base::Lsn;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((piece, pages)) = data.split_first() else { return };
    // The position that the first page claims, so that the page can be valid.
    let address = pages.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let start = Lsn::new(address / 8192 * 8192 % (1 << 62));
    let whole = recorded::read(pages, start, usize::MAX);
    assert_eq!(recorded::read(pages, start, usize::from(*piece) + 1), whole);
});
