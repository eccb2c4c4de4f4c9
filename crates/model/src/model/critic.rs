//! A critic (value model): a transformer and a linear head that maps each hidden state to one
//! value.
//!
//! The transformer is a separate model initialised with the policy's weights, or the policy itself.
//! The head is initialised with zeros, so that all values are 0 before training and the first
//! advantages depend on rewards only. Its tensors have the names that transformers gives to a token
//! classifier with one label (`score.weight`, `score.bias`).

use std::path::Path;

use tch::{Kind, Tensor};

use super::unwritten::{UnwrittenFile, write_all};
use super::{Model, SHARD_BYTES};
use crate::native;
use r1_base::error::{self, Error, Result};

const FILE: &str = "value_head.safetensors";
const NAMES: [&str; 2] = ["score.weight", "score.bias"];

/// A value model; see the module documentation.
#[derive(Debug)]
pub struct Critic {
    /// `None` if the policy's hidden states are used.
    trunk: Option<Model>,
    /// `[1, E]` and `[1]`, f32 (f64 for a model held in f64).
    weight: Tensor,
    bias: Tensor,
}

impl Critic {
    /// A critic over `trunk`, or over the hidden states of `policy` itself.
    pub fn new(policy: &Model, mut trunk: Option<Model>) -> Result<Self> {
        if let Some(trunk) = &mut trunk {
            trunk.share_images(policy);
        }
        let kind = if policy.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let zeros = |shape: &[i64]| -> Result<Tensor> {
            Ok(native::zeros(shape, kind, policy.device())?.f_set_requires_grad(true)?)
        };
        Ok(Self { trunk, weight: zeros(&[1, policy.config.hidden_size as i64])?, bias: zeros(&[1])? })
    }

    /// The separate model; `None` if the policy's hidden states are used.
    pub fn trunk(&self) -> Option<&Model> {
        self.trunk.as_ref()
    }

    /// Values `[N]` at positions `at` `[N]` i64 of the trunk's hidden states `[T, E]`. The value at
    /// a token is the value of the state after this token. Differentiable.
    pub fn values(&self, hidden: &Tensor, at: &Tensor) -> Result<Tensor> {
        let hidden = hidden.f_index_select(0, at)?.f_to_kind(self.weight.kind())?;
        Ok(hidden.f_linear(&self.weight, Some(&self.bias))?.f_squeeze_dim(1)?)
    }

    /// Tensors of the head, and of the trunk if it is a separate model, under their names in files.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut all = self.trunk.as_ref().map(Model::parameters).unwrap_or_default();
        all.extend(self.head());
        all
    }

    fn head(&self) -> Vec<(String, Tensor)> {
        let tensors = [self.weight.shallow_clone(), self.bias.shallow_clone()];
        NAMES.map(str::to_owned).into_iter().zip(tensors).collect()
    }

    /// Writes the head, and the trunk as a model. `dir` is made if the directory above it exists.
    pub fn save(&self, dir: &Path) -> Result<()> {
        write_all(&self.unwritten()?, dir)
    }

    /// The files that [`save`](Self::save) writes. Their tensors are not copied.
    pub fn unwritten(&self) -> Result<Vec<UnwrittenFile>> {
        let mut files = self.trunk.as_ref().map_or_else(|| Ok(Vec::new()), |trunk| trunk.unwritten(SHARD_BYTES))?;
        files.push(UnwrittenFile::tensors(FILE, "the weight", &self.head()));
        Ok(files)
    }

    /// Loads a saved head; the trunk is loaded like any model.
    ///
    /// # Errors
    /// `Kind::Store` for a missing tensor or another shape.
    pub fn load_head(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let damaged =
            |why: String| Error::new(error::Kind::Store, format!("can't read the value head: {why}")).at_path(&path);
        let tensors = Tensor::read_safetensors(&path).map_err(|why| damaged(why.to_string()))?;
        let _guard = tch::no_grad_guard();
        for (name, mut parameter) in self.head() {
            let saved = tensors.iter().find(|(key, _)| *key == name).map(|(_, tensor)| tensor);
            let saved = saved.ok_or_else(|| damaged(format!("`{name}` is missing")))?;
            if saved.size() != parameter.size() {
                return Err(damaged(format!("`{name}` is {:?}, not {:?}", saved.size(), parameter.size())));
            }
            parameter.f_copy_(saved)?;
        }
        Ok(())
    }
}
