//! Log-probabilities of rows under the reference policy or the learner, without gradient.

use std::path::Path;
use std::rc::Rc;

use tch::{Device, Kind as Dtype, Tensor, no_grad_guard};

use crate::config::PolicySettings;
use crate::engine::logprobs_of;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::{adapter, load_model};
use crate::mdp::{Routing, Scoring};
use crate::model::{Model, OnHost, Packed, SHARD_BYTES, UnwrittenFile, upload};
use crate::rl::pack::{MicroBatch, Row, micro_batches};
use crate::train::shards::Shards;

/// Number of positions whose logits are in memory at once: a fixed number of MiB in f32, within
/// bounds. Every chunk adds its part to the head's gradient, which reads and writes all of it:
/// cheap compared with a chunk's products on a CPU, but not on a GPU.
pub(crate) fn logprobs_at_once(vocab_size: usize, device: Device) -> usize {
    let mib = if device == Device::Cpu { 128 } else { 512 };
    ((mib << 20) / (4 * vocab_size.max(1))).clamp(64, 2048)
}

/// The rows of a micro-batch for a model, with their recorded experts.
pub(crate) fn packed(batch: &MicroBatch) -> Packed {
    let [ids, positions, routing] = batch.on_host.clone();
    Packed {
        ids: batch.ids.shallow_clone(),
        positions: batch.positions.shallow_clone(),
        lengths: batch.lengths.clone(),
        routing: batch.routing.as_ref().map(Tensor::shallow_clone),
        on_host: Some(OnHost { ids, positions, routing }),
    }
}

/// A number for each sampled token of each row, computed in micro-batches by all processes; 0
/// elsewhere. `compute` returns the numbers of the sampled tokens of a micro-batch.
pub(crate) fn of_tokens(
    rows: &[Row],
    tokens_per_batch: usize,
    shards: &Shards,
    compute: impl Fn(&[usize]) -> Result<(Vec<(usize, usize)>, Vec<f32>)>,
) -> Result<Vec<Vec<f32>>> {
    let mut numbers: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.len()]).collect();
    let all = micro_batches(rows, tokens_per_batch, shards.count());
    let compute = |(number, members): (usize, &Vec<usize>)| {
        shards.turn();
        Ok((number, compute(members)?))
    };
    let local = shards.local_of(&all).map(compute).collect::<Result<_>>()?;
    for (tokens, of_batch) in shards.gather(local)? {
        for ((row, index), number) in tokens.into_iter().zip(of_batch) {
            numbers[row][index] = number;
        }
    }
    Ok(numbers)
}

/// The log-probability of each sampled token of each row at `temperature`, over its support; 0
/// elsewhere.
pub(crate) fn score(
    model: &Model,
    rows: &[Row],
    temperature: f64,
    tokens_per_batch: usize,
    shards: &Shards,
) -> Result<Vec<Vec<f32>>> {
    let _guard = no_grad_guard();
    of_tokens(rows, tokens_per_batch, shards, |members| {
        let batch = MicroBatch::new(rows, members, model.config.vocab_size, model.device())?;
        let hidden = model.forward(&packed(&batch))?.f_index_select(0, &batch.predict)?;
        let chunk = logprobs_at_once(model.config.vocab_size, model.device());
        let support = batch.support.as_ref();
        let (logp, _) = model.logprobs_among(&hidden, &batch.targets, support, temperature, chunk)?;
        Ok((batch.tokens, Vec::try_from(logp)?))
    })
}

/// The sum of squared probabilities at each sampled token of each row, over its support; 0
/// elsewhere.
pub(crate) fn sum_pi_squared(
    model: &Model,
    rows: &[Row],
    temperature: f64,
    tokens_per_batch: usize,
    shards: &Shards,
) -> Result<Vec<Vec<f32>>> {
    let _guard = no_grad_guard();
    of_tokens(rows, tokens_per_batch, shards, |members| {
        let batch = MicroBatch::new(rows, members, model.config.vocab_size, model.device())?;
        let hidden = model.forward(&packed(&batch))?.f_index_select(0, &batch.predict)?;
        let at_once = logprobs_at_once(model.config.vocab_size, model.device());
        let mut sums = Vec::with_capacity(batch.tokens.len());
        for (number, tokens) in batch.tokens.chunks(at_once).enumerate() {
            let chunk = hidden.f_narrow(0, (number * at_once) as i64, tokens.len() as i64)?;
            let logits = model.logits(&chunk)?.f_to_kind(Dtype::Float)?.f_div_scalar(temperature)?;
            let probabilities = logits.f_softmax(-1, Dtype::Float)?;
            let squares = probabilities.f_square()?.f_sum_dim_intlist([-1_i64].as_slice(), false, Dtype::Float)?;
            for (i, (&(row, index), whole)) in tokens.iter().zip(Vec::<f32>::try_from(squares)?).enumerate() {
                let support: Vec<i64> = rows[row].support.of(index).iter().map(|&id| i64::from(id)).collect();
                sums.push(if support.is_empty() {
                    whole
                } else {
                    let ids = upload(&Tensor::f_from_slice(&support)?, model.device())?;
                    let chosen = probabilities.f_get(i as i64)?.f_index_select(0, &ids)?;
                    let (sum, squares) = (chosen.f_sum(Dtype::Double)?, chosen.f_square()?.f_sum(Dtype::Double)?);
                    (f64::try_from(squares)? / f64::try_from(sum)?.powi(2)) as f32
                });
            }
        }
        Ok((batch.tokens, sums))
    })
}

