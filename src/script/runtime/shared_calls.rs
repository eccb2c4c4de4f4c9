//! What calls of a tool share across trajectories, threads and virtual machines: results by arguments, and how many may be
//! under way. Both are of one version of the script: another one begins anew.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;
use tokio::sync::Semaphore;

/// Results by what they depend on, the oldest dropped where there is no room for more.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    results: HashMap<String, Json>,
    /// In the order in which they came, with their sizes.
    order: VecDeque<(String, usize)>,
    bytes: usize,
    most: usize,
}

/// Bytes of results and of what they are found by: of one trajectory, and of all calls of a script.
const OF_TRAJECTORY: usize = 16 << 20;
const OF_SCRIPT: usize = 256 << 20;

impl Default for Cache {
    fn default() -> Self {
        Self::of(OF_TRAJECTORY)
    }
}

impl Cache {
    fn of(most: usize) -> Self {
        Self { results: HashMap::new(), order: VecDeque::new(), bytes: 0, most }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Json> {
        self.results.get(key).cloned()
    }

    pub(crate) fn put(&mut self, key: &str, result: Json) {
        let size = key.len() * 2 + result.to_string().len();
        if self.results.contains_key(key) || size > self.most {
            return;
        }
        while self.bytes + size > self.most {
            let Some((oldest, size)) = self.order.pop_front() else { break };
            self.results.remove(&oldest);
            self.bytes -= size;
        }
        self.results.insert(key.to_owned(), result);
        self.order.push_back((key.to_owned(), size));
        self.bytes += size;
    }
}

/// What the calls of a script's tools share.
#[derive(Debug)]
pub(crate) struct Shared {
    cache: Mutex<Cache>,
    permits: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { cache: Mutex::new(Cache::of(OF_SCRIPT)), permits: Mutex::default() }
    }
}

impl Shared {
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places for calls of a tool.
    pub(crate) fn permits(&self, tool: &str, most: usize) -> Arc<Semaphore> {
        let mut all = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Arc::clone(all.entry(tool.to_owned()).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_results_are_dropped_where_there_is_no_room() {
        let mut cache = Cache::of(60);
        for key in ["one", "two", "three"] {
            cache.put(key, json!("x".repeat(10)));
        }
        assert_eq!(cache.get("one"), Some(json!("xxxxxxxxxx")));
        cache.put("four", json!("x".repeat(10)));
        assert_eq!((cache.get("one"), cache.get("four").is_some()), (None, true));
        assert!(cache.bytes <= 60);
        // What is larger than all of it is not kept, and drops nothing.
        cache.put("large", json!("x".repeat(100)));
        assert!(cache.get("large").is_none() && cache.get("four").is_some());
        // The first result stays.
        cache.put("four", json!("other"));
        assert_eq!(cache.get("four"), Some(json!("xxxxxxxxxx")));
    }
}
