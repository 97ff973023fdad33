//! The zone in which a timestamptz is written.
//!
//! A zone is read from its file in the tz database (TZif, RFC 9636). The file has offsets with the
//! times at which they begin, and a rule of POSIX (`CET-1CEST,M3.5.0,M10.5.0/3`) for later times.
//! Before the first time, the first type of the file holds. After the last time, the last offset
//! holds until the rule changes clocks for the first time. The server reads the same files by the
//! same rules. The caller makes sure that both read files of the same year.
//!
//! No crate does this as the server does. `tz-rs` 0.7 refuses America/Ojinaga as the server ships
//! it, because rule and last transition disagree there. It also has no offset after the last
//! transition of a file without a rule. `jiff` knows years to 9999, the server to 294276.

use std::sync::Arc;

use crate::error::{Error, Result};

const DAMAGED: Error = Error::damaged("time zone file");

/// The size of a file's header, and of the header of its part with times of 64 bits.
const HEADER_SIZE: usize = 44;

/// The session's `TimeZone`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TimeZone {
    /// `UTC`, under any of its names.
    #[default]
    Utc,
    /// Any other zone, from its file.
    File(ZoneFile),
}

/// A time zone's offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneFile(Arc<ZoneTable>);

#[derive(Debug, PartialEq, Eq)]
struct ZoneTable {
    /// Unix seconds, ascending, with the offset that begins there.
    transitions: Vec<(i64, i32)>,
    /// The offset before the first transition.
    first: i32,
    /// The rule after the last transition.
    rule: Option<Rule>,
    /// The rule's first switch after the last transition. Until then, the last transition's offset
    /// holds, whatever the rule says. The two disagree if a zone takes over another zone's rule in
    /// the middle of a summer.
    rule_begins: i64,
}

impl TimeZone {
    /// Reads a zone from a TZif file, the compiled form of the tz database.
    ///
    /// # Errors
    /// When `bytes` are not a TZif file of version 2 or later, or the file counts leap seconds.
    pub fn from_tzif(bytes: &[u8]) -> Result<Self> {
        ZoneTable::read(bytes).map(|table| TimeZone::File(ZoneFile(Arc::new(table))))
    }

    /// How many seconds east of UTC the zone's clocks are at that time (Unix seconds).
    pub(crate) fn offset_at(&self, unix_seconds: i64) -> i32 {
        match self {
            TimeZone::Utc => 0,
            TimeZone::File(ZoneFile(table)) => table.offset_at(unix_seconds),
        }
    }
}

/// The counts in a header, for the part behind it.
struct Counts {
    times: usize,
    types: usize,
    names: usize,
    leaps: usize,
    indicators: usize,
}

