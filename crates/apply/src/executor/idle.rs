//! What an executor does while nothing is asked of the target: it waits for more to do, or reads what was put aside.

use std::io;

use super::Executor;
use crate::error::{Error, Kind};

impl Executor {
    /// Waits until the connection has ended, while nothing is asked of the target, and says why. Cancel safe.
    pub(crate) async fn lost(&mut self) -> Error {
        loop {
            if let Err(error) = self.wire.read_frame().await {
                return error.into();
            }
        }
    }

    /// Reads what was put aside.
    pub(super) fn disk<T>(&self, read: impl FnOnce() -> io::Result<T>) -> Result<T, Error> {
        self.shared.counters.activity.disk(read).map_err(|error| Kind::PutAside(error).into())
    }
}
