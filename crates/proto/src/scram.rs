//! SCRAM-SHA-256: a server's side, and a client's that has keys in place of a password.
//!
//! ```text
//! client-first   n,,n=,r=CLIENT                       -> Exchange::begin
//! server-first   r=CLIENT SERVER,s=SALT,i=ITERATIONS  <-
//! client-final   c=BINDING,r=...,p=PROOF              -> Exchange::finish
//! server-final   v=SIGNATURE                          <-
//! ```
//! A server keeps no password but a [`Verifier`], which cannot be used to log in elsewhere. An
//! unknown user gets an exchange like all others, with a verifier that no password fits
//! ([`Verifier::mock`]), so that a client cannot learn which roles exist.
//!
//! A proof that fits gives the client's key ([`ClientKeys`]). With it one can log in wherever the
//! same verifier is kept, and nowhere else (rule L1).
//!
//! Source: RFC 5802, RFC 7677, and `auth-scram.c`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use rand::RngCore;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::backend::SCRAM_SHA_256;

/// `SCRAM_RAW_NONCE_LEN`
const NONCE_SIZE: usize = 18;
/// `SCRAM_DEFAULT_SALT_LEN`
const SALT_SIZE: usize = 16;
/// `SCRAM_SHA_256_DEFAULT_ITERATIONS`
const ITERATIONS: u32 = 4096;
const BINDING_TYPE: &str = "tls-server-end-point";

type Key = [u8; 32];

/// What a server keeps in place of a password: `rolpassword` of `pg_authid`.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

/// What shows to another server that keeps the same verifier that the client is who it says.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKeys {
    /// Makes the proof.
    pub client_key: Key,
    /// Checks the server's answer.
    pub server_key: Key,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKeys(..)")
    }
}

/// As `pg_authid` has it: `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`.
impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|bytes| BASE64.encode(bytes));
        write!(f, "{SCRAM_SHA_256}${}:{salt}${stored}:{server}", self.iterations)
    }
}

impl Verifier {
    /// Reads a verifier; `None` if `text` is none, such as a password or an MD5 hash.
    #[must_use]
    pub fn parse(text: &str) -> Option<Verifier> {
        let rest = text.strip_prefix(SCRAM_SHA_256)?.strip_prefix('$')?;
        let (first, keys) = rest.split_once('$')?;
        let (iterations, salt) = first.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let key = |text: &str| Key::try_from(BASE64.decode(text).ok()?).ok();
        let iterations = iterations.parse().ok().filter(|&iterations| iterations > 0)?;
        let salt = BASE64.decode(salt).ok()?;
        Some(Verifier { iterations, salt, stored_key: key(stored)?, server_key: key(server)? })
    }

    /// The verifier of a user that does not exist: the same each time, as a real one would be, and
    /// known to nobody without `secret`.
    #[must_use]
    pub fn mock(user: &str, secret: &Key) -> Verifier {
        let salt = sha256(&[user.as_bytes(), secret])[..SALT_SIZE].to_vec();
        // No input has these as its hash, as far as anybody knows.
        Verifier { iterations: ITERATIONS, salt, stored_key: [0; 32], server_key: [0; 32] }
    }
}

impl ClientKeys {
    /// Reads both keys, each 32 bytes in base64 (`scram_client_key`, `scram_server_key` of libpq);
    /// `None` if one of them is none.
    #[must_use]
    pub fn parse(client_key: &str, server_key: &str) -> Option<ClientKeys> {
        let key = |text: &str| Key::try_from(BASE64.decode(text).ok()?).ok();
        Some(ClientKeys { client_key: key(client_key)?, server_key: key(server_key)? })
    }

    /// Both keys as [`ClientKeys::parse`] reads them.
    #[must_use]
    pub fn texts(&self) -> [String; 2] {
        [&self.client_key, &self.server_key].map(|key| BASE64.encode(key))
    }
}

