//! The value that old rows have in a column that was added after they were written
//! (`attmissingval`).
//!
//! WAL has the value as it is stored. The look at the catalogs cannot read that: SQL gives the
//! results of the output and the send function. For simple types, the latter is turned back into
//! the stored form, so that rows of both kinds are handled alike. For others (arrays, jsonb,
//! ranges, composites and the like), the code that renders the row takes what the server has
//! rendered.

use base::Oid;
use types::TypeKind;

use crate::cell::MissingArray;
use crate::error::{Error, Result};
use crate::rows::{Attribute, Is, Type};
use crate::view::View;

/// A missing value. It has at least one form: the stored one, or both rendered ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// As a row would store it.
    pub stored: Option<Box<[u8]>>,
    /// The result of the server's output function at the look, with the settings that `types`
    /// names.
    pub text: Option<String>,
    /// The result of its send function at the look.
    pub binary: Option<Vec<u8>>,
}

impl View<'_> {
    pub(crate) fn missing(&self, row: &Attribute, array: &MissingArray) -> Result<Missing> {
        let unfit = || {
            let what = format!("the missing value of column {} of relation {}", row.number, row.relation);
            Error::row(Attribute::KIND.name(), what)
        };
        match array {
            MissingArray::Stored(payload) => {
                let align = types::Align::from_letter(row.align).ok_or_else(unfit)?;
                let stored = types::missing_value(payload, row.len, align).map_err(|_| unfit())?;
                Ok(Missing { stored: Some(stored), text: None, binary: None })
            }
            MissingArray::Rendered { binary, text } => {
                let binary = element_sent(binary).ok_or_else(unfit)?.to_vec();
                let text = element_text(text).ok_or_else(unfit)?;
                let stored = self.stored(row.type_oid, &binary);
                Ok(Missing { stored, text: Some(text), binary: Some(binary) })
            }
        }
    }

    /// The stored form of a send function's result.
    fn stored(&self, oid: Oid, sent: &[u8]) -> Option<Box<[u8]>> {
        if oid < Oid::FIRST_NORMAL {
            return builtin(oid, sent);
        }
        let row = self.find::<Type>(0, oid).next()?;
        match self.types([oid]).ok()?.get(&oid)?.kind {
            TypeKind::Domain { .. } => self.stored(row.base, sent),
            TypeKind::Enum { ref labels } => {
                let label = std::str::from_utf8(sent).ok()?;
                let (oid, _) = labels.iter().find(|(_, other)| other == label)?;
                Some(oid.0.to_le_bytes().into())
            }
            _ => None,
        }
    }
}

/// The only element in a result of `array_send`. That has dimensions, whether there are NULLs, and
/// the type, then length and lower bound for each dimension, then length and bytes for each
/// element.
fn element_sent(array: &[u8]) -> Option<&[u8]> {
    const ELEMENT_AT: usize = 20;
    let number = |at: usize| Some(u32::from_be_bytes(array.get(at..at + 4)?.try_into().ok()?));
    if (number(0)?, number(12)?) != (1, 1) {
        return None;
    }
    let element = array.get(ELEMENT_AT + 4..)?;
    (element.len() == number(ELEMENT_AT)? as usize).then_some(element)
}

