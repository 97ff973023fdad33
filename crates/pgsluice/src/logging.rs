//! The log on stderr: text for people, JSON for machines.
//!
//! Progress bars are on stderr too. A log line moves them aside, so that neither breaks the other.
//! Commands in a line are completed (`invocation`).

use std::io::{self, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::Failure;
use crate::invocation;
use crate::settings::{Log, LogFormat};

/// Starts logging. Every line moves the bars of `bars` aside.
pub(crate) fn start(own: &Log, bars: &MultiProgress) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&own.log_level)
        .map_err(|error| Failure::LogLevel { level: own.log_level.clone(), error: error.to_string() })?;
    let is_json = own.log_format == LogFormat::Json;
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(Aside { bars: bars.clone(), is_json });
    let started = match own.log_format {
        LogFormat::Text => log.with_ansi(console_has_colour()).with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("could not start logging: {error}"))
}

/// Colour only for a terminal that wants it (no-color.org).
fn console_has_colour() -> bool {
    use std::io::IsTerminal as _;
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes whole lines while the bars are away.
#[derive(Clone)]
struct Aside {
    bars: MultiProgress,
    is_json: bool,
}

impl<'a> MakeWriter<'a> for Aside {
    type Writer = Aside;

    fn make_writer(&'a self) -> Aside {
        self.clone()
    }
}

impl Write for Aside {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The subscriber writes an event in one call.
        let text = String::from_utf8_lossy(line);
        let subscription = invocation::subscription_of(&text);
        let text = match self.is_json {
            true => invocation::complete_json(&text, subscription),
            false => invocation::complete(&text, subscription),
        };
        self.bars.suspend(|| io::stderr().write_all(text.as_bytes()))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