impl Counts {
    fn read(bytes: &[u8]) -> Result<Self> {
        let header = bytes.get(..HEADER_SIZE).filter(|header| header.starts_with(b"TZif")).ok_or(DAMAGED)?;
        let count = |index: usize| {
            let at = 20 + index * 4;
            u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let counts = Counts {
            indicators: count(0).saturating_add(count(1)),
            leaps: count(2),
            times: count(3),
            types: count(4),
            names: count(5),
        };
        let fits = [counts.times, counts.types, counts.names, counts.leaps, counts.indicators]
            .iter()
            .all(|&count| count <= bytes.len());
        if fits && header[4] >= b'2' { Ok(counts) } else { Err(DAMAGED) }
    }

    /// The length of the part, with times of `width` bytes.
    fn size(&self, width: usize) -> usize {
        self.times * (width + 1) + self.types * 6 + self.names + self.leaps * (width + 4) + self.indicators
    }
}

impl ZoneTable {
    fn read(bytes: &[u8]) -> Result<Self> {
        let second = HEADER_SIZE + Counts::read(bytes)?.size(4);
        let bytes = bytes.get(second..).ok_or(DAMAGED)?;
        let counts = Counts::read(bytes)?;
        let (part, footer) = bytes[HEADER_SIZE..].split_at_checked(counts.size(8)).ok_or(DAMAGED)?;
        if counts.leaps > 0 || counts.types == 0 {
            return Err(DAMAGED);
        }
        let (times, rest) = part.split_at(counts.times * 8);
        let (kinds, rest) = rest.split_at(counts.times);
        let offset = |kind: usize| {
            let bytes = rest[..counts.types * 6].get(kind * 6..kind * 6 + 4).ok_or(DAMAGED)?;
            Ok(i32::from_be_bytes(bytes.try_into().expect("four bytes")))
        };
        let transitions = times.as_chunks().0.iter().zip(kinds);
        let transitions: Vec<(i64, i32)> = transitions
            .map(|(&time, &kind)| Ok((i64::from_be_bytes(time), offset(kind.into())?)))
            .collect::<Result<_>>()?;
        if !transitions.is_sorted_by_key(|&(time, _)| time) {
            return Err(DAMAGED);
        }
        let footer =
            footer.strip_prefix(b"\n").and_then(|footer| footer.strip_suffix(b"\n")).ok_or(DAMAGED)?;
        let rule = if footer.is_empty() { None } else { Some(Rule::parse(footer).ok_or(DAMAGED)?) };
        let last = transitions.last().map(|&(time, _)| time);
        let begins = |last| rule.as_ref().and_then(|rule: &Rule| rule.switch_after(last)).unwrap_or(i64::MAX);
        let rule_begins = last.map_or(i64::MIN, begins);
        Ok(ZoneTable { transitions, first: offset(0)?, rule, rule_begins })
    }

    fn offset_at(&self, time: i64) -> i32 {
        let before = self.transitions.partition_point(|&(begin, _)| begin <= time);
        match (&self.rule, before) {
            (Some(rule), _) if time >= self.rule_begins => rule.offset_at(time),
            (_, 0) => self.first,
            (_, before) => self.transitions[before - 1].1,
        }
    }
}

/// A rule of POSIX.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    standard: i32,
    summer: Option<Summer>,
}

/// The part of a rule for summer time.
#[derive(Debug, PartialEq, Eq)]
struct Summer {
    offset: i32,
    begins: Switch,
    ends: Switch,
}

/// When clocks are changed: the day, and the second of local time.
#[derive(Debug, PartialEq, Eq)]
struct Switch {
    day: Day,
    second: i64,
}

#[derive(Debug, PartialEq, Eq)]
enum Day {
    /// `Jn`: the n-th day, not counting 29 February.
    OfYear(i64),
    /// `n`: days after 1 January.
    After(i64),
    /// `Mm.w.d`: the w-th (5: the last) weekday d of month m.
    OfMonth(i64, i64, i64),
}

impl Rule {
    fn parse(text: &[u8]) -> Option<Self> {
        let mut text = Text(text);
        text.name()?;
        let standard = -text.offset()?;
        if text.0.is_empty() {
            return Some(Rule { standard, summer: None });
        }
        text.name()?;
        let offset = if text.0.starts_with(b",") { standard + 3600 } else { -text.offset()? };
        let (begins, ends) = (text.switch()?, text.switch()?);
        text.0.is_empty().then_some(Rule { standard, summer: Some(Summer { offset, begins, ends }) })
    }

    fn offset_at(&self, time: i64) -> i32 {
        let Some(summer) = &self.summer else { return self.standard };
        let (begin, end) = self.switches(summer, self.year_at(time));
        let is_summer =
            if begin < end { (begin..end).contains(&time) } else { !(end..begin).contains(&time) };
        if is_summer { summer.offset } else { self.standard }
    }

    /// The first change of clocks after `time`; `None` if there are none.
    fn switch_after(&self, time: i64) -> Option<i64> {
        let summer = self.summer.as_ref()?;
        let year = self.year_at(time);
        let switches = (year..=year + 1).flat_map(|year| <[i64; 2]>::from(self.switches(summer, year)));
        switches.filter(|&switch| switch > time).min()
    }

