//! Arrays: bounds and elements, as `array_eq` compares them.
//!
//! ```text
//! u8   dimensions; 0 for an empty array
//! for each: u32 length, i32 lower bound
//! the elements, as the fields of a key are
//! ```

use super::value::{Form, Malformed, Result, Value, ascii};

const ARRAY: Malformed = Malformed { what: "array" };
/// `MAXDIM`.
const DIMENSIONS_MAX: usize = 6;

/// Appends an element in its canonical form.
type Field<'a> = &'a dyn Fn(Value<'_>, &mut Vec<u8>) -> Result<()>;
/// Length and lower bound.
type Dimension = (u32, i32);

pub(super) fn array(form: Form<'_>, field: Field<'_>, out: &mut Vec<u8>) -> Result<()> {
    match form {
        Form::Text(text) => array_text(text, field, out),
        Form::Binary(bytes) => array_binary(bytes, field, out),
    }
}

fn head(dimensions: &[Dimension], out: &mut Vec<u8>) {
    out.push(dimensions.len() as u8);
    for (length, lower) in dimensions {
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&lower.to_be_bytes());
    }
}

/// `array_send`: dimensions, flags, the element's type; length and lower bound of each dimension;
/// length and bytes of each element.
fn array_binary(bytes: &[u8], field: Field<'_>, out: &mut Vec<u8>) -> Result<()> {
    let mut rest = bytes;
    let mut word = || {
        let (word, behind) = rest.split_first_chunk::<4>().ok_or(ARRAY)?;
        rest = behind;
        Ok(i32::from_be_bytes(*word))
    };
    let count = usize::try_from(word()?).ok().filter(|count| *count <= DIMENSIONS_MAX).ok_or(ARRAY)?;
    word()?;
    word()?;
    let mut dimensions = Vec::new();
    for _ in 0..count {
        dimensions.push((u32::try_from(word()?).map_err(|_| ARRAY)?, word()?));
    }
    head(&dimensions, out);
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or(ARRAY)?;
        let value = match i32::from_be_bytes(*length) {
            -1 => {
                rest = behind;
                Value::Null
            }
            length => {
                let length = usize::try_from(length).map_err(|_| ARRAY)?;
                let (value, behind) = behind.split_at_checked(length).ok_or(ARRAY)?;
                rest = behind;
                Value::Binary(value)
            }
        };
        field(value, out)?;
    }
    Ok(())
}

/// `array_out`: lower bounds where one is not 1, then the elements in braces.
fn array_text(text: &[u8], field: Field<'_>, out: &mut Vec<u8>) -> Result<()> {
    let (bounds, text) = match text.iter().position(|byte| *byte == b'=') {
        Some(at) if text.first() == Some(&b'[') => (&text[..at], &text[at + 1..]),
        _ => (&b""[..], text),
    };
    let mut braces = Braces { rest: text, field, lengths: Vec::new(), fields: Vec::new(), word: Vec::new() };
    braces.braced(0)?;
    let is_whole = braces.rest.is_empty();
    let Braces { lengths, fields, .. } = braces;
    let lengths: Vec<u32> = lengths.into_iter().map(|length| length.unwrap_or(0)).collect();
    let lowers = lower_bounds(bounds)?;
    if !is_whole || !lowers.is_empty() && lowers.len() != lengths.len() {
        return Err(ARRAY);
    }
    // An array without elements has no dimensions.
    let dimensions: Vec<Dimension> = if fields.is_empty() {
        Vec::new()
    } else {
        let lowers = lowers.into_iter().chain(std::iter::repeat(1));
        lengths.into_iter().zip(lowers).collect()
    };
    head(&dimensions, out);
    out.extend_from_slice(&fields);
    Ok(())
}

/// The numbers in front of each colon of `[1:2][-3:4]`.
fn lower_bounds(bounds: &[u8]) -> Result<Vec<i32>> {
    let bounds = ascii(bounds, ARRAY.what)?;
    let lower = |bound: &str| {
        let lower = bound.strip_prefix('[').and_then(|bound| bound.split_once(':'));
        lower.and_then(|(lower, _)| lower.parse().ok()).ok_or(ARRAY)
    };
    bounds.split_terminator(']').map(lower).collect()
}

