//! The memory of the key-value cache between rollouts, and weights that changed.

use super::Engine;
use crate::model::release_memory;
use r1_base::error::{Error, Kind, Result};

impl Engine {
    /// Frees the memory of the key-value cache, so that an update can use it; what the cache holds
    /// is lost. The next request allocates it again.
    ///
    /// # Errors
    /// `Kind::Internal` while requests are running.
    pub fn sleep(&mut self) -> Result<()> {
        if !self.running.is_empty() {
            return Err(Error::new(Kind::Internal, "the key-value cache is released while requests are running"));
        }
        self.clear_cache()?;
        self.cache.release();
        release_memory(self.model.device())
    }

    /// Memory of the key-value cache, bytes; 0 while it is released.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Before a step: allocates the cache if it is released, and renews weights that are merged for
    /// sampling if the weights changed.
    pub(super) fn wake(&mut self) -> Result<()> {
        if self.cache.is_released() {
            // What the update used and no longer needs.
            release_memory(self.model.device())?;
            self.cache.restore()?;
        }
        if std::mem::take(&mut self.stale) {
            self.model.refresh_merged()?;
        }
        Ok(())
    }
}