/// The only element in a result of `array_out`.
fn element_text(array: &str) -> Option<String> {
    let element = array.strip_prefix('{')?.strip_suffix('}')?;
    let Some(quoted) = element.strip_prefix('"') else { return Some(element.to_owned()) };
    let mut text = String::new();
    let mut characters = quoted.strip_suffix('"')?.chars();
    while let Some(character) = characters.next() {
        text.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(text)
}

/// How to make a built-in type's stored form from the sent one.
enum How {
    /// Numbers of these lengths, with their bytes reversed.
    Numbers(&'static [usize]),
    /// The same bytes, of fixed length.
    Same,
    /// The same bytes behind a header.
    Bytes,
    /// The same bytes, filled up with zeros.
    Name,
    Numeric,
    /// A number of four bytes and then the same bytes, behind a header.
    Bits,
}

fn how(oid: Oid) -> Option<How> {
    Some(match oid.0 {
        // bool, "char", uuid, macaddr, macaddr8.
        16 | 18 | 2950 | 829 | 774 => How::Same,
        19 => How::Name,
        21 => How::Numbers(&[2]),
        // int4, oid, xid, cid, float4, date.
        23 | 26 | 28 | 29 | 700 | 1082 => How::Numbers(&[4]),
        // int8, float8, money, time, timestamp, timestamptz, pg_lsn, xid8.
        20 | 701 | 790 | 1083 | 1114 | 1184 | 3220 | 5069 => How::Numbers(&[8]),
        // timetz, interval.
        1266 => How::Numbers(&[8, 4]),
        1186 => How::Numbers(&[8, 4, 4]),
        // bytea, text, json, bpchar, varchar.
        17 | 25 | 114 | 1042 | 1043 => How::Bytes,
        1700 => How::Numeric,
        // bit, varbit.
        1560 | 1562 => How::Bits,
        // point; line and circle; lseg and box.
        600 => How::Numbers(&[8, 8]),
        628 | 718 => How::Numbers(&[8, 8, 8]),
        601 | 603 => How::Numbers(&[8, 8, 8, 8]),
        _ => return None,
    })
}

const NAME_LENGTH: usize = 64;

fn builtin(oid: Oid, sent: &[u8]) -> Option<Box<[u8]>> {
    match how(oid)? {
        How::Same => Some(sent.into()),
        How::Name => {
            let mut name = sent.to_vec();
            name.resize(NAME_LENGTH, 0);
            Some(name.into())
        }
        How::Numbers(lengths) => turned_round(sent, lengths).map(Into::into),
        How::Bytes => Some(with_header(sent)),
        How::Bits => {
            let (length, bits) = sent.split_first_chunk::<4>()?;
            Some(with_header(&[&i32::from_be_bytes(*length).to_le_bytes(), bits].concat()))
        }
        How::Numeric => numeric(sent).map(|payload| with_header(&payload)),
    }
}

fn turned_round(sent: &[u8], lengths: &[usize]) -> Option<Vec<u8>> {
    let mut rest = sent;
    let mut stored = Vec::with_capacity(sent.len());
    for length in lengths {
        let (number, after) = rest.split_at_checked(*length)?;
        stored.extend(number.iter().rev());
        rest = after;
    }
    rest.is_empty().then_some(stored)
}

/// A value of variable length behind its header.
fn with_header(payload: &[u8]) -> Box<[u8]> {
    let length = (payload.len() as u32 + 4) << 2;
    [&length.to_le_bytes()[..], payload].concat().into()
}

/// Sent: count of digits, weight, sign, display scale, digits. Stored in the long form: sign and
/// scale in one, weight, digits. NaN and infinities are the sign alone.
fn numeric(sent: &[u8]) -> Option<Vec<u8>> {
    const SPECIAL: u16 = 0xC000;
    const SCALE: u16 = 0x3FFF;
    let numbers: Vec<u16> =
        sent.chunks(2).map(|pair| Some(u16::from_be_bytes(pair.try_into().ok()?))).collect::<Option<_>>()?;
    let [count, weight, sign, scale, digits @ ..] = numbers.as_slice() else { return None };
    if digits.len() != usize::from(*count) {
        return None;
    }
    let header = if sign & SPECIAL == SPECIAL { vec![*sign] } else { vec![sign | (scale & SCALE), *weight] };
    Some(header.iter().chain(digits).flat_map(|number| number.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_element_of_an_array() {
        let sent =
            [&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 25, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2][..], b"ab"].concat();
        assert_eq!(element_sent(&sent), Some(&b"ab"[..]));
        assert_eq!(element_sent(&sent[..25]), None);
        assert_eq!(element_text("{ab}").as_deref(), Some("ab"));
        assert_eq!(element_text(r#"{"a\"b\\,"}"#).as_deref(), Some(r#"a"b\,"#));
        assert_eq!(element_text(r#"{"{1,2}"}"#).as_deref(), Some("{1,2}"));
        assert_eq!(element_text("ab"), None);
    }

    #[test]
    fn sent_values_are_turned_back() {
        assert_eq!(builtin(Oid(23), &[0, 0, 1, 2]).as_deref(), Some(&[2, 1, 0, 0][..]));
        assert_eq!(builtin(Oid(23), &[0, 0, 1]), None);
        assert_eq!(builtin(Oid(25), b"ab").as_deref(), Some(&b"\x18\0\0\0ab"[..]));
        // 123.45: digits 123 and 4500, scale 2.
        let sent = [0, 2, 0, 0, 0, 0, 0, 2, 0, 123, 17, 148];
        assert_eq!(numeric(&sent).as_deref(), Some(&[2, 0, 0, 0, 123, 0, 148, 17][..]));
        assert_eq!(numeric(&sent[..10]), None);
        assert_eq!(builtin(Oid(3802), b"\x01{}"), None, "jsonb");
    }
}
