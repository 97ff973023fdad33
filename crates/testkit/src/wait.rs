//! Waiting for a condition, never for a time.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::patience::Patience;

/// First pause between two checks; it doubles each time, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(2);
/// Longest pause. It is short against every bound that a test uses, and long enough to leave two
/// cores to the servers.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// While something moves, the wait lasts up to this many bounds.
const MOVING_BOUNDS: u32 = 4;
/// And up to this time by the clock, or to the bound if that is longer: what moves and never comes
/// to its end is a hang, too.
const MOVING_MAX: Duration = Duration::from_secs(600);
/// Checks for movement within a bound. Two without a difference mean that it stands still.
const LOOKS: u32 = 3;

/// Checks `condition` until it holds.
///
/// # Errors
///
/// When the condition does not hold within `bound`, which lasts longer where the machine is busy
/// ([`Patience`]; the message names `what`), or at once when `condition` itself fails.
pub fn wait_for(what: &str, bound: Duration, condition: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_while_it_moves(what, bound, condition, || ())
}

/// Waits as [`wait_for`] does for something that does not hang as long as it moves. `progress` says
/// how far it is, and is only asked after a third of `bound`. The bound starts again each time that
/// it differs, up to a bound four times as long, or ten minutes by the clock.
///
/// # Errors
///
/// As [`wait_for`].
pub fn wait_while_it_moves<P: PartialEq>(
    what: &str,
    bound: Duration,
    mut condition: impl FnMut() -> Result<bool>,
    mut progress: impl FnMut() -> P,
) -> Result<()> {
    let mut all = Patience::new(bound * MOVING_BOUNDS);
    let mut still = Patience::new(bound);
    let (mut seen, mut looks) = (None, 0);
    let mut pause = PAUSE_FIRST;
    while !condition()? {
        if still.spent() >= bound * (looks + 1).min(LOOKS) / LOOKS {
            looks += 1;
            let now = Some(progress());
            if seen.is_some() && now != seen {
                (still, looks) = (Patience::new(bound), 0);
            }
            seen = now;
        }
        // A pause may be longer than a bound, so one check alone shows nothing.
        let is_late = all.is_over() || all.elapsed() >= MOVING_MAX.max(bound);
        if is_late || looks > 1 && still.spent() >= bound {
            bail!("waited {:.0?} for {what}, in vain", all.elapsed());
        }
        // The one place where tests wait for a condition.
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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

    #[test]
    fn what_moves_is_waited_for_beyond_its_bound_and_what_stands_still_is_not() {
        let bound = Duration::from_millis(60);
        let began = Instant::now();
        let mut position = 0;
        let moves = || {
            position += 1;
            position
        };
        wait_while_it_moves("the end", bound, || Ok(began.elapsed() > bound * 4), moves).unwrap();
        let mut looks = 0;
        let stands = || looks += 1;
        let error = wait_while_it_moves("the end", bound, || Ok(false), stands).unwrap_err();
        assert!(error.to_string().contains("in vain"), "{error}");
        assert!(looks > 1, "nobody looked whether it moved");
    }

    #[test]
    fn what_moves_for_ever_is_not_waited_for_for_ever() {
        let mut position = 0;
        let moves = || {
            position += 1;
            position
        };
        wait_while_it_moves("the end", Duration::from_millis(10), || Ok(false), moves).unwrap_err();
    }
}
