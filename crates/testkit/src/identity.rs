//! A system identifier of its own for a copied data directory.
//!
//! All copies of one template would claim to be the same cluster. A program that refuses to
//! replicate a cluster into itself would then refuse every pair. The identifier stands in two
//! places (`src/include/catalog/pg_control.h`, `src/include/access/xlog_internal.h`):
//! - the first eight bytes of `global/pg_control`, whose CRC-32C follows its last field;
//! - the long header on the first page of each WAL segment, which has no checksum of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// `xlp_info` bit of a page that opens a segment.
const XLP_LONG_HEADER: u16 = 0x0002;
/// Offset of `xlp_sysid`: the short header is 20 bytes, aligned to 24.
const XLP_SYSID: u64 = 24;
/// `PG_CONTROL_MAX_SAFE_SIZE`: the struct, its CRC included, fits one disk sector.
const CONTROL_SIZE_MAX: usize = 512;

/// Writes `identifier` into a data directory that was shut down cleanly and is not running. The
/// identifier is positive as an `int8`, the form in which SQL shows it.
pub(crate) fn set(data: &Path, identifier: u64) -> Result<()> {
    set_control(&data.join("global/pg_control"), identifier).context("pg_control")?;
    for entry in std::fs::read_dir(data.join("pg_wal"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            set_segment(&path, identifier).with_context(|| format!("WAL segment {name}"))?;
        }
    }
    Ok(())
}

fn set_control(path: &Path, identifier: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut bytes = vec![0; CONTROL_SIZE_MAX];
    file.read_exact_at(&mut bytes, 0)?;
    // The struct's length differs by major, so its CRC is found where it holds.
    let Some(at) = crc_offset(&bytes) else { bail!("no CRC-32C holds") };
    bytes[..8].copy_from_slice(&identifier.to_ne_bytes());
    let crc = crc32c(&bytes[..at]).to_ne_bytes();
    file.write_all_at(&bytes[..8], 0)?;
    Ok(file.write_all_at(&crc, at as u64)?)
}

fn set_segment(path: &Path, identifier: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut info = [0; 2];
    file.read_exact_at(&mut info, 2)?;
    ensure!(u16::from_ne_bytes(info) & XLP_LONG_HEADER != 0, "its first page has no long header");
    Ok(file.write_all_at(&identifier.to_ne_bytes(), XLP_SYSID)?)
}

/// Where four aligned bytes are the CRC-32C of everything before them.
fn crc_offset(bytes: &[u8]) -> Option<usize> {
    (16..bytes.len() - 4)
        .step_by(4)
        .find(|&at| bytes[at..at + 4] == crc32c(&bytes[..at]).to_ne_bytes() && bytes[at..at + 4] != [0; 4])
}

/// CRC-32C (Castagnoli), bit by bit: half a kilobyte per cluster needs no table.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn the_checksum_is_found_behind_what_it_covers() {
        let mut bytes: Vec<u8> = (0..200).collect();
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_ne_bytes());
        bytes.resize(CONTROL_SIZE_MAX, 0);
        assert_eq!(crc_offset(&bytes), Some(200));
        bytes[100] ^= 1;
        assert_eq!(crc_offset(&bytes), None);
    }
}
