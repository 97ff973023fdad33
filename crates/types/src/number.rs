//! Integers in decimal, and money.

use crate::error::Result;
use crate::reader::fixed;

/// Appends `value` in decimal.
pub(crate) fn unsigned(value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `value` in decimal, with its sign.
pub(crate) fn signed(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    unsigned(value.unsigned_abs(), out);
}

/// Appends `value` with at least `width` digits.
pub(crate) fn padded(value: u64, width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    unsigned(value, out);
    let digits = out.len() - start;
    if digits < width {
        out.splice(start..start, std::iter::repeat_n(b'0', width - digits));
    }
}

/// `cash_out` with `lc_monetary` C: `-$1,234.56`.
pub(crate) fn money(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let value = i64::from_le_bytes(fixed(payload, "money")?);
    if value < 0 {
        out.push(b'-');
    }
    out.push(b'$');
    let (whole, cents) = (value.unsigned_abs() / 100, value.unsigned_abs() % 100);
    let mut digits = Vec::with_capacity(20);
    unsigned(whole, &mut digits);
    for (index, &digit) in digits.iter().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(b',');
        }
        out.push(digit);
    }
    out.push(b'.');
    padded(cents, 2, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_grouped() {
        for (cents, expected) in [
            (0, "$0.00"),
            (-5, "-$0.05"),
            (99_999, "$999.99"),
            (100_000, "$1,000.00"),
            (i64::MIN, "-$92,233,720,368,547,758.08"),
        ] {
            let mut out = Vec::new();
            money(&i64::to_le_bytes(cents), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
