//! Any bytes as the messages of a client that logs in, and as a verifier.
#![no_main]

#[path = "../../crates/proto/tests/clients/oracle.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod oracle;

use proto::scram::Verifier;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    oracle::scram(data);
    let verifier = std::str::from_utf8(data).ok().and_then(Verifier::parse);
    if let Some(verifier) = verifier {
        let again = Verifier::parse(&verifier.to_string()).expect("what was written is read");
        assert_eq!(again.to_string(), verifier.to_string());
    }
});
