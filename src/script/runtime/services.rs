//! Functions over models and tensors that the host provides for scripts, with plain data in and
//! out.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use serde_json::Value as Json;

use crate::error::Result;

/// Functions over models and tensors, by name. They are given to the virtual machines of `r1 lua`;
/// the thread that owns the tensors runs them.
pub trait Services: Send + Sync {
    /// Runs `function` (`model.logprobs`) with an object of arguments.
    ///
    /// # Errors
    /// A message for the script's author about wrong arguments or a limit of the model.
    fn call(&self, function: &str, arguments: Json) -> BoxFuture<'static, Result<Json>>;
}

static SHARED: OnceLock<Arc<dyn Services>> = OnceLock::new();

/// Lets recipes use models (`r1.generate(prompt, { model = … })`). The first call sets the services
/// of the process.
pub fn share_services(services: Arc<dyn Services>) {
    // A second one would refer to the same tensor thread.
    let _ = SHARED.set(services);
}

/// The services of recipes.
pub(crate) fn shared() -> Option<Arc<dyn Services>> {
    SHARED.get().cloned()
}
