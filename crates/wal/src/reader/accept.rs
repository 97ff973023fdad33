//! How a whole record changes the reader: the chain of records, the end of a segment, timelines,
//! records that a crash cut off.

use base::Lsn;

use super::{Accepted, FoundRecord, Reader, State};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::record::Record;
use crate::rmgr::Rmgr;

impl Reader {
    /// Checks a whole record, and changes the reader by it. `None` if the record is not to be
    /// handed out.
    pub(super) fn accept(&mut self, found: &FoundRecord, bytes: &[u8]) -> Result<Option<Accepted>> {
        let lsn = found.lsn;
        let record = Record::read(bytes, lsn, found.end, self.known_layout(lsn)?)?;
        self.previous = lsn;
        self.state = State::Between;
        if record.rmgr() == Rmgr::Xlog {
            self.accept_xlog(&record)?;
        } else if self.overwritten.is_some() || self.unannounced.is_some() {
            let what = match self.overwritten {
                Some(lost) => {
                    format!("it should say that record {lost} was lost, and is of {}", record.rmgr())
                }
                None => format!("it should start timeline {}, and is of {}", self.timeline, record.rmgr()),
            };
            return Err(Error::record(lsn, what));
        }
        let end = if self.state == State::Switched { self.segment_end() } else { found.end };
        Ok((lsn >= self.start).then_some(Accepted { lsn, end, rmgr: record.rmgr() }))
    }

    /// Takes records that say how the WAL itself goes on.
    fn accept_xlog(&mut self, record: &Record<'_>) -> Result<()> {
        let lsn = record.lsn();
        let main = record.parts()?.main();
        let mut fields = Fields::new(main);
        let cut_short = || Error::record(lsn, "its main data is cut short");
        let op = record.info() & 0xf0;
        if let Some(lost) = self.overwritten.take() {
            let said = (op == xlog::OVERWRITE_CONTRECORD).then(|| fields.lsn()).flatten();
            if said != Some(lost) {
                return Err(Error::record(lsn, format!("it should say that record {lost} was lost")));
            }
            return Ok(());
        }
        match op {
            xlog::SWITCH => self.state = State::Switched,
            // Redo pointer and time, then the timelines.
            xlog::CHECKPOINT_SHUTDOWN | xlog::END_OF_RECOVERY => {
                fields.take(8).ok_or_else(cut_short)?;
                let this = fields.u32().ok_or_else(cut_short)?;
                let before = fields.u32().ok_or_else(cut_short)?;
                self.announce(lsn, this, before)?;
            }
            // At the end of recovery, both may come before the announcement.
            xlog::OVERWRITE_CONTRECORD | xlog::FPW_CHANGE => {}
            _ if self.unannounced.is_some() => {
                return Err(Error::record(lsn, format!("it should start timeline {}", self.timeline)));
            }
            _ => {}
        }
        Ok(())
    }

    /// A record says that it is of timeline `this`, and that `before` was the previous one.
    fn announce(&mut self, lsn: Lsn, this: u32, before: u32) -> Result<()> {
        let expected = match self.unannounced.take() {
            // The page said it first.
            Some(old) => this == self.timeline && before == old,
            None if this == before => this == self.timeline,
            // The switch is in the middle of a page.
            None => this > before && before == self.timeline,
        };
        if !expected {
            let what = format!("it says timeline {this} after {before}, on a page of {}", self.timeline);
            return Err(Error::record(lsn, what));
        }
        self.timeline = this;
        Ok(())
    }
}

/// Kinds of record of the resource manager XLOG that matter here (`catalog/pg_control.h`).
mod xlog {
    pub(super) const CHECKPOINT_SHUTDOWN: u8 = 0x00;
    pub(super) const SWITCH: u8 = 0x40;
    pub(super) const FPW_CHANGE: u8 = 0x80;
    pub(super) const END_OF_RECOVERY: u8 = 0x90;
    pub(super) const OVERWRITE_CONTRECORD: u8 = 0xd0;
}
