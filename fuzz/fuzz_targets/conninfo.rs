//! Any text as a connection string.
#![no_main]

use client::ConnInfo;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let bare = |name: &str| (name == "HOME").then(|| "/nonexistent".to_owned());
    match ConnInfo::parse_with(text, &bare) {
        Ok(info) => drop(info.describe()),
        Err(error) => assert!(error.is_configuration(), "{error}"),
    }
});
