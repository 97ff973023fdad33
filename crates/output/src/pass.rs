//! One pass over WAL for any number of subscriptions, of any of a cluster's databases.
//!
//! ```text
//!                            ,--> group: database 5 --> members: Output, Output, ...
//! bytes --> wal::Reader -----+--> group: database 16384 --> members: ...
//!                            '
//! Decoder (has read up to p) --join--> Pass at p          Pass at q --split--> Decoder (has read up to q)
//! ```
//! WAL is read and checked once. Each record is followed, filtered and decoded once for each
//! database (see [`crate::group`]).
//!
//! A member comes as a [`Decoder`] and may leave as one, at any record. Decoder and pass have read
//! the same WAL up to there, so nothing is read twice and nothing is left out. The pass takes a
//! decoder over only if both have followed the same catalogs. Then one copy of the catalogs is
//! enough.

use std::collections::VecDeque;
use std::mem;

use base::{Lsn, with_causes};
use wal::{Reader, Record, Records};

use crate::decoder::Decoder;
use crate::error::{Error, Kind, RefusedTable, Result};
use crate::group::{Group, Member, MemberId, Place};
use crate::writer::Output;

/// See the module.
pub struct Pass {
    reader: Reader,
    inner: Inner,
}

/// All of a pass except the reader.
struct Inner {
    groups: Vec<Group>,
    /// The last record, and where it ended.
    last: Lsn,
    end: Lsn,
    /// Groups that wait until the pass reaches their place.
    joining: Vec<(MemberId, Group)>,
    /// News to report before any output.
    said: VecDeque<Said>,
    /// The group and the member that had the last output.
    at: (usize, usize),
    next_id: u64,
    failed: bool,
}

enum Said {
    Joined(MemberId),
    Refused(MemberId, Box<Group>, Refusal),
    Failed(MemberId, Error),
    Lost(MemberId, String),
}

/// Why a decoder cannot join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The pass was ahead of the decoder. Or transactions are open, and only one of the two has
    /// seen all of their changes.
    Later,
    /// Both have followed the catalogs to the same place, but the catalogs differ: one of them is
    /// wrong.
    Differs(String),
}

/// What happens next in a pass.
pub enum Step<'a> {
    /// Output for a member.
    Output(MemberId, Output<'a>),
    /// The decoder is a member from here on.
    Joined(MemberId),
    /// The decoder did not become a member, and can go on as it was.
    Refused(MemberId, Box<Decoder>, Refusal),
    /// The member has failed, and is not a member any more.
    Failed(MemberId, Error),
    /// The member was lost to the error of another one that shares its catalogs; the text is that
    /// error. It may start again by itself.
    Lost(MemberId, String),
}

/// The steps for some bytes of WAL.
pub struct Steps<'p, 'b> {
    records: Records<'p, 'b>,
    inner: &'p mut Inner,
}

impl Pass {
    /// Makes a pass with this member.
    #[must_use]
    pub fn new(decoder: Decoder) -> (Pass, MemberId) {
        let (reader, mut group) = decoder.into_parts();
        let id = MemberId::default();
        group.members.iter_mut().for_each(|member| member.id = id);
        let inner = Inner {
            last: group.catalog.last(),
            end: group.end,
            groups: vec![group],
            joining: Vec::new(),
            said: VecDeque::new(),
            at: (0, 0),
            next_id: 1,
            failed: false,
        };
        (Pass { reader, inner }, id)
    }

