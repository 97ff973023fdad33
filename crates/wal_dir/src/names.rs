//! Names of segments and history files.

use base::Lsn;

/// Stands behind the name of a segment that is being written.
pub(crate) const PARTIAL: &str = ".partial";

/// A segment's file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentName {
    pub(crate) timeline: u32,
    /// Counted from the beginning of WAL.
    pub(crate) number: u64,
    pub(crate) is_partial: bool,
}

impl SegmentName {
    pub(crate) fn parse(name: &str, segment_size: u64) -> Option<SegmentName> {
        let (digits, is_partial) = match name.strip_suffix(PARTIAL) {
            Some(digits) => (digits, true),
            None => (name, false),
        };
        if digits.len() != 24
            || !digits.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte))
        {
            return None;
        }
        let part = |at: usize| u32::from_str_radix(&digits[at..at + 8], 16).ok();
        let (timeline, high, low) = (part(0)?, part(8)?, part(16)?);
        let per_file = (1 << 32) / segment_size;
        let is_name = timeline > 0 && u64::from(low) < per_file;
        is_name.then(|| SegmentName {
            timeline,
            number: u64::from(high) * per_file + u64::from(low),
            is_partial,
        })
    }

    pub(crate) fn text(self, segment_size: u64) -> String {
        let SegmentName { timeline, number, is_partial } = self;
        let per_file = (1 << 32) / segment_size;
        let partial = if is_partial { PARTIAL } else { "" };
        format!("{timeline:08X}{:08X}{:08X}{partial}", number / per_file, number % per_file)
    }
}

/// The name of a timeline's history file.
pub(crate) fn history(timeline: u32) -> String {
    format!("{timeline:08X}.history")
}

/// The timeline of a history file's name.
pub(crate) fn history_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".history").filter(|digits| digits.len() == 8)?;
    u32::from_str_radix(digits, 16).ok()
}

/// Where each timeline was left, by the lines of a history file: `1\t0/3000000\twhy`. The oldest
/// comes first. `None` if the text is none.
#[must_use]
pub fn forks(text: &str) -> Option<Vec<(u32, Lsn)>> {
    let mut forks: Vec<(u32, Lsn)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.split_whitespace();
        let timeline = fields.next()?.parse().ok()?;
        let end: Lsn = fields.next()?.parse().ok()?;
        if forks.last().is_some_and(|(before, at)| *before >= timeline || *at > end) {
            return None;
        }
        forks.push((timeline, end));
    }
    Some(forks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_servers() {
        for (text, timeline, number, is_partial) in [
            ("000000010000000000000007", 1, 7, false),
            ("0000000A00000002000000FF.partial", 10, 2 * 256 + 255, true),
        ] {
            let name = SegmentName { timeline, number, is_partial };
            assert_eq!(SegmentName::parse(text, 16 << 20), Some(name));
            assert_eq!(name.text(16 << 20), text);
        }
        for text in [
            "",
            "lock",
            "00000002.history",
            "00000001000000000000000g",
            "0000000100000000000000a0",
            "000000010000000000000100",
            "000000000000000000000001",
            "000000010000000000000007.gz",
        ] {
            assert_eq!(SegmentName::parse(text, 16 << 20), None, "{text}");
        }
    }

    #[test]
    fn histories_are_read() {
        let text = "1\t0/3000100\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-28\n";
        assert_eq!(forks(text), Some(vec![(1, Lsn::new(0x300_0100)), (2, Lsn::new(0x500_0000))]));
        for wrong in ["1", "x\t0/1", "1\t0/x", "2\t0/5\n1\t0/6", "1\t0/5\n2\t0/4"] {
            assert_eq!(forks(wrong), None, "{wrong}");
        }
        assert_eq!((history(11).as_str(), history_of("0000000B.history")), ("0000000B.history", Some(11)));
    }
}
