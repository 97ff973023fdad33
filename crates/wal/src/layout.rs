//! The differences between majors, as a table. A page's magic number selects the row.

/// The properties of one major's WAL. There is one value for each major.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    major: u32,
    /// `XLOG_PAGE_MAGIC`.
    magic: u16,
    pub(crate) image: ImageBits,
    /// Whether extensions may have resource managers of their own.
    pub(crate) custom_rmgrs: bool,
}

/// The bits of a page image's `bimg_info`; zero where a major does not have it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImageBits {
    pub(crate) has_hole: u8,
    pub(crate) apply: u8,
    pub(crate) pglz: u8,
    pub(crate) lz4: u8,
    pub(crate) zstd: u8,
}

const IMAGE_14: ImageBits = ImageBits { has_hole: 0x01, pglz: 0x02, apply: 0x04, lz4: 0, zstd: 0 };
const IMAGE_15: ImageBits = ImageBits { has_hole: 0x01, apply: 0x02, pglz: 0x04, lz4: 0x08, zstd: 0x10 };

static LAYOUTS: [Layout; 5] = [
    Layout { major: 14, magic: 0xD10D, image: IMAGE_14, custom_rmgrs: false },
    Layout { major: 15, magic: 0xD110, image: IMAGE_15, custom_rmgrs: true },
    Layout { major: 16, magic: 0xD113, image: IMAGE_15, custom_rmgrs: true },
    Layout { major: 17, magic: 0xD116, image: IMAGE_15, custom_rmgrs: true },
    Layout { major: 18, magic: 0xD118, image: IMAGE_15, custom_rmgrs: true },
];

impl Layout {
    /// The layout of the major whose pages begin with `magic`.
    #[must_use]
    pub fn of_magic(magic: u16) -> Option<&'static Layout> {
        LAYOUTS.iter().find(|layout| layout.magic == magic)
    }

    /// The layout of a major version, if it is known.
    #[must_use]
    pub fn of_major(major: u32) -> Option<&'static Layout> {
        LAYOUTS.iter().find(|layout| layout.major == major)
    }

    /// 15 for 15.18.
    #[must_use]
    pub fn major(&self) -> u32 {
        self.major
    }
}
