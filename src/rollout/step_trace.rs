//! The duration of the parts of each step, and the changes of the environment's state.

use std::time::Instant;

use serde_json::{Map, Value};

use crate::mdp::StepSeconds;
use crate::script::State;

/// Most bytes of a state that is recorded; a larger one is not.
const MOST_BYTES: usize = 1 << 15;

/// The recording of the current step.
#[derive(Clone, Debug)]
pub(super) struct StepTrace {
    /// The state at the end of the last step; null if it was not recorded.
    state: Value,
    seconds: StepSeconds,
    /// The end of the last part of the step.
    since: Instant,
}

impl StepTrace {
    /// The trace of a trajectory that begins with this state.
    pub(super) fn new(state: &State) -> Self {
        let state = data(state).unwrap_or_default();
        Self { state, seconds: StepSeconds::default(), since: Instant::now() }
    }

    /// The recorded state.
    pub(super) fn state(&self) -> Option<Value> {
        Some(self.state.clone()).filter(Value::is_object)
    }

    /// The prompt is complete.
    pub(super) fn observed(&mut self) {
        self.seconds.context = self.lap();
    }

    /// The policy has replied.
    pub(super) fn sampled(&mut self) {
        self.seconds.sampling = self.lap();
    }

    /// The step is complete: its times, and its changes of the state.
    pub(super) fn end(&mut self, state: &State) -> (StepSeconds, Option<Value>) {
        self.seconds.environment = self.lap();
        let seconds = std::mem::take(&mut self.seconds);
        let Some(now) = data(state) else { return (seconds, None) };
        // A state after one that was not recorded is recorded as a whole.
        let changes = merge_patch(&self.state, &now);
        self.state = now;
        self.since = Instant::now();
        (seconds, Some(changes))
    }

    /// Seconds since the last part of the step.
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.since).as_secs_f64();
        self.since = now;
        seconds
    }
}

/// The state as JSON, without the conversation, which trajectories have. `None` if it is too large
/// or not plain data.
fn data(state: &State) -> Option<Value> {
    let mut data = state.data(MOST_BYTES)?;
    data.as_object_mut()?.remove("messages");
    Some(data)
}

/// The merge patch (RFC 7396) that makes `new` of `old`. A null within a state is no value, so that
/// it can stand for a removal.
fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let removed = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| {
        let was = old.get(key).unwrap_or(&Value::Null);
        (key.clone(), merge_patch(was, value))
    });
    let mut patch: Map<String, Value> = removed.chain(changed).collect();
    patch.sort_keys();
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_has_what_differs() {
        let old = json!({ "a": 1, "b": { "c": [1, 2], "d": "x" }, "e": true });
        let new = json!({ "b": { "c": [1, 3], "d": "x" }, "e": true, "f": { "g": 1 } });
        let patch = json!({ "a": null, "b": { "c": [1, 3] }, "f": { "g": 1 } });
        assert_eq!(merge_patch(&old, &new), patch);
        assert_eq!(merge_patch(&new, &new), json!({}));
        assert_eq!(merge_patch(&Value::Null, &new), new);
    }
}