    /// When summer time begins and ends in `year`.
    fn switches(&self, summer: &Summer, year: i64) -> (i64, i64) {
        (
            summer.begins.time(year).saturating_sub(i64::from(self.standard)),
            summer.ends.time(year).saturating_sub(i64::from(summer.offset)),
        )
    }

    /// The year on clocks that show standard time.
    fn year_at(&self, time: i64) -> i64 {
        year_of(time.saturating_add(i64::from(self.standard)).div_euclid(86_400))
    }
}

impl Switch {
    /// The time in that year, in local seconds from 1970.
    fn time(&self, year: i64) -> i64 {
        let first = days_before(year);
        let is_leap = days_before(year + 1) - first == 366;
        let day = match self.day {
            Day::OfYear(day) => first + day - 1 + i64::from(is_leap && day >= 60),
            Day::After(days) => first + days,
            Day::OfMonth(month, week, weekday) => {
                const LENGTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
                let length = |month: usize| LENGTHS[month] + i64::from(is_leap && month == 1);
                let month = month as usize - 1;
                let start = first + (0..month).map(length).sum::<i64>();
                // 1970-01-01 was a Thursday.
                let earliest = (weekday - (start + 4)).rem_euclid(7);
                let day = earliest + (week - 1) * 7;
                start + if day >= length(month) { day - 7 } else { day }
            }
        };
        // A damaged file may name times at either end of the range of 64 bits.
        day.saturating_mul(86_400).saturating_add(self.second)
    }
}

/// Days from 1970-01-01 to the first day of `year`.
fn days_before(year: i64) -> i64 {
    let years = year - 1;
    years * 365 + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400) - 719_162
}

/// The year of a day, which is counted from 1970-01-01.
fn year_of(day: i64) -> i64 {
    let year = 1970 + (day * 400).div_euclid(146_097);
    // The estimate is wrong by at most one.
    [year + 1, year].into_iter().find(|&year| days_before(year) <= day).unwrap_or(year - 1)
}

