//! Slow storage under the subscriber: each read of 8 KB takes 0.1 ms, as in the message on
//! prefetching.
//!
//! It is preloaded into the subscriber's server for the measured runs of both sides. Version 18
//! then reads with `io_method = sync`: in its own processes, as all earlier versions do, so that
//! the process that asks for a page waits for it.

use std::time::Duration;

use anyhow::Result;
use testkit::{Major, SlowReads};

const DELAY: Duration = Duration::from_micros(100);

/// See the module.
pub(crate) fn build() -> Result<SlowReads> {
    SlowReads::build(DELAY)
}

/// Settings of both servers that go with it.
pub(crate) fn settings(major: Major, shared_buffers: &str) -> Vec<(&'static str, String)> {
    let mut settings = vec![("shared_buffers", shared_buffers.to_owned())];
    if major >= Major::V18 {
        settings.push(("io_method", "sync".to_owned()));
    }
    settings
}
