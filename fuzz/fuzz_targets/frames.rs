//! Any bytes as a server's messages, from the frames down to the tuples.
#![no_main]

#[path = "../../crates/proto/tests/mutations/oracle.rs"]
#[allow(dead_code, reason = "another target uses the rest")]
mod oracle;
#[path = "../../crates/proto/tests/mutations/recorded.rs"]
#[allow(dead_code, reason = "only a part is for fuzzing")]
mod recorded;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    oracle::stream(data);
});
