//! Dates, times and intervals in `DateStyle` ISO and `IntervalStyle` postgres.
//!
//! Days are counted from 2000-01-01, microseconds from its midnight, always in the Gregorian
//! calendar. The year before 1 is 1 BC. The greatest and the least number of a date or timestamp
//! are the infinities. Intervals have infinities from 17 on, with all fields at the greatest or
//! least number.

use base::{PgTimestamp, PgVersion};

use crate::error::{Error, Result};
use crate::number::{padded, signed};
use crate::reader::{ByteReader, fixed};
use crate::zone::TimeZone;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Days from 0000-03-01, where [`civil`] begins to count, to 2000-01-01.
const EPOCH_FROM_MARCH: i64 = 730_425;
/// Seconds from the Unix epoch to PostgreSQL's.
const EPOCH_UNIX: i64 = 10_957 * 86_400;

/// Year, month and day of a day. Years are counted from March, so that a leap day is the last of
/// its year. They are counted in cycles of 400 years, which all have 146097 days.
fn civil(day: i64) -> (i64, u64, u64) {
    let day = day + EPOCH_FROM_MARCH;
    let (cycle, of_cycle) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_cycle = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // Months of 30 and 31 days alternate in groups of five, which have 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    (year, month as u64, day as u64)
}

/// Appends `2000-01-01`. Returns whether the year is BC.
fn ymd(day: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = civil(day);
    let bc = year <= 0;
    padded(if bc { 1 - year } else { year } as u64, 4, out);
    out.push(b'-');
    padded(month, 2, out);
    out.push(b'-');
    padded(day, 2, out);
    bc
}

/// Appends microseconds as `04:05:06.789`.
fn hms(time: u64, out: &mut Vec<u8>) {
    let seconds = time / SECOND.unsigned_abs();
    padded(seconds / 3600, 2, out);
    out.push(b':');
    padded(seconds / 60 % 60, 2, out);
    out.push(b':');
    padded(seconds % 60, 2, out);
    let mut fraction = time % SECOND.unsigned_abs();
    if fraction != 0 {
        let mut digits = 6;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        out.push(b'.');
        padded(fraction, digits, out);
    }
}

/// Appends seconds east of UTC as `+05:30`, with minutes and seconds only if they are not zero.
fn offset(east: i32, out: &mut Vec<u8>) {
    out.push(if east >= 0 { b'+' } else { b'-' });
    let seconds = u64::from(east.unsigned_abs());
    padded(seconds / 3600, 2, out);
    if !seconds.is_multiple_of(3600) {
        out.push(b':');
        padded(seconds / 60 % 60, 2, out);
    }
    if !seconds.is_multiple_of(60) {
        out.push(b':');
        padded(seconds % 60, 2, out);
    }
}

fn infinity(negative: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if negative { b"-infinity" } else { b"infinity" });
}

/// `date_out`.
pub(crate) fn date(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    match i32::from_le_bytes(fixed(payload, "date")?) {
        i32::MAX => infinity(false, out),
        i32::MIN => infinity(true, out),
        day => {
            if ymd(day.into(), out) {
                out.extend_from_slice(b" BC");
            }
        }
    }
    Ok(())
}

/// `timestamp_out`, and with a zone `timestamptz_out`.
pub(crate) fn timestamp(payload: &[u8], zone: Option<&TimeZone>, out: &mut Vec<u8>) -> Result<()> {
    let stored = i64::from_le_bytes(fixed(payload, "timestamp")?);
    if stored == i64::MAX || stored == i64::MIN {
        infinity(stored < 0, out);
        return Ok(());
    }
    let east = zone.map(|zone| zone.offset_at(stored.div_euclid(SECOND) + EPOCH_UNIX));
    // A wrong result is better than a panic: no valid timestamp is that close to the infinities.
    let local = stored.saturating_add(i64::from(east.unwrap_or(0)) * SECOND);
    let bc = ymd(local.div_euclid(DAY), out);
    out.push(b' ');
    hms(local.rem_euclid(DAY).unsigned_abs(), out);
    if let Some(east) = east {
        offset(east, out);
    }
    if bc {
        out.extend_from_slice(b" BC");
    }
    Ok(())
}

