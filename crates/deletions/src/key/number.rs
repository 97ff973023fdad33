//! Numbers: integers, floating point, numeric.

use super::value::{Form, Malformed, Result, ascii, fixed};

/// What a canonical numeric begins with.
mod class {
    pub(super) const NAN: u8 = b'n';
    pub(super) const INFINITE: u8 = b'i';
    pub(super) const MINUS_INFINITE: u8 = b'j';
    pub(super) const ZERO: u8 = b'0';
    pub(super) const POSITIVE: u8 = b'+';
    pub(super) const NEGATIVE: u8 = b'-';
}

/// `NUMERIC_SIGN_MASK` and its values, as `numeric_send` writes them.
mod sign {
    pub(super) const POSITIVE: u16 = 0x0000;
    pub(super) const NEGATIVE: u16 = 0x4000;
    pub(super) const NAN: u16 = 0xc000;
    pub(super) const INFINITE: u16 = 0xd000;
    pub(super) const MINUS_INFINITE: u16 = 0xf000;
}

const NUMERIC: Malformed = Malformed { what: "numeric" };
/// Decimal digits in a digit of numeric.
const GROUP: usize = 4;

pub(super) fn signed(form: Form<'_>, width: u8) -> Result<i64> {
    const WHAT: &str = "integer";
    match (form, width) {
        (Form::Text(text), _) => ascii(text, WHAT)?.parse().map_err(|_| Malformed { what: WHAT }),
        (Form::Binary(bytes), 2) => Ok(i16::from_be_bytes(fixed(bytes, WHAT)?).into()),
        (Form::Binary(bytes), 4) => Ok(i32::from_be_bytes(fixed(bytes, WHAT)?).into()),
        (Form::Binary(bytes), _) => Ok(i64::from_be_bytes(fixed(bytes, WHAT)?)),
    }
}

pub(super) fn unsigned(form: Form<'_>, width: u8) -> Result<u64> {
    const WHAT: &str = "unsigned integer";
    match (form, width) {
        (Form::Text(text), _) => ascii(text, WHAT)?.parse().map_err(|_| Malformed { what: WHAT }),
        (Form::Binary(bytes), 4) => Ok(u32::from_be_bytes(fixed(bytes, WHAT)?).into()),
        (Form::Binary(bytes), _) => Ok(u64::from_be_bytes(fixed(bytes, WHAT)?)),
    }
}

/// The bits of the number; the same ones for 0 and -0, and for every NaN.
pub(super) fn float4(form: Form<'_>) -> Result<u32> {
    const WHAT: &str = "float4";
    let number: f32 = match form {
        Form::Text(text) => ascii(text, WHAT)?.parse().map_err(|_| Malformed { what: WHAT })?,
        Form::Binary(bytes) => f32::from_be_bytes(fixed(bytes, WHAT)?),
    };
    Ok(match number {
        _ if number.is_nan() => f32::NAN.to_bits(),
        0.0 => 0,
        _ => number.to_bits(),
    })
}

/// See [`float4`].
pub(super) fn float8(form: Form<'_>) -> Result<u64> {
    const WHAT: &str = "float8";
    let number: f64 = match form {
        Form::Text(text) => ascii(text, WHAT)?.parse().map_err(|_| Malformed { what: WHAT })?,
        Form::Binary(bytes) => f64::from_be_bytes(fixed(bytes, WHAT)?),
    };
    Ok(match number {
        _ if number.is_nan() => f64::NAN.to_bits(),
        0.0 => 0,
        _ => number.to_bits(),
    })
}

/// A class, and for a finite number that is not zero: the weight of its first digit and its digits,
/// in base 10000, without zeros at either end. Scale is lost on purpose.
pub(super) fn numeric(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    match form {
        Form::Text(b"NaN") => out.push(class::NAN),
        Form::Text(b"Infinity") => out.push(class::INFINITE),
        Form::Text(b"-Infinity") => out.push(class::MINUS_INFINITE),
        Form::Text(text) => numeric_text(text, out)?,
        Form::Binary(bytes) => numeric_binary(bytes, out)?,
    }
    Ok(())
}

