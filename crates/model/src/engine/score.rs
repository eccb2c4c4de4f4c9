//! Log-probabilities of given ids, computed between decode steps.

use tch::{Tensor, no_grad_guard};

use super::Engine;
use crate::model::{Model, Packed, upload};
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::Scoring;

/// Number of positions whose logits are in memory at once.
const CHUNK: usize = 256;

/// Computes log-probabilities under the reference policy, which the caller owns.
pub type ReferenceScorer = Box<dyn FnMut(&Scoring) -> Result<Vec<f32>>>;

/// Log-probabilities under `model` of the ids from `scoring.from` on, each given the previous ids.
///
/// # Errors
/// [`Kind::Env`] if no id precedes the first scored id.
pub fn logprobs_of(model: &Model, scoring: &Scoring) -> Result<Vec<f32>> {
    let Scoring { ids, from, temperature, .. } = scoring;
    if *from == 0 {
        return Err(Error::new(Kind::Env, "the prompt is empty"));
    }
    if ids.len() <= *from {
        return Ok(Vec::new());
    }
    let _guard = no_grad_guard();
    let hidden = model.forward(&Packed::from_rows(&[ids], model.device())?)?;
    let before = hidden.f_narrow(0, *from as i64 - 1, (ids.len() - from) as i64)?;
    let targets: Vec<i64> = ids[*from..].iter().map(|&id| i64::from(id)).collect();
    let targets = upload(&Tensor::f_from_slice(&targets)?, model.device())?;
    let (logprobs, _) = model.logprobs(&before, &targets, *temperature, CHUNK)?;
    Ok(logprobs.f_to_kind(tch::Kind::Float)?.f_to_device(tch::Device::Cpu)?.try_into()?)
}

impl Engine {
    /// Sets the scorer for [`Scoring::reference`].
    pub fn set_reference(&mut self, scorer: ReferenceScorer) {
        self.reference = Some(scorer);
    }

    pub(super) fn score(&mut self, scoring: &Scoring) -> Result<Vec<f32>> {
        match &mut self.reference {
            _ if !scoring.reference => logprobs_of(&self.model, scoring),
            Some(scorer) => scorer(scoring),
            None => Err(Error::new(Kind::Script, "there is no reference policy here")
                .hint("runs have one; r1.logprobs { model = … } takes any model by name")),
        }
    }
}
