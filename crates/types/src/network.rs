//! inet and cidr: family, prefix length, address. macaddr and macaddr8 are plain bytes.

use std::net::Ipv4Addr;

use crate::error::{Error, Result};
use crate::number::unsigned;
use crate::text::hex;

const DAMAGED: Error = Error::damaged("network address");

/// `PGSQL_AF_INET`.
const IPV4: u8 = 2;
/// `PGSQL_AF_INET6`.
const IPV6: u8 = 3;

enum Address {
    V4([u8; 4]),
    V6([u8; 16]),
}

fn read(payload: &[u8]) -> Result<(Address, u8)> {
    let (&[family, bits], address) = payload.split_first_chunk().ok_or(DAMAGED)?;
    let address = match family {
        // A stored address may be longer than those of its family.
        IPV4 if bits <= 32 => Address::V4(*address.first_chunk().ok_or(DAMAGED)?),
        IPV6 if bits <= 128 => Address::V6(*address.first_chunk().ok_or(DAMAGED)?),
        _ => return Err(DAMAGED),
    };
    Ok((address, bits))
}

/// `inet_out`, `cidr_out`. A cidr always shows its prefix length, an inet only if it is not that of
/// a host.
pub(crate) fn text(payload: &[u8], is_cidr: bool, out: &mut Vec<u8>) -> Result<()> {
    let (address, bits) = read(payload)?;
    let host = match address {
        Address::V4(octets) => {
            out.extend_from_slice(Ipv4Addr::from(octets).to_string().as_bytes());
            32
        }
        Address::V6(octets) => {
            ipv6(&octets, out);
            128
        }
    };
    if is_cidr || bits != host {
        out.push(b'/');
        unsigned(bits.into(), out);
    }
    Ok(())
}

/// Writes the longest run of zero words, or the first of several, as `::`. An address that contains
/// one of IPv4 ends with that.
fn ipv6(octets: &[u8; 16], out: &mut Vec<u8>) {
    let words: Vec<u16> = octets.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]])).collect();
    let (start, length) = longest_zeros(&words);
    let run = start..start + length;
    let embedded =
        start == 0 && (length == 6 || length == 7 && words[7] != 1 || length == 5 && words[5] == 0xffff);
    for (index, word) in words.iter().enumerate() {
        if run.contains(&index) {
            if index == start {
                out.push(b':');
            }
            continue;
        }
        if index > 0 {
            out.push(b':');
        }
        if index == 6 && embedded {
            let [.., a, b, c, d] = *octets;
            out.extend_from_slice(Ipv4Addr::new(a, b, c, d).to_string().as_bytes());
            return;
        }
        out.extend_from_slice(format!("{word:x}").as_bytes());
    }
    if length > 0 && run.end == words.len() {
        out.push(b':');
    }
}

/// Start and length of the run that is written as `::`. It has at least two words, or there is
/// none.
fn longest_zeros(words: &[u16]) -> (usize, usize) {
    let (mut best, mut start) = ((0, 0), 0);
    for (index, &word) in words.iter().enumerate() {
        if word != 0 {
            start = index + 1;
        } else if index + 1 - start > best.1 {
            best = (start, index + 1 - start);
        }
    }
    if best.1 < 2 { (0, 0) } else { best }
}

/// `inet_send`, `cidr_send`.
pub(crate) fn binary(payload: &[u8], is_cidr: bool, out: &mut Vec<u8>) -> Result<()> {
    let (address, bits) = read(payload)?;
    let (family, octets) = match &address {
        Address::V4(octets) => (IPV4, &octets[..]),
        Address::V6(octets) => (IPV6, &octets[..]),
    };
    out.extend_from_slice(&[family, bits, is_cidr.into(), octets.len() as u8]);
    out.extend_from_slice(octets);
    Ok(())
}

/// `macaddr_out`, `macaddr8_out`.
pub(crate) fn mac_address(bytes: &[u8], out: &mut Vec<u8>) {
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 {
            out.push(b':');
        }
        hex(&[*byte], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_compressed_once() {
        for (words, expected) in [
            ([0; 8], "::"),
            ([0, 0, 0, 0, 0, 0, 0, 1], "::1"),
            ([0, 0, 0, 0, 0, 0, 0, 2], "::2"),
            ([0, 0, 0, 0, 0, 0xffff, 0x102, 0x304], "::ffff:1.2.3.4"),
            ([1, 0, 0, 2, 0, 0, 0, 3], "1:0:0:2::3"),
            ([0xfe80, 0, 0, 0, 0, 0, 0, 0], "fe80::"),
            ([1, 0, 2, 3, 4, 5, 6, 7], "1:0:2:3:4:5:6:7"),
        ] {
            let octets: Vec<u8> = words.iter().flat_map(|word: &u16| word.to_be_bytes()).collect();
            let mut out = Vec::new();
            ipv6(&octets.try_into().unwrap(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
