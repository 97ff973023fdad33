//! Floating point numbers as the server writes them with `extra_float_digits` above 0: the shortest
//! digits that are read back as the same number, however a reader rounds.
//!
//! That is Ryū's answer, with two differences from Rust's formatting. PostgreSQL rejects a decimal
//! that lies exactly half-way between two floats, although reading it would give the even one of
//! them (1e+23 is such a decimal). And of two decimals that are equally near, it takes the one with
//! an even last digit. So this module takes the shortest decimal from the standard library and
//! checks whether it is half-way. If so, it tries the next longer ones.

use std::fmt::Write as _;

/// The properties of a format that [`shortest`] needs.
trait Float: Copy + PartialEq + std::fmt::LowerExp + std::str::FromStr {
    /// A number of digits that always suffices.
    const DIGITS_MAX: usize;
    /// From this decimal exponent on, a number is written with an exponent.
    const FIXED_END: i32;
    /// The number without its sign.
    fn magnitude(self) -> Self;

    /// Mantissa and exponent: the absolute value is `mantissa * 2^exponent`. Also whether the float
    /// below is nearer than the one above.
    fn parts(self) -> (u64, i32, bool);
}

impl Float for f64 {
    const DIGITS_MAX: usize = 17;
    const FIXED_END: i32 = 15;

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn parts(self) -> (u64, i32, bool) {
        let (fraction, exponent) = (self.to_bits() & ((1 << 52) - 1), (self.to_bits() >> 52 & 0x7ff) as i32);
        match exponent {
            0 => (fraction, -1074, false),
            _ => (fraction | 1 << 52, exponent - 1075, fraction == 0 && exponent > 1),
        }
    }
}

impl Float for f32 {
    const DIGITS_MAX: usize = 9;
    const FIXED_END: i32 = 6;

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn parts(self) -> (u64, i32, bool) {
        let (fraction, exponent) = (self.to_bits() & ((1 << 23) - 1), (self.to_bits() >> 23 & 0xff) as i32);
        match exponent {
            0 => (fraction.into(), -149, false),
            _ => ((fraction | 1 << 23).into(), exponent - 150, fraction == 0 && exponent > 1),
        }
    }
}

/// Decimal digits, and the exponent of the first digit.
struct Decimal {
    digits: String,
    exponent: i32,
}

impl Decimal {
    /// Parses `d.ddde-7`, without trailing zeros.
    fn parse(text: &str) -> Self {
        let (mantissa, exponent) =
            text.split_once('e').expect("a finite number has an exponent in this format");
        let mut digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        digits.truncate(digits.trim_end_matches('0').len().max(1));
        Decimal { digits, exponent: exponent.parse().expect("an exponent is a small number") }
    }

    /// Whether it lies exactly half-way between `value` and a neighbour.
    fn is_half_way<F: Float>(&self, value: F) -> bool {
        let (mantissa, exponent, nearer_below) = value.parts();
        let above = (u128::from(mantissa) * 2 + 1, exponent - 1);
        let below = if nearer_below {
            (u128::from(mantissa) * 4 - 1, exponent - 2)
        } else {
            ((u128::from(mantissa) * 2).wrapping_sub(1), exponent - 1)
        };
        self.is(above) || self.is(below)
    }

    fn is(&self, (odd, power): (u128, i32)) -> bool {
        same(self.integer(), self.tens(), odd, power)
    }

    /// The digits as one number.
    fn integer(&self) -> u128 {
        self.digits.parse().expect("at most 17 digits")
    }

    /// The exponent of the last digit.
    fn tens(&self) -> i32 {
        self.exponent + 1 - self.digits.len() as i32
    }

    /// The decimal that is equally near to `value` and has an even last digit, if there is one and
    /// the last digit of `self` is odd.
    fn even_twin<F: Float>(&self, value: F) -> Option<Decimal> {
        let (mantissa, exponent, _) = value.parts();
        let zeros = mantissa.trailing_zeros();
        let (odd, power) = (u128::from(mantissa >> zeros), exponent + zeros as i32);
        let (integer, tens) = (self.integer(), self.tens());
        let twin = if integer.is_multiple_of(2) {
            return None;
        } else if same(integer * 10 - 5, tens - 1, odd, power) {
            integer - 1
        } else if same(integer * 10 + 5, tens - 1, odd, power) {
            integer + 1
        } else {
            return None;
        };
        let text = format!("{twin}e{tens}");
        let twin = Decimal { exponent: self.exponent, ..Decimal::parse(&text) };
        // If the float below is nearer than the one above, the lower twin may belong to that float.
        (text.parse().is_ok_and(|read: F| read == value.magnitude()) && !twin.is_half_way(value))
            .then_some(twin)
    }
}

