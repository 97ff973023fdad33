//! Durations and sizes as PostgreSQL's configuration writes them.
//!
//! A number, a fraction allowed, and a unit, with or without a space between
//! them: `10s`, `1.5 min`, `64 MB`. A bare number has the setting's own unit,
//! which is part of the type: [`Seconds`], [`Milliseconds`], [`Bytes`], [`MegabytesMax`]. Units
//! are case-sensitive and a kB is 1024 bytes, as in `postgresql.conf`
//! (`convert_to_base_unit` in `utils/misc/guc.c`). Crates for durations and sizes
//! have other units, other spellings, or another kB.

use std::str::FromStr;
use std::time::Duration;

/// A duration whose bare number counts seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) Duration);

/// A duration whose bare number counts milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Milliseconds(pub(crate) Duration);

/// A size whose bare number counts bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// A limit whose bare number counts megabytes; -1, which is `None`, is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MegabytesMax(pub(crate) Option<u64>);

/// A boolean as PostgreSQL reads one: on, off, true, false, yes, no, 1, 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnOff(pub(crate) bool);

/// Microseconds per unit.
const TIME_UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60 * 1_000_000),
    ("h", 3_600 * 1_000_000),
    ("d", 86_400 * 1_000_000),
];

/// Bytes per unit.
const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("kB", 1 << 10), ("MB", 1 << 20), ("GB", 1 << 30), ("TB", 1 << 40)];

/// The largest result, so that the arithmetic on it cannot overflow: about
/// 146 years of microseconds, or 4 EiB.
const BASE_MAX: f64 = (1u64 << 62) as f64;

/// `text` in the base unit of `units`; a bare number is in `default_unit`.
fn parse(text: &str, units: &[(&str, u64)], default_unit: &str) -> Result<u64, String> {
    let text = text.trim();
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..number_len], text[number_len..].trim_start());
    let unit = if unit.is_empty() { default_unit } else { unit };
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let value = number.parse::<f64>().ok();
    let (Some(value), Some(factor)) = (value, factor) else {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "expected a number, optionally with one of the units {} (a bare number is in {default_unit})",
            names.join(", ")
        ));
    };
    let base = (value * factor as f64).round();
    if base > BASE_MAX {
        return Err("out of range".to_owned());
    }
    // Checked above: not negative (there is no sign), not NaN, within u64.
    Ok(base as u64)
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, TIME_UNITS, "s").map(|us| Seconds(Duration::from_micros(us)))
    }
}

impl FromStr for Milliseconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, TIME_UNITS, "ms").map(|us| Milliseconds(Duration::from_micros(us)))
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse(text, SIZE_UNITS, "B")? {
            0 => Err("must be greater than zero".to_owned()),
            bytes => Ok(Bytes(bytes)),
        }
    }
}

impl FromStr for MegabytesMax {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "-1" => Ok(MegabytesMax(None)),
            text => parse(text, SIZE_UNITS, "MB").map(|bytes| MegabytesMax(Some(bytes))),
        }
    }
}

impl FromStr for OnOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "1" => Ok(OnOff(true)),
            "off" | "false" | "no" | "0" => Ok(OnOff(false)),
            _ => Err("expected on or off".to_owned()),
        }
    }
}

/// `bytes` for a person: three significant digits and a unit of 1024.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        // 1023.5 would be rounded to 1024 of this unit.
        if value < 1023.5 {
            return if unit == "B" || value >= 99.95 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TB")
}

/// `count` with a comma after every three digits.
pub(crate) fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `seconds` for a person: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn show_seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_postgresql_reads_them() {
        let cases = [
            ("10", Some(10_000_000), Some(10_000)),
            ("10s", Some(10_000_000), Some(10_000_000)),
            ("1.5 min", Some(90_000_000), Some(90_000_000)),
            ("250ms", Some(250_000), Some(250_000)),
            ("2h", Some(7_200_000_000), Some(7_200_000_000)),
            ("1 d", Some(86_400_000_000), Some(86_400_000_000)),
            ("500us", Some(500), Some(500)),
            ("0", Some(0), Some(0)),
            (" 3 s ", Some(3_000_000), Some(3_000_000)),
            ("", None, None),
            ("s", None, None),
            ("-1s", None, None),
            ("1 sec", None, None),
            ("1S", None, None),
            ("1.2.3s", None, None),
            ("inf", None, None),
            ("99999999999999999 d", None, None),
        ];
        for (text, seconds, milliseconds) in cases {
            assert_eq!(text.parse().ok(), seconds.map(|us| Seconds(Duration::from_micros(us))), "{text}");
            assert_eq!(
                text.parse().ok(),
                milliseconds.map(|us| Milliseconds(Duration::from_micros(us))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_limit_in_megabytes_may_be_none() {
        let limits = ["-1", "16", "1GB", "0"].map(|text| text.parse::<MegabytesMax>().unwrap().0);
        assert_eq!(limits, [None, Some(16 << 20), Some(1 << 30), Some(0)]);
        assert!("-2".parse::<MegabytesMax>().is_err());
    }

    #[test]
    fn sizes_are_read_as_postgresql_reads_them() {
        let cases = [
            ("1", Some(1)),
            ("8kB", Some(8192)),
            ("64 MB", Some(64 << 20)),
            ("1.5GB", Some(3 << 29)),
            ("1TB", Some(1 << 40)),
            ("12B", Some(12)),
            ("0", None),
            ("1KB", None),
            ("1mb", None),
            ("1 s", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse().ok(), bytes.map(Bytes), "{text}");
        }
        let message = "1KB".parse::<Bytes>().unwrap_err();
        assert!(message.contains("B, kB, MB, GB, TB"), "{message}");
    }

    #[test]
    fn booleans_have_postgresqls_spellings() {
        for on in ["on", "true", "yes", "1", "ON"] {
            assert_eq!(on.parse(), Ok(OnOff(true)));
        }
        for off in ["off", "false", "no", "0"] {
            assert_eq!(off.parse(), Ok(OnOff(false)));
        }
        assert!("parallel".parse::<OnOff>().is_err());
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(1024), "1.0 kB");
        assert_eq!(show_bytes(300 << 20), "300 MB");
        assert_eq!(show_bytes(u64::MAX), "16777216.0 TB");
        assert_eq!(show_count(0), "0");
        assert_eq!(show_count(999), "999");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_seconds(0.0), "0.0 s");
        assert_eq!(show_seconds(59.7), "1 min 0 s");
        assert_eq!(show_seconds(7_500.0), "2 h 5 min");
        assert_eq!(show_seconds(100_000.0), "1 d 3 h");
    }
}
