//! Values of the types that filters may contain: their stored form, and how they compare.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use base::Oid;

use crate::decimal::Decimal;
use crate::error::{Error, Result};

/// A type that a filter may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    Numeric,
    /// text and varchar.
    Text,
    Bpchar,
    Name,
    Date,
    Time,
    TimeTz,
    Timestamp,
    TimestampTz,
    Interval,
    Uuid,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Bool => "boolean",
            Kind::Int2 => "smallint",
            Kind::Int4 => "integer",
            Kind::Int8 => "bigint",
            Kind::Oid => "oid",
            Kind::Float4 => "real",
            Kind::Float8 => "double precision",
            Kind::Numeric => "numeric",
            Kind::Text => "text",
            Kind::Bpchar => "character",
            Kind::Name => "name",
            Kind::Date => "date",
            Kind::Time => "time",
            Kind::TimeTz => "time with time zone",
            Kind::Timestamp => "timestamp",
            Kind::TimestampTz => "timestamp with time zone",
            Kind::Interval => "interval",
            Kind::Uuid => "uuid",
        })
    }
}

impl Kind {
    pub(crate) fn of(oid: Oid) -> Option<Self> {
        Some(match oid.0 {
            16 => Kind::Bool,
            19 => Kind::Name,
            20 => Kind::Int8,
            21 => Kind::Int2,
            23 => Kind::Int4,
            25 | 1043 => Kind::Text,
            26 => Kind::Oid,
            700 => Kind::Float4,
            701 => Kind::Float8,
            1042 => Kind::Bpchar,
            1082 => Kind::Date,
            1083 => Kind::Time,
            1114 => Kind::Timestamp,
            1184 => Kind::TimestampTz,
            1186 => Kind::Interval,
            1266 => Kind::TimeTz,
            1700 => Kind::Numeric,
            2950 => Kind::Uuid,
            _ => return None,
        })
    }

    /// Whether its order depends on a collation.
    pub(crate) fn is_collated(self) -> bool {
        matches!(self, Kind::Text | Kind::Bpchar | Kind::Name)
    }
}

/// A value that is not NULL.
#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    Bool(bool),
    /// int2, int4, int8 and oid.
    Int(i64),
    Float4(f32),
    Float8(f64),
    Numeric(Decimal),
    Text(Cow<'a, [u8]>),
    /// Days from 2000-01-01, or an infinity.
    Date(i32),
    /// Microseconds of a time, or since 2000-01-01. An infinity is the first or the last number.
    Micros(i64),
    /// Microseconds, and seconds west of UTC.
    TimeTz(i64, i32),
    /// Microseconds, with months of 30 days and days of 24 hours, by which the server compares
    /// intervals.
    Interval(i128),
    Uuid([u8; 16]),
}

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

impl<'a> Value<'a> {
    /// Reads a value of `kind` from its payload.
    pub(crate) fn read(kind: Kind, payload: Cow<'a, [u8]>) -> Result<Self> {
        fn fixed<const N: usize>(payload: &[u8]) -> Result<[u8; N]> {
            payload.try_into().map_err(|_| Error::damaged())
        }
        Ok(match kind {
            Kind::Bool => Value::Bool(fixed::<1>(&payload)?[0] != 0),
            Kind::Int2 => Value::Int(i16::from_le_bytes(fixed(&payload)?).into()),
            Kind::Int4 => Value::Int(i32::from_le_bytes(fixed(&payload)?).into()),
            Kind::Int8 => Value::Int(i64::from_le_bytes(fixed(&payload)?)),
            Kind::Oid => Value::Int(u32::from_le_bytes(fixed(&payload)?).into()),
            Kind::Float4 => Value::Float4(f32::from_le_bytes(fixed(&payload)?)),
            Kind::Float8 => Value::Float8(f64::from_le_bytes(fixed(&payload)?)),
            Kind::Numeric => Value::Numeric(Decimal::read(&payload)?),
            Kind::Text => Value::Text(payload),
            Kind::Bpchar => Value::Text(without_blanks(payload)),
            Kind::Name => Value::Text(up_to_zero(payload)),
            Kind::Date => Value::Date(i32::from_le_bytes(fixed(&payload)?)),
            Kind::Time | Kind::Timestamp | Kind::TimestampTz => {
                Value::Micros(i64::from_le_bytes(fixed(&payload)?))
            }
            Kind::TimeTz => {
                let [time @ .., a, b, c, d] = fixed::<12>(&payload)?;
                Value::TimeTz(i64::from_le_bytes(time), i32::from_le_bytes([a, b, c, d]))
            }
            Kind::Interval => Value::Interval(span(fixed(&payload)?)),
            Kind::Uuid => Value::Uuid(fixed(&payload)?),
        })
    }

