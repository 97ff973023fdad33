//! Any bytes as the first packet of a connection.
#![no_main]

#[path = "../../crates/proto/tests/clients/oracle.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    oracle::startup(data);
});
