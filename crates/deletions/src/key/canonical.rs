//! A value in its canonical form: equal bytes for equal values, whatever form they came in.

use super::equality::Equality;
use super::value::{Form, Result, Value};
use super::{array, moment, network, number, words};

/// Appends a value with the flag for NULL and its length in front.
pub(super) fn field(equality: &Equality, value: Value<'_>, out: &mut Vec<u8>) -> Result<()> {
    let form = match value {
        Value::Null => {
            out.push(0);
            return Ok(());
        }
        Value::Text(text) => Form::Text(text),
        Value::Binary(bytes) => Form::Binary(bytes),
    };
    out.push(1);
    let start = out.len();
    write(equality, form, out)?;
    let (length, count) = varint(out.len() - start);
    out.splice(start..start, length.into_iter().take(count));
    Ok(())
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn varint(mut number: usize) -> ([u8; 10], usize) {
    let (mut bytes, mut count) = ([0; 10], 0);
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes[count] = low | if number == 0 { 0 } else { 0x80 };
        count += 1;
        if number == 0 {
            return (bytes, count);
        }
    }
}

/// Appends the canonical form of a value.
fn write(equality: &Equality, form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    match equality {
        Equality::Bool => out.push(words::boolean(form)?.into()),
        Equality::Integer(width) => out.extend_from_slice(&number::signed(form, *width)?.to_be_bytes()),
        Equality::Unsigned(width) => out.extend_from_slice(&number::unsigned(form, *width)?.to_be_bytes()),
        Equality::Float4 => out.extend_from_slice(&number::float4(form)?.to_be_bytes()),
        Equality::Float8 => out.extend_from_slice(&number::float8(form)?.to_be_bytes()),
        Equality::Numeric => number::numeric(form, out)?,
        Equality::Text => out.extend_from_slice(words::text(form)),
        Equality::Char => out.push(words::char(form)?),
        Equality::Blanked => out.extend_from_slice(words::without_blanks(words::text(form))),
        Equality::Bytea => words::bytea(form, out)?,
        Equality::Uuid => words::uuid(form, out)?,
        Equality::Date => out.extend_from_slice(&moment::date(form)?.to_be_bytes()),
        Equality::Time => out.extend_from_slice(&moment::time(form)?.to_be_bytes()),
        Equality::TimeTz => {
            let (time, zone) = moment::time_with_zone(form)?;
            out.extend_from_slice(&time.to_be_bytes());
            out.extend_from_slice(&zone.to_be_bytes());
        }
        Equality::Timestamp => out.extend_from_slice(&moment::timestamp(form, false)?.to_be_bytes()),
        Equality::TimestampTz => out.extend_from_slice(&moment::timestamp(form, true)?.to_be_bytes()),
        Equality::Interval => out.extend_from_slice(&moment::interval(form)?.to_be_bytes()),
        Equality::Network => network::address(form, out)?,
        Equality::MacAddress => network::mac_address(form, out)?,
        Equality::Bits => words::bits(form, out)?,
        Equality::Lsn => out.extend_from_slice(&words::lsn(form)?.to_be_bytes()),
        Equality::Jsonb => words::jsonb(form, out)?,
        Equality::Array(element) => {
            array::array(form, &|value, out: &mut Vec<u8>| field(element, value, out), out)?;
        }
    }
    Ok(())
}
