//! Network addresses.

use std::net::IpAddr;

use super::value::{Form, Malformed, Result, ascii};
use super::words::hex;

const ADDRESS: Malformed = Malformed { what: "network address" };
/// `PGSQL_AF_INET` and `PGSQL_AF_INET6`, and the length of their addresses in bytes.
const FAMILIES: [(u8, usize); 2] = [(2, 4), (3, 16)];

/// Length of the prefix in bits, then the address: `network_cmp` finds no other difference.
pub(super) fn address(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    match form {
        Form::Binary([family, bits, _is_cidr, length, address @ ..]) => {
            let is_one =
                FAMILIES.contains(&(*family, address.len())) && address.len() == usize::from(*length);
            if !is_one || usize::from(*bits) > address.len() * 8 {
                return Err(ADDRESS);
            }
            out.push(*bits);
            out.extend_from_slice(address);
        }
        Form::Binary(_) => return Err(ADDRESS),
        Form::Text(text) => {
            let text = ascii(text, ADDRESS.what)?;
            let (address, bits) = match text.split_once('/') {
                Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| ADDRESS)?)),
                None => (text, None),
            };
            match address.parse().map_err(|_| ADDRESS)? {
                IpAddr::V4(address) => {
                    out.push(bits.unwrap_or(32));
                    out.extend_from_slice(&address.octets());
                }
                IpAddr::V6(address) => {
                    out.push(bits.unwrap_or(128));
                    out.extend_from_slice(&address.octets());
                }
            }
        }
    }
    Ok(())
}

/// The six or eight bytes.
pub(super) fn mac_address(form: Form<'_>, out: &mut Vec<u8>) -> Result<()> {
    const MALFORMED: Malformed = Malformed { what: "MAC address" };
    let start = out.len();
    match form {
        Form::Binary(bytes) => out.extend_from_slice(bytes),
        Form::Text(text) => {
            for part in text.split(|byte| *byte == b':') {
                hex(part, MALFORMED.what, out)?;
            }
        }
    }
    if matches!(out.len() - start, 6 | 8) { Ok(()) } else { Err(MALFORMED) }
}
