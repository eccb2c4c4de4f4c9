//! Held-out loss of supervised training, the best model so far, and when to stop early.

use serde_json::json;

use crate::config::{EvalSettings, Sft};
use crate::error::{Error, Kind, Result};
use crate::model::Model;
use crate::rl::pack::Row;
use crate::script::{Split, Worker};
use crate::store::{BestCheckpoint, RunProgress};
use crate::telemetry::{Metrics, Reporter};
use crate::train::learn::score::score;
use crate::train::rows::demonstrations::Samples;
use crate::train::shards::Shards;

/// The conversations of `data.eval` as tokens.
pub(crate) struct HeldOut {
    rows: Vec<Row>,
    /// Number of tokens with a loss.
    tokens: usize,
}

impl HeldOut {
    /// The first `eval.limit` rows of `data.eval`; `None` if the recipe has none.
    ///
    /// # Errors
    /// `Kind::Data` if a row is not a conversation, or if no row has a token with a loss.
    pub(crate) fn new(worker: &Worker, samples: &mut Samples, settings: &EvalSettings) -> Result<Option<Self>> {
        let Some(count) = worker.rows(Split::Eval)? else { return Ok(None) };
        let count = if settings.limit == 0 { count } else { count.min(settings.limit as u64) };
        let mut rows = Vec::new();
        for index in 0..count {
            rows.extend(samples.row(Split::Eval, index)?);
        }
        let tokens = rows.iter().map(Row::sampled).sum();
        if tokens == 0 {
            return Err(Error::new(Kind::Data, "data.eval has no token of an assistant")
                .hint("check the roles of its messages, and trainer.max_length"));
        }
        Ok(Some(Self { rows, tokens }))
    }

    /// Mean negative log-likelihood of the held-out replies, in nats per token.
    ///
    /// # Errors
    /// `Kind::Numeric` if it is not finite.
    pub(crate) fn loss(&self, model: &Model, tokens_per_batch: usize, shards: &Shards) -> Result<f64> {
        let scores = score(model, &self.rows, 1.0, tokens_per_batch, shards)?;
        let sum: f64 = scores.iter().flatten().map(|logp| f64::from(*logp)).sum();
        let loss = -sum / self.tokens as f64;
        if !loss.is_finite() {
            return Err(Error::new(Kind::Numeric, format!("the held-out loss is {loss}")).hint("lower trainer.lr"));
        }
        Ok(loss)
    }

    /// Logs a loss and prints it.
    pub(crate) fn report(&self, step: u64, loss: f64, seconds: f64, values: &mut Metrics, reporter: &Reporter) {
        values.set("eval/loss", loss);
        values.set("eval/tokens", self.tokens as f64);
        values.set("time/evaluation", seconds);
        let (rows, tokens) = (self.rows.len(), self.tokens);
        reporter.info(&format!("step {step}: held-out loss {loss:.4} ({rows} conversations, {tokens} tokens)"));
        reporter.event("evaluation", &json!({ "step": step, "metrics": { "eval/loss": loss, "eval/tokens": tokens } }));
    }
}

/// Records a held-out loss in the state; returns whether it is the lowest so far.
pub(crate) fn is_best(state: &mut RunProgress, loss: f64) -> bool {
    let earlier = state.best.filter(|best| best.loss <= loss);
    state.best = Some(match earlier {
        Some(best) => BestCheckpoint { worse: best.worse + 1, ..best },
        None => BestCheckpoint { step: state.step, loss, worse: 0 },
    });
    earlier.is_none()
}

/// Whether the run stops early: `patience` consecutive evaluations were not better than the best
/// one.
pub(crate) fn stops_early(sft: &Sft, state: &RunProgress) -> bool {
    sft.patience > 0 && state.best.is_some_and(|best| best.worse >= sft.patience as u64)
}