/// A time as `timestamptz_out` writes it in UTC.
#[must_use]
pub fn utc(at: PgTimestamp) -> String {
    let mut out = Vec::new();
    let written = timestamp(&at.0.to_le_bytes(), None, &mut out);
    written.expect("eight bytes are a timestamp");
    out.extend_from_slice(b"+00");
    String::from_utf8(out).expect("digits are text")
}

/// `time_out`.
pub(crate) fn time(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    hms(time_of_day(fixed(payload, "time")?)?, out);
    Ok(())
}

fn time_of_day(stored: [u8; 8]) -> Result<u64> {
    let time = i64::from_le_bytes(stored);
    if (0..=DAY).contains(&time) { Ok(time.unsigned_abs()) } else { Err(Error::damaged("time")) }
}

/// `timetz_out`. The zone is stored in seconds west of UTC.
pub(crate) fn timetz(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "timetz");
    hms(time_of_day(reader.array()?)?, out);
    offset(reader.i32()?.saturating_neg(), out);
    Ok(())
}

/// `timetz_send`, `interval_send`: numbers of these widths.
pub(crate) fn fields_binary(payload: &[u8], widths: &[usize], out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "time");
    for &width in widths {
        out.extend(reader.take(width)?.iter().rev());
    }
    Ok(())
}

/// `interval_out`.
pub(crate) fn interval(payload: &[u8], version: PgVersion, out: &mut Vec<u8>) -> Result<()> {
    let mut reader = ByteReader::new(payload, "interval");
    let (time, days, months) = (reader.i64()?, reader.i32()?, reader.i32()?);
    if version.major() >= 17 {
        match (time, days, months) {
            (i64::MAX, i32::MAX, i32::MAX) => {
                infinity(false, out);
                return Ok(());
            }
            (i64::MIN, i32::MIN, i32::MIN) => {
                infinity(true, out);
                return Ok(());
            }
            _ => {}
        }
    }
    let start = out.len();
    // A positive field after a negative one gets a sign, too.
    let mut negative = false;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value == 0 {
            continue;
        }
        if out.len() > start {
            out.push(b' ');
        }
        if negative && value > 0 {
            out.push(b'+');
        }
        signed(value.into(), out);
        out.push(b' ');
        out.extend_from_slice(unit.as_bytes());
        if value != 1 {
            out.push(b's');
        }
        negative = value < 0;
    }
    if out.len() == start || time != 0 {
        if out.len() > start {
            out.push(b' ');
        }
        if time < 0 {
            out.push(b'-');
        } else if negative {
            out.push(b'+');
        }
        hms(time.unsigned_abs(), out);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(render: impl Fn(&mut Vec<u8>) -> Result<()>) -> String {
        let mut out = Vec::new();
        render(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_time_in_utc_is_written_as_a_server_in_utc_writes_it() {
        assert_eq!(utc(PgTimestamp(0)), "2000-01-01 00:00:00+00");
        assert_eq!(utc(PgTimestamp(-1)), "1999-12-31 23:59:59.999999+00");
    }

    #[test]
    fn the_calendar() {
        for (day, expected) in [
            (0_i32, "2000-01-01"),
            (59, "2000-02-29"),
            (60, "2000-03-01"),
            (-1, "1999-12-31"),
            (-730_119, "0001-01-01"),
            (-730_120, "0001-12-31 BC"),
            (i32::MAX, "infinity"),
        ] {
            assert_eq!(shown(|out| date(&day.to_le_bytes(), out)), expected);
        }
    }

    #[test]
    fn signs_of_intervals() {
        let version = PgVersion::from_num(180_000);
        for (months, days, time, expected) in [
            (14, -3, 14_706_789_000_i64, "1 year 2 mons -3 days +04:05:06.789"),
            (-14, 3, -14_706_000_000, "-1 years -2 mons +3 days -04:05:06"),
            (0, 0, 0, "00:00:00"),
            (1, 0, -1_000_000, "1 mon -00:00:01"),
            (0, 0, 360_000_000_000_000, "100000:00:00"),
        ] {
            let (months, days): (i32, i32) = (months, days);
            let stored = [&time.to_le_bytes()[..], &days.to_le_bytes(), &months.to_le_bytes()].concat();
            assert_eq!(shown(|out| interval(&stored, version, out)), expected);
        }
    }
}
