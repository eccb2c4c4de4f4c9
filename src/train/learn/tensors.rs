//! Tensors of the state of training in a checkpoint.

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use crate::error::{Error, Kind, Result};

/// The tensors of a file, by name.
pub(crate) fn read_tensors(path: &Path) -> Result<HashMap<String, Tensor>> {
    let tensors = Tensor::read_safetensors(path).map_err(|error| {
        Error::new(Kind::Store, format!("can't read the optimiser state: {error}"))
            .at_path(path)
            .hint("resume from an older checkpoint, or start again from this one's model with policy.model=")
    })?;
    Ok(tensors.into_iter().collect())
}
