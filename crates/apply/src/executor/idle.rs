//! What an executor does while it asks nothing of the target: it waits for work, or reads changes
//! that were put aside.

use std::io;

use super::Executor;
use crate::error::{Error, Kind};

impl Executor {
    /// Waits until the connection has ended, while nothing is asked of the target, and returns the
    /// reason. Cancel safe.
    pub(crate) async fn lost(&mut self) -> Error {
        loop {
            if let Err(error) = self.wire.read_frame().await {
                return error.into();
            }
        }
    }

    /// Reads changes that were put aside.
    pub(super) fn disk<T>(&self, read: impl FnOnce() -> io::Result<T>) -> Result<T, Error> {
        self.shared.counters.activity.disk(read).map_err(|error| Kind::PutAside(error).into())
    }
}
