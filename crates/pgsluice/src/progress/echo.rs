//! Keeps the terminal from writing `^C` among the bars.
//!
//! The cursor is after the last bar's last column, so an echo there starts another line. The bars
//! would then be removed from one line too low, and the first of them would stay on the screen. So
//! while there are bars, this module switches off the display of control characters (`ECHOCTL`),
//! and restores it afterwards. It does so only while this process is in the foreground, because a
//! background process that asks is stopped.

use std::io::stderr;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};

/// The terminal shows control characters again when this is dropped.
pub(crate) struct Quiet(bool);

impl Quiet {
    /// Quiet if bars are shown on standard error.
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
