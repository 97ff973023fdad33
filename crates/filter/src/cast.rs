//! Casts between types, with the server's rounding and its errors.

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::value::{Kind, Value};

/// A cast. The list of functions has the types that it is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cast {
    /// Both types have the same form here.
    Nothing,
    IntToInt,
    IntToFloat,
    FloatToFloat,
    FloatToInt,
    IntToNumeric,
    FloatToNumeric,
    NumericToInt,
    NumericToFloat,
    DateToTimestamp,
    TimestampToDate,
    /// The same four bytes, with another meaning of their first bit.
    IntToOid,
    OidToInt,
    IntToBool,
    BoolToInt,
    TextToBpchar,
}

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;
/// The first timestamp beyond the valid ones, 294277-01-01 (`END_TIMESTAMP`).
const TIMESTAMP_END: i128 = 9_223_371_331_200_000_000;

impl Cast {
    /// Turns `value` into a value of `to`.
    pub(crate) fn apply<'a>(self, value: Value<'a>, to: Kind) -> Result<Value<'a>> {
        match (self, value) {
            (Cast::Nothing, value) => Ok(value),
            (Cast::IntToInt, Value::Int(value)) => in_range(value, to),
            (Cast::IntToFloat, Value::Int(value)) if to == Kind::Float4 => Ok(Value::Float4(value as f32)),
            (Cast::IntToFloat, Value::Int(value)) => Ok(Value::Float8(value as f64)),
            (Cast::FloatToFloat, Value::Float4(value)) => Ok(Value::Float8(value.into())),
            (Cast::FloatToFloat, Value::Float8(value)) => narrow(value),
            (Cast::FloatToInt, Value::Float4(value)) => rounded(value.into(), to),
            (Cast::FloatToInt, Value::Float8(value)) => rounded(value, to),
            (Cast::IntToNumeric, Value::Int(value)) => Ok(Value::Numeric(Decimal::from_integer(value))),
            // The numbers of digits are FLT_DIG and DBL_DIG.
            (Cast::FloatToNumeric, Value::Float4(value)) => {
                Ok(Value::Numeric(Decimal::from_float(value.into(), 6)))
            }
            (Cast::FloatToNumeric, Value::Float8(value)) => {
                Ok(Value::Numeric(Decimal::from_float(value, 15)))
            }
            (Cast::NumericToInt, Value::Numeric(value)) => in_range(value.to_integer()?, to),
            (Cast::NumericToFloat, Value::Numeric(value)) => numeric_to_float(&value, to),
            (Cast::DateToTimestamp, Value::Date(date)) => timestamp(date).map(Value::Micros),
            (Cast::TimestampToDate, Value::Micros(micros)) => Ok(Value::Date(date(micros))),
            (Cast::IntToOid, Value::Int(value)) => Ok(Value::Int((value as u32).into())),
            (Cast::OidToInt, Value::Int(value)) => Ok(Value::Int((value as i32).into())),
            (Cast::IntToBool, Value::Int(value)) => Ok(Value::Bool(value != 0)),
            (Cast::BoolToInt, Value::Bool(value)) => Ok(Value::Int(value.into())),
            (Cast::TextToBpchar, Value::Text(text)) => Value::read(Kind::Bpchar, text.into_owned().into()),
            _ => Err(Error::damaged()),
        }
    }
}

fn in_range<'a>(value: i64, to: Kind) -> Result<Value<'a>> {
    let fits = match to {
        Kind::Int2 => i16::try_from(value).is_ok(),
        Kind::Int4 => i32::try_from(value).is_ok(),
        _ => true,
    };
    if fits { Ok(Value::Int(value)) } else { Err(Error::out_of_range("integer")) }
}

/// Rounds halves to the even number.
fn rounded<'a>(value: f64, to: Kind) -> Result<Value<'a>> {
    let whole = value.round_ties_even();
    // 2^63 is the first float that is out of range. NaN is in no range.
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&whole) {
        in_range(whole as i64, to)
    } else {
        Err(Error::out_of_range("integer"))
    }
}

fn narrow<'a>(value: f64) -> Result<Value<'a>> {
    let narrow = value as f32;
    if narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0 {
        return Err(Error::out_of_range("float"));
    }
    Ok(Value::Float4(narrow))
}

fn numeric_to_float<'a>(value: &Decimal, to: Kind) -> Result<Value<'a>> {
    const RANGE: Error = Error::out_of_range("float");
    let text = value.to_text();
    let finite = matches!(value, Decimal::Finite(_));
    let is_zero = *value == Decimal::from_integer(0);
    if to == Kind::Float4 {
        let float: f32 = text.parse().map_err(|_| RANGE)?;
        let lost = finite && float.is_infinite() || float == 0.0 && !is_zero;
        return if lost { Err(RANGE) } else { Ok(Value::Float4(float)) };
    }
    let float: f64 = text.parse().map_err(|_| RANGE)?;
    let lost = finite && float.is_infinite() || float == 0.0 && !is_zero;
    if lost { Err(RANGE) } else { Ok(Value::Float8(float)) }
}

fn timestamp(date: i32) -> Result<i64> {
    match date {
        i32::MAX => Ok(i64::MAX),
        i32::MIN => Ok(i64::MIN),
        date => {
            let micros = i128::from(date) * i128::from(DAY);
            if micros >= TIMESTAMP_END {
                return Err(Error::out_of_range("date"));
            }
            i64::try_from(micros).map_err(|_| Error::out_of_range("date"))
        }
    }
}

fn date(micros: i64) -> i32 {
    match micros {
        i64::MAX => i32::MAX,
        i64::MIN => i32::MIN,
        micros => micros.div_euclid(DAY) as i32,
    }
}
