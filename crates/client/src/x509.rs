//! The few fields of an X.509 certificate that rustls keeps to itself.
//!
//! Handed: a certificate as the peer sent it, so nothing in it is believed:
//! every length is checked, anything unexpected gives `None`. This is no
//! verification; who signed what is rustls's business.
//!
//! Source: RFC 5280, sections 4.1 and 4.2.1.6; DER as in X.690.

/// Contents of the object identifiers needed here.
mod oid {
    pub(super) const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    pub(super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    /// 1.2.840.113549.1.1, the last byte says which.
    pub(super) const PKCS1: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    /// 1.2.840.10045.4.3, the last byte says which.
    pub(super) const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    pub(super) const ECDSA_SHA1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01];
}

const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Certificate<'a> {
    /// The whole `SubjectPublicKeyInfo`, tag included.
    pub(crate) public_key: &'a [u8],
    /// What the certificate was signed over with; `None` if unknown here.
    pub(crate) signature_hash: Option<SignatureHash>,
    /// Seconds since the Unix epoch, both ends included.
    pub(crate) validity: (i64, i64),
    /// The last common name of the subject, if it is ASCII or UTF-8.
    pub(crate) common_name: Option<&'a str>,
    pub(crate) has_alt_names: bool,
}

/// The hash a channel is bound with: that of the certificate's signature,
/// with SHA-256 in place of MD5 and SHA-1 (RFC 5929, section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureHash {
    Sha256,
    Sha384,
    Sha512,
}

/// Tag, contents, and the same with tag and length.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    whole: &'a [u8],
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn element(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        // One to four bytes of length; what is longer is no certificate.
        let (length, header) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x84 => {
                let count = usize::from(first & 0x7f);
                let bytes = rest.get(..count)?;
                (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), 2 + count)
            }
            _ => return None,
        };
        let whole = self.0.get(..header.checked_add(length)?)?;
        self.0 = &self.0[whole.len()..];
        Some(Element { tag, content: &whole[header..], whole })
    }

    fn expect(&mut self, tag: u8) -> Option<Element<'a>> {
        self.element().filter(|element| element.tag == tag)
    }

    fn enter(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.expect(tag).map(|element| Reader(element.content))
    }

    fn has(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }
}

impl<'a> Certificate<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        let mut certificate = Reader(der).enter(SEQUENCE)?;
        let mut body = certificate.enter(SEQUENCE)?;
        let algorithm = certificate.enter(SEQUENCE)?.expect(OBJECT_IDENTIFIER)?.content;
        if body.has(VERSION) {
            body.expect(VERSION)?;
        }
        body.expect(INTEGER)?;
        // Signature algorithm and issuer.
        body.expect(SEQUENCE)?;
        body.expect(SEQUENCE)?;
        let mut validity = body.enter(SEQUENCE)?;
        let validity = (time(&validity.element()?)?, time(&validity.element()?)?);
        let common_name = common_name(body.enter(SEQUENCE)?);
        let public_key = body.expect(SEQUENCE)?.whole;
        let mut has_alt_names = false;
        while let Some(element) = body.element() {
            if element.tag == EXTENSIONS {
                has_alt_names = contains_alt_names(element.content)?;
            }
        }
        Some(Certificate {
            public_key,
            signature_hash: signature_hash(algorithm),
            validity,
            common_name,
            has_alt_names,
        })
    }
}

fn signature_hash(algorithm: &[u8]) -> Option<SignatureHash> {
    use SignatureHash::{Sha256, Sha384, Sha512};
    if algorithm == oid::ECDSA_SHA1 {
        return Some(Sha256);
    }
    let (&last, family) = algorithm.split_last()?;
    match (family, last) {
        // MD5, SHA-1, SHA-256.
        (oid::PKCS1, 4 | 5 | 11) | (oid::ECDSA_SHA2, 2) => Some(Sha256),
        (oid::PKCS1, 12) | (oid::ECDSA_SHA2, 3) => Some(Sha384),
        (oid::PKCS1, 13) | (oid::ECDSA_SHA2, 4) => Some(Sha512),
        _ => None,
    }
}

fn common_name(mut subject: Reader<'_>) -> Option<&str> {
    let mut found = None;
    while let Some(mut set) = subject.enter(SET) {
        while let Some(mut attribute) = set.enter(SEQUENCE) {
            let kind = attribute.expect(OBJECT_IDENTIFIER)?.content;
            let value = attribute.element()?;
            if kind == oid::COMMON_NAME {
                found = std::str::from_utf8(value.content).ok();
            }
        }
    }
    found
}

fn contains_alt_names(extensions: &[u8]) -> Option<bool> {
    let mut extensions = Reader(extensions).enter(SEQUENCE)?;
    while let Some(mut extension) = extensions.enter(SEQUENCE) {
        if extension.expect(OBJECT_IDENTIFIER)?.content == oid::SUBJECT_ALT_NAME {
            return Some(true);
        }
    }
    Some(false)
}

/// `YYMMDDHHMMSSZ` (years 1950 to 2049) or `YYYYMMDDHHMMSSZ`.
fn time(element: &Element<'_>) -> Option<i64> {
    let text = std::str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match element.tag {
        UTC_TIME if text.len() == 12 => {
            let year: i64 = text[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        GENERALIZED_TIME if text.len() == 14 => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let part = |at: usize| rest[at..at + 2].parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days_from_epoch(year, month, day) * 86_400 + part(4)? * 3600 + part(6)? * 60 + part(8)?)
}

/// Days from 1970-01-01 in the Gregorian calendar. The year is counted from
/// March, so that the leap day is its last, in eras of 400 years.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    // 719468 days lie between 0000-03-01 and 1970-01-01.
    era * 146_097 + day_of_era - 719_468
}

/// Whether `pattern` of a certificate names `host`: equal but for case, or
/// `*.` in place of exactly one label, as libpq has it.
pub(crate) fn name_matches(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(suffix) = pattern.strip_prefix('*').filter(|suffix| suffix.starts_with('.') && suffix.len() > 1)
    else {
        return false;
    };
    host.find('.').is_some_and(|dot| dot > 0 && host[dot..].eq_ignore_ascii_case(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_certificate() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "somebody");
        params.distinguished_name.push(rcgen::DnType::CommonName, "db.example");
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 3, 1);
        let certificate = params.self_signed(&key).unwrap();
        let parsed = Certificate::parse(certificate.der()).unwrap();
        assert_eq!(parsed.common_name, Some("db.example"));
        assert_eq!(parsed.validity, (1_709_164_800, 2_561_241_600));
        assert_eq!(parsed.signature_hash, Some(SignatureHash::Sha256));
        assert!(!parsed.has_alt_names);

        let named =
            rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap().self_signed(&key).unwrap();
        let named = Certificate::parse(named.der()).unwrap();
        assert!(named.has_alt_names);
        assert_eq!(named.public_key, parsed.public_key);
    }

    #[test]
    fn cut_certificates_are_refused() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["a".into()]).unwrap().self_signed(&key).unwrap();
        let der = certificate.der();
        for end in 0..der.len() {
            assert_eq!(Certificate::parse(&der[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn names() {
        for (pattern, host, expected) in [
            ("db.example", "DB.Example", true),
            ("*.example", "db.example", true),
            ("*.example", "a.db.example", false),
            ("*.example", ".example", false),
            ("*", "db", false),
            ("*.", "db.", false),
            ("d*.example", "db.example", false),
        ] {
            assert_eq!(name_matches(pattern, host), expected, "{pattern} {host}");
        }
    }
}
