//! The trait of policy losses, and the tokens that they read.

use std::fmt::Debug;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tch::Tensor;

use super::ratios::{LOG_RATIO_LIMIT, RatioSums};
use crate::error::{Error, Kind, Result};
use crate::rl::options::{fields, take_from};
use crate::rl::segments::Segments;

/// N sampled tokens.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `[N]`: log-probabilities under the current weights; the gradient flows into it.
    pub logp: &'a Tensor,
    /// `[N]`: under the behaviour policy.
    pub logp_old: &'a Tensor,
    /// `[N]`.
    pub advantages: &'a Tensor,
    /// `[N]` i64: the sequence of each, by default its step. All tokens of a sequence must be here.
    pub sequence: &'a Tensor,
    /// The numbers of sequences are below it.
    pub sequences: i64,
}

impl Tokens<'_> {
    pub(super) fn segments(&self) -> Segments {
        Segments::new(self.sequence, self.sequences)
    }

    pub(super) fn log_ratio(&self) -> Result<Tensor> {
        Ok(self.logp.f_sub(self.logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?)
    }
}

/// Inputs of single losses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// `[N]`: off-policy weights, for a loss with [`LossFormula::applies_weights`].
    pub weights: Option<&'a Tensor>,
    /// `[N]` bool: the choice of [`LossFormula::select`] in the whole mini-batch.
    pub selected: Option<&'a Tensor>,
}

impl<'a> Extra<'a> {
    /// The selected tokens.
    ///
    /// # Errors
    /// [`Kind::Internal`] if the caller did not select any.
    pub(super) fn selected(&self, loss: &str) -> Result<&'a Tensor> {
        self.selected.ok_or_else(|| Error::new(Kind::Internal, format!("`{loss}` has no selection")))
    }
}

/// A policy loss: a type whose fields are its options. A script sets them by the names of the
/// fields.
pub trait LossFormula: LossOptions + Debug + Send + Sync {
    /// Refuses options outside of their range. `loss` is the name of the loss, for the message.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the option.
    fn check(&self, _loss: &str) -> Result<()> {
        Ok(())
    }

    /// The loss of each token `[N]`, without off-policy weights, KL and entropy, and statistics of
    /// the ratios. The gradient flows into `tokens.logp` alone.
    ///
    /// # Errors
    /// Those of the tensor operations.
    fn token_loss(&self, tokens: &Tokens<'_>, extra: &Extra<'_>) -> Result<(Tensor, RatioSums)>;

    /// Whether its ratio is that of a sequence (`ratio_over`) instead of that of a token.
    fn compares_sequences(&self) -> bool {
        false
    }

    /// Whether all tokens of a sequence must have the same advantage.
    fn one_advantage_per_sequence(&self) -> bool {
        false
    }

    /// Whether it has a gradient at tokens with advantage 0 when the policy differs from the
    /// behaviour policy.
    fn trains_without_advantage(&self) -> bool {
        false
    }

    /// Whether it reads all tokens of a mini-batch at once ([`LossFormula::select`]).
    fn needs_whole_batch(&self) -> bool {
        false
    }

    /// The tokens that it treats differently, `[N]` bool, selected from all tokens of a mini-batch.
    ///
    /// # Errors
    /// Those of the tensor operations.
    fn select(&self, _tokens: &Tokens<'_>) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Whether its formula applies the off-policy weights itself.
    fn applies_weights(&self) -> bool {
        false
    }

    /// The off-policy weight of each token's loss, from `weights` `[N]`.
    ///
    /// # Errors
    /// Those of the tensor operations.
    fn weights(&self, weights: &Tensor, _sequences: &Segments) -> Result<Tensor> {
        Ok(weights.shallow_clone())
    }
}

/// The options of a loss by name: the fields of its type.
pub trait LossOptions {
    /// Its options with their values.
    fn options(&self) -> Map<String, Value>;

    /// The loss with the options that a table gives, which are taken out of it.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a value of the wrong type.
    fn read(&self, loss: &str, rest: &mut Map<String, Value>) -> Result<Arc<dyn LossFormula>>;
}

impl<T: LossFormula + Serialize + DeserializeOwned + 'static> LossOptions for T {
    fn options(&self) -> Map<String, Value> {
        fields(self)
    }

    fn read(&self, loss: &str, rest: &mut Map<String, Value>) -> Result<Arc<dyn LossFormula>> {
        Ok(Arc::new(take_from(loss, rest, self)?))
    }
}

/// Placeholder for the formula of a custom loss, which [`crate::rl::custom::compute`] computes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::rl) struct Custom {}

impl LossFormula for Custom {
    fn token_loss(&self, _: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        Err(Error::new(Kind::Internal, "a custom loss is computed by its graph"))
    }
}
