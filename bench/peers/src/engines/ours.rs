//! Our store.

use std::path::Path;

use anyhow::Result;
use base::Lsn;
use store::{BottomUp, Kind, Options, Snapshot, Store, Tree};

use super::{Engine, Operations};

pub(crate) struct Ours {
    store: Store,
    tree: Tree,
    pin: Option<Snapshot>,
    /// Look-ups are not announced.
    is_apart: bool,
}

impl Ours {
    pub(crate) fn open(dir: &Path, cache_bytes: usize, bottom_up: BottomUp, is_apart: bool) -> Result<Ours> {
        let options = Options { cache_bytes, bottom_up, ..Options::default() };
        let mut store = Store::open(&dir.join("versions"), options)?;
        let tree = store.tree("history", Kind::History)?;
        Ok(Ours { store, tree, pin: None, is_apart })
    }
}

impl Operations for Ours {
    fn put(&mut self, key: u64, lsn: u64, value: &[u8]) -> Result<()> {
        Ok(self.store.put(self.tree, &key.to_be_bytes(), Lsn::new(lsn), value)?)
    }

    fn delete(&mut self, key: u64, lsn: u64) -> Result<()> {
        Ok(self.store.delete(self.tree, &key.to_be_bytes(), Lsn::new(lsn), b"")?)
    }

    fn get(&mut self, key: u64) -> Result<Option<usize>> {
        let version = self.store.latest(self.tree, &key.to_be_bytes())?;
        Ok(version.filter(|version| !version.is_delete).map(|version| version.value.len()))
    }

    fn prefetch(&mut self, key: u64) {
        if !self.is_apart {
            self.store.prefetch(self.tree, &key.to_be_bytes());
        }
    }

    fn forget(&mut self, _key: u64, _lsn: u64) -> Result<()> {
        Ok(())
    }
}

impl Engine for Ours {
    fn batch(
        &mut self,
        lsn: u64,
        horizon: u64,
        work: &mut dyn FnMut(&mut dyn Operations) -> Result<()>,
    ) -> Result<()> {
        work(self)?;
        self.store.set_horizon(Lsn::new(horizon));
        Ok(self.store.commit(Lsn::new(lsn))?)
    }

    fn needs_forgetting(&self) -> bool {
        false
    }

    fn pin(&mut self, pinned: bool) -> Result<()> {
        self.pin = if pinned { Some(self.store.reader().snapshot()?) } else { None };
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        Ok(self.store.compact()?)
    }
}
