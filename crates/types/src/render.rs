//! Renders a value by its codec. Each form and each built-in type has its entry here.
//!
//! Arrays, ranges and composite values consist of values, which their own modules hand back to
//! [`Codec::text`] and [`Codec::binary`].

use base::{Oid, PgVersion};
use rustc_hash::FxHashMap;

use crate::builtin::Builtin;
use crate::codec::{Codec, Form};
use crate::error::{Error, Result};
use crate::number::{money, signed, unsigned};
use crate::reader::fixed;
use crate::settings::Settings;
use crate::tuple::Value;
use crate::{
    array, bits, datetime, float, geometry, jsonb, jsonpath, network, numeric, range, text, textsearch, xml,
};

/// The version of the binary forms of jsonb and jsonpath.
const JSON_SEND_VERSION: u8 = 1;

impl Codec {
    /// Appends the result of the type's output function (`typoutput`).
    ///
    /// # Errors
    /// When the payload is damaged.
    pub fn text(&self, payload: &[u8], settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        match &self.form {
            Form::Builtin(builtin) => builtin_text(*builtin, payload, settings, out),
            Form::Array { element, delimiter } => array::text(payload, element, *delimiter, settings, out),
            Form::Vector { width, .. } => array::vector_text(payload, *width, out),
            Form::Enum { labels } => {
                out.extend_from_slice(label(labels, payload)?);
                Ok(())
            }
            Form::Composite(composite) => composite.text(payload, settings, out),
            Form::Range { subtype } => range::text(payload, subtype, settings, out),
            Form::Multirange { subtype } => range::multi_text(payload, subtype, settings, out),
        }
    }

    /// Appends the result of the type's send function (`typsend`).
    ///
    /// # Errors
    /// When the payload is damaged.
    pub fn binary(&self, payload: &[u8], settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        match &self.form {
            Form::Builtin(builtin) => builtin_binary(*builtin, payload, settings.version, out),
            Form::Array { element, .. } | Form::Vector { element, .. } => {
                array::binary(payload, element, settings, out)
            }
            Form::Enum { labels } => {
                out.extend_from_slice(label(labels, payload)?);
                Ok(())
            }
            Form::Composite(composite) => composite.binary(payload, settings, out),
            Form::Range { subtype } => range::binary(payload, subtype, settings, out),
            Form::Multirange { subtype } => range::multi_binary(payload, subtype, settings, out),
        }
    }

    /// Appends a part of a binary value: its length (-1 for NULL) and its bytes.
    pub(crate) fn field(&self, value: &Value<'_>, settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.extend_from_slice(&(-1_i32).to_be_bytes());
        let Some(payload) = value.payload()? else { return Ok(()) };
        self.binary(&payload, settings, out)?;
        let length =
            i32::try_from(out.len() - start - 4).map_err(|_| Error::damaged("length of a value's part"))?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}

fn label<'a>(labels: &'a FxHashMap<u32, Box<str>>, payload: &[u8]) -> Result<&'a [u8]> {
    let value = u32::from_le_bytes(fixed(payload, "enum value")?);
    labels.get(&value).map(|label| label.as_bytes()).ok_or(Error::no_label(Oid(value)))
}

