//! The few fields of an X.509 certificate that rustls keeps to itself.
//!
//! The certificate is as the peer sent it, before anybody is authenticated. `x509-parser` checks
//! every length; a certificate that it cannot read gives `None`. This is no verification: rustls
//! decides who signed what.
//!
//! Source: RFC 5280, sections 4.1 and 4.2.1.6.

use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::oid_registry::{
    OID_PKCS1_MD5WITHRSAENC, OID_PKCS1_SHA1WITHRSA, OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA,
    OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512,
    OID_X509_EXT_SUBJECT_ALT_NAME,
};
use x509_parser::prelude::{FromDer, X509Certificate};

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

impl<'a> Certificate<'a> {
    pub(crate) fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let body = &certificate.tbs_certificate;
        let common_name = body.subject.iter_common_name().last();
        Some(Certificate {
            public_key: body.subject_pki.raw,
            signature_hash: signature_hash(&certificate.signature_algorithm.algorithm),
            validity: (body.validity.not_before.timestamp(), body.validity.not_after.timestamp()),
            common_name: common_name.and_then(|name| std::str::from_utf8(name.attr_value().data).ok()),
            has_alt_names: body.extensions().iter().any(|one| one.oid == OID_X509_EXT_SUBJECT_ALT_NAME),
        })
    }
}

fn signature_hash(algorithm: &Oid<'_>) -> Option<SignatureHash> {
    use SignatureHash::{Sha256, Sha384, Sha512};
    // ecdsa-with-SHA1, which the registry lacks.
    let ecdsa_with_sha1 = oid!(1.2.840.10045.4.1);
    let hashes = [
        (OID_PKCS1_MD5WITHRSAENC, Sha256),
        (OID_PKCS1_SHA1WITHRSA, Sha256),
        (OID_PKCS1_SHA256WITHRSA, Sha256),
        (OID_PKCS1_SHA384WITHRSA, Sha384),
        (OID_PKCS1_SHA512WITHRSA, Sha512),
        (ecdsa_with_sha1, Sha256),
        (OID_SIG_ECDSA_WITH_SHA256, Sha256),
        (OID_SIG_ECDSA_WITH_SHA384, Sha384),
        (OID_SIG_ECDSA_WITH_SHA512, Sha512),
    ];
    hashes.into_iter().find(|(known, _)| known == algorithm).map(|(_, hash)| hash)
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
    use proptest::prelude::*;

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

    /// A certificate with a common name, an alternative name and a key usage: every kind of field.
    fn sample() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "db.example");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        params.self_signed(&key).unwrap().der().to_vec()
    }

    /// One change at a place, which is taken modulo the length.
    #[derive(Clone, Debug)]
    enum Damage {
        Byte(usize, u8),
        Removed(usize, usize),
        Inserted(usize, Vec<u8>),
        Cut(usize),
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
            1 => (any::<usize>(), 1..9_usize).prop_map(|(at, count)| Damage::Removed(at, count)),
            1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..9))
                .prop_map(|(at, bytes)| Damage::Inserted(at, bytes)),
            1 => any::<usize>().prop_map(Damage::Cut),
        ]
    }

    fn damaged(mut der: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
        for change in damage {
            let length = der.len().max(1);
            match change {
                Damage::Byte(at, byte) => {
                    der.iter_mut().skip(at % length).take(1).for_each(|old| *old = *byte)
                }
                Damage::Removed(at, count) => {
                    let at = at % length;
                    der.drain(at.min(der.len())..(at + count).min(der.len()));
                }
                Damage::Inserted(at, bytes) => {
                    let at = (at % length).min(der.len());
                    der.splice(at..at, bytes.iter().copied());
                }
                Damage::Cut(at) => der.truncate(at % length),
            }
        }
        der
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn a_damaged_certificate_is_refused_or_read_within_its_bytes(
            damage in prop::collection::vec(damage(), 1..6)
        ) {
            static SAMPLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(sample);
            let der = damaged(SAMPLE.clone(), &damage);
            if let Some(parsed) = Certificate::parse(&der) {
                let within = |part: &[u8]| der.as_ptr_range().contains(&part.as_ptr()) || part.is_empty();
                prop_assert!(within(parsed.public_key) && parsed.public_key.len() < der.len());
                prop_assert!(parsed.common_name.is_none_or(|name| within(name.as_bytes())));
            }
        }

        #[test]
        fn bytes_that_are_no_certificate_are_refused(der in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert_eq!(Certificate::parse(&der), None);
        }
    }
}
