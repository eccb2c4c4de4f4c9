//! The end of a trajectory: `close` of its environment.

use super::worker::Worker;
use crate::script::runtime::host::EntryPoint;
use crate::script::runtime::place::definition;
use crate::script::runtime::record::Record;
use crate::script::runtime::state::State;

impl Worker {
    /// Calls `close` of the environment, after the end of a trajectory. It changes no result: its
    /// external calls are not recorded, a replay skips it, and its errors are logged.
    pub async fn close(&self, state: &State) {
        let Some(function) = &state.env.env.close else { return };
        if state.record.is_replay() {
            return;
        }
        let record = Record::off();
        record.set_name(&state.record.name());
        let call = self.call_at(EntryPoint::Close, state, &record, state.steps.get());
        let ended: Result<mlua::Value, _> = self.vm.call(&call, function, &state.table).await;
        if let Err(failure) = ended {
            let location = failure.error.place.clone().or_else(|| definition(function)).unwrap_or_default();
            let before = self.vm.host.swap(call);
            self.vm.host.log(location, format!("close failed: {}", failure.error.message));
            self.vm.host.swap(before);
        }
    }
}
