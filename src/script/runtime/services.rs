//! What the host does for scripts with models and tensors, which this module never sees: plain data in and out.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use serde_json::Value as Json;

use crate::error::Result;

/// Functions over models and tensors, by name. Given to the virtual machines of `r1 lua`; answers come from the thread
/// that owns the tensors.
pub trait Services: Send + Sync {
    /// Carries out `function` (`model.logprobs`) on one object of arguments.
    ///
    /// # Errors
    /// What the caller did wrong, or what the model can't do, in words for the script's author.
    fn call(&self, function: &str, arguments: Json) -> BoxFuture<'static, Result<Json>>;
}

static SHARED: OnceLock<Arc<dyn Services>> = OnceLock::new();

/// Lets recipes name models (`r1.generate(prompt, { model = … })`): the first call counts, for the whole process.
pub fn share_services(services: Arc<dyn Services>) {
    // A second one would be the same thread of tensors.
    let _ = SHARED.set(services);
}

/// The services that recipes have.
pub(crate) fn shared() -> Option<Arc<dyn Services>> {
    SHARED.get().cloned()
}
