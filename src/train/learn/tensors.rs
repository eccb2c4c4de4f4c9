//! Tensors of the state of training in a checkpoint: read, and checked before they are written.

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

/// Refuses tensors that contain NaN or infinity: a run cannot resume from them.
pub(crate) fn require_finite(tensors: &[(String, Tensor)], what: &str) -> Result<()> {
    for (name, tensor) in tensors.iter().filter(|(_, tensor)| tensor.is_floating_point()) {
        if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Error::new(
                Kind::Numeric,
                format!("{what} `{name}` contains NaN or infinity; no checkpoint is written"),
            )
            .hint("lower trainer.lr, and resume from the last checkpoint"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tensors_that_are_not_finite_are_named() {
        let tensor = |value: f32| ("w".to_owned(), Tensor::from_slice(&[1.0_f32, value]));
        require_finite(&[tensor(2.0), ("step".to_owned(), Tensor::from_slice(&[3_i64]))], "the weight").unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = require_finite(&[tensor(1.0), tensor(bad)], "the weight").unwrap_err();
            assert_eq!(error.kind, Kind::Numeric);
            assert!(error.message.starts_with("the weight `w` contains NaN or infinity"), "{error}");
        }
    }
}
