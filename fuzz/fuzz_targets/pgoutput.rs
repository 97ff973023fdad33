//! Any bytes as one message of pgoutput. The first says whether it is in a stream block.
#![no_main]

#[path = "../../crates/proto/tests/mutations/oracle.rs"]
#[allow(dead_code, reason = "another target uses the rest")]
mod oracle;
#[path = "../../crates/proto/tests/mutations/recorded.rs"]
#[allow(dead_code, reason = "only a part is for fuzzing")]
mod recorded;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((place, message)) = data.split_first() {
        oracle::message(message, place & 1 == 1);
    }
});
