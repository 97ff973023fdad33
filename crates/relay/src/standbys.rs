//! Holds WAL back until the standbys that may take the publisher's place have it (rule W3).
//!
//! WAL is received and kept as it comes, but nobody may read it before the physical slots that
//! `synchronized_standby_slots` names have passed it. So no subscriber gets a change that a
//! promoted standby does not have. A new slot waits, too, until they have what its snapshot sees.
//!
//! A missing or unused slot holds everything up, and the log names it. So does a publisher on
//! another timeline than the WAL that is here: its slots say nothing of that WAL.

use std::sync::Arc;
use std::time::Duration;

use base::{Lsn, with_causes};
use client::Session;
use source::standby_slots::{self, Late};
use tokio::time::Instant;
use wal_dir::Readers;

use crate::session::Context;

/// Between two looks at the slots, while something waits.
const POLL: Duration = Duration::from_millis(5);
/// The same once the slots have not moved for [`PATIENCE`]; from then on the log says so.
const POLL_LONG: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to reach the publisher.
const AGAIN: Duration = Duration::from_secs(1);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Lets readers come as far as the standbys of the slots `names`, until the relay stops.
pub(crate) async fn hold(context: Arc<Context>, names: Vec<String>, readers: Readers) {
    let mut asking = None;
    let mut have = Lsn::INVALID;
    let (mut moved, mut warned) = (Instant::now(), None::<Instant>);
    while !context.stop.is_cancelled() {
        if context.received.written() <= have {
            moved = Instant::now();
            tokio::time::sleep(POLL).await;
            continue;
        }
        let (why, pause) = match ask(&context, &mut asking, &names).await {
            Ok(late) if late.have > have => {
                have = late.have;
                readers.limit(have);
                moved = Instant::now();
                continue;
            }
            Ok(late) => (late.why, if moved.elapsed() < PATIENCE { POLL } else { POLL_LONG }),
            Err(why) => {
                asking = None;
                (why, AGAIN)
            }
        };
        if moved.elapsed() >= PATIENCE && warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            warned = Some(Instant::now());
            tracing::warn!("the relay sends no change from {have} on before the standbys have it: {why}");
        }
        tokio::time::sleep(pause).await;
    }
}

/// A session with the publisher, and the timeline that it is on. It stays there as long as the
/// session lasts.
struct Asking {
    session: Session,
    timeline: u32,
}

async fn ask(context: &Context, asking: &mut Option<Asking>, names: &[String]) -> Result<Late, String> {
    let Asking { session, timeline } = match asking {
        Some(asking) => asking,
        None => asking.insert(connect(context).await?),
    };
    let here = context.received.timeline();
    if *timeline != here {
        return Err(format!(
            "the publisher is on timeline {timeline}, and WAL was received of timeline {here}"
        ));
    }
    standby_slots::latest(session, names).await.map_err(|error| with_causes(&error))
}

async fn connect(context: &Context) -> Result<Asking, String> {
    const TIMELINE: &str =
        "SELECT substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8)";
    let session = client::connect(context.upstream.publisher(), "pgsluice relay standbys", &[]).await;
    let session = session.map_err(|error| with_causes(&error))?;
    let row = session.query_once(TIMELINE).await.map_err(|error| with_causes(&error))?;
    let text: &str = row.get(0);
    let timeline =
        u32::from_str_radix(text, 16).map_err(|_| format!("the publisher is on timeline {text}"))?;
    Ok(Asking { session, timeline })
}
