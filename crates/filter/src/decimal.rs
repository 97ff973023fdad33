//! numeric values, with what filters need: comparison and conversion.

use std::cmp::Ordering;

use types::NumericParts;

use crate::error::{Error, Result};

/// A numeric. The special values are in the order in which they sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decimal {
    NegativeInfinity,
    Finite(Finite),
    Infinity,
    NaN,
}

/// `sign * sum of digits[i] * 10000^(weight - i)`, without zeros at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finite {
    negative: bool,
    weight: i32,
    digits: Vec<u16>,
}

impl Decimal {
    pub(crate) fn read(payload: &[u8]) -> Result<Self> {
        Ok(match types::numeric_parts(payload)? {
            NumericParts::NaN => Decimal::NaN,
            NumericParts::Infinity => Decimal::Infinity,
            NumericParts::NegativeInfinity => Decimal::NegativeInfinity,
            NumericParts::Finite { negative, weight, digits } => {
                Decimal::Finite(Finite::new(negative, weight.into(), digits))
            }
        })
    }

    pub(crate) fn from_integer(value: i64) -> Self {
        let mut rest = value.unsigned_abs();
        let mut digits = Vec::new();
        while rest > 0 {
            digits.insert(0, (rest % 10_000) as u16);
            rest /= 10_000;
        }
        let weight = digits.len() as i32 - 1;
        Decimal::Finite(Finite::new(value < 0, weight, digits))
    }

    /// The server's conversion of a float: with as many digits as its type is sure to have.
    pub(crate) fn from_float(value: f64, digits: usize) -> Self {
        if value.is_nan() {
            return Decimal::NaN;
        }
        if value.is_infinite() {
            return if value > 0.0 { Decimal::Infinity } else { Decimal::NegativeInfinity };
        }
        let text = format!("{:.*e}", digits - 1, value.abs());
        let (mantissa, exponent) =
            text.split_once('e').expect("a finite number has an exponent in this format");
        let exponent: i32 = exponent.parse().expect("an exponent is a small number");
        let mut letters: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
        // The position of the first digit within its group of four.
        let place = exponent.rem_euclid(4) as usize;
        letters.splice(0..0, std::iter::repeat_n(b'0', 3 - place));
        while !letters.len().is_multiple_of(4) {
            letters.push(b'0');
        }
        let groups = letters
            .chunks(4)
            .map(|group| group.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')));
        Decimal::Finite(Finite::new(value < 0.0, exponent.div_euclid(4), groups.collect()))
    }

    /// The nearest integer, with halves away from zero, if it fits in 64 bits.
    pub(crate) fn to_integer(&self) -> Result<i64> {
        const RANGE: Error = Error::out_of_range("integer");
        let Decimal::Finite(finite) = self else { return Err(RANGE) };
        let mut whole: i128 = 0;
        // Five groups hold every integer of 64 bits.
        if finite.weight > 5 {
            return Err(RANGE);
        }
        for index in 0..=finite.weight {
            whole = whole * 10_000 + i128::from(finite.digit(index));
        }
        if finite.digit(finite.weight + 1) >= 5_000 {
            whole += 1;
        }
        i64::try_from(if finite.negative { -whole } else { whole }).map_err(|_| RANGE)
    }

    /// As decimal text that a float's input can read.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Decimal::NaN => "NaN".to_owned(),
            Decimal::Infinity => "inf".to_owned(),
            Decimal::NegativeInfinity => "-inf".to_owned(),
            Decimal::Finite(finite) => {
                let digits: String = finite.digits.iter().map(|digit| format!("{digit:04}")).collect();
                let exponent = (finite.weight + 1 - finite.digits.len() as i32) * 4;
                let sign = if finite.negative { "-" } else { "" };
                format!("{sign}0{digits}e{exponent}")
            }
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Decimal::NegativeInfinity => 0,
            Decimal::Finite(_) => 1,
            Decimal::Infinity => 2,
            Decimal::NaN => 3,
        }
    }
}

impl Finite {
    fn new(negative: bool, mut weight: i32, mut digits: Vec<u16>) -> Self {
        let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
        digits.drain(..zeros);
        weight -= zeros as i32;
        digits.truncate(digits.len() - digits.iter().rev().take_while(|&&digit| digit == 0).count());
        if digits.is_empty() {
            return Finite { negative: false, weight: 0, digits };
        }
        Finite { negative, weight, digits }
    }

    fn digit(&self, index: i32) -> u16 {
        usize::try_from(index).ok().and_then(|index| self.digits.get(index)).copied().unwrap_or(0)
    }

    fn magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self.weight.cmp(&other.weight).then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let (Decimal::Finite(left), Decimal::Finite(right)) = (self, other) else {
            return self.rank().cmp(&other.rank());
        };
        match (left.negative, right.negative) {
            (false, false) => left.magnitude(right),
            (true, true) => right.magnitude(left),
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_sort_as_numbers() {
        let sorted = [
            Decimal::NegativeInfinity,
            Decimal::from_integer(i64::MIN),
            Decimal::from_float(-10_000.5, 15),
            Decimal::from_integer(-10_000),
            Decimal::from_float(-0.001, 15),
            Decimal::from_integer(0),
            Decimal::from_float(1e-20, 15),
            Decimal::from_float(0.5, 15),
            Decimal::from_integer(1),
            Decimal::from_float(9_999.999, 15),
            Decimal::from_integer(10_000),
            Decimal::from_float(1e30, 15),
            Decimal::Infinity,
            Decimal::NaN,
        ];
        for (left, a) in sorted.iter().enumerate() {
            for (right, b) in sorted.iter().enumerate() {
                assert_eq!(a.cmp(b), left.cmp(&right), "{a:?} {b:?}");
            }
        }
        assert_eq!(Decimal::from_float(12_345.0, 15), Decimal::from_integer(12_345));
    }

    #[test]
    fn to_integers_and_text() {
        for (value, expected) in
            [(0.4, 0), (0.5, 1), (-0.5, -1), (-1.49, -1), (99_999.5, 100_000), (0.00005, 0)]
        {
            assert_eq!(Decimal::from_float(value, 15).to_integer().unwrap(), expected, "{value}");
        }
        for value in [i64::MIN, i64::MAX, 0, 10_000] {
            assert_eq!(Decimal::from_integer(value).to_integer().unwrap(), value);
        }
        assert!(Decimal::from_float(1e19, 15).to_integer().is_err());
        assert!(Decimal::NaN.to_integer().is_err());
        for value in [0.0, 1.5, -12_345.678_9, 1e30, 1e-30] {
            assert_eq!(Decimal::from_float(value, 15).to_text().parse::<f64>().unwrap(), value);
        }
    }
}
