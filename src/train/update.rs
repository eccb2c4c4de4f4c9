//! One optimiser step of a clipped policy-gradient loss over merged rows, in micro-batches.
//!
//! Every denominator is that of the whole mini-batch, so how rows are split changes nothing but rounding. Rows whose
//! advantage is zero count in the denominators and are not computed: their gradient is exactly zero.

use tch::Tensor;

use crate::config::Grpo;
use crate::error::{Error, Kind, Result};
use crate::model::{Model, Packed};
use crate::rl::adamw::AdamW;
use crate::rl::aggregate::{Denominators, aggregate};
use crate::rl::loss::{Clip, RatioStats, ppo_clip};
use crate::rl::pack::{MicroBatch, Row, micro_batches};

/// Positions whose logits are held at once.
pub(super) const LOGPROB_CHUNK: usize = 2048;

/// What an update did, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateStats {
    pub loss: f64,
    pub grad_norm: f64,
    /// Mean entropy of the distributions the sampled tokens came from, nats.
    pub entropy: f64,
    pub ratios: RatioStats,
    /// Largest |log-probability of the learner - of the sampler|.
    pub mismatch: f64,
    /// Tokens computed, context included.
    pub tokens: usize,
    /// Sampled tokens among them.
    pub sampled: usize,
}

/// Forward, loss, backward over `rows`, then one AdamW step at `lr`.
///
/// `temperature` is that of the sampler: the learner's distribution must be the one that was sampled from.
pub fn update(
    model: &Model,
    optimizer: &mut AdamW,
    rows: &[Row],
    advantages: &[f64],
    options: &Grpo,
    temperature: f64,
    lr: f64,
) -> Result<UpdateStats> {
    let denominators = Denominators::of(rows);
    let clip = Clip { low: options.clip.0, high: options.clip.1, dual: None };
    let active: Vec<Row> = rows.iter().filter(|row| advantages[row.trajectory] != 0.0).cloned().collect();
    let rows = active.as_slice();
    let mut stats = UpdateStats { sampled: rows.iter().map(Row::sampled).sum(), ..UpdateStats::default() };
    let mut entropy = 0.0;
    optimizer.zero_grad();
    for members in micro_batches(rows, options.tokens_per_batch) {
        let batch = MicroBatch::new(rows, &members, |row, _| advantages[row.trajectory], model.device())?;
        let packed = Packed { ids: batch.ids, positions: batch.positions, lengths: batch.lengths };
        stats.tokens += packed.ids.numel();
        let hidden = model.forward(&packed)?.f_index_select(0, &batch.predict)?;
        let (logp, token_entropy) = model.logprobs(&hidden, &batch.targets, temperature, LOGPROB_CHUNK)?;
        let (token_loss, ratios) = ppo_clip(&logp, &batch.logp_old, &batch.advantages, clip)?;
        let loss = aggregate(&token_loss, &batch.sequence, options.loss_agg, &denominators)?;
        let value = f64::try_from(&loss)?;
        if !value.is_finite() {
            return Err(Error::new(Kind::Numeric, format!("the loss is {value}"))
                .at(format!("trajectories {:?}", trajectories_of(rows, &members)))
                .hint("the weights have not been changed; lower trainer.lr or look at the rewards"));
        }
        loss.f_backward()?;
        stats.loss += value;
        entropy += f64::try_from(token_entropy.f_sum(tch::Kind::Double)?)?;
        stats.mismatch = stats.mismatch.max(largest_difference(&logp, &batch.logp_old)?);
        stats.ratios.add(&ratios);
    }
    stats.entropy = entropy / stats.sampled.max(1) as f64;
    stats.grad_norm = optimizer.step(lr, options.max_grad_norm)?;
    Ok(stats)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    if a.numel() == 0 {
        return Ok(0.0);
    }
    let _guard = tch::no_grad_guard();
    Ok(f64::try_from(a.f_detach()?.f_sub(b)?.f_abs()?.f_max()?)?)
}

fn trajectories_of(rows: &[Row], members: &[usize]) -> Vec<usize> {
    let mut numbers: Vec<usize> = members.iter().map(|&i| rows[i].trajectory).collect();
    numbers.dedup();
    numbers
}
