//! Capture and the horizon beside real servers.

#![allow(clippy::unwrap_used, reason = "a failed test panics")]

mod capture;
mod horizon;
mod shared_slot;
mod support;
