//! Pages of the first format.
//!
//! There, a cell began with two bytes for the length of its suffix, two for the length of its
//! payload with the flags, and eight for the LSN. No part of a cell is longer today, so each such
//! page has room for its cells in their present form. It is rebuilt when it is read, and written in
//! the new form when it is changed.

use super::{
    Builder, CELL_BYTES_MAX, CELL_DELETE, CELL_OVERFLOW, COUNT, Cell, CellFlags, FLAGS, FORMAT_2, HIGH_LEN,
    KEY_BYTES_MAX, LOW_LEN, PREFIX, Page, REMOVABLE, SLOT_BYTES, common_prefix,
};

const HEAD_BYTES: usize = 12;
const PAYLOAD: u16 = CELL_OVERFLOW - 1;

impl Page {
    /// The page in format 2; a page that already has it stays as it is. Check the result with
    /// [`Page::validate_node`].
    ///
    /// # Errors
    /// Why it is not a page of format 1 either.
    pub(crate) fn into_format_2(self) -> Result<Page, &'static str> {
        if !self.is_node() || self.bytes[FLAGS] & FORMAT_2 != 0 {
            return Ok(self);
        }
        let (low, high, prefix) = (self.u16(LOW_LEN), self.u16(HIGH_LEN), self.u16(PREFIX));
        if low > KEY_BYTES_MAX || high > KEY_BYTES_MAX || prefix > low {
            return Err("a fence is too long");
        }
        if self.high().map_or(0, |(high, _)| common_prefix(self.low().0, high)) != prefix {
            return Err("the fences do not share the prefix");
        }
        let mut builder = Builder::new(self.head(), &self.low_fence(), self.high_fence().as_ref());
        for index in 0..self.u16(COUNT) {
            let cell = self.format_1_cell(index).ok_or("a cell lies outside of the page")?;
            if !builder.push(self.prefix(), cell) {
                return Err("its cells do not add up");
            }
        }
        let mut page = builder.finish();
        page.set_u64(REMOVABLE, self.removable_from());
        Ok(page)
    }

    fn format_1_cell(&self, index: usize) -> Option<Cell<'_>> {
        let word = |at: usize| Some(u16::from_le_bytes(self.bytes.get(at..at + 2)?.try_into().ok()?));
        let start = usize::from(word(self.slots_start() + SLOT_BYTES * index)?);
        let (suffix_len, flags) = (usize::from(word(start)?), word(start + 2)?);
        let lsn = u64::from_le_bytes(self.bytes.get(start + 4..start + HEAD_BYTES)?.try_into().ok()?);
        let payload = start + HEAD_BYTES + suffix_len;
        let cell = Cell {
            suffix: self.bytes.get(start + HEAD_BYTES..payload)?,
            lsn,
            flags: CellFlags { delete: flags & CELL_DELETE != 0, overflow: flags & CELL_OVERFLOW != 0 },
            payload: self.bytes.get(payload..payload + usize::from(flags & PAYLOAD))?,
        };
        (suffix_len <= KEY_BYTES_MAX && cell.payload.len() <= CELL_BYTES_MAX).then_some(cell)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::super::{Fence, NEWEST, NodeHead, PAGE_BYTES};
    use super::*;

    /// The page in the first format.
    fn as_format_1(page: &Page) -> Page {
        let mut old = page.clone();
        old.bytes[FLAGS] &= !FORMAT_2;
        let mut start = PAGE_BYTES;
        for (index, cell) in page.cells().enumerate() {
            start -= HEAD_BYTES + cell.suffix.len() + cell.payload.len();
            let flags = if cell.flags.delete { CELL_DELETE } else { 0 }
                | if cell.flags.overflow { CELL_OVERFLOW } else { 0 };
            let head =
                [(cell.suffix.len() as u16).to_le_bytes(), (cell.payload.len() as u16 | flags).to_le_bytes()];
            let bytes = [&head.concat(), &cell.lsn.to_le_bytes()[..], cell.suffix, cell.payload].concat();
            old.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
            let slot = old.slots_start() + SLOT_BYTES * index;
            old.set_u16(slot, start);
        }
        old.set_u16(super::super::HEAP, start);
        old
    }

    fn leaf(low: &str, high: Option<&str>) -> Page {
        let fence = |key: &str| Fence { key: key.into(), lsn: NEWEST };
        let head = NodeHead { id: 7, tree: 1, level: 0, window: false, fence_void: false };
        let mut page = Builder::new(head, &fence(low), high.map(fence).as_ref()).finish();
        for (index, lsn) in [u64::MAX - 1, 1 << 40, 70_000, 300, 1].into_iter().enumerate() {
            let flags = CellFlags { delete: index % 2 == 1, overflow: false };
            let key = format!("{low}{}", "x".repeat(300));
            page.insert(index, key.as_bytes(), lsn, flags, &[b'v'; 20][..index * 5]);
        }
        page
    }

    #[test]
    fn a_page_of_the_first_format_becomes_one_of_the_second() {
        for page in [leaf("abc1", Some("abc9")), leaf("", None)] {
            let converted = as_format_1(&page).into_format_2().unwrap();
            assert_eq!((converted.validate_node(), converted.validate_order()), (Ok(()), Ok(())));
            let parts = |page: &Page| {
                let cells = page
                    .cells()
                    .map(|cell| (cell.suffix.to_vec(), cell.lsn, cell.flags, cell.payload.to_vec()));
                (
                    page.head(),
                    page.low_fence(),
                    page.high_fence(),
                    page.removable_from(),
                    cells.collect::<Vec<_>>(),
                )
            };
            assert_eq!(parts(&converted), parts(&page));
        }
    }

    #[test]
    fn no_bytes_of_the_first_format_make_it_panic() {
        let page = as_format_1(&leaf("abc1", Some("abc9")));
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        let mut read = 0;
        for _ in 0..50_000 {
            let mut broken = page.clone();
            for _ in 0..random.random_range(1..4) {
                let near = [80, PAGE_BYTES][random.random_range(0..2)];
                broken.bytes[random.random_range(0..near)] = random.random();
            }
            // A cell's head, which has the lengths.
            let start = page.cell_start(random.random_range(0..5));
            broken.bytes[start] ^= 1 << random.random_range(0..8);
            if let Ok(page) = broken.into_format_2()
                && page.validate_node().is_ok()
            {
                let _ = page.validate_order();
                read += 1;
            }
        }
        assert!(read > 1000, "{read} were read all the same");
    }
}