/// The rest of a rule's text.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn eat(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// Skips letters, or anything in `<...>`.
    fn name(&mut self) -> Option<()> {
        let length = if self.0.starts_with(b"<") {
            self.0.iter().position(|&byte| byte == b'>')? + 1
        } else {
            self.0.iter().take_while(|byte| byte.is_ascii_alphabetic()).count()
        };
        self.0 = &self.0[length..];
        (length >= 3).then_some(())
    }

    fn number(&mut self, max: i64) -> Option<i64> {
        let length = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (number <= max).then_some(number)
    }

    /// Reads `hh[:mm[:ss]]` with a sign.
    fn seconds(&mut self) -> Option<i64> {
        let negative = self.eat(b'-').is_some();
        if !negative {
            let _ = self.eat(b'+');
        }
        let mut seconds = self.number(167)? * 3600;
        for unit in [60, 1] {
            if self.eat(b':').is_none() {
                break;
            }
            seconds += self.number(59)? * unit;
        }
        Some(if negative { -seconds } else { seconds })
    }

    fn offset(&mut self) -> Option<i32> {
        self.seconds()?.try_into().ok()
    }

    fn switch(&mut self) -> Option<Switch> {
        self.eat(b',')?;
        let day = if self.eat(b'M').is_some() {
            let month = self.number(12).filter(|&month| month > 0)?;
            self.eat(b'.')?;
            let week = self.number(5).filter(|&week| week > 0)?;
            self.eat(b'.')?;
            Day::OfMonth(month, week, self.number(6)?)
        } else if self.eat(b'J').is_some() {
            Day::OfYear(self.number(365).filter(|&day| day > 0)?)
        } else {
            Day::After(self.number(365)?)
        };
        let second = if self.eat(b'/').is_some() { self.seconds()? } else { 7_200 };
        Some(Switch { day, second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_begin_where_they_do() {
        for (year, days) in
            [(1970, 0), (1971, 365), (2000, 10_957), (2001, 11_323), (1969, -365), (1, -719_162)]
        {
            assert_eq!(days_before(year), days);
        }
        for year in -5_000..5_000 {
            assert_eq!((year_of(days_before(year)), year_of(days_before(year) - 1)), (year, year - 1));
        }
    }

    #[test]
    fn rules() {
        let berlin = Rule::parse(b"CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        // 2024-03-31 01:00 UTC and 2024-10-27 01:00 UTC.
        for (time, offset) in
            [(1_711_846_799, 3600), (1_711_846_800, 7200), (1_729_990_799, 7200), (1_729_990_800, 3600)]
        {
            assert_eq!(berlin.offset_at(time), offset, "{time}");
        }
        assert_eq!(Rule::parse(b"<-03>3").unwrap().offset_at(0), -10_800);
        assert_eq!(Rule::parse(b"LHST-10:30LHDT-11,M10.1.0,M4.1.0").unwrap().offset_at(0), 39_600);
        for text in
            ["", "CET", "CE-1", "CET-1CEST", "CET-1CEST,M3.5.0", "CET-1CEST,M13.5.0,M1.1.0", "CET-1x", "<a"]
        {
            assert_eq!(Rule::parse(text.as_bytes()), None, "{text}");
        }
    }

    /// A file whose last transition ends summer time on 2022-10-30, under a rule that has summer
    /// time until November.
    fn ojinaga() -> Vec<u8> {
        let header = |times: u32, types: u32| {
            let counts = [0, 0, 0, times, types, 4].map(u32::to_be_bytes).concat();
            [b"TZif2".as_slice(), &[0; 15], &counts].concat()
        };
        let kind = |offset: i32, summer: u8| [offset.to_be_bytes().as_slice(), &[summer, 0]].concat();
        let times = [1_647_162_000_i64, 1_667_116_800].map(i64::to_be_bytes).concat();
        let mut file = [header(0, 1), kind(-25_200, 0), b"XXX\0".to_vec(), header(2, 2), times].concat();
        file.extend([0, 1]);
        file.extend([kind(-21_600, 1), kind(-21_600, 0), b"XXX\0".to_vec()].concat());
        file.extend_from_slice(b"\nCST6CDT,M3.2.0,M11.1.0\n");
        file
    }

    #[test]
    fn a_rule_begins_with_its_first_switch_after_the_last_transition() {
        let zone = TimeZone::from_tzif(&ojinaga()).unwrap();
        // 2022-11-01; before and at 2023-03-12 08:00 UTC; 2023-07-01.
        for (time, offset) in [
            (1_667_260_800, -21_600),
            (1_678_607_999, -21_600),
            (1_678_608_000, -18_000),
            (1_688_169_600, -18_000),
        ] {
            assert_eq!(zone.offset_at(time), offset, "{time}");
        }
    }

    #[test]
    fn a_last_transition_at_the_end_of_time_is_no_panic() {
        let file = ojinaga();
        let last = 1_667_116_800_i64.to_be_bytes();
        let at = file.windows(8).rposition(|bytes| bytes == last).expect("the last transition");
        for time in [i64::MAX, i64::MAX - 86_400, i64::MIN, i64::MIN + 86_400] {
            let mut file = file.clone();
            file[at..at + 8].copy_from_slice(&time.to_be_bytes());
            if let Ok(zone) = TimeZone::from_tzif(&file) {
                [i64::MIN, 0, i64::MAX].iter().for_each(|&asked| _ = zone.offset_at(asked));
            }
        }
    }

    #[test]
    fn what_is_no_zone() {
        for bytes in [&b""[..], b"TZif", &[b"TZif2".as_slice(), &[0xff; 200]].concat()] {
            assert!(TimeZone::from_tzif(bytes).unwrap_err().is_damaged());
        }
    }
}