/// How the exchange and TLS belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding<'a> {
    /// The connection has no TLS, or no certificate to bind to.
    Impossible,
    /// The client was offered binding and did not choose it.
    Offered,
    /// The client chose SCRAM-SHA-256-PLUS; the hash of the server's certificate.
    Chosen(&'a [u8]),
}

/// Why an exchange ends without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// A message does not follow RFC 5802.
    Malformed(&'static str),
    /// The client asks for something that no server of PostgreSQL has.
    Unsupported(&'static str),
    /// The client's channel is not this one, or somebody has changed what was offered.
    Binding(&'static str),
    /// The proof does not fit the verifier: a wrong password, or an unknown user.
    Proof,
    /// The server's signature does not fit: it only claims to know the verifier.
    Signature,
}

impl Error {
    /// SQLSTATE and message, as the server words them. For [`Error::Proof`], the server names the
    /// user instead.
    #[must_use]
    pub fn told(&self) -> (&'static str, &'static str) {
        match self {
            Error::Malformed(_) => ("08P01", "malformed SCRAM message"),
            Error::Unsupported(what) => ("0A000", what),
            Error::Binding(what) => ("28000", what),
            Error::Proof => ("28P01", "password authentication failed"),
            Error::Signature => ("28000", "the server's signature does not fit the keys"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, message) = self.told();
        match self {
            Error::Malformed(detail) => write!(f, "{message}: {detail}"),
            _ => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// An exchange whose first half is done.
#[derive(Debug)]
pub struct Exchange {
    verifier: Verifier,
    /// What the client must say about the channel, in base64.
    channel: String,
    nonce: String,
    /// The first two messages, as they count for the proof.
    messages: String,
}

impl Exchange {
    /// Takes the client's first message, and returns the answer.
    ///
    /// # Errors
    /// Any but [`Error::Proof`].
    pub fn begin(
        verifier: Verifier,
        binding: Binding<'_>,
        client_first: &[u8],
    ) -> Result<(Exchange, String), Error> {
        let mut nonce = [0; NONCE_SIZE];
        rand::rng().fill_bytes(&mut nonce);
        Exchange::begin_with(verifier, binding, client_first, &BASE64.encode(nonce))
    }

    fn begin_with(
        verifier: Verifier,
        binding: Binding<'_>,
        client_first: &[u8],
        server_nonce: &str,
    ) -> Result<(Exchange, String), Error> {
        let message = text(client_first)?;
        let (flag, rest) = message.split_once(',').ok_or(Error::Malformed("The message is incomplete."))?;
        let (authorization, bare) =
            rest.split_once(',').ok_or(Error::Malformed("The message is incomplete."))?;
        check_flag(flag, binding)?;
        if !authorization.is_empty() {
            return Err(Error::Unsupported("client uses authorization identity, but it is not supported"));
        }
        let client_nonce = nonce_of(bare)?;
        let header = &message[..message.len() - bare.len()];
        let channel = match binding {
            Binding::Chosen(hash) => BASE64.encode([header.as_bytes(), hash].concat()),
            Binding::Impossible | Binding::Offered => BASE64.encode(header),
        };
        let nonce = format!("{client_nonce}{server_nonce}");
        let answer = format!("r={nonce},s={},i={}", BASE64.encode(&verifier.salt), verifier.iterations);
        let messages = format!("{bare},{answer}");
        Ok((Exchange { verifier, channel, nonce, messages }, answer))
    }

    /// Takes the client's last message, and returns the answer and the client's keys.
    ///
    /// # Errors
    /// The proof does not fit, or the message does not follow the first one.
    pub fn finish(self, client_final: &[u8]) -> Result<(String, ClientKeys), Error> {
        let message = text(client_final)?;
        let (without_proof, proof) =
            message.rsplit_once(",p=").ok_or(Error::Malformed("The message has no proof."))?;
        let mut attributes = without_proof.split(',');
        let channel = attributes.next().and_then(|attribute| attribute.strip_prefix("c="));
        let channel = channel.ok_or(Error::Malformed("The message has no channel binding."))?;
        if channel != self.channel {
            return Err(Error::Binding("SCRAM channel binding check failed"));
        }
        let nonce = attributes.next().and_then(|attribute| attribute.strip_prefix("r="));
        if nonce != Some(self.nonce.as_str()) {
            return Err(Error::Malformed("The nonce does not match."));
        }
        let proof = BASE64.decode(proof).ok().and_then(|proof| Key::try_from(proof).ok());
        let proof = proof.ok_or(Error::Malformed("The proof is not 32 bytes in base64."))?;
        let signed = format!("{},{without_proof}", self.messages);
        let Verifier { stored_key, server_key, .. } = self.verifier;
        let mut client_key = hmac(&stored_key, signed.as_bytes());
        client_key.iter_mut().zip(proof).for_each(|(key, proof)| *key ^= proof);
        if !bool::from(sha256(&[&client_key]).ct_eq(&stored_key)) {
            return Err(Error::Proof);
        }
        let answer = format!("v={}", BASE64.encode(hmac(&server_key, signed.as_bytes())));
        Ok((answer, ClientKeys { client_key, server_key }))
    }
}

/// What a client says about its channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientBinding {
    /// It cannot bind.
    Unsupported,
    /// It could, and saw no offer.
    Unrequested,
    /// It is bound to the certificate with this hash, by SCRAM-SHA-256-PLUS.
    EndPoint(Vec<u8>),
}

/// An exchange of a client that has keys, whose first message is out.
#[derive(Debug)]
pub struct KeyedExchange {
    keys: ClientKeys,
    channel: String,
    bare: String,
    nonce: String,
}

/// Waits for the server's last message.
#[derive(Debug)]
pub struct ServerCheck(Key);

impl KeyedExchange {
    /// Returns the first message, too. The user's name is in the startup packet.
    #[must_use]
    pub fn begin(keys: ClientKeys, binding: &ClientBinding) -> (KeyedExchange, String) {
        let mut nonce = [0; NONCE_SIZE];
        rand::rng().fill_bytes(&mut nonce);
        let nonce = BASE64.encode(nonce);
        let (header, hash): (String, &[u8]) = match binding {
            ClientBinding::Unsupported => ("n,,".to_owned(), &[]),
            ClientBinding::Unrequested => ("y,,".to_owned(), &[]),
            ClientBinding::EndPoint(hash) => (format!("p={BINDING_TYPE},,"), hash),
        };
        let channel = BASE64.encode([header.as_bytes(), hash].concat());
        let bare = format!("n=,r={nonce}");
        let first = format!("{header}{bare}");
        (KeyedExchange { keys, channel, bare, nonce }, first)
    }

    /// Takes the server's first message, and returns the answer.
    ///
    /// # Errors
    /// The message does not follow RFC 5802, or does not belong to this exchange.
    pub fn respond(self, server_first: &[u8]) -> Result<(ServerCheck, String), Error> {
        let message = text(server_first)?;
        let nonce = message.split(',').next().and_then(|first| first.strip_prefix("r="));
        let nonce = nonce.filter(|nonce| nonce.len() > self.nonce.len() && nonce.starts_with(&self.nonce));
        let nonce = nonce.ok_or(Error::Malformed("The nonce does not match."))?;
        let without_proof = format!("c={},r={nonce}", self.channel);
        let signed = format!("{},{message},{without_proof}", self.bare);
        let ClientKeys { client_key, server_key } = self.keys;
        let mut proof = hmac(&sha256(&[&client_key]), signed.as_bytes());
        proof.iter_mut().zip(client_key).for_each(|(proof, key)| *proof ^= key);
        let answer = format!("{without_proof},p={}", BASE64.encode(proof));
        Ok((ServerCheck(hmac(&server_key, signed.as_bytes())), answer))
    }
}

impl ServerCheck {
    /// Takes the server's last message: does it know the verifier?
    ///
    /// # Errors
    /// It does not, or it refuses the proof.
    pub fn check(&self, server_final: &[u8]) -> Result<(), Error> {
        let signature = text(server_final)?.strip_prefix("v=").and_then(|text| BASE64.decode(text).ok());
        let signature = signature.ok_or(Error::Malformed("The message has no signature."))?;
        if bool::from(signature.ct_eq(&self.0)) { Ok(()) } else { Err(Error::Signature) }
    }
}

/// Whether the client's word about channel binding fits what was offered and chosen.
fn check_flag(flag: &str, binding: Binding<'_>) -> Result<(), Error> {
    match (flag, binding) {
        ("n", Binding::Impossible | Binding::Offered) | ("y", Binding::Impossible) => Ok(()),
        // The client could bind and saw no offer, but there was one: somebody took it out.
        ("y", Binding::Offered) => Err(Error::Binding("SCRAM channel binding negotiation error")),
        ("n" | "y", Binding::Chosen(_)) => Err(Error::Malformed(
            "The client selected SCRAM-SHA-256-PLUS, but the SCRAM message does not include channel binding data.",
        )),
        (flag, Binding::Chosen(_)) if flag.strip_prefix("p=") == Some(BINDING_TYPE) => Ok(()),
        (flag, Binding::Chosen(_)) if flag.starts_with("p=") => {
            Err(Error::Binding("unsupported SCRAM channel-binding type"))
        }
        (flag, _) if flag.starts_with("p=") => Err(Error::Malformed(
            "The client selected SCRAM-SHA-256 without channel binding, but the SCRAM message includes channel binding \
             data.",
        )),
        _ => Err(Error::Malformed("The channel-binding flag is none of \"n\", \"y\" and \"p\".")),
    }
}

/// The nonce of the client's first message, after the user's name, which the startup packet has.
fn nonce_of(bare: &str) -> Result<&str, Error> {
    if bare.starts_with("m=") {
        return Err(Error::Unsupported("client requires an unsupported SCRAM extension"));
    }
    let rest = bare.strip_prefix("n=").ok_or(Error::Malformed("The message has no user name."))?;
    let (_, rest) = rest.split_once(',').ok_or(Error::Malformed("The message is incomplete."))?;
    let nonce = rest.strip_prefix("r=").ok_or(Error::Malformed("The message has no nonce."))?;
    // Optional extensions may follow.
    let nonce = nonce.split(',').next().unwrap_or_default();
    let is_printable = |byte: u8| (0x21..=0x7e).contains(&byte);
    if nonce.is_empty() || !nonce.bytes().all(is_printable) {
        return Err(Error::Malformed("The nonce has characters that cannot be printed, or none."));
    }
    Ok(nonce)
}

fn text(message: &[u8]) -> Result<&str, Error> {
    match std::str::from_utf8(message) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(Error::Malformed("The message is not UTF-8, or contains a zero byte.")),
    }
}

fn hmac(key: &Key, message: &[u8]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are accepted");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn sha256(parts: &[&[u8]]) -> Key {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
    use postgres_protocol::password::scram_sha_256;
    use proptest::prelude::*;

    use super::*;

    const PASSWORD: &[u8] = b"correct horse";

    fn verifier() -> Verifier {
        static VERIFIER: LazyLock<Verifier> =
            LazyLock::new(|| Verifier::parse(&scram_sha_256(PASSWORD)).unwrap());
        VERIFIER.clone()
    }

    /// The whole exchange with another implementation of the client.
    fn exchange(
        password: &[u8],
        verifier: Verifier,
        client: ChannelBinding,
        server: Binding<'_>,
    ) -> Result<ClientKeys, Error> {
        let mut scram = ScramSha256::new(password, client);
        let (exchange, answer) = Exchange::begin(verifier, server, scram.message())?;
        scram.update(answer.as_bytes()).unwrap();
        let (answer, keys) = exchange.finish(scram.message())?;
        scram.finish(answer.as_bytes()).expect("the client accepts the server's signature");
        Ok(keys)
    }

    #[test]
    fn the_right_password_is_accepted_and_a_wrong_one_is_not() {
        let keys =
            exchange(PASSWORD, verifier(), ChannelBinding::unsupported(), Binding::Impossible).unwrap();
        assert_eq!(sha256(&[&keys.client_key]), verifier().stored_key);
        let wrong = exchange(b"wrong", verifier(), ChannelBinding::unsupported(), Binding::Impossible);
        assert_eq!(wrong, Err(Error::Proof));
    }

    #[test]
    fn keys_do_what_the_password_does() {
        let keys =
            exchange(PASSWORD, verifier(), ChannelBinding::unsupported(), Binding::Impossible).unwrap();
        let [client_key, server_key] = keys.texts();
        assert_eq!(ClientKeys::parse(&client_key, &server_key), Some(keys.clone()));
        assert_eq!(ClientKeys::parse(&client_key[1..], &server_key), None);
        let hash = vec![7; 32];
        let play = |keys: &ClientKeys, client: ClientBinding, server: Binding<'_>| {
            let (client, first) = KeyedExchange::begin(keys.clone(), &client);
            let (server, answer) = Exchange::begin(verifier(), server, first.as_bytes())?;
            let (check, last) = client.respond(answer.as_bytes())?;
            let (answer, seen) = server.finish(last.as_bytes())?;
            assert!(seen.client_key == keys.client_key);
            check.check(answer.as_bytes())
        };
        for (client, server) in [
            (ClientBinding::Unsupported, Binding::Offered),
            (ClientBinding::Unrequested, Binding::Impossible),
            (ClientBinding::EndPoint(hash.clone()), Binding::Chosen(&hash)),
        ] {
            assert_eq!(play(&keys, client, server), Ok(()));
        }
        let wrong = ClientKeys { client_key: [1; 32], ..keys.clone() };
        assert_eq!(play(&wrong, ClientBinding::Unsupported, Binding::Offered), Err(Error::Proof));
        // A server that only claims to know the verifier.
        let other = ClientKeys { server_key: [1; 32], ..keys };
        assert_eq!(play(&other, ClientBinding::Unsupported, Binding::Offered), Err(Error::Signature));
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salted = pbkdf2(b"pencil", &salt, ITERATIONS);
        let verifier = Verifier {
            iterations: ITERATIONS,
            salt,
            stored_key: sha256(&[&hmac(&salted, b"Client Key")]),
            server_key: hmac(&salted, b"Server Key"),
        };
        let (exchange, answer) = Exchange::begin_with(
            verifier,
            Binding::Impossible,
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        )
        .unwrap();
        assert_eq!(
            answer,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let (answer, _) = exchange
            .finish(
                b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                  p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            )
            .unwrap();
        assert_eq!(answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    /// `Hi` of RFC 5802.
    fn pbkdf2(password: &[u8], salt: &[u8], iterations: u32) -> Key {
        let mac = |message: &[u8]| -> Key {
            let mut mac = Hmac::<Sha256>::new_from_slice(password).unwrap();
            mac.update(message);
            mac.finalize().into_bytes().into()
        };
        let mut last = mac(&[salt, &1_u32.to_be_bytes()].concat());
        let mut all = last;
        for _ in 1..iterations {
            last = mac(&last);
            all.iter_mut().zip(last).for_each(|(all, last)| *all ^= last);
        }
        all
    }

    #[test]
    fn the_channel_is_bound_if_both_can() {
        let hash = vec![7; 32];
        let bound = || ChannelBinding::tls_server_end_point(hash.clone());
        assert!(exchange(PASSWORD, verifier(), bound(), Binding::Chosen(&hash)).is_ok());
        let elsewhere = exchange(PASSWORD, verifier(), bound(), Binding::Chosen(&[8; 32]));
        assert_eq!(elsewhere, Err(Error::Binding("SCRAM channel binding check failed")));
        // Somebody in between took the offer out.
        let stripped = exchange(PASSWORD, verifier(), ChannelBinding::unrequested(), Binding::Offered);
        assert_eq!(stripped, Err(Error::Binding("SCRAM channel binding negotiation error")));
        assert!(exchange(PASSWORD, verifier(), ChannelBinding::unrequested(), Binding::Impossible).is_ok());
        assert!(exchange(PASSWORD, verifier(), ChannelBinding::unsupported(), Binding::Offered).is_ok());
        for (client, server) in
            [(bound(), Binding::Impossible), (ChannelBinding::unsupported(), Binding::Chosen(&hash))]
        {
            assert!(matches!(exchange(PASSWORD, verifier(), client, server), Err(Error::Malformed(_))));
        }
    }

    #[test]
    fn an_unknown_user_looks_like_any_other() {
        let mock = Verifier::mock("nobody", &[1; 32]);
        assert_eq!(mock, Verifier::mock("nobody", &[1; 32]));
        assert_ne!(mock.salt, Verifier::mock("somebody", &[1; 32]).salt);
        assert_ne!(mock.salt, Verifier::mock("nobody", &[2; 32]).salt);
        let real = verifier();
        assert_eq!((mock.salt.len(), mock.iterations), (real.salt.len(), real.iterations));
        let refused = exchange(PASSWORD, mock, ChannelBinding::unsupported(), Binding::Impossible);
        assert_eq!(refused, Err(Error::Proof));
    }

    #[test]
    fn verifiers_are_read_as_the_server_writes_them() {
        let text = scram_sha_256(PASSWORD);
        assert_eq!(Verifier::parse(&text).unwrap().to_string(), text);
        for wrong in [
            "",
            "secret",
            "md5d41d8cd98f00b204e9800998ecf8427e",
            "SCRAM-SHA-256$0:AAAA$AAAA:AAAA",
            "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA",
            &text[..text.len() - 4],
        ] {
            assert_eq!(Verifier::parse(wrong), None, "{wrong}");
        }
        assert!(!format!("{:?}", Verifier::parse(&text)).contains(&text[20..30]), "no secret is shown");
    }

    #[test]
    fn messages_out_of_order_are_refused() {
        for first in [
            &b""[..],
            b"n",
            b"n,",
            b"n,,",
            b"n,,n=",
            b"n,,n=,r=",
            b"n,,n=,r=a b",
            b"x,,n=,r=a",
            b"n,,r=a",
            b"n,,n=,r=a\0",
            b"p=tls-server-end-point,,n=,r=a",
            b"\xff",
        ] {
            let begun = Exchange::begin(verifier(), Binding::Impossible, first);
            assert!(matches!(begun, Err(Error::Malformed(_))), "{}", first.escape_ascii());
        }
        for first in [&b"n,a=admin,n=,r=a"[..], b"n,,m=x,n=,r=a"] {
            let begun = Exchange::begin(verifier(), Binding::Impossible, first);
            assert!(matches!(begun, Err(Error::Unsupported(_))), "{}", first.escape_ascii());
        }
        let begin = || {
            let begun = Exchange::begin_with(verifier(), Binding::Impossible, b"n,,n=,r=a", "b");
            begun.unwrap().0
        };
        for last in
            ["", "c=biws,r=ab", "r=ab,p=", "c=biws,r=xb,p=AAAA", "c=biws,r=ab,p=AAAA", "c=biws,r=ab,p=!"]
        {
            assert!(matches!(begin().finish(last.as_bytes()), Err(Error::Malformed(_))), "{last}");
        }
        let other = begin().finish(b"c=eSws,r=ab,p=AAAA").unwrap_err();
        assert_eq!(other, Error::Binding("SCRAM channel binding check failed"));
    }

    proptest! {
        #[test]
        fn no_bytes_are_accepted_without_the_password(
            first in prop::collection::vec(any::<u8>(), 0..64),
            last in prop::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = Exchange::begin(verifier(), Binding::Impossible, &first);
            let begun = Exchange::begin_with(verifier(), Binding::Impossible, b"n,,n=,r=a", "b");
            prop_assert!(begun.unwrap().0.finish(&last).is_err());
        }
    }
}
