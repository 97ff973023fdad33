//! tsvector and tsquery. Only the server has these forms, and no crate reads them.
//!
//! A tsvector is a count, an entry of four bytes for each lexeme (bit 0: has positions; 11 bits
//! length; 20 bits offset), and the lexemes. Positions follow their lexeme at the next even offset.
//! A tsquery is a count, items of 12 bytes in Polish notation (an operator, its right operand, its
//! left operand), and the operands' texts, each ended by a zero.

use crate::error::{Error, Result};
use crate::number::unsigned;
use crate::reader::ByteReader;

/// A lexeme with its stored positions: two bits of weight, 14 of position.
struct Lexeme<'a> {
    text: &'a [u8],
    positions: &'a [u8],
}

impl Lexeme<'_> {
    fn positions(&self) -> impl Iterator<Item = u16> + '_ {
        self.positions.as_chunks().0.iter().map(|&position| u16::from_le_bytes(position))
    }
}

fn lexemes(payload: &[u8]) -> Result<Vec<Lexeme<'_>>> {
    const DAMAGED: Error = Error::damaged("tsvector");
    let mut reader = ByteReader::new(payload, "tsvector");
    let count = reader.count(4)?;
    let entries = reader.take(count * 4)?;
    let strings = reader.rest();
    let mut lexemes = Vec::with_capacity(count);
    for entry in entries.as_chunks().0 {
        let entry = u32::from_le_bytes(*entry);
        let (length, start) = ((entry >> 1 & 0x7ff) as usize, (entry >> 12) as usize);
        let text = strings.get(start..start + length).ok_or(DAMAGED)?;
        let mut positions: &[u8] = &[];
        if entry & 1 != 0 {
            let mut reader = ByteReader::new(strings, "tsvector");
            reader.seek((start + length).next_multiple_of(2));
            let count = usize::from(reader.u16()?);
            positions = reader.take(count * 2)?;
        }
        lexemes.push(Lexeme { text, positions });
    }
    Ok(lexemes)
}

/// Appends `text` in quotes, with quotes and backslashes doubled.
fn quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for &byte in text {
        if matches!(byte, b'\'' | b'\\') {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'\'');
}

/// `tsvectorout`.
pub(crate) fn vector_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    for (index, lexeme) in lexemes(payload)?.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        quoted(lexeme.text, out);
        for (index, position) in lexeme.positions().enumerate() {
            out.push(if index == 0 { b':' } else { b',' });
            unsigned((position & 0x3fff).into(), out);
            match position >> 14 {
                3 => out.push(b'A'),
                2 => out.push(b'B'),
                1 => out.push(b'C'),
                _ => {}
            }
        }
    }
    Ok(())
}

/// `tsvectorsend`.
pub(crate) fn vector_binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let lexemes = lexemes(payload)?;
    out.extend_from_slice(&(lexemes.len() as i32).to_be_bytes());
    for lexeme in lexemes {
        out.extend_from_slice(lexeme.text);
        out.push(0);
        out.extend_from_slice(&((lexeme.positions.len() / 2) as u16).to_be_bytes());
        for position in lexeme.positions() {
            out.extend_from_slice(&position.to_be_bytes());
        }
    }
    Ok(())
}

/// An item of a tsquery.
enum Item<'a> {
    Value { weight: u8, prefix: bool, text: &'a [u8] },
    Operator { operator: Operator, distance: i16 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Not = 1,
    And = 2,
    Or = 3,
    Phrase = 4,
}

impl Operator {
    fn from_byte(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Operator::Not),
            2 => Ok(Operator::And),
            3 => Ok(Operator::Or),
            4 => Ok(Operator::Phrase),
            _ => Err(Error::damaged("operator of a tsquery")),
        }
    }

    /// How tightly the operator binds.
    fn priority(self) -> u8 {
        match self {
            Operator::Or => 1,
            Operator::And => 2,
            Operator::Phrase => 3,
            Operator::Not => 4,
        }
    }
}