/// Whether `integer * 10^tens` is `odd * 2^power`. Powers of two and of five are compared
/// separately.
fn same(integer: u128, tens: i32, odd: u128, power: i32) -> bool {
    // A higher power of five has more bits than a mantissa, and as a denominator more digits.
    const FIVES_MAX: u32 = 27;
    let twos = integer.trailing_zeros() as i32;
    if twos + tens != power || tens.unsigned_abs() > FIVES_MAX {
        return false;
    }
    let fives = 5_u128.pow(tens.unsigned_abs());
    let integer = integer >> twos;
    if tens >= 0 { integer.checked_mul(fives) == Some(odd) } else { odd.checked_mul(fives) == Some(integer) }
}

/// The digits of a finite number that is not zero, without its sign.
fn shortest<F: Float>(value: F) -> Decimal {
    let mut text = String::with_capacity(32);
    write!(text, "{value:e}").expect("a string takes everything");
    let decimal = Decimal::parse(&text);
    if !decimal.is_half_way(value) {
        return decimal.even_twin(value).unwrap_or(decimal);
    }
    for digits in decimal.digits.len()..F::DIGITS_MAX {
        text.clear();
        write!(text, "{value:.digits$e}").expect("a string takes everything");
        let longer = Decimal::parse(&text);
        if text.parse().is_ok_and(|read: F| read == value) && !longer.is_half_way(value) {
            return longer;
        }
    }
    decimal
}

/// `float8out`.
pub(crate) fn float8(value: f64, out: &mut Vec<u8>) {
    let special = match value {
        value if value.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return finite(value, value.is_sign_negative(), value == 0.0, out),
    };
    out.extend_from_slice(special.as_bytes());
}

/// `float4out`.
pub(crate) fn float4(value: f32, out: &mut Vec<u8>) {
    if value.is_finite() {
        finite(value, value.is_sign_negative(), value == 0.0, out);
    } else {
        float8(value.into(), out);
    }
}

fn finite<F: Float>(value: F, negative: bool, zero: bool, out: &mut Vec<u8>) {
    if negative {
        out.push(b'-');
    }
    if zero {
        out.push(b'0');
        return;
    }
    let Decimal { digits, exponent } = shortest(value);
    let digits = digits.as_bytes();
    if !(-4..F::FIXED_END).contains(&exponent) {
        return scientific(digits, exponent, out);
    }
    if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend_from_slice(digits);
        return;
    }
    let whole = exponent as usize + 1;
    out.extend_from_slice(&digits[..whole.min(digits.len())]);
    if digits.len() > whole {
        out.push(b'.');
        out.extend_from_slice(&digits[whole..]);
    } else {
        out.extend(std::iter::repeat_n(b'0', whole - digits.len()));
    }
}

/// Appends `1.5e-07`, with at least two digits of exponent.
fn scientific(digits: &[u8], exponent: i32, out: &mut Vec<u8>) {
    out.push(digits[0]);
    if digits.len() > 1 {
        out.push(b'.');
        out.extend_from_slice(&digits[1..]);
    }
    out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
    crate::number::padded(exponent.unsigned_abs().into(), 2, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text8(value: f64) -> String {
        let mut out = Vec::new();
        float8(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn text4(value: f32) -> String {
        let mut out = Vec::new();
        float4(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn as_the_server_writes_them() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789_012_345.0, "123456789012345"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(text8(value), expected);
        }
        for (value, expected) in [
            (1e6, "1e+06"),
            (999_999.0, "999999"),
            (16_777_216.0, "1.6777216e+07"),
            (1e-45, "1e-45"),
            (0.1, "0.1"),
        ] {
            assert_eq!(text4(value), expected);
        }
    }

    #[test]
    fn a_decimal_half_way_between_two_floats_is_not_taken() {
        assert_eq!(text8(1e23), "9.999999999999999e+22");
        assert_eq!(format!("{:e}", 1e23), "1e23");
        assert_eq!(text8(9_007_199_254_740_992.0), "9.007199254740992e+15");
        // Two equally near decimals: the even one, unless it belongs to the neighbour.
        assert_eq!(text4(0.000_244_140_63), "0.00024414062");
        assert_eq!(text8(2_f64.powi(-24)), "5.960464477539063e-08");
    }
}
