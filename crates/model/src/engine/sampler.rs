//! Samples the next token from logits, on the host, one row at a time.
//!
//! Randomness is counter-based: the ChaCha8 key is (seed, trajectory), its stream is the step, and
//! token `n` of the response uses 64-bit word `n`. A draw depends on the request and its logits
//! only, not on the batch or the slot. (Logits can differ in their last bits between batch shapes,
//! because matrix products round differently.)
//!
//! Logits are processed in the order of transformers: repetition penalty, bias, temperature, top-k,
//! top-p, min-p. Log-probabilities are of the sampling distribution: after penalty, bias and
//! temperature, renormalised over the tokens kept by top-k, top-p and min-p. Greedy sampling
//! (temperature 0) reports them at temperature 1.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::model::softmax;
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Sampling, StreamSeed};

/// Random stream of one response; one draw per token.
pub(super) fn stream(seed: StreamSeed) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.seed.to_le_bytes());
    key[8..16].copy_from_slice(&seed.trajectory.to_le_bytes());
    key[16..].copy_from_slice(b"r1 token sampler");
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(u64::from(seed.step));
    rng
}

/// The next number of a stream: 53 random bits, uniform in [0, 1).
pub(super) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Refuses invalid sampling settings.
pub(super) fn check(sampling: &Sampling) -> Result<()> {
    let refuse = |message: String| Err(Error::new(Kind::Usage, message));
    let Sampling { temperature, top_p, min_p, repetition_penalty, max_new_tokens, max_seconds, .. } = *sampling;
    if temperature != 0.0 && !(1e-3..=1e3).contains(&temperature) {
        return refuse(format!("sampling.temperature is {temperature}; it must be 0 (greedy) or within 0.001 to 1000"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse(format!("sampling.top_p is {top_p}; it must be above 0 and at most 1 (off)"));
    }
    if !(0.0..=1.0).contains(&min_p) {
        return refuse(format!("sampling.min_p is {min_p}; it must be within 0 (off) to 1"));
    }
    if !(1e-3..=1e3).contains(&repetition_penalty) {
        return refuse(format!(
            "sampling.repetition_penalty is {repetition_penalty}; it must be within 0.001 to 1000 (1 is off)"
        ));
    }
    if !(max_seconds >= 0.0 && max_seconds.is_finite()) {
        return refuse(format!("sampling.max_seconds is {max_seconds}; it must be 0 (no limit) or more"));
    }
    if sampling.top_logprobs > MAX_TOP_LOGPROBS {
        return refuse(format!("sampling.top_logprobs is {}; the limit is {MAX_TOP_LOGPROBS}", sampling.top_logprobs));
    }
    if let Some((id, bias)) = sampling.logit_bias.iter().find(|(_, bias)| !(-1e4..=1e4).contains(*bias)) {
        return refuse(format!("sampling.logit_bias of token {id} is {bias}; it must be within -10000 to 10000"));
    }
    if max_new_tokens == 0 {
        return refuse("sampling.max_new_tokens is 0; it must be at least 1".to_owned());
    }
    if sampling.stop.iter().any(String::is_empty) {
        return refuse("sampling.stop has an empty string".to_owned());
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenDraw {
    id: u32,
    logprob: f32,
    /// Total probability of the tokens kept by top-k, top-p and min-p.
    mass: f64,
}

/// A sampled token, with what its request records of the distribution.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) id: u32,
    pub(super) logprob: f32,
    /// Sorted ids of the tokens that were not cut off; empty if none was.
    pub(super) support: Vec<u32>,
    /// The most likely tokens, most likely first.
    pub(super) top: Vec<(u32, f32)>,
}

/// Buffers of the sampler, reused so that a draw does not allocate.
#[derive(Default)]
pub(super) struct Sampler {
    /// Mass of every [`BLOCK`] tokens.
    blocks: Vec<f64>,
    /// Token ids, sorted as far as needed.
    order: Vec<u32>,
}

/// Upper limit of [`Sampling::top_logprobs`].
const MAX_TOP_LOGPROBS: usize = 1000;

/// Block size of partial sums: a draw scans V / BLOCK sums and one block.
const BLOCK: usize = 32;

impl Sampler {
    /// Samples from logits `[V]` and replaces them with probabilities; `None` if a logit is NaN or
    /// +infinite. The repetition penalty applies to the ids `penalised`.
    fn draw(
        &mut self,
        logits: &mut [f32],
        penalised: &[u32],
        sampling: &Sampling,
        rng: &mut ChaCha8Rng,
    ) -> Option<TokenDraw> {
        shift(logits, penalised, sampling);
        let greedy = sampling.temperature == 0.0;
        softmax(logits, if greedy { 1.0 } else { (1.0 / sampling.temperature) as f32 });
        let probabilities = &*logits;
        if probabilities.first().is_none_or(|p| p.is_nan()) {
            return None;
        }
        self.blocks.clear();
        self.blocks.extend(probabilities.chunks(BLOCK).map(sum));
        // 1 up to rounding, which the division below corrects.
        let total: f64 = self.blocks.iter().sum();
        self.order.clear();
        let (id, mass) = if greedy {
            (largest(probabilities), total)
        } else {
            let uniform = uniform(rng);
            let top_k = if sampling.top_k == 0 { usize::MAX } else { sampling.top_k };
            if top_k < probabilities.len() || sampling.top_p < 1.0 || sampling.min_p > 0.0 {
                let mass = self.keep(probabilities, top_k, sampling.top_p, total);
                let mass = self.keep_likely(probabilities, sampling.min_p, mass);
                let kept = self.order.iter().map(|&id| f64::from(probabilities[id as usize]));
                (self.order[walk(kept, uniform * mass).0], mass)
            } else {
                let (block, rest) = walk(self.blocks.iter().copied(), uniform * total);
                let inside = probabilities[block * BLOCK..].iter().take(BLOCK);
                ((block * BLOCK + walk(inside.map(|&p| f64::from(p)), rest).0) as u32, total)
            }
        };
        let logprob = (f64::from(probabilities[id as usize]) / mass).ln();
        Some(TokenDraw { id, logprob: logprob as f32, mass })
    }

    /// [`Sampler::draw`], with what the settings record.
    pub(super) fn draw_recorded(
        &mut self,
        logits: &mut [f32],
        penalised: &[u32],
        sampling: &Sampling,
        rng: &mut ChaCha8Rng,
    ) -> Option<Drawn> {
        let draw = self.draw(logits, penalised, sampling, rng)?;
        let support = if sampling.cuts() { self.support() } else { Vec::new() };
        let top = match sampling.top_logprobs {
            0 => Vec::new(),
            count => self.top(logits, count, &draw),
        };
        Some(Drawn { id: draw.id, logprob: draw.logprob, support, top })
    }

    /// Sorted ids of the tokens kept in the last draw; empty if all were kept. Call before
    /// [`Sampler::top`].
    fn support(&self) -> Vec<u32> {
        let mut ids = self.order.clone();
        ids.sort_unstable();
        ids
    }

    /// The `count` most likely tokens of the last draw's distribution, most likely first.
    fn top(&mut self, probabilities: &[f32], count: usize, draw: &TokenDraw) -> Vec<(u32, f32)> {
        if self.order.is_empty() {
            self.order.extend(0..probabilities.len() as u32);
            self.sort_front(probabilities, 0, count);
        }
        let logprob = |id: u32| (f64::from(probabilities[id as usize]) / draw.mass).ln() as f32;
        self.order.iter().take(count).map(|&id| (id, logprob(id))).collect()
    }

    /// Sorts `count` more tokens of `order` after its first `sorted`, most likely first (ties by
    /// id).
    fn sort_front(&mut self, probabilities: &[f32], sorted: usize, count: usize) -> usize {
        let p = |id: u32| probabilities[id as usize];
        let likelier = |a: &u32, b: &u32| p(*b).total_cmp(&p(*a)).then(a.cmp(b));
        let rest = &mut self.order[sorted..];
        let piece = count.min(rest.len());
        if piece < rest.len() && piece > 0 {
            rest.select_nth_unstable_by(piece - 1, likelier);
        }
        rest[..piece].sort_unstable_by(likelier);
        piece
    }

    /// Drops tokens kept by [`Sampler::keep`] below `min_p` times the highest probability; returns
    /// the remaining mass.
    fn keep_likely(&mut self, probabilities: &[f32], min_p: f64, mass: f64) -> f64 {
        if min_p <= 0.0 {
            return mass;
        }
        let p = |id: u32| f64::from(probabilities[id as usize]);
        let least = min_p * self.order.iter().map(|&id| p(id)).fold(0.0, f64::max);
        self.order.retain(|&id| p(id) >= least);
        self.sort_front(probabilities, 0, self.order.len());
        self.order.iter().map(|&id| p(id)).sum()
    }

    /// Sets `order` to the tokens kept by top-k and then top-p, most likely first (ties by id), and
    /// returns their mass. Top-p keeps the smallest set with at least that fraction of the mass
    /// kept by top-k.
    fn keep(&mut self, probabilities: &[f32], top_k: usize, top_p: f64, total: f64) -> f64 {
        let p = |id: u32| f64::from(probabilities[id as usize]);
        self.order.clear();
        self.order.extend(0..probabilities.len() as u32);
        let mut mass = total;
        if top_k < self.order.len() {
            self.sort_front(probabilities, 0, top_k);
            self.order.truncate(top_k);
            mass = self.order.iter().map(|&id| p(id)).sum();
        }
        if top_p >= 1.0 {
            return mass;
        }
        // Few tokens have most of the mass: only these are sorted.
        let (mut sorted, mut kept) = (0, 0.0);
        while sorted < self.order.len() {
            let piece = self.sort_front(probabilities, sorted, (sorted * 3).max(32));
            for index in sorted..sorted + piece {
                kept += p(self.order[index]);
                if kept >= top_p * mass {
                    self.order.truncate(index + 1);
                    return kept;
                }
            }
            sorted += piece;
        }
        kept
    }
}

/// Applies repetition penalty and bias.
fn shift(logits: &mut [f32], penalised: &[u32], sampling: &Sampling) {
    if sampling.penalises() {
        let penalty = sampling.repetition_penalty as f32;
        for &id in penalised {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
    for (&id, &bias) in &sampling.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias as f32;
        }
    }
}

/// Index of the largest probability; the first one of equals.
fn largest(probabilities: &[f32]) -> u32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    // Independent lanes, so that they can run in parallel.
    let (lines, rest) = probabilities.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for line in lines {
        for (lane, &p) in lanes.iter_mut().zip(line) {
            *lane = larger(*lane, p);
        }
    }
    let maximum = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |maximum, &p| larger(maximum, p));
    probabilities.iter().position(|&p| p >= maximum).unwrap_or(0) as u32
}

/// Sum in four independent lanes.
fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0; 4];
    let (fours, rest) = values.as_chunks::<4>();
    for four in fours {
        for (lane, &value) in lanes.iter_mut().zip(four) {
            *lane += f64::from(value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&value| f64::from(value)).sum::<f64>()
}

/// Inverse of the cumulative distribution: the first index whose running sum exceeds `target`, and
/// the remainder of the target. If rounding puts the target above the total, the last index with
/// mass.
fn walk(masses: impl Iterator<Item = f64>, target: f64) -> (usize, f64) {
    let mut left = target;
    let mut last = (0, 0.0);
    for (index, mass) in masses.enumerate() {
        if mass > left {
            return (index, left);
        }
        if mass > 0.0 {
            last = (index, left);
        }
        left -= mass;
    }
    last
}

#[cfg(test)]
mod tests;
