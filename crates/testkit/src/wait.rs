//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// First pause between two looks; doubled each time up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// Longest pause: short against every bound a test uses, long enough to leave two cores to the servers.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Looks at `condition` until it holds.
///
/// # Errors
/// When it does not hold within `bound` (the message names `what`), or at once when `condition` itself fails.
pub fn wait_for(what: &str, bound: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    let mut pause = PAUSE_FIRST;
    while !condition()? {
        if started.elapsed() >= bound {
            bail!("waited {bound:?} for {what}, in vain");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_until_the_condition_holds() {
        let mut looks = 0;
        wait_for("three looks", Duration::from_secs(5), || {
            looks += 1;
            Ok(looks == 3)
        })
        .unwrap();
        assert_eq!(looks, 3);
    }

    #[test]
    fn says_what_it_waited_for_in_vain() {
        let error = wait_for("the tide", Duration::from_millis(5), || Ok(false)).unwrap_err();
        assert!(error.to_string().contains("the tide"), "{error}");
    }
}
