//! Values that are words of some kind: booleans, texts, bytes, identifiers, positions, documents.

use super::value::{Form, Malformed, Result, ascii, fixed};

/// Version of jsonb's binary form.
const JSONB_SEND_VERSION: u8 = 1;

pub(super) fn boolean(form: Form<'_>) -> Result<bool> {
    match form {
        Form::Text(b"t") | Form::Binary([1]) => Ok(true),
        Form::Text(b"f") | Form::Binary([0]) => Ok(false),
        _ => Err(Malformed { what: "boolean" }),
    }
}

/// Text is the same in both forms.
pub(super) fn text(form: Form<'_>) -> &[u8] {
    let (Form::Text(bytes) | Form::Binary(bytes)) = form;
    bytes
}

/// `bcTruelen`: blanks at the end of char(n) do not count, and nothing else is a blank.
pub(super) fn without_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    &text[..end]
}

/// `"char"`: from 16 on, the text of a byte above ASCII is its octal number.
pub(super) fn char(form: Form<'_>) -> Result<u8> {
    match form {
        Form::Text([]) => Ok(0),
        Form::Text([b'\\', digits @ ..]) if digits.len() == 3 => {
            let digit = |all: u8, digit: &u8| match digit {
                b'0'..=b'7' => all.checked_mul(8).map(|all| all | (digit - b'0')),
                _ => None,
            };
            digits.iter().try_fold(0, digit).ok_or(Malformed { what: "\"char\"" })
        }
        Form::Text([byte]) | Form::Binary([byte]) => Ok(*byte),
        _ => Err(Malformed { what: "\"char\"" }),
    }
}

pub(super) fn bytea(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    match form {
        Form::Binary(bytes) => {
            out.extend_from_slice(bytes);
            Ok(())
        }
        Form::Text([b'\\', b'x', digits @ ..]) => hex(digits, "bytea", out),
        Form::Text(_) => Err(Malformed { what: "bytea" }),
    }
}

pub(super) fn uuid(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    const WHAT: &str = "uuid";
    match form {
        Form::Binary(bytes) => out.extend_from_slice(&fixed::<16>(bytes, WHAT)?),
        Form::Text(text) => {
            let start = out.len();
            for part in text.split(|byte| *byte == b'-') {
                hex(part, WHAT, out)?;
            }
            if out.len() - start != 16 {
                return Err(Malformed { what: WHAT });
            }
        }
    }
    Ok(())
}

/// Appends the bytes that hexadecimal digits stand for.
pub(super) fn hex(digits: &[u8], what: &'static str, out: &mut Vec<u8>) -> Result<()> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    if digits.len() % 2 == 1 {
        return Err(Malformed { what });
    }
    for pair in digits.chunks_exact(2) {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(Malformed { what });
        };
        out.push((high << 4 | low) as u8);
    }
    Ok(())
}

/// How many bits, then the bits, padded with zeros to whole bytes.
pub(super) fn bits(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    const MALFORMED: Malformed = Malformed { what: "bit string" };
    match form {
        Form::Binary(bytes) => {
            let (length, bits) = bytes.split_first_chunk::<4>().ok_or(MALFORMED)?;
            if bits.len() != (u32::from_be_bytes(*length) as usize).div_ceil(8) {
                return Err(MALFORMED);
            }
            out.extend_from_slice(bytes);
        }
        Form::Text(text) => {
            let length = u32::try_from(text.len()).map_err(|_| MALFORMED)?;
            out.extend_from_slice(&length.to_be_bytes());
            for byte in text.chunks(8) {
                let bit = |all: u8, (at, bit): (usize, &u8)| match bit {
                    b'0' => Some(all),
                    b'1' => Some(all | 0x80 >> at),
                    _ => None,
                };
                out.push(byte.iter().enumerate().try_fold(0, bit).ok_or(MALFORMED)?);
            }
        }
    }
    Ok(())
}

pub(super) fn lsn(form: Form<'_>) -> Result<u64> {
    const WHAT: &str = "pg_lsn";
    match form {
        Form::Binary(bytes) => Ok(u64::from_be_bytes(fixed(bytes, WHAT)?)),
        Form::Text(text) => {
            let lsn = ascii(text, WHAT)?.parse::<base::Lsn>();
            lsn.map(base::Lsn::as_u64).map_err(|_| Malformed { what: WHAT })
        }
    }
}

/// The document's text, which the server writes in one way only, but for the scale of numbers:
/// zeros at the end of a fraction are left out.
pub(super) fn jsonb(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    let text = match form {
        Form::Text(text) | Form::Binary([JSONB_SEND_VERSION, text @ ..]) => text,
        Form::Binary(_) => return Err(Malformed { what: "jsonb" }),
    };
    let (mut in_string, mut escaped) = (false, false);
    // Where the fraction of the present number begins, with its point.
    let mut fraction: Option<usize> = None;
    for byte in text {
        if !byte.is_ascii_digit() {
            fraction = fraction.and_then(|start| {
                shorten(start, out);
                None
            });
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'.' if !in_string => fraction = Some(out.len()),
            _ => {}
        }
        out.push(*byte);
    }
    fraction.into_iter().for_each(|start| shorten(start, out));
    Ok(())
}

/// Takes zeros off the end of a fraction that begins with its point at `start`.
fn shorten(start: usize, out: &mut Vec<u8>) {
    let last = out[start + 1..].iter().rposition(|digit| *digit != b'0');
    out.truncate(last.map_or(start, |last| start + 1 + last + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> String {
        let mut out = Vec::new();
        jsonb(Form::Text(text.as_bytes()), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_of_a_document_lose_their_scale_and_texts_do_not() {
        assert_eq!(
            document(r#"{"a": [1.50, 2.00, 100, 0.0], "b.00": "1.50"}"#),
            r#"{"a": [1.5, 2, 100, 0], "b.00": "1.50"}"#
        );
        assert_eq!(document(r#"{"\"": 1.0, "x\\": "1.0"}"#), r#"{"\"": 1, "x\\": "1.0"}"#);
        assert_eq!(document("12.3400"), "12.34");
        assert_eq!(document("-5.000"), "-5");
    }

    #[test]
    fn blanks_at_the_end_only() {
        assert_eq!(without_blanks(b" a b  "), b" a b");
        assert_eq!(without_blanks(b"   "), b"");
        assert_eq!(without_blanks(b"a\t"), b"a\t");
    }

    #[test]
    fn a_byte_above_ascii_is_octal() {
        assert_eq!(char(Form::Text(b"\\351")).unwrap(), 0xe9);
        assert_eq!(char(Form::Text(b"\\")).unwrap(), b'\\');
        assert_eq!(char(Form::Text(b"")).unwrap(), 0);
        assert!(char(Form::Text(b"\\481")).is_err() && char(Form::Text(b"\\777")).is_err());
    }

    #[test]
    fn bits_that_are_cut_short_are_refused() {
        let mut text = Vec::new();
        bits(Form::Text(b"101000001"), &mut text).unwrap();
        assert_eq!(text, [0, 0, 0, 9, 0b1010_0000, 0b1000_0000]);
        assert!(bits(Form::Binary(&[0, 0, 0, 9, 1]), &mut text).is_err());
        assert!(bits(Form::Text(b"102"), &mut text).is_err());
    }
}