    /// Orders two values as the server's comparison functions do. Dates and timestamps may be
    /// compared with each other, and floats of both widths.
    pub(crate) fn compare(&self, other: &Self) -> Result<Ordering> {
        use Value::{Bool, Date, Float4, Float8, Int, Interval, Micros, Numeric, Text, TimeTz, Uuid};
        Ok(match (self, other) {
            (Bool(left), Bool(right)) => left.cmp(right),
            (Int(left), Int(right)) => left.cmp(right),
            (Float4(left), Float4(right)) => floats((*left).into(), (*right).into()),
            (Float4(left), Float8(right)) => floats((*left).into(), *right),
            (Float8(left), Float4(right)) => floats(*left, (*right).into()),
            (Float8(left), Float8(right)) => floats(*left, *right),
            (Numeric(left), Numeric(right)) => left.cmp(right),
            (Text(left), Text(right)) => left.cmp(right),
            (Date(left), Date(right)) => left.cmp(right),
            (Date(left), Micros(right)) => midnight(*left).cmp(&i128::from(*right)),
            (Micros(left), Date(right)) => i128::from(*left).cmp(&midnight(*right)),
            (Micros(left), Micros(right)) => left.cmp(right),
            (TimeTz(left, west), TimeTz(right, other_west)) => {
                let utc = |time: i64, west: i32| i128::from(time) + i128::from(west) * 1_000_000;
                utc(*left, *west).cmp(&utc(*right, *other_west)).then(west.cmp(other_west))
            }
            (Interval(left), Interval(right)) => left.cmp(right),
            (Uuid(left), Uuid(right)) => left.cmp(right),
            _ => return Err(Error::damaged()),
        })
    }
}

/// NaN is equal to itself and greater than everything else.
fn floats(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// A date as a timestamp. A date beyond the last timestamp is still before infinity.
fn midnight(date: i32) -> i128 {
    match date {
        i32::MAX => i64::MAX.into(),
        i32::MIN => i64::MIN.into(),
        date => (i128::from(date) * i128::from(DAY)).min(i128::from(i64::MAX) - 1),
    }
}

fn span(stored: [u8; 16]) -> i128 {
    let (time, rest) = stored.split_first_chunk::<8>().expect("16 bytes hold 8");
    let (days, months) = rest.split_first_chunk::<4>().expect("8 bytes hold 4");
    let months = months.first_chunk::<4>().expect("the last 4 bytes");
    let days = i128::from(i32::from_le_bytes(*days)) + i128::from(i32::from_le_bytes(*months)) * 30;
    i128::from(i64::from_le_bytes(*time)) + days * i128::from(DAY)
}

/// A bpchar without the blanks at its end, which do not count in comparisons.
fn without_blanks(payload: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let length = payload.len() - payload.iter().rev().take_while(|&&byte| byte == b' ').count();
    cut(payload, length)
}

fn up_to_zero(payload: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let length = payload.iter().position(|&byte| byte == 0).unwrap_or(payload.len());
    cut(payload, length)
}

fn cut(payload: Cow<'_, [u8]>, length: usize) -> Cow<'_, [u8]> {
    match payload {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..length]),
        Cow::Owned(mut bytes) => {
            bytes.truncate(length);
            Cow::Owned(bytes)
        }
    }
}
