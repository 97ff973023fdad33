//! Composite values: tuples inside of a value. In place of a row's transaction ids, they have a
//! length, a type modifier and the OID of their type.

use crate::codec::{Codec, Composite};
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::text::is_space;
use crate::tuple::{Attribute, HeapTuple, Value};
use crate::varlena::HEADER;

/// The position of the null bitmap in a payload: the header of 23 bytes begins with the varlena's
/// length.
const BITMAP: usize = 23 - HEADER;

impl Composite {
    fn deform<'a>(&'a self, payload: &'a [u8]) -> Result<Vec<Value<'a>>> {
        let (header, bytes) =
            payload.split_first_chunk::<BITMAP>().ok_or(Error::damaged("header of a composite value"))?;
        let [.., i2_low, i2_high, i_low, i_high, hoff] = *header;
        let tuple = HeapTuple::new(
            u16::from_le_bytes([i2_low, i2_high]),
            u16::from_le_bytes([i_low, i_high]),
            hoff,
            bytes,
        )?;
        let mut values = Vec::new();
        tuple.deform(&self.attributes, &mut values)?;
        Ok(values)
    }

    /// Values and codecs of the columns that were not dropped.
    fn columns<'a>(
        &'a self,
        values: &'a [Value<'a>],
    ) -> impl Iterator<Item = (&'a Value<'a>, &'a Codec, &'a Attribute)> {
        let columns = values.iter().zip(&self.codecs).zip(&self.attributes);
        columns.filter_map(|((value, codec), attribute)| Some((value, codec.as_ref()?, attribute)))
    }

    /// `record_out`.
    pub(crate) fn text(&self, payload: &[u8], settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        let values = self.deform(payload)?;
        out.push(b'(');
        for (index, (value, codec, _)) in self.columns(&values).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            if let Some(payload) = value.payload()? {
                let start = out.len();
                codec.text(&payload, settings, out)?;
                quote(out, start, b"(),");
            }
        }
        out.push(b')');
        Ok(())
    }

    /// `record_send`.
    pub(crate) fn binary(&self, payload: &[u8], settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        let values = self.deform(payload)?;
        let count = self.codecs.iter().flatten().count();
        out.extend_from_slice(&(count as i32).to_be_bytes());
        for (value, codec, attribute) in self.columns(&values) {
            out.extend_from_slice(&attribute.type_oid.0.to_be_bytes());
            codec.field(value, settings, out)?;
        }
        Ok(())
    }
}

/// Puts the text in `out` from `start` on into quotes if it is empty or contains one of `special`,
/// a quote, a backslash or a space. Shared by composites and ranges, which double quotes and
/// backslashes alike.
pub(crate) fn quote(out: &mut Vec<u8>, start: usize, special: &[u8]) {
    let text = &out[start..];
    let needed = |byte: u8| matches!(byte, b'"' | b'\\') || special.contains(&byte) || is_space(byte);
    if !text.is_empty() && !text.iter().any(|&byte| needed(byte)) {
        return;
    }
    let text = out.split_off(start);
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'"');
}