/// The largest difference of scores at sampled tokens.
pub(crate) fn largest_difference(rows: &[Row], scores: &[Vec<f32>]) -> f64 {
    let of = |(row, scores): (&Row, &Vec<f32>)| {
        row.logprobs.iter().zip(scores).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
    };
    rows.iter().zip(scores).map(of).fold(0.0, f64::max)
}

/// The frozen policy of the KL penalty.
#[derive(Clone)]
pub(crate) enum Reference {
    /// A separate model, which is never trained.
    Own(Rc<Model>),
    /// The policy without its adapter.
    Base(Rc<Model>),
}

impl Reference {
    /// The model that a run of `policy` started from, which `base` names.
    pub(crate) fn load(policy: &Rc<Model>, base: &PolicySettings, fetching: Fetching<'_>) -> Result<Self> {
        // The initial policy of a run with a new adapter is the model without the adapter.
        if adapter::is_new(base, fetching)? {
            return Ok(Self::Base(Rc::clone(policy)));
        }
        let mut model = load_model(base, fetching)?.0;
        model.share_images(policy);
        Ok(Self::new(model))
    }

    /// A reference policy stored in a checkpoint: a model, or an adapter for the model that it
    /// names.
    pub(crate) fn saved(dir: &Path, policy: &Model, base: &PolicySettings, fetching: Fetching<'_>) -> Result<Self> {
        let mut model = adapter::load(dir, base, fetching)?.0;
        model.share_images(policy);
        Ok(Self::new(model))
    }

    /// The files for [`saved`](Self::saved).
    pub(crate) fn unwritten(&self) -> Result<Vec<UnwrittenFile>> {
        match self {
            Self::Own(model) => model.unwritten_trained(SHARD_BYTES),
            Self::Base(_) => Err(Error::new(Kind::Internal, "the reference policy is the policy without its adapter")),
        }
    }

    /// `model` is never trained.
    pub(crate) fn new(model: Model) -> Self {
        for (_, tensor) in model.parameters() {
            let _ = tensor.set_requires_grad(false);
        }
        Self::Own(Rc::new(model))
    }

    /// The log-probabilities of given ids.
    pub(crate) fn logprobs(&self, scoring: &Scoring) -> Result<Vec<f32>> {
        match self {
            Self::Own(model) => logprobs_of(model, scoring),
            Self::Base(policy) => policy.without_adapter(|| logprobs_of(policy, scoring)),
        }
    }

    pub(crate) fn score(
        &self,
        rows: &[Row],
        temperature: f64,
        tokens_per_batch: usize,
        shards: &Shards,
    ) -> Result<Vec<Vec<f32>>> {
        // It computes its own routing; the recorded routing is the policy's.
        let free = |row: &Row| Row { routing: Routing::default(), ..row.clone() };
        let freed: Vec<Row> =
            if rows.iter().all(|row| row.routing.is_empty()) { Vec::new() } else { rows.iter().map(free).collect() };
        let rows = if freed.is_empty() { rows } else { &freed };
        match self {
            Self::Own(model) => score(model, rows, temperature, tokens_per_batch, shards),
            Self::Base(policy) => policy.without_adapter(|| score(policy, rows, temperature, tokens_per_batch, shards)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tch::Device;

    use super::*;
    use crate::mdp::Support;
    use crate::model::Config;

    /// A prompt of two tokens and one sampled token, drawn from `among` (all ids if that is empty).
    fn row(sampled: u32, among: &[u32]) -> Row {
        let mut support = Support::default();
        if !among.is_empty() {
            support.push(&[]);
            support.push(&[]);
            support.push(among);
        }
        Row {
            ids: vec![3, 5, sampled],
            loss_mask: vec![false, false, true],
            logprobs: vec![0.0; 3],
            steps: vec![0; 3],
            support,
            ..Row::default()
        }
    }

    #[test]
    fn squared_probabilities_are_those_of_the_scores() {
        let vocabulary = 24;
        let json = serde_json::json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": vocabulary, "hidden_size": 16,
            "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32, "tie_word_embeddings": true,
        });
        let model = Model::init(Config::from_json(&json).unwrap(), Device::Cpu, Dtype::Float, 7).unwrap();
        for among in [vec![], vec![1, 4, 9]] {
            let ids: Vec<u32> = if among.is_empty() { (0..vocabulary).collect() } else { among.clone() };
            let rows: Vec<Row> = ids.iter().map(|&id| row(id, &among)).collect();
            for temperature in [1.0, 0.7] {
                let logp = score(&model, &rows, temperature, 4096, &Shards::default()).unwrap();
                let sum: f32 = logp.iter().map(|logps| logps[2].exp()).sum();
                let want: f32 = logp.iter().map(|logps| (2.0 * logps[2]).exp()).sum();
                let sums = sum_pi_squared(&model, &rows[..1], temperature, 4096, &Shards::default()).unwrap();
                assert!((sum - 1.0).abs() < 1e-4 && (sums[0][2] - want).abs() < 1e-5, "{sums:?} {want}");
                assert_eq!(sums[0][..2], [0.0, 0.0]);
            }
        }
    }
}