fn items(payload: &[u8]) -> Result<Vec<Item<'_>>> {
    const DAMAGED: Error = Error::damaged("tsquery");
    let mut reader = ByteReader::new(payload, "tsquery");
    let count = reader.count(12)?;
    let stored = reader.take(count * 12)?;
    let operands = reader.rest();
    let item = |item: &[u8; 12]| match item[0] {
        1 => {
            let bits = u32::from_le_bytes([item[8], item[9], item[10], item[11]]);
            let (length, start) = ((bits & 0xfff) as usize, (bits >> 12) as usize);
            let text = operands.get(start..start + length).ok_or(DAMAGED)?;
            Ok(Item::Value { weight: item[1], prefix: item[2] != 0, text })
        }
        2 => Ok(Item::Operator {
            operator: Operator::from_byte(item[1])?,
            distance: i16::from_le_bytes([item[2], item[3]]),
        }),
        _ => Err(DAMAGED),
    };
    stored.as_chunks().0.iter().map(item).collect()
}

/// The text of a part of a query.
struct Written {
    text: Vec<u8>,
    /// The operator at its top, if it is more than a value.
    operator: Option<Operator>,
}

impl Written {
    /// Whether it needs parentheses as an operand of `parent`. Phrases do not associate, so a
    /// phrase on the right always does.
    fn is_apart(&self, parent: Operator, right: bool) -> bool {
        self.operator.is_some_and(|own| {
            own.priority() < parent.priority()
                || right && own == Operator::Phrase && parent == Operator::Phrase
        })
    }

    /// The beginning of the text for `parent` with this as its left operand. Avoids copying where
    /// possible, because chains lean to the left.
    fn into_left_of(self, parent: Operator) -> Vec<u8> {
        if self.is_apart(parent, false) {
            let mut whole = Vec::with_capacity(self.text.len() + 4);
            self.put(parent, false, &mut whole);
            whole
        } else {
            self.text
        }
    }

    /// Appends the text as an operand of `parent`.
    fn put(self, parent: Operator, right: bool, out: &mut Vec<u8>) {
        let apart = self.is_apart(parent, right);
        if apart {
            out.extend_from_slice(b"( ");
        }
        out.extend_from_slice(&self.text);
        if apart {
            out.extend_from_slice(b" )");
        }
    }
}

/// `tsqueryout`. Items are read from the last to the first, so that operands come before their
/// operator.
pub(crate) fn query_text(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    const DAMAGED: Error = Error::damaged("tsquery");
    let mut stack: Vec<Written> = Vec::new();
    for item in items(payload)?.iter().rev() {
        let written = match *item {
            Item::Value { weight, prefix, text } => {
                let mut written = Vec::with_capacity(text.len() + 2);
                quoted(text, &mut written);
                if weight != 0 || prefix {
                    written.push(b':');
                }
                if prefix {
                    written.push(b'*');
                }
                let letters = [(8, b'A'), (4, b'B'), (2, b'C'), (1, b'D')];
                written
                    .extend(letters.iter().filter(|(bit, _)| weight & bit != 0).map(|&(_, letter)| letter));
                Written { text: written, operator: None }
            }
            Item::Operator { operator: Operator::Not, .. } => {
                let mut written = b"!".to_vec();
                stack.pop().ok_or(DAMAGED)?.put(Operator::Not, false, &mut written);
                Written { text: written, operator: Some(Operator::Not) }
            }
            Item::Operator { operator, distance } => {
                let (right, left) = (stack.pop().ok_or(DAMAGED)?, stack.pop().ok_or(DAMAGED)?);
                let mut written = left.into_left_of(operator);
                match operator {
                    Operator::Or => written.extend_from_slice(b" | "),
                    Operator::And => written.extend_from_slice(b" & "),
                    _ if distance == 1 => written.extend_from_slice(b" <-> "),
                    _ => written.extend_from_slice(format!(" <{distance}> ").as_bytes()),
                }
                right.put(operator, true, &mut written);
                Written { text: written, operator: Some(operator) }
            }
        };
        stack.push(written);
    }
    if stack.len() > 1 {
        return Err(DAMAGED);
    }
    out.extend(stack.pop().map(|whole| whole.text).unwrap_or_default());
    Ok(())
}

/// `tsquerysend`.
pub(crate) fn query_binary(payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let items = items(payload)?;
    out.extend_from_slice(&(items.len() as i32).to_be_bytes());
    for item in items {
        match item {
            Item::Value { weight, prefix, text } => {
                out.extend_from_slice(&[1, weight, prefix.into()]);
                out.extend_from_slice(text);
                out.push(0);
            }
            Item::Operator { operator, distance } => {
                out.extend_from_slice(&[2, operator as u8]);
                if operator == Operator::Phrase {
                    out.extend_from_slice(&distance.to_be_bytes());
                }
            }
        }
    }
    Ok(())
}