    /// Where the next bytes must begin.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.reader.position()
    }

    /// Where the last record that was read ended.
    #[must_use]
    pub fn decoded(&self) -> Lsn {
        self.inner.end
    }

    /// Whether there are no members, and no decoders that wait to join.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.groups.is_empty() && self.inner.joining.is_empty() && self.inner.said.is_empty()
    }

    /// A member's catalogs, and how far WAL was read.
    #[must_use]
    pub fn place(&self, id: MemberId) -> Option<Place<'_>> {
        let (group, _) = self.inner.find(id)?;
        Some(self.inner.groups[group].place())
    }

    /// As [`Decoder::refused`] of a member; nothing if it is none.
    ///
    /// # Errors
    /// As there.
    pub fn refused(&mut self, id: MemberId) -> Result<Vec<RefusedTable>, Error> {
        let Some((group, member)) = self.inner.find(id) else { return Ok(Vec::new()) };
        let Group { catalog, members, .. } = &mut self.inner.groups[group];
        members[member].tables.refused(catalog)
    }

    /// Takes `decoder` over once the pass has read as far. A [`Step`] reports this, or the reason
    /// against it. No output of the decoder may be waiting.
    pub fn join(&mut self, decoder: Decoder) -> MemberId {
        let (_, mut group) = decoder.into_parts();
        let id = MemberId(self.inner.next_id);
        self.inner.next_id += 1;
        group.members.iter_mut().for_each(|member| member.id = id);
        self.inner.joining.push((id, group));
        id
    }

    /// Lets a member go on alone. It goes on from where the pass is, or from where it is itself if
    /// it has not joined yet. Its waiting output comes out of the returned decoder. `None` if it is
    /// neither a member nor waits to join.
    ///
    /// # Errors
    /// WAL cannot be read from there.
    pub fn split(&mut self, id: MemberId) -> Result<Option<Decoder>, Error> {
        self.inner.split(id)
    }

    /// Forgets a member.
    pub fn leave(&mut self, id: MemberId) {
        self.inner.leave(id);
    }

    /// Takes bytes of WAL, any number of them, from [`Pass::position`] on. Poll the result until it
    /// has nothing more.
    ///
    /// # Errors
    /// There was an error before that concerns all members.
    pub fn push<'p, 'b>(&'p mut self, bytes: &'b [u8]) -> Result<Steps<'p, 'b>, Error> {
        if self.inner.failed {
            return Err(Error::new(Kind::Over));
        }
        let records = self.reader.push(self.reader.position(), bytes)?;
        Ok(Steps { records, inner: &mut self.inner })
    }
}

impl Steps<'_, '_> {
    /// What happens next; `None` when more bytes are needed.
    ///
    /// # Errors
    /// An error that concerns all members, with its LSN. Nothing comes out afterwards.
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Result<Option<Step<'_>>, Error> {
        if self.inner.failed {
            return Err(Error::new(Kind::Over));
        }
        let advanced = self.advance().inspect_err(|_| self.inner.failed = true)?;
        Ok(match advanced {
            Advanced::Nothing => None,
            Advanced::Other(step) => Some(step),
            Advanced::Output => {
                let member = self.inner.current();
                member.and_then(|member| Some(Step::Output(member.id, member.output()?)))
            }
        })
    }

    /// See [`Pass::split`].
    ///
    /// # Errors
    /// As there.
    pub fn split(&mut self, id: MemberId) -> Result<Option<Decoder>, Error> {
        self.inner.split(id)
    }

    /// See [`Pass::leave`].
    pub fn leave(&mut self, id: MemberId) {
        self.inner.leave(id);
    }

    /// Lets a member describe each relation and type again at its next use, because readers may
    /// enter here. To be called between transactions and blocks, after the output of the last one.
    pub fn describe_again(&mut self, id: MemberId) {
        if let Some((group, member)) = self.inner.find(id) {
            self.inner.groups[group].members[member].writer.describe_again();
        }
    }

    fn advance(&mut self) -> Result<Advanced> {
        loop {
            match self.inner.advance()? {
                Advanced::Nothing => {}
                advanced => return Ok(advanced),
            }
            match self.records.poll()? {
                Some(record) => {
                    (self.inner.last, self.inner.end) = (record.lsn(), record.end());
                    self.inner.at = (0, 0);
                    self.inner.take(&record);
                }
                None => return Ok(Advanced::Nothing),
            }
        }
    }
}

enum Advanced {
    Nothing,
    Output,
    Other(Step<'static>),
}

impl Inner {
    /// An error about one database's catalogs concerns only the members of that database.
    fn take(&mut self, record: &Record<'_>) {
        let said = &mut self.said;
        self.groups.retain_mut(|group| {
            let Err(error) = group.take(record) else { return true };
            let why = with_causes(&error);
            let mut first = Some(error);
            for member in &group.members {
                said.push_back(match first.take() {
                    Some(error) => Said::Failed(member.id, error),
                    None => Said::Lost(member.id, why.clone()),
                });
            }
            false
        });
    }

