//! Page images in records, and the pages they stand for.
//!
//! An image is a page without its hole, the unused bytes in the middle, which are zero. The rest
//! may be compressed. Parsing the record has checked the sizes; this module checks the contents.

use std::fmt;

use ruzstd::decoding::FrameDecoder;

use crate::page::PAGE_SIZE;

/// How an image was compressed (`wal_compression`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are PostgreSQL's names")]
pub enum Compression {
    None,
    Pglz,
    Lz4,
    Zstd,
}

/// A page image in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image<'a> {
    /// The page without its hole, perhaps compressed.
    pub bytes: &'a [u8],
    /// Where the hole starts.
    pub hole_offset: u16,
    /// The length of the hole.
    pub hole_length: u16,
    /// How `bytes` were compressed.
    pub compression: Compression,
    /// Whether the image shows the page after the record's change and replaces it. Otherwise it is
    /// only there for `wal_consistency_checking`.
    pub apply: bool,
}

/// An image that cannot be turned into a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageError(Compression);

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Compression::None => f.write_str("a page image is not as long as its page"),
            Compression::Pglz => f.write_str("a page image cannot be decompressed by pglz"),
            Compression::Lz4 => f.write_str("a page image cannot be decompressed by lz4"),
            Compression::Zstd => f.write_str("a page image cannot be decompressed by zstd"),
        }
    }
}

impl std::error::Error for ImageError {}

/// More than a page needs (a frame may ask for a block's 128 kB), and little enough to allocate it
/// for a wrong header.
const ZSTD_WINDOW_MAX: u64 = 1 << 20;

impl Image<'_> {
    /// Writes the page that the image stands for.
    ///
    /// # Errors
    /// When the compressed bytes are corrupt or have another length; the content of `page` is then
    /// undefined.
    pub fn restore(&self, page: &mut [u8; PAGE_SIZE]) -> Result<(), ImageError> {
        let wrong = ImageError(self.compression);
        let (start, hole) = (usize::from(self.hole_offset), usize::from(self.hole_length));
        let length = PAGE_SIZE.checked_sub(hole).filter(|length| start <= *length).ok_or(wrong)?;
        // The page is unpacked at the front. Then the part behind the hole moves to its place.
        let packed = &mut page[..length];
        match self.compression {
            Compression::None if self.bytes.len() == length => packed.copy_from_slice(self.bytes),
            Compression::None => return Err(wrong),
            Compression::Pglz => pglz::decompress(self.bytes, packed).map_err(|_| wrong)?,
            Compression::Lz4 => match lz4_flex::block::decompress_into(self.bytes, packed) {
                Ok(written) if written == length => {}
                _ => return Err(wrong),
            },
            Compression::Zstd => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(ZSTD_WINDOW_MAX);
                match decoder.decode_all(self.bytes, packed) {
                    Ok(written) if written == length => {}
                    _ => return Err(wrong),
                }
            }
        }
        page.copy_within(start..length, start + hole);
        page[start..start + hole].fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    const HOLE: std::ops::Range<usize> = 1000..5000;

    fn page() -> Vec<u8> {
        (0..PAGE_SIZE).map(|n| if HOLE.contains(&n) { 0 } else { (n / 7 % 251) as u8 }).collect()
    }

    fn image(bytes: &[u8], compression: Compression) -> Image<'_> {
        Image {
            bytes,
            hole_offset: HOLE.start as u16,
            hole_length: HOLE.len() as u16,
            compression,
            apply: true,
        }
    }

    #[test]
    fn each_compression_gives_the_page_back_and_each_byte_less_an_error() {
        let page = page();
        let raw = [&page[..HOLE.start], &page[HOLE.end..]].concat();
        // pglz has no compressor here: literals are a valid stream too.
        let literals = raw.chunks(8).flat_map(|chunk| [&[0], chunk].concat()).collect();
        let cases = [
            (Compression::None, raw.clone()),
            (Compression::Pglz, literals),
            (Compression::Lz4, lz4_flex::block::compress(&raw)),
            (Compression::Zstd, compress_to_vec(&raw[..], CompressionLevel::Fastest)),
        ];
        for (compression, bytes) in cases {
            let mut restored = [0xff; PAGE_SIZE];
            image(&bytes, compression).restore(&mut restored).unwrap();
            assert!(restored[..] == page[..], "{compression:?}");
            for length in 0..bytes.len() {
                let cut = image(&bytes[..length], compression).restore(&mut restored);
                assert_eq!(cut, Err(ImageError(compression)), "{length} bytes");
            }
            let longer = [&bytes[..], &bytes[..]].concat();
            assert!(image(&longer, compression).restore(&mut restored).is_err(), "{compression:?}");
        }
    }

    #[test]
    fn a_hole_that_is_no_part_of_the_page_is_refused() {
        let bytes = [0; PAGE_SIZE];
        for (hole_offset, hole_length) in [(8000, 193), (0, 8193), (u16::MAX, 1), (1, u16::MAX)] {
            let image = Image { hole_offset, hole_length, ..image(&bytes, Compression::None) };
            assert!(image.restore(&mut [0; PAGE_SIZE]).is_err());
        }
    }
}
