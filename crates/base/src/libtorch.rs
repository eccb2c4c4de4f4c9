//! Failures of libtorch as errors of r1. It has text only.

use crate::error::{Error, Kind};

/// Lets `?` turn an error of a tensor operation into one of r1, in the crates that have tensors.
#[cfg(feature = "tch")]
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        let short = text.lines().next().unwrap_or("libtorch failed");
        out_of_memory(&text, short).unwrap_or_else(|| Self::new(Kind::Internal, short))
    }
}

/// The error with this message, if libtorch's text says that the device is out of memory.
pub fn out_of_memory(text: &str, message: &str) -> Option<Error> {
    let is_memory = text.contains("out of memory") || text.contains("not enough memory");
    is_memory.then(|| {
        Error::new(Kind::Device, message)
            .hint("lower the batch (trainer.tokens_per_batch, rollout.concurrency) or the lengths")
    })
}
