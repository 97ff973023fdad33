//! Any bytes as one record with the right length and checksum. The first byte is the major, from 14
//! on.
#![no_main]

#[path = "../../crates/decode/tests/damage/look.rs"]
mod look;
#[path = "../../crates/wal/tests/damage/recorded.rs"]
#[allow(dead_code, reason = "only a part is for fuzzing")]
mod recorded;

use base::Lsn;
use wal::{Layout, Record};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((major, bytes)) = data.split_first() else { return };
    let Some(layout) = Layout::of_major(14 + u32::from(*major) % 5) else { return };
    let mut bytes = bytes.to_vec();
    recorded::seal(&mut bytes);
    let lsn = Lsn::new(1 << 24);
    let Ok(record) = Record::read(&bytes, lsn, lsn, layout) else { return };
    if let Ok(parts) = record.parts() {
        for image in parts.blocks().filter_map(|block| block.image) {
            let _ = image.restore(&mut [0; wal::PAGE_SIZE]);
        }
    }
    if let Ok(decoded) = decode::decode(&record) {
        look::look(&decoded.what);
    }
});