    fn current(&self) -> Option<&Member> {
        self.groups.get(self.at.0)?.members.get(self.at.1)
    }

    /// Goes to what comes next without reading another record.
    fn advance(&mut self) -> Result<Advanced> {
        while let Some(group) = self.groups.get_mut(self.at.0) {
            let Some(member) = group.members.get_mut(self.at.1) else {
                self.at = (self.at.0 + 1, 0);
                continue;
            };
            match member.advance(&group.catalog) {
                Ok(true) => return Ok(Advanced::Output),
                Ok(false) => self.at.1 += 1,
                Err(error) => {
                    let id = member.id;
                    self.leave(id);
                    return Ok(Advanced::Other(Step::Failed(id, error)));
                }
            }
        }
        if !self.joining.is_empty() {
            self.settle();
        }
        match self.said.pop_front() {
            None => Ok(Advanced::Nothing),
            Some(Said::Joined(id)) => Ok(Advanced::Other(Step::Joined(id))),
            Some(Said::Failed(id, error)) => Ok(Advanced::Other(Step::Failed(id, error))),
            Some(Said::Lost(id, why)) => Ok(Advanced::Other(Step::Lost(id, why))),
            Some(Said::Refused(id, group, why)) => {
                Ok(Advanced::Other(Step::Refused(id, Box::new(Decoder::of(*group)?), why)))
            }
        }
    }

    /// Lets the groups join whose place this is. No output is waiting.
    fn settle(&mut self) {
        for (id, group) in mem::take(&mut self.joining) {
            if group.end > self.end {
                self.joining.push((id, group));
                continue;
            }
            let said = match self.take_over(group) {
                Ok(()) => Said::Joined(id),
                Err((group, why)) => Said::Refused(id, group, why),
            };
            self.said.push_back(said);
        }
    }

    fn take_over(&mut self, group: Group) -> Result<(), (Box<Group>, Refusal)> {
        let is_here = group.end == self.end && group.catalog.last() == self.last;
        if !is_here || !group.catalog.is_past_look() {
            return Err((Box::new(group), Refusal::Later));
        }
        let Some(known) = self.groups.iter_mut().find(|known| known.database == group.database) else {
            self.groups.push(group.going_on());
            return Ok(());
        };
        if !known.catalog.is_past_look() || known.catalog.differs_in_open_changes(&group.catalog) {
            return Err((Box::new(group), Refusal::Later));
        }
        match known.catalog.difference(&group.catalog) {
            None => known.take_over(group),
            Some(why) => return Err((Box::new(group), Refusal::Differs(why))),
        }
        Ok(())
    }

    fn find(&self, id: MemberId) -> Option<(usize, usize)> {
        self.groups.iter().enumerate().find_map(|(at, group)| {
            let member = group.members.iter().position(|member| member.id == id)?;
            Some((at, member))
        })
    }

    fn split(&mut self, id: MemberId) -> Result<Option<Decoder>> {
        if let Some(at) = self.joining.iter().position(|(of, _)| *of == id) {
            return Decoder::of(self.joining.swap_remove(at).1).map(Some);
        }
        let Some((at, member)) = self.find(id) else { return Ok(None) };
        let alone = self.groups[at].split(member);
        self.removed(at, member);
        Decoder::of(alone).map(Some)
    }

    fn leave(&mut self, id: MemberId) {
        self.joining.retain(|(of, _)| *of != id);
        let is_other = |said: &Said| match said {
            Said::Joined(of) | Said::Refused(of, ..) | Said::Failed(of, _) | Said::Lost(of, _) => *of != id,
        };
        self.said.retain(is_other);
        if let Some((at, member)) = self.find(id) {
            self.groups[at].leave(member);
            self.removed(at, member);
        }
    }

    /// Keeps the next member the same after one was removed.
    fn removed(&mut self, group: usize, member: usize) {
        if group == self.at.0 && member < self.at.1 {
            self.at.1 -= 1;
        }
        if self.groups[group].members.is_empty() {
            self.groups.remove(group);
            if group < self.at.0 {
                self.at.0 -= 1;
            } else if group == self.at.0 {
                self.at.1 = 0;
            }
        }
    }
}

/// A pass lives in a task of its own.
const _: () = {
    const fn may_be_sent<T: Send>() {}
    may_be_sent::<Pass>();
};
