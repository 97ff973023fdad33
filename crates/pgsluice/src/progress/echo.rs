//! Keeps the terminal from writing `^C` among the bars.
//!
//! The cursor stands behind the last bar's last column, so that what is echoed there begins another line: the bars are then
//! taken away from one line too low, and the first of them stays on the screen for good. So the terminal is told not to
//! show control characters (`ECHOCTL`) as long as there are bars, and told again how it was. Only while this process is
//! in the foreground: one in the background would be stopped by asking.

use std::io::stderr;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};

/// The terminal shows control characters again when this goes.
pub(crate) struct Quiet(bool);

impl Quiet {
    /// If bars are shown on standard error.
    pub(crate) fn when(bars: bool) -> Quiet {
        Quiet(bars && show_control(false))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.0 {
            show_control(true);
        }
    }
}

/// Whether that changed anything.
fn show_control(shown: bool) -> bool {
    let in_foreground = tcgetpgrp(stderr()).is_ok_and(|group| group == rustix::process::getpgrp());
    if !in_foreground {
        return false;
    }
    let Ok(mut modes) = tcgetattr(stderr()) else { return false };
    if modes.local_modes.contains(LocalModes::ECHOCTL) == shown {
        return false;
    }
    modes.local_modes.set(LocalModes::ECHOCTL, shown);
    tcsetattr(stderr(), OptionalActions::Now, &modes).is_ok()
}
