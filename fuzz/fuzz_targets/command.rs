//! Any text as a replication command, and its options as a relay of every major reads them.
#![no_main]

#[path = "../../crates/proto/tests/clients/oracle.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod oracle;

use proto::command::Command;
use relay::{Form, SlotOptions, check_name};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Some(command) = oracle::command(text) else { return };
    for major in 14..=18 {
        let told = match &command {
            Command::CreateSlot(create) => {
                SlotOptions::read(create, major).and_then(|_| check_name(&create.slot, major)).err()
            }
            Command::StartLogical { options, .. } => Form::read(options, major).err(),
            _ => None,
        };
        if let Some(told) = told {
            oracle::told(&told.0);
        }
    }
});