/// The elements of an array's text, as they are read.
struct Braces<'a> {
    rest: &'a [u8],
    field: Field<'a>,
    /// Of each dimension, once the first braces of it were closed.
    lengths: Vec<Option<u32>>,
    /// The elements so far, in their canonical form.
    fields: Vec<u8>,
    word: Vec<u8>,
}

impl Braces<'_> {
    fn next(&mut self) -> Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or(ARRAY)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Reads what is in braces, which are `depth` deep.
    fn braced(&mut self, depth: usize) -> Result<()> {
        if self.next()? != b'{' || depth == DIMENSIONS_MAX {
            return Err(ARRAY);
        }
        if self.lengths.len() == depth {
            self.lengths.push(None);
        }
        let mut count = 0;
        if self.rest.first() == Some(&b'}') {
            self.next()?;
        } else {
            loop {
                count += 1;
                match self.rest.first() {
                    Some(b'{') => self.braced(depth + 1)?,
                    _ => self.word()?,
                }
                match self.next()? {
                    b',' => {}
                    b'}' => break,
                    _ => return Err(ARRAY),
                }
            }
        }
        // All braces of a dimension have as many parts.
        match self.lengths[depth].replace(count) {
            Some(before) if before != count => Err(ARRAY),
            _ => Ok(()),
        }
    }

    /// Reads one element.
    fn word(&mut self) -> Result<()> {
        let is_quoted = self.rest.first() == Some(&b'"');
        let mut word = std::mem::take(&mut self.word);
        word.clear();
        if is_quoted {
            self.next()?;
        }
        loop {
            match self.rest.first() {
                Some(b',' | b'}') if !is_quoted => break,
                Some(b'"') if is_quoted => {
                    self.next()?;
                    break;
                }
                Some(b'\\') => {
                    self.next()?;
                    word.push(self.next()?);
                }
                _ => word.push(self.next()?),
            }
        }
        let is_null = !is_quoted && word.eq_ignore_ascii_case(b"null");
        let value = if is_null { Value::Null } else { Value::Text(&word) };
        (self.field)(value, &mut self.fields)?;
        self.word = word;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Result<Vec<u8>> {
        let field = |value: Value<'_>, out: &mut Vec<u8>| {
            out.extend_from_slice(format!("{value:?}").as_bytes());
            Ok(())
        };
        let mut out = Vec::new();
        array(Form::Text(text.as_bytes()), &field, &mut out)?;
        Ok(out)
    }

    #[test]
    fn quotes_do_not_matter_and_null_does() {
        assert_eq!(text(r#"{a,"b"}"#).unwrap(), text("{a,b}").unwrap());
        assert_ne!(text(r#"{"NULL"}"#).unwrap(), text("{NULL}").unwrap());
        assert_ne!(text(r#"{"a,b"}"#).unwrap(), text("{a,b}").unwrap());
        assert_ne!(text(r#"{"a\"b"}"#).unwrap(), text(r#"{"a\\b"}"#).unwrap());
        assert_ne!(text("{{a,b}}").unwrap(), text("{{a},{b}}").unwrap());
        assert_eq!(text("[1:2]={a,b}").unwrap(), text("{a,b}").unwrap());
        assert_ne!(text("[0:1]={a,b}").unwrap(), text("{a,b}").unwrap());
        assert_eq!(text("{}").unwrap(), [0]);
    }

    #[test]
    fn what_is_no_array_is_refused() {
        for bad in
            ["", "{", "{a", "a}", "{a}b", "{{a},{b,c}}", "[1:2]={{a,b}}", "{{{{{{{a}}}}}}}", "[x:2]={a,b}"]
        {
            assert!(text(bad).is_err(), "{bad}");
        }
        let mut out = Vec::new();
        for bad in [&[][..], &[0, 0, 0, 7], &[0; 13], &[255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(array(Form::Binary(bad), &|_, _: &mut Vec<u8>| Ok(()), &mut out).is_err(), "{bad:?}");
        }
    }
}
