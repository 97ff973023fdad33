//! Any messages through the assembler, compared with the model. The first byte says whether values
//! may be binary.
#![no_main]

#[path = "../../crates/txn/tests/mutations/beside.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod beside;
#[path = "../../crates/txn/tests/mutations/model.rs"]
mod model;

use bytes::{Bytes, BytesMut};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((binary, stream)) = data.split_first() else { return };
    let mut buffer = BytesMut::from(stream);
    let mut messages: Vec<Bytes> = Vec::new();
    // In the form of a recording: in CopyData, behind the header of XLogData.
    while let Ok(Some(frame)) = proto::frame::next(&mut buffer) {
        if frame.tag == proto::frame::COPY_DATA && frame.body.len() >= 25 && frame.body[0] == b'w' {
            messages.push(frame.body.slice(25..));
        }
    }
    beside::agree(&messages, binary & 1 == 1, "fuzz");
});
