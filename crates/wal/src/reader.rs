//! Bytes in, records out.
//!
//! ```text
//!             page begins with a rest            rest is over
//! Unsynced ─────────────────────────────> Tail ──────────────┐
//!    │ page begins with a record                              v
//!    └────────────────────────────────────────────────────> Between <──┐ record is whole and right
//!                                                             │        │
//!       length 0, zeroed or recycled page     length is there v        │
//! Ended <─────────────────────────────────────────────────  Inside ────┤ (overwritten by the next page:
//!                                                             │        │  back to Between without it)
//!                                              switch record  v        │
//!                                                          Switched ───┘ the segment is over
//! ```
//!
//! Invariants:
//! - `position` is the LSN of the next byte of input. It only grows, by each byte once.
//! - Every record starts where the one before ended and names that in `xl_prev`. The first record
//!   is found by the length of the rest on the page.
//! - Memory grows with the bytes that came, never with a length that was read. A wrong length is
//!   found at the next page, which says itself how much is left.
//! - After an error, only that error comes. After [`Reader::zeros_from`] nothing comes, or an error
//!   if WAL goes on after all.
//!
//! Timelines: a page's timeline never decreases. It increases only where a record starts the new
//! one (end of recovery, or a shutdown checkpoint). WAL of the old timeline from behind the switch
//! is therefore an error: the first record after the switch is not the required one.

mod accept;
mod pages;

use base::Lsn;

use crate::error::{Error, Kind, Result};
use crate::layout::Layout;
use crate::page::{LONG_HEADER, PAGE, PAGE_SIZE};
use crate::record::{self, HEADER, LENGTH_MAX, Record};
use crate::rmgr::Rmgr;

/// Where to begin, and what is known of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The first record is the first one that starts here or later.
    pub lsn: Lsn,
    /// `wal_segment_size` in bytes.
    pub segment_size: u64,
    /// The cluster. WAL of another cluster is an error. If unknown, it is taken from the start of
    /// the first segment.
    pub system_id: Option<u64>,
    /// The timeline of the page at `lsn`. If unknown, it is taken from that page.
    pub timeline: Option<u32>,
}

impl Start {
    /// Begins at `lsn`, in segments of the usual size, 16 MB.
    #[must_use]
    pub fn at(lsn: Lsn) -> Start {
        Start { lsn, segment_size: 16 << 20, system_id: None, timeline: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first page's header.
    Unsynced,
    /// In a record that started before the first page, with this many bytes left.
    Tail(u32),
    /// Behind a record, before the padding that follows it.
    Between,
    /// In the record that starts at `lsn`. `scratch` has the bytes so far. `length` is 0 until it
    /// is known.
    Inside { lsn: Lsn, length: u32, is_checked: bool },
    /// Behind a switch record: the rest of the segment has no meaning.
    Switched,
    /// WAL ended at `at`, in the middle of the record at `open` if there is one.
    Ended { at: Lsn, open: Option<Lsn> },
}

/// Reads one stretch of WAL.
#[derive(Debug)]
pub struct Reader {
    start: Lsn,
    segment_size: u64,
    system_id: Option<u64>,
    /// The timeline of the last page, or the one that a record announced since then; 0 before the
    /// first page.
    timeline: u32,
    /// The previous timeline, until the record comes that starts the present one.
    unannounced: Option<u32>,
    layout: Option<&'static Layout>,
    position: Lsn,
    state: State,
    /// The previous record; invalid before the first one.
    previous: Lsn,
    /// The record whose rest was lost in a crash. The next record must name it.
    overwritten: Option<Lsn>,
    /// The header of the page that starts at `position - header_have`.
    header: [u8; LONG_HEADER],
    header_have: usize,
    scratch: Vec<u8>,
    error: Option<Error>,
}

/// A whole record, in the scratch or at the front of the input.
struct FoundRecord {
    lsn: Lsn,
    end: Lsn,
    /// The number of its bytes in the input; 0 if it is in the scratch.
    in_input: usize,
}

/// A record that passed all checks.
struct Accepted {
    lsn: Lsn,
    end: Lsn,
    rmgr: Rmgr,
}

/// A record to hand out, with its bytes unless they are in the scratch.
struct Wanted<'b> {
    accepted: Accepted,
    bytes: Option<&'b [u8]>,
}

/// Memory kept for the next record that crosses a page. What a longer record needed is given back.
const SCRATCH_KEPT_BYTES: usize = 1 << 20;

const fn align8(lsn: Lsn) -> u64 {
    lsn.as_u64().next_multiple_of(8)
}

fn plus(lsn: Lsn, bytes: usize) -> Lsn {
    Lsn::new(lsn.as_u64() + bytes as u64)
}

impl Reader {
    /// Makes a reader that has seen nothing yet. The bytes must begin at [`Reader::position`], the
    /// page of `start.lsn`.
    ///
    /// # Errors
    /// When the segment size is not possible.
    pub fn new(start: Start) -> Result<Reader> {
        if !start.segment_size.is_power_of_two() || !(1 << 20..=1 << 30).contains(&start.segment_size) {
            let what = format!("{} bytes are no possible size of a segment", start.segment_size);
            return Err(Error::new(start.lsn, Kind::Misuse(what)));
        }
        Ok(Reader {
            start: start.lsn,
            segment_size: start.segment_size,
            system_id: start.system_id,
            timeline: start.timeline.unwrap_or(0),
            unannounced: None,
            layout: None,
            position: Lsn::new(start.lsn.as_u64() / PAGE * PAGE),
            state: State::Unsynced,
            previous: Lsn::INVALID,
            overwritten: None,
            header: [0; LONG_HEADER],
            header_have: 0,
            scratch: Vec::new(),
            error: None,
        })
    }