fn numeric_binary(bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or(NUMERIC)?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if rest.len() != usize::from(word(0)) * 2 {
        return Err(NUMERIC);
    }
    let weight = i32::from(word(2).cast_signed());
    let class = match word(4) {
        sign::POSITIVE => class::POSITIVE,
        sign::NEGATIVE => class::NEGATIVE,
        sign::NAN => class::NAN,
        sign::INFINITE => class::INFINITE,
        sign::MINUS_INFINITE => class::MINUS_INFINITE,
        _ => return Err(NUMERIC),
    };
    if class != class::POSITIVE && class != class::NEGATIVE {
        out.push(class);
        return Ok(());
    }
    let digits = rest.chunks_exact(2).map(|digit| u16::from_be_bytes([digit[0], digit[1]]));
    finite(class, weight, digits, out);
    Ok(())
}

fn numeric_text(text: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (class, text) = match text.strip_prefix(b"-") {
        Some(text) => (class::NEGATIVE, text),
        None => (class::POSITIVE, text),
    };
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..point], text.get(point + 1..).unwrap_or(&[]));
    let is_number = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err(NUMERIC);
    }
    // Groups are counted from the point.
    let first = whole.len() % GROUP;
    let (odd, whole) = whole.split_at(first);
    let group = |digits: &[u8]| digits.iter().fold(0, |all, digit| all * 10 + u16::from(digit - b'0'));
    // The last group of a fraction may be short: zeros follow.
    let filled = |digits: &[u8]| group(digits) * 10_u16.pow((GROUP - digits.len()) as u32);
    let weight = i32::try_from(usize::from(first > 0) + whole.len() / GROUP).map_err(|_| NUMERIC)? - 1;
    let digits = (first > 0).then(|| group(odd)).into_iter();
    let digits = digits.chain(whole.chunks(GROUP).map(group)).chain(fraction.chunks(GROUP).map(filled));
    finite(class, weight, digits, out);
    Ok(())
}

/// `weight` is that of the first digit.
fn finite(class: u8, weight: i32, digits: impl Iterator<Item = u16>, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(class);
    let mut skipped = 0;
    // Length with everything up to the last digit that is not zero.
    let mut end = start;
    for digit in digits {
        if digit == 0 && end == start {
            skipped += 1;
            continue;
        }
        if end == start {
            out.extend_from_slice(&(weight - skipped).to_be_bytes());
        }
        out.extend_from_slice(&digit.to_be_bytes());
        if digit != 0 {
            end = out.len();
        }
    }
    if end == start {
        out.truncate(start);
        out.push(class::ZERO);
    } else {
        out.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        numeric(Form::Text(text.as_bytes()), &mut out).unwrap();
        out
    }

    #[test]
    fn scale_does_not_matter() {
        for equal in [
            &["0", "0.000", "-0.0"][..],
            &["1", "1.0", "1.00000", "0001"],
            &["10000", "10000.0", "00010000"],
            &["-120000000", "-120000000.00"],
            &["0.00012", "0.000120"],
            &["100000000000.000000001"],
        ] {
            assert!(equal.iter().all(|number| text(number) == text(equal[0])), "{equal:?}");
        }
        let different =
            ["0", "1", "10", "100", "1000", "10000", "0.1", "0.01", "0.0001", "0.00001", "-1", "NaN"];
        for (at, one) in different.iter().enumerate() {
            assert!(different[at + 1..].iter().all(|other| text(one) != text(other)), "{one}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bad in ["", "-", ".5", "1e5", "1.2.3", "+1", " 1", "1 "] {
            assert!(numeric(Form::Text(bad.as_bytes()), &mut Vec::new()).is_err(), "{bad:?}");
        }
        for bad in [&b""[..], b"\0\x01\0\0\0\0\0\0", b"\0\0\0\0\x80\0\0\0"] {
            assert!(numeric(Form::Binary(bad), &mut Vec::new()).is_err(), "{bad:?}");
        }
        assert!(signed(Form::Binary(b"\0\0\0"), 4).is_err());
        assert!(float8(Form::Text(b"one")).is_err());
    }

    #[test]
    fn zeros_of_floats_are_equal() {
        assert_eq!(float8(Form::Text(b"-0")).unwrap(), float8(Form::Text(b"0")).unwrap());
        assert_eq!(float4(Form::Binary(&(-0.0_f32).to_be_bytes())).unwrap(), 0);
        let nan = f64::from_bits(0xfff8_0000_0000_0001);
        assert_eq!(float8(Form::Binary(&nan.to_be_bytes())).unwrap(), float8(Form::Text(b"NaN")).unwrap());
    }
}
