//! How the headers of pages change the reader: where records go on, where WAL ends, and to which
//! cluster and timeline it belongs.

use base::Lsn;

use super::{Reader, State, plus};
use crate::error::{Error, Result};
use crate::page::{self, Begins, PAGE, PAGE_SIZE, PageHeader, SHORT_HEADER, header_length};

impl Reader {
    /// Takes bytes of a page's header, and acts on the header when it is whole.
    pub(super) fn page_header(&mut self, input: &mut &[u8]) -> Result<()> {
        let page = Lsn::new(self.position.as_u64() - self.header_have as u64);
        let length = header_length(page, self.segment_size);
        let taken = (length - self.header_have).min(input.len());
        self.header[self.header_have..self.header_have + taken].copy_from_slice(&input[..taken]);
        self.skip(input, taken as u64);
        self.header_have += taken;
        if self.header_have < length {
            return Ok(());
        }
        self.header_have = 0;
        let bytes = self.header;
        let bytes = &bytes[..length];
        if let State::Ended { at, .. } = self.state {
            return self.page_behind_the_end(page, at, bytes);
        }
        // The first page must be a real one: an end has to follow something.
        let may_end = self.state != State::Unsynced;
        if may_end
            && (bytes.iter().all(|&byte| byte == 0) || page::is_of_elsewhere(bytes, page) == Some(true))
        {
            let open = match self.state {
                State::Inside { lsn, .. } => Some(lsn),
                State::Tail(_) => Some(page),
                _ => None,
            };
            self.state = State::Ended { at: page, open };
            return Ok(());
        }
        let header = PageHeader::read(bytes, page, self.segment_size)?;
        self.enter(page, &header)
    }

    /// Takes a page after the end of WAL. It must be empty, or one that a recycled segment still
    /// has. A page of exactly this place would mean that WAL goes on.
    fn page_behind_the_end(&self, page: Lsn, end: Lsn, bytes: &[u8]) -> Result<()> {
        let is_empty = bytes.iter().all(|&byte| byte == 0);
        if is_empty || page::is_of_elsewhere(bytes, page) == Some(true) {
            return Ok(());
        }
        Err(Error::page(page, format!("WAL ended at {end} and goes on here")))
    }

    /// Takes the rest of a page in which WAL ended, or of a page behind that. It must be zeros,
    /// unless the page is a recycled one.
    pub(super) fn rest_of_ended(&mut self, end: Lsn, input: &mut &[u8]) -> Result<()> {
        let in_page = usize::try_from(self.page_left()).unwrap_or(PAGE_SIZE).min(input.len());
        let page = Lsn::new(self.position.as_u64() / PAGE * PAGE);
        let is_recycled = end <= page && self.header[..SHORT_HEADER].iter().any(|&byte| byte != 0);
        if !is_recycled && let Some(at) = input[..in_page].iter().position(|&byte| byte != 0) {
            let what =
                format!("it ends here with a length of 0, but there is more at {}", plus(self.position, at));
            return Err(Error::record(end, what));
        }
        self.skip(input, in_page as u64);
        Ok(())
    }

    /// Goes on by the header of the page at `page`.
    fn enter(&mut self, page: Lsn, header: &PageHeader) -> Result<()> {
        match self.layout {
            Some(layout) if layout != header.layout => {
                let (before, now) = (layout.major(), header.layout.major());
                return Err(Error::page(
                    page,
                    format!("it was written by {now}, the pages before by {before}"),
                ));
            }
            _ => self.layout = Some(header.layout),
        }
        match (self.system_id, header.system_id) {
            (Some(known), Some(found)) if known != found => {
                let what = format!("it is of the cluster with the system identifier {found}, not of {known}");
                return Err(Error::page(page, what));
            }
            (None, Some(found)) => self.system_id = Some(found),
            _ => {}
        }
        self.enter_timeline(page, header.timeline)?;
        self.state = match (self.state, header.begins) {
            (State::Unsynced, Begins::WithRest(rest)) => State::Tail(rest),
            (State::Tail(left), Begins::WithRest(rest)) if left == rest => self.state,
            (State::Inside { length, .. }, Begins::WithRest(rest))
                if u64::from(length) == self.scratch.len() as u64 + u64::from(rest) =>
            {
                self.state
            }
            (State::Unsynced | State::Between, Begins::Anew) => State::Between,
            (State::Unsynced | State::Tail(_), Begins::Overwriting) => State::Between,
            (State::Inside { lsn, .. }, Begins::Overwriting) => {
                self.overwritten = Some(lsn);
                State::Between
            }
            (State::Inside { lsn, length, .. }, begins) => {
                let left = u64::from(length) - self.scratch.len() as u64;
                let what = match begins {
                    Begins::WithRest(rest) => format!("{rest} bytes of a record are left"),
                    _ => "no record goes on".to_owned(),
                };
                let what = format!("its header says that {what}, but of record {lsn} {left} bytes are left");
                return Err(Error::page(page, what));
            }
            (state, begins) => {
                let begins = match begins {
                    Begins::Anew => "that a record begins on it".to_owned(),
                    Begins::WithRest(rest) => format!("that it begins with {rest} bytes of a record"),
                    Begins::Overwriting => {
                        "that it takes the place of a record that was never finished".to_owned()
                    }
                };
                let before = match state {
                    State::Unsynced => "no page",
                    State::Tail(_) => "the rest of a record",
                    State::Between => "a whole record",
                    State::Inside { .. } => "a part of a record",
                    State::Switched => "the end of a segment",
                    State::Ended { .. } => "the end of WAL",
                };
                let what = format!("its header says {begins}, which cannot follow {before}");
                return Err(Error::page(page, what));
            }
        };
        Ok(())
    }

    fn enter_timeline(&mut self, page: Lsn, timeline: u32) -> Result<()> {
        let before = self.timeline;
        if timeline < before {
            return Err(Error::page(page, format!("it is of timeline {timeline}, behind one of {before}")));
        }
        if timeline > before && before != 0 {
            self.unannounced = Some(self.unannounced.unwrap_or(before));
        }
        self.timeline = timeline;
        Ok(())
    }
}