    /// Where the next bytes must begin.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// The layout of the major that wrote the WAL, once a page was seen.
    #[must_use]
    pub fn layout(&self) -> Option<&'static Layout> {
        self.layout
    }

    /// The timeline of the last page or record; `None` before the first page.
    #[must_use]
    pub fn timeline(&self) -> Option<u32> {
        (self.timeline != 0).then_some(self.timeline)
    }

    /// The cluster's system identifier: the given one, or the one from the first start of a
    /// segment.
    #[must_use]
    pub fn system_id(&self) -> Option<u64> {
        self.system_id
    }

    /// The end of WAL, if the bytes showed it: from there on came only zeros, or pages of an
    /// earlier use of the segment. The caller must know whether WAL may end there.
    #[must_use]
    pub fn zeros_from(&self) -> Option<Lsn> {
        match self.state {
            State::Ended { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Notes that there is no more input, and returns where the next record would start.
    ///
    /// # Errors
    /// When the input ended in the middle of a record, or there was an error before.
    pub fn finish(&self) -> Result<Lsn> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        match self.state {
            State::Inside { lsn, .. } | State::Ended { open: Some(lsn), .. } => {
                Err(Error::new(lsn, Kind::Incomplete))
            }
            State::Tail(_) => Err(Error::new(self.position, Kind::Incomplete)),
            State::Ended { at, open: None } => Ok(at),
            State::Switched => Ok(self.segment_end()),
            // Not behind a part of a page's header: that belongs to what comes next.
            State::Unsynced | State::Between => {
                Ok(Lsn::new((self.position.as_u64() - self.header_have as u64).next_multiple_of(8)))
            }
        }
    }

    /// Hands over the bytes from `at` on. Poll the result until it has nothing more.
    ///
    /// # Errors
    /// When `at` is not [`Reader::position`], or there was an error before.
    pub fn push<'r, 'b>(&'r mut self, at: Lsn, bytes: &'b [u8]) -> Result<Records<'r, 'b>> {
        if at != self.position && self.error.is_none() {
            self.error = Some(Error::new(self.position, Kind::Gap { pushed: at }));
        }
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(Records { reader: self, input: bytes }),
        }
    }

    /// The next record in `input`, which begins at `position`; `None` when all input was taken.
    fn next(&mut self, input: &mut &[u8]) -> Result<Option<FoundRecord>> {
        while !input.is_empty() {
            if let State::Switched = self.state {
                self.skip(input, self.segment_end().bytes_since(self.position));
                if self.position == self.segment_end() {
                    self.state = State::Between;
                }
                continue;
            }
            if self.header_have > 0 || self.position.as_u64().is_multiple_of(PAGE) {
                self.page_header(input)?;
                continue;
            }
            match self.state {
                State::Ended { at, .. } => self.rest_of_ended(at, input)?,
                State::Tail(left) => {
                    let taken = self.skip(input, u64::from(left).min(self.page_left()));
                    let left = left - taken as u32;
                    self.state = if left == 0 { State::Between } else { State::Tail(left) };
                }
                State::Between => {
                    self.skip(input, align8(self.position) - self.position.as_u64());
                    let is_aligned = self.position.as_u64().is_multiple_of(8);
                    let is_in_page = !self.position.as_u64().is_multiple_of(PAGE);
                    if is_aligned
                        && is_in_page
                        && !input.is_empty()
                        && let Some(found) = self.begin(input)?
                    {
                        return Ok(Some(found));
                    }
                }
                State::Inside { lsn, length, is_checked } => {
                    if let Some(found) = self.gather(lsn, length, is_checked, input)? {
                        return Ok(Some(found));
                    }
                }
                State::Unsynced | State::Switched => {
                    unreachable!("a page's header ends the one, the loop the other")
                }
            }
        }
        Ok(None)
    }

    fn page_left(&self) -> u64 {
        PAGE - self.position.as_u64() % PAGE
    }

    /// The end of the segment with the last byte.
    fn segment_end(&self) -> Lsn {
        // If a switch record fills its segment, there is nothing to skip.
        Lsn::new(self.position.as_u64().next_multiple_of(self.segment_size))
    }

    /// Takes up to `length` bytes. Returns how many.
    fn skip(&mut self, input: &mut &[u8], length: u64) -> usize {
        let taken = usize::try_from(length).unwrap_or(usize::MAX).min(input.len());
        *input = &input[taken..];
        self.position = plus(self.position, taken);
        taken
    }

    /// Takes the first bytes of a record, or the whole record if it is there.
    fn begin(&mut self, input: &mut &[u8]) -> Result<Option<FoundRecord>> {
        let lsn = self.position;
        let within = usize::try_from(self.page_left()).unwrap_or(PAGE_SIZE).min(input.len());
        if within >= HEADER && record::total_length(input) != 0 {
            let length = self.check_length(lsn, input)? as usize;
            self.check_header(lsn, &input[..HEADER])?;
            if length <= within {
                self.skip(input, length as u64);
                return Ok(Some(FoundRecord { lsn, end: self.end(), in_input: length }));
            }
        }
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_KEPT_BYTES);
        self.state = State::Inside { lsn, length: 0, is_checked: false };
        Ok(None)
    }

