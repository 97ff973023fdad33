//! Dates, times and intervals. Text is in DateStyle ISO and IntervalStyle postgres.

use super::value::{Form, Malformed, Result, ascii, fixed};

const DATE: Malformed = Malformed { what: "date" };
const TIME: Malformed = Malformed { what: "time" };
const TIMESTAMP: Malformed = Malformed { what: "timestamp" };
const INTERVAL: Malformed = Malformed { what: "interval" };

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// `DAYS_PER_MONTH`.
const MONTH_DAYS: i128 = 30;
/// Days from the first of March of the year 0 to PostgreSQL's epoch, 2000-01-01.
const EPOCH: i64 = 730_425;

/// Days since 2000-01-01; the extreme numbers stand for infinity, as in the server.
pub(super) fn date(form: Form<'_>) -> Result<i32> {
    match form {
        Form::Binary(bytes) => Ok(i32::from_be_bytes(fixed(bytes, DATE.what)?)),
        Form::Text(b"infinity") => Ok(i32::MAX),
        Form::Text(b"-infinity") => Ok(i32::MIN),
        Form::Text(text) => {
            let (text, is_bc) = without_era(ascii(text, DATE.what)?);
            days(text, is_bc).and_then(|days| i32::try_from(days).ok()).ok_or(DATE)
        }
    }
}

/// Microseconds since midnight.
pub(super) fn time(form: Form<'_>) -> Result<i64> {
    match form {
        Form::Binary(bytes) => Ok(i64::from_be_bytes(fixed(bytes, TIME.what)?)),
        Form::Text(text) => clock(ascii(text, TIME.what)?).ok_or(TIME),
    }
}

/// Microseconds since midnight, and seconds west of UTC: both count for equality.
pub(super) fn time_with_zone(form: Form<'_>) -> Result<(i64, i32)> {
    match form {
        Form::Binary(bytes) => {
            let (time, zone) = bytes.split_first_chunk::<8>().ok_or(TIME)?;
            Ok((i64::from_be_bytes(*time), i32::from_be_bytes(fixed(zone, TIME.what)?)))
        }
        Form::Text(text) => {
            let (time, east) = zoned(ascii(text, TIME.what)?).ok_or(TIME)?;
            Ok((time, i32::try_from(-east).map_err(|_| TIME)?))
        }
    }
}

/// Microseconds since 2000-01-01 00:00, in UTC if the text has an offset.
pub(super) fn timestamp(form: Form<'_>, has_zone: bool) -> Result<i64> {
    match form {
        Form::Binary(bytes) => Ok(i64::from_be_bytes(fixed(bytes, TIMESTAMP.what)?)),
        Form::Text(b"infinity") => Ok(i64::MAX),
        Form::Text(b"-infinity") => Ok(i64::MIN),
        Form::Text(text) => timestamp_text(ascii(text, TIMESTAMP.what)?, has_zone).ok_or(TIMESTAMP),
    }
}

fn timestamp_text(text: &str, has_zone: bool) -> Option<i64> {
    let (text, is_bc) = without_era(text);
    let (date, time) = text.split_once(' ')?;
    let (time, east) = if has_zone { zoned(time)? } else { (clock(time)?, 0) };
    let micros = days(date, is_bc)?.checked_mul(DAY)?.checked_add(time)?;
    micros.checked_sub(east.checked_mul(SECOND)?)
}

fn without_era(text: &str) -> (&str, bool) {
    match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    }
}

/// Days since 2000-01-01 of `2024-01-31`, by the Gregorian calendar, which the server extends to
/// all times.
fn days(text: &str, is_bc: bool) -> Option<i64> {
    let mut parts = text.split('-');
    let mut part = || number(parts.next()?);
    let (year, month, day) = (part()?, part()?, part()?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // The year 1 BC is the year 0. Years begin in March, so that a leap day is the last one.
    let year = if is_bc { 1 - year } else { year } - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + leap_days + of_year - EPOCH)
}

