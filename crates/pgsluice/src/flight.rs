//! The flight recorder: a small file that tells what the process was doing when it was killed. It
//! serves crash tests, and is off unless `PGSLUICE_FLIGHT_RECORDER` names a file.
//!
//! The file holds one digit per [`Phase`], at the place of its number: `1` while the process is in
//! that phase, `0` otherwise. Each change writes one byte. The kernel holds a written byte, so it
//! survives `kill -9`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use base::crash_phases::{Phase, observe};

const VARIABLE: &str = "PGSLUICE_FLIGHT_RECORDER";

struct Recorder {
    file: File,
    /// How many tasks are in each phase at the moment. The lock is held while the file is written,
    /// so that the last write is the true one.
    inside: Mutex<[u32; Phase::ALL.len()]>,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Starts recording if the environment asks for it.
pub(crate) fn record_from_environment() -> anyhow::Result<()> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return Ok(()) };
    let opened = File::options().create(true).truncate(true).write(true).open(&path);
    let file = opened.with_context(|| format!("{VARIABLE}: cannot open {}", path.display()))?;
    file.write_all_at(&[b'0'; Phase::ALL.len()], 0)?;
    if RECORDER.set(Recorder { file, inside: Mutex::default() }).is_ok() {
        observe(note);
    }
    Ok(())
}

fn note(phase: Phase, entered: bool) {
    let Some(recorder) = RECORDER.get() else { return };
    let mut inside = recorder.inside.lock().unwrap_or_else(PoisonError::into_inner);
    let count = &mut inside[phase as usize];
    let before = *count;
    *count = match (phase, entered) {
        // No task owns this phase: it holds or it does not.
        (Phase::Unreported, entered) => u32::from(entered),
        (_, true) => before + 1,
        (_, false) => before.saturating_sub(1),
    };
    if (before == 0) != (*count == 0) {
        let digit = if *count == 0 { b"0" } else { b"1" };
        // A recorder that cannot write must not stop the process.
        let _ = recorder.file.write_all_at(digit, phase as u64);
    }
}
