//! What the host does for scripts with models and tensors, which this module never sees: plain data in and out.

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
