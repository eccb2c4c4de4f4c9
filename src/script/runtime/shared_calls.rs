//! State of tool calls shared across trajectories, threads and virtual machines: cached results by
//! arguments, calls that wait for an equal one, and limits of concurrency. Each version of the
//! script has its own.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

/// The result of a tool in a cache, and in the record of the trajectory that uses it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CachedResult {
    pub(crate) text: String,
    /// Hashes of images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) images: Vec<String>,
    /// The process reward, if the tool returned one.
    pub(crate) reward: Option<f64>,
}

/// A cache of results; the oldest are evicted when it is full.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    results: HashMap<String, CachedResult>,
    /// In insertion order, with their sizes.
    order: VecDeque<(String, usize)>,
    bytes: usize,
    limit: usize,
}

/// Maximum bytes of keys and results: per trajectory, and for all calls of a script.
const OF_TRAJECTORY: usize = 16 << 20;
const OF_SCRIPT: usize = 256 << 20;

impl Default for Cache {
    fn default() -> Self {
        Self::of(OF_TRAJECTORY)
    }
}

impl Cache {
    fn of(limit: usize) -> Self {
        Self { results: HashMap::new(), order: VecDeque::new(), bytes: 0, limit }
    }

    pub(crate) fn get(&self, key: &str) -> Option<CachedResult> {
        self.results.get(key).cloned()
    }

    pub(crate) fn put(&mut self, key: &str, result: CachedResult) {
        let size = key.len() * 2 + result.text.len();
        if self.results.contains_key(key) || size > self.limit {
            return;
        }
        while self.bytes + size > self.limit {
            let Some((oldest, size)) = self.order.pop_front() else { break };
            self.results.remove(&oldest);
            self.bytes -= size;
        }
        self.results.insert(key.to_owned(), result);
        self.order.push_back((key.to_owned(), size));
        self.bytes += size;
    }
}

/// Calls of tools with a cache that are running, by their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningCalls(Arc<Mutex<HashMap<String, watch::Receiver<()>>>>);

/// The first of several equal calls. The others wait until it is dropped.
#[derive(Debug)]
pub(crate) struct FirstCall {
    running: RunningCalls,
    key: String,
    _end: watch::Sender<()>,
}

impl RunningCalls {
    fn all(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a running call with this key, and returns `None`: its result is in the
    /// cache unless it failed. Without one, equal calls wait until the result is dropped.
    pub(crate) async fn first(&self, key: &str) -> Option<FirstCall> {
        let mut other = {
            let mut all = self.all();
            #[expect(clippy::single_match_else, reason = "both ways are equally long")]
            match all.get(key) {
                Some(other) => other.clone(),
                None => {
                    let (end, ended) = watch::channel(());
                    all.insert(key.to_owned(), ended);
                    return Some(FirstCall { running: self.clone(), key: key.to_owned(), _end: end });
                }
            }
        };
        // Nothing is sent: the channel is closed.
        let _ = other.changed().await;
        None
    }
}

impl Drop for FirstCall {
    fn drop(&mut self) {
        self.running.all().remove(&self.key);
    }
}

/// Shared state of the tools of a script.
#[derive(Debug)]
pub(crate) struct SharedCalls {
    cache: Mutex<Cache>,
    /// Calls of tools that have one cache for the run.
    pub(crate) running: RunningCalls,
    permits: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for SharedCalls {
    fn default() -> Self {
        Self { cache: Mutex::new(Cache::of(OF_SCRIPT)), running: RunningCalls::default(), permits: Mutex::default() }
    }
}

impl SharedCalls {
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The semaphore that limits concurrent calls of a tool.
    pub(crate) fn permits(&self, tool: &str, limit: usize) -> Arc<Semaphore> {
        let mut all = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Arc::clone(all.entry(tool.to_owned()).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> CachedResult {
        CachedResult { text: text.to_owned(), images: Vec::new(), reward: None }
    }

    #[test]
    fn a_full_tool_cache_evicts_the_oldest_results() {
        let mut cache = Cache::of(60);
        for key in ["one", "two", "three"] {
            cache.put(key, result(&"x".repeat(10)));
        }
        assert_eq!(cache.get("one"), Some(result("xxxxxxxxxx")));
        cache.put("four", result(&"x".repeat(10)));
        assert_eq!((cache.get("one"), cache.get("four").is_some()), (None, true));
        assert!(cache.bytes <= 60);
        // A result larger than the cache is not stored and evicts nothing.
        cache.put("large", result(&"x".repeat(100)));
        assert!(cache.get("large").is_none() && cache.get("four").is_some());
        // The first result stays.
        cache.put("four", result("other"));
        assert_eq!(cache.get("four"), Some(result("xxxxxxxxxx")));
    }
}
