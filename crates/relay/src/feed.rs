//! From the messages of one form into its track, and what its senders share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Lsn, PgTimestamp, with_causes};
use output::{Decoder, Output};
use tokio_util::sync::CancellationToken;
use track::{Entrance, Limits, Pushed, Track};

/// So much is shown at the latest, also in the middle of a transaction. A large one comes out at
/// once, and must not be in memory as a whole.
const SHOWN_AFTER_BYTES: usize = 256 << 10;
/// How long a form that is decoded alone waits at a time for its readers.
const WAIT: Duration = Duration::from_millis(100);

/// The number of a form in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FormId(pub(crate) u64);

/// Writes one form's track.
pub(crate) struct Feed {
    track: Track,
    handle: FormHandle,
    /// The last error of the track's files, which is logged once.
    has_warned: bool,
}

/// What senders of a form need. Clones are of the same form.
#[derive(Debug, Clone)]
pub struct FormHandle {
    /// Its number.
    pub id: FormId,
    /// Lets senders in.
    pub entrance: Entrance,
    /// How far the track is complete.
    pub position: FormPosition,
    /// Whether and why the form has ended.
    pub end: FormEnd,
}

/// How far a form's output is complete and visible in its track.
#[derive(Debug, Clone, Default)]
pub struct FormPosition(Arc<AtomicU64>);

impl FormPosition {
    /// Says that everything that ends before `lsn` is in the track, and was flushed.
    pub fn came_to(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.as_u64(), Ordering::Release);
    }

    /// See [`FormPosition::came_to`].
    #[must_use]
    pub fn get(&self) -> Lsn {
        Lsn::new(self.0.load(Ordering::Acquire))
    }
}

/// The end of a form: nothing more comes into its track.
#[derive(Debug, Clone, Default)]
pub struct FormEnd {
    token: CancellationToken,
    why: Arc<OnceLock<String>>,
}

impl FormEnd {
    /// Waits until the form has ended, and returns the reason.
    pub async fn ended(&self) -> String {
        self.token.cancelled().await;
        self.why.get().cloned().unwrap_or_default()
    }

    /// The reason, if the form has ended.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    pub(crate) fn set(&self, why: String) {
        let _ = self.why.set(why);
        self.token.cancel();
    }
}

impl Feed {
    /// A feed whose track has every transaction that ends at or behind `begins_at`. From
    /// `two_phase_at` on, prepared transactions come when they are prepared.
    pub(crate) fn new(id: FormId, begins_at: Lsn, two_phase_at: Option<Lsn>, limits: Limits) -> Feed {
        let track = Track::new(begins_at, limits).with_two_phase_at(two_phase_at.unwrap_or(Lsn::INVALID));
        let handle = FormHandle {
            id,
            entrance: track.entrance(),
            position: FormPosition::default(),
            end: FormEnd::default(),
        };
        Feed { track, handle, has_warned: false }
    }

    pub(crate) fn handle(&self) -> FormHandle {
        self.handle.clone()
    }

    /// Whether somebody has ended the form.
    pub(crate) fn has_ended(&self) -> bool {
        self.handle.end.why().is_some()
    }

    /// Takes a message. Returns whether relations must be described again from here on.
    ///
    /// # Errors
    /// The message cannot be sent; the text has its position.
    pub(crate) fn take(&mut self, output: &Output<'_>, now: PgTimestamp) -> Result<bool, String> {
        // Only the last message of a callback has its position on the wire.
        let is_description = matches!(output.data.first(), Some(b'R' | b'Y'));
        let lsn = if is_description { Lsn::INVALID } else { output.lsn };
        let pushed = self.track.push(lsn, now, output.data);
        let pushed = pushed.map_err(|error| format!("the change at {}: {error}", output.lsn))?;
        if self.track.pending_bytes() >= SHOWN_AFTER_BYTES {
            self.show();
        }
        Ok(pushed == Pushed::ChapterBegins)
    }

    /// Lets senders see what was taken: everything that ends before `decoded`.
    pub(crate) fn flush(&mut self, decoded: Lsn) {
        self.show();
        self.handle.position.came_to(decoded);
    }

    fn show(&mut self) {
        if let Err(error) = self.track.flush()
            && !self.has_warned
        {
            self.has_warned = true;
            tracing::warn!("{error}; subscribers that are late must be decoded for again");
        }
    }

    /// See [`Track::wait_for_readers`].
    pub(crate) fn wait_for_readers(&self, most: Duration) -> bool {
        self.track.wait_for_readers(most)
    }

    /// Ends the form.
    pub(crate) fn fail(self, why: String) {
        self.handle.end.set(why);
    }

    /// Decodes bytes for this form alone. If it `waits`, it does so for its readers within a large
    /// transaction, too: otherwise the files that they read from would grow beyond their limit.
    pub(crate) fn decode(&mut self, decoder: &mut Decoder, bytes: &[u8], waits: bool) -> Result<(), String> {
        let now = PgTimestamp::now();
        let mut outputs = decoder.push(bytes).map_err(|error| with_causes(&error))?;
        while let Some(output) = outputs.next().map_err(|error| with_causes(&error))? {
            if self.take(&output, now)? {
                outputs.describe_again();
            }
            let is_shown = self.track.pending_bytes() == 0;
            while waits && is_shown && !self.wait_for_readers(WAIT) {
                if self.has_ended() {
                    return Err("the form was ended".to_owned());
                }
            }
        }
        self.flush(decoder.decoded());
        Ok(())
    }
}