/// Decimal digits and nothing else.
fn number(digits: &str) -> Option<i64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Microseconds of `12:34:56.789`; hours may have any number of digits.
fn clock(text: &str) -> Option<i64> {
    let (text, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = text.split(':');
    let mut part = || number(parts.next()?);
    let (hours, minutes, seconds) = (part()?, part()?, part()?);
    if parts.next().is_some() || fraction.len() > 6 {
        return None;
    }
    let micros = match fraction {
        "" => 0,
        digits => number(digits)? * 10_i64.pow(6 - digits.len() as u32),
    };
    let seconds = hours.checked_mul(3600)?.checked_add(minutes * 60 + seconds)?;
    seconds.checked_mul(SECOND)?.checked_add(micros)
}

/// A time of day, and seconds east of UTC of the offset behind it: `+02`, `-03:30`, `+00:19:32`.
fn zoned(text: &str) -> Option<(i64, i64)> {
    let at = text.find(['+', '-'])?;
    let (time, zone) = text.split_at(at);
    let mut parts = zone[1..].split(':');
    let mut part = || parts.next().map_or(Some(0), number);
    let seconds = part()? * 3600 + part()? * 60 + part()?;
    if parts.next().is_some() {
        return None;
    }
    Some((clock(time)?, if zone.starts_with('-') { -seconds } else { seconds }))
}

/// The span in microseconds that `interval_cmp` compares: a month is 30 days, a day 24 hours.
pub(super) fn interval(form: Form<'_>) -> Result<i128> {
    match form {
        Form::Binary(bytes) => {
            let (time, rest) = bytes.split_first_chunk::<8>().ok_or(INTERVAL)?;
            let (days, months) = rest.split_first_chunk::<4>().ok_or(INTERVAL)?;
            let months = i32::from_be_bytes(fixed(months, INTERVAL.what)?);
            Ok(span(months.into(), i32::from_be_bytes(*days).into(), i64::from_be_bytes(*time).into()))
        }
        // From 17 on; stored as the extreme numbers.
        Form::Text(b"infinity") => Ok(span(i32::MAX.into(), i32::MAX.into(), i64::MAX.into())),
        Form::Text(b"-infinity") => Ok(span(i32::MIN.into(), i32::MIN.into(), i64::MIN.into())),
        Form::Text(text) => interval_text(ascii(text, INTERVAL.what)?).ok_or(INTERVAL),
    }
}

fn span(months: i128, days: i128, micros: i128) -> i128 {
    (months * MONTH_DAYS + days) * i128::from(DAY) + micros
}

/// `1 year 2 mons -3 days +04:05:06.789`, any of the parts.
fn interval_text(text: &str) -> Option<i128> {
    let mut total = 0;
    let mut words = text.split(' ');
    let mut next = words.next();
    while let Some(word) = next {
        let (digits, sign) = match word.strip_prefix('-') {
            Some(digits) => (digits, -1),
            None => (word.strip_prefix('+').unwrap_or(word), 1),
        };
        total += sign
            * if digits.contains(':') {
                span(0, 0, long_clock(digits)?)
            } else {
                let count = i128::from(number(digits)?);
                match words.next()?.trim_end_matches('s') {
                    "year" => span(count * 12, 0, 0),
                    "mon" => span(count, 0, 0),
                    "day" => span(0, count, 0),
                    _ => return None,
                }
            };
        next = words.next();
    }
    Some(total)
}

/// [`clock`] of an interval, whose smallest one exceeds an `i64` without its sign.
fn long_clock(text: &str) -> Option<i128> {
    let (hours, rest) = text.split_once(':')?;
    let rest = clock(&format!("0:{rest}"))?;
    Some(i128::from(number(hours)?) * 3600 * i128::from(SECOND) + i128::from(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        timestamp(Form::Text(text.as_bytes()), text.contains('+')).unwrap()
    }

    #[test]
    fn dates_count_from_the_epoch() {
        let day = |text: &str| date(Form::Text(text.as_bytes())).unwrap();
        assert_eq!((day("2000-01-01"), day("1999-12-31"), day("2000-03-01")), (0, -1, 60));
        // The first and the last day that the server has, less '2000-01-01'::date.
        assert_eq!((day("4714-11-24 BC"), day("5874897-12-31")), (-2_451_545, 2_145_031_948));
        assert_eq!((day("infinity"), day("-infinity")), (i32::MAX, i32::MIN));
    }

    #[test]
    fn an_offset_does_not_matter() {
        assert_eq!(at("2024-01-01 00:00:00+00"), at("2024-01-01 05:45:00+05:45"));
        assert_eq!(at("2000-01-01 00:00:00.5"), 500_000);
        let before = timestamp(Form::Text(b"1999-12-31 20:30:00-03:30"), true);
        assert_eq!(before.unwrap(), 0);
    }

    #[test]
    fn a_month_is_thirty_days_for_intervals() {
        let of = |text: &str| interval(Form::Text(text.as_bytes())).unwrap();
        assert_eq!(of("1 mon"), of("30 days"));
        assert_eq!(of("1 year 2 mons -3 days +04:05:06.789"), of("417 days 04:05:06.789"));
        assert_eq!(of("-1 days +24:00:00"), of("00:00:00"));
        assert_eq!(of("-2562047788:00:54.775808"), i128::from(i64::MIN));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in ["", "2024", "2024-13-01", "2024-01-01-01", "2024-01-+1", "today"] {
            assert!(date(Form::Text(bad.as_bytes())).is_err(), "{bad}");
        }
        for bad in ["", "1 parsec", "1", "year", "1 year 2", "00:00", "1 year  2 mons"] {
            assert!(interval(Form::Text(bad.as_bytes())).is_err(), "{bad}");
        }
        assert!(timestamp(Form::Text(b"2024-01-01"), false).is_err());
        assert!(timestamp(Form::Text(b"2024-01-01 00:00:00"), true).is_err());
        assert!(time_with_zone(Form::Binary(&[0; 11])).is_err());
    }
}