fn builtin_text(builtin: Builtin, payload: &[u8], settings: &Settings, out: &mut Vec<u8>) -> Result<()> {
    let version = settings.version;
    match builtin {
        Builtin::Bool => out.push(if fixed::<1>(payload, "bool")?[0] != 0 { b't' } else { b'f' }),
        Builtin::Bytea => {
            out.extend_from_slice(b"\\x");
            text::hex(payload, out);
        }
        Builtin::Char => text::char(fixed::<1>(payload, "char")?[0], version, out),
        Builtin::Name => out.extend_from_slice(text::name(payload)),
        Builtin::Int2 => signed(i16::from_le_bytes(fixed(payload, "int2")?).into(), out),
        Builtin::Int4 => signed(i32::from_le_bytes(fixed(payload, "int4")?).into(), out),
        Builtin::Int8 => signed(i64::from_le_bytes(fixed(payload, "int8")?), out),
        Builtin::Unsigned4 => unsigned(u32::from_le_bytes(fixed(payload, "oid")?).into(), out),
        Builtin::Xid8 => unsigned(u64::from_le_bytes(fixed(payload, "xid8")?), out),
        Builtin::Float4 => float::float4(f32::from_le_bytes(fixed(payload, "float4")?), out),
        Builtin::Float8 => float::float8(f64::from_le_bytes(fixed(payload, "float8")?), out),
        Builtin::Numeric => numeric::text(payload, out)?,
        Builtin::Money => money(payload, out)?,
        Builtin::Text => out.extend_from_slice(payload),
        Builtin::Xml => xml::render(payload, out),
        Builtin::Tid => {
            let (block, line) = text::tid(payload)?;
            out.extend_from_slice(format!("({block},{line})").as_bytes());
        }
        Builtin::Int2Vector => array::vector_text(payload, 2, out)?,
        Builtin::OidVector => array::vector_text(payload, 4, out)?,
        Builtin::Date => datetime::date(payload, out)?,
        Builtin::Time => datetime::time(payload, out)?,
        Builtin::TimeTz => datetime::timetz(payload, out)?,
        Builtin::Timestamp => datetime::timestamp(payload, None, out)?,
        Builtin::TimestampTz => datetime::timestamp(payload, Some(&settings.time_zone), out)?,
        Builtin::Interval => datetime::interval(payload, version, out)?,
        Builtin::Uuid => text::uuid(payload, out)?,
        Builtin::Bits => bits::text(payload, out)?,
        Builtin::Inet => network::text(payload, false, out)?,
        Builtin::Cidr => network::text(payload, true, out)?,
        Builtin::MacAddr => network::mac_address(payload, out),
        Builtin::Point => geometry::point_text(payload, out)?,
        Builtin::Line => geometry::line_text(payload, out)?,
        Builtin::Lseg => geometry::lseg_text(payload, out)?,
        Builtin::Box => geometry::box_text(payload, out)?,
        Builtin::Path => geometry::path_text(payload, out)?,
        Builtin::Polygon => geometry::polygon_text(payload, out)?,
        Builtin::Circle => geometry::circle_text(payload, out)?,
        Builtin::Jsonb => jsonb::text(payload, out)?,
        Builtin::JsonPath => jsonpath::text(payload, version, out)?,
        Builtin::TsVector => textsearch::vector_text(payload, out)?,
        Builtin::TsQuery => textsearch::query_text(payload, out)?,
        Builtin::Snapshot => text::PgSnapshot::read(payload)?.text(out),
        Builtin::Lsn => text::lsn(payload, out)?,
    }
    Ok(())
}

fn builtin_binary(builtin: Builtin, payload: &[u8], version: PgVersion, out: &mut Vec<u8>) -> Result<()> {
    match builtin {
        Builtin::Bool => out.push((fixed::<1>(payload, "bool")?[0] != 0).into()),
        // One number, with its bytes reversed.
        Builtin::Int2
        | Builtin::Int4
        | Builtin::Int8
        | Builtin::Unsigned4
        | Builtin::Xid8
        | Builtin::Float4
        | Builtin::Float8
        | Builtin::Money
        | Builtin::Date
        | Builtin::Time
        | Builtin::Timestamp
        | Builtin::TimestampTz
        | Builtin::Lsn => out.extend(payload.iter().rev()),
        // The same bytes.
        Builtin::Bytea | Builtin::Char | Builtin::Text | Builtin::Uuid | Builtin::MacAddr => {
            out.extend_from_slice(payload);
        }
        Builtin::Name => out.extend_from_slice(text::name(payload)),
        Builtin::Numeric => numeric::binary(payload, out)?,
        Builtin::Xml => xml::render(payload, out),
        Builtin::Tid => {
            let (block, line) = text::tid(payload)?;
            out.extend_from_slice(&block.to_be_bytes());
            out.extend_from_slice(&line.to_be_bytes());
        }
        Builtin::Int2Vector | Builtin::OidVector => {
            return Err(Error::damaged("vector outside of its own form"));
        }
        Builtin::TimeTz => datetime::fields_binary(payload, &[8, 4], out)?,
        Builtin::Interval => datetime::fields_binary(payload, &[8, 4, 4], out)?,
        Builtin::Bits => bits::binary(payload, out)?,
        Builtin::Inet => network::binary(payload, false, out)?,
        Builtin::Cidr => network::binary(payload, true, out)?,
        Builtin::Point => geometry::floats_binary(payload, 2, out)?,
        Builtin::Line | Builtin::Circle => geometry::floats_binary(payload, 3, out)?,
        Builtin::Lseg | Builtin::Box => geometry::floats_binary(payload, 4, out)?,
        Builtin::Path => geometry::path_binary(payload, out)?,
        Builtin::Polygon => geometry::polygon_binary(payload, out)?,
        Builtin::Jsonb => {
            out.push(JSON_SEND_VERSION);
            jsonb::text(payload, out)?;
        }
        Builtin::JsonPath => {
            out.push(JSON_SEND_VERSION);
            jsonpath::text(payload, version, out)?;
        }
        Builtin::TsVector => textsearch::vector_binary(payload, out)?,
        Builtin::TsQuery => textsearch::query_binary(payload, out)?,
        Builtin::Snapshot => text::PgSnapshot::read(payload)?.binary(out),
    }
    Ok(())
}