    /// Adds input to a record that is being put together.
    fn gather(
        &mut self,
        lsn: Lsn,
        length: u32,
        is_checked: bool,
        input: &mut &[u8],
    ) -> Result<Option<FoundRecord>> {
        let wanted = match (length, is_checked) {
            (0, _) => 4,
            (_, false) => HEADER,
            (_, true) => length as usize,
        };
        let left = wanted - self.scratch.len();
        let taken = left.min(input.len()).min(usize::try_from(self.page_left()).unwrap_or(PAGE_SIZE));
        self.scratch.extend_from_slice(&input[..taken]);
        self.skip(input, taken as u64);
        if taken < left {
            return Ok(None);
        }
        if length == 0 {
            self.state = if record::total_length(&self.scratch) == 0 {
                // The page's header is not among the zeros.
                self.header.fill(0);
                State::Ended { at: lsn, open: None }
            } else {
                let length = self.check_length(lsn, &self.scratch)?;
                State::Inside { lsn, length, is_checked: false }
            };
            return Ok(None);
        }
        if !is_checked {
            self.check_header(lsn, &self.scratch)?;
            self.state = State::Inside { lsn, length, is_checked: true };
            if length as usize > HEADER {
                return Ok(None);
            }
        }
        Ok(Some(FoundRecord { lsn, end: self.end(), in_input: 0 }))
    }

    /// Where the next record may start, after the bytes that were taken.
    fn end(&self) -> Lsn {
        Lsn::new(align8(self.position))
    }

    fn check_length(&self, lsn: Lsn, bytes: &[u8]) -> Result<u32> {
        let length = record::total_length(bytes);
        if (HEADER as u32..=LENGTH_MAX).contains(&length) {
            return Ok(length);
        }
        Err(Error::record(lsn, format!("{length} bytes are no possible length")))
    }

    /// Checks whether this is the required record, before the reader waits for the rest.
    fn check_header(&self, lsn: Lsn, header: &[u8]) -> Result<()> {
        let previous = record::previous(header);
        let known = self.previous;
        if known.is_valid() && previous != known {
            return Err(Error::record(
                lsn,
                format!("it names {previous} as the record before, which is {known}"),
            ));
        }
        if previous >= lsn {
            return Err(Error::record(lsn, format!("it names {previous} as the record before")));
        }
        record::rmgr(header, lsn, self.known_layout(lsn)?).map(drop)
    }

    /// The layout of the previous page. It exists whenever there is a record.
    fn known_layout(&self, lsn: Lsn) -> Result<&'static Layout> {
        self.layout.ok_or_else(|| Error::record(lsn, "no page came before it"))
    }
}

/// The records in one piece of input. If this is dropped before its end, the remaining input is
/// lost, and the next push is refused as a gap.
#[derive(Debug)]
pub struct Records<'r, 'b> {
    reader: &'r mut Reader,
    input: &'b [u8],
}

impl<'b> Records<'_, 'b> {
    /// The next record; `None` if more input is needed, or WAL has ended (see
    /// [`Reader::zeros_from`]).
    ///
    /// # Errors
    /// Any error, with its LSN. The reader returns nothing else afterwards.
    pub fn poll(&mut self) -> Result<Option<Record<'_>>> {
        if let Some(error) = &self.reader.error {
            return Err(error.clone());
        }
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some(Wanted { accepted: Accepted { lsn, end, rmgr }, bytes })) => {
                let layout = self.reader.known_layout(lsn)?;
                let bytes = bytes.unwrap_or(&self.reader.scratch);
                Ok(Some(Record::checked(bytes, lsn, end, layout, rmgr)))
            }
            Err(error) => {
                self.reader.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// The next record to hand out.
    fn find(&mut self) -> Result<Option<Wanted<'b>>> {
        loop {
            let before = self.input;
            let Some(found) = self.reader.next(&mut self.input)? else { return Ok(None) };
            let taken = before.len() - self.input.len();
            let bytes = (found.in_input > 0).then(|| &before[taken - found.in_input..taken]);
            // Moved out of the reader while it is read, because accepting the record changes the
            // reader.
            let scratch = std::mem::take(&mut self.reader.scratch);
            let accepted = self.reader.accept(&found, bytes.unwrap_or(&scratch));
            self.reader.scratch = scratch;
            if let Some(accepted) = accepted? {
                return Ok(Some(Wanted { accepted, bytes }));
            }
        }
    }
}
