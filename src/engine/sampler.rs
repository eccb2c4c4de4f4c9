//! Draws the next token from logits, on the host.
//!
//! Randomness is counter-based: the ChaCha8 key is (seed, trajectory), its stream is the step, and token `n` of the
//! reply uses 64-bit word `n`. A draw depends on the request and its logits alone, never on the batch or the slot.
//! (Logits themselves may differ in their last bits between batch shapes, as matrix products round differently.)
//!
//! The log-probability is of the distribution the token was drawn from: temperature applied, and with top-k or
//! top-p taken over the tokens kept. Greedy sampling (temperature 0) reports it under temperature 1.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::error::{Error, Kind, Result};
use crate::mdp::{Sampling, StreamSeed};

/// The random stream of one reply; draw once for each token.
pub(super) fn stream(seed: StreamSeed) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.seed.to_le_bytes());
    key[8..16].copy_from_slice(&seed.trajectory.to_le_bytes());
    key[16..].copy_from_slice(b"r1 token sampler");
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(u64::from(seed.step));
    rng
}

/// Refuses settings that have no meaning.
pub(super) fn check(sampling: &Sampling) -> Result<()> {
    let refuse = |message: String| Err(Error::new(Kind::Usage, message));
    let Sampling { temperature, top_p, max_new_tokens, .. } = *sampling;
    if temperature != 0.0 && !(1e-3..=1e3).contains(&temperature) {
        return refuse(format!("sampling.temperature is {temperature}; it must be 0 (greedy) or within 0.001 to 1000"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return refuse(format!("sampling.top_p is {top_p}; it must be above 0 and at most 1 (off)"));
    }
    if max_new_tokens == 0 {
        return refuse("sampling.max_new_tokens is 0; a reply has at least one token".to_owned());
    }
    if sampling.stop.iter().any(String::is_empty) {
        return refuse("sampling.stop holds an empty string".to_owned());
    }
    Ok(())
}

/// One sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draw {
    pub(super) id: u32,
    pub(super) logprob: f32,
}

/// The sampler's memory, kept between draws so that a draw allocates nothing.
#[derive(Default)]
pub(super) struct Sampler {
    /// `exp((logit - max) / temperature)` of every token.
    weights: Vec<f32>,
    /// Token ids, sorted as far as needed.
    order: Vec<u32>,
}

impl Sampler {
    /// Draws from `logits` [V]; none if one of them is NaN or infinite.
    pub(super) fn draw(&mut self, logits: &[f32], sampling: &Sampling, rng: &mut ChaCha8Rng) -> Option<Draw> {
        let (best, finite) = largest(logits);
        if !finite {
            return None;
        }
        let top = logits[best];
        let greedy = sampling.temperature == 0.0;
        let scale = if greedy { 1.0 } else { (1.0 / sampling.temperature) as f32 };
        let mut total = 0.0;
        self.weights.clear();
        self.weights.extend(logits.iter().map(|&logit| {
            let weight = ((logit - top) * scale).exp();
            total += f64::from(weight);
            weight
        }));
        let (id, mass) = if greedy {
            (best as u32, total)
        } else {
            // 53 random bits: uniform in [0, 1).
            let uniform = (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
            let cut_k = sampling.top_k > 0 && sampling.top_k < logits.len();
            if cut_k || sampling.top_p < 1.0 {
                let mass = self.keep(if cut_k { sampling.top_k } else { logits.len() }, sampling.top_p, total);
                let target = uniform * mass;
                (walk(self.order.iter().map(|&id| (id, self.weights[id as usize])), target)?, mass)
            } else {
                let target = uniform * total;
                (walk(self.weights.iter().enumerate().map(|(id, &weight)| (id as u32, weight)), target)?, total)
            }
        };
        let logprob = f64::from((logits[id as usize] - top) * scale) - mass.ln();
        Some(Draw { id, logprob: logprob as f32 })
    }

    /// Leaves in `order` the tokens that top-k then top-p keep, most likely first (equal ones by id), and returns
    /// their mass. Top-p keeps the smallest set that holds at least that share of what top-k kept.
    fn keep(&mut self, top_k: usize, top_p: f64, total: f64) -> f64 {
        let weights = &self.weights;
        let by_weight =
            |a: &u32, b: &u32| -> Ordering { weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b)) };
        self.order.clear();
        self.order.extend(0..weights.len() as u32);
        if top_k < self.order.len() {
            self.order.select_nth_unstable_by(top_k - 1, by_weight);
            self.order.truncate(top_k);
        }
        let mass_of = |ids: &[u32]| ids.iter().map(|&id| f64::from(weights[id as usize])).sum::<f64>();
        let mass = if top_k < weights.len() { mass_of(&self.order) } else { total };
        if top_p >= 1.0 {
            self.order.sort_unstable_by(by_weight);
            return mass;
        }
        // Few tokens hold most of the mass: sort only as many as the share needs.
        let (mut sorted, mut kept) = (0, 0.0);
        while sorted < self.order.len() {
            let rest = &mut self.order[sorted..];
            let piece = (sorted * 3).max(32).min(rest.len());
            if piece < rest.len() {
                rest.select_nth_unstable_by(piece - 1, by_weight);
            }
            rest[..piece].sort_unstable_by(by_weight);
            for place in sorted..sorted + piece {
                kept += f64::from(weights[self.order[place] as usize]);
                if kept >= top_p * mass {
                    self.order.truncate(place + 1);
                    return kept;
                }
            }
            sorted += piece;
        }
        kept
    }
}

/// Place of the largest logit (the first of equal ones), and whether all are finite.
fn largest(logits: &[f32]) -> (usize, bool) {
    let (mut best, mut top, mut finite) = (0, f32::NEG_INFINITY, !logits.is_empty());
    for (id, &logit) in logits.iter().enumerate() {
        finite &= logit.is_finite();
        if logit > top {
            (best, top) = (id, logit);
        }
    }
    (best, finite)
}

/// Inverse of the cumulative distribution: the first token whose running sum passes `target`. Rounding may leave the
/// target just above the whole sum; the last token with any weight is the answer then.
fn walk(tokens: impl Iterator<Item = (u32, f32)>, target: f64) -> Option<u32> {
    let mut sum = 0.0;
    let mut last = None;
    for (id, weight) in tokens {
        if weight > 0.0 {
            sum += f64::from(weight);
            if sum > target {
                return Some(id);
            }
            last = Some(id);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -30.0];

    fn probabilities(temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = LOGITS.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    fn draws(sampling: &Sampling, count: u32) -> Vec<Draw> {
        let mut sampler = Sampler::default();
        let seed = |step| StreamSeed { seed: 7, trajectory: 3, step };
        (0..count).map(|step| sampler.draw(&LOGITS, sampling, &mut stream(seed(step))).unwrap()).collect()
    }

    /// Chi-square of the draws against probabilities over the tokens that are likely enough to be expected 5 times.
    fn chi_square(draws: &[Draw], expected: &[f64]) -> (f64, usize) {
        let mut terms = 0;
        let statistic = (0..).zip(expected).fold(0.0, |sum, (id, p)| {
            let expected = p * draws.len() as f64;
            let seen = draws.iter().filter(|draw| draw.id == id).count() as f64;
            if expected < 5.0 {
                return sum;
            }
            terms += 1;
            sum + (seen - expected).powi(2) / expected
        });
        (statistic, terms)
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        for temperature in [1.0, 0.6, 2.0] {
            let draws = draws(&Sampling { temperature, ..Sampling::default() }, 20_000);
            let (statistic, terms) = chi_square(&draws, &probabilities(temperature));
            // 99.9th percentile with 4 degrees of freedom
            assert!(terms == 5 && statistic < 18.47, "chi-square {statistic} at temperature {temperature}");
        }
    }

    #[test]
    fn the_words_of_one_stream_are_independent_draws() {
        let (mut sampler, sampling) = (Sampler::default(), Sampling::default());
        let mut rng = stream(StreamSeed { seed: 1, trajectory: 2, step: 3 });
        let draws: Vec<Draw> = (0..20_000).map(|_| sampler.draw(&LOGITS, &sampling, &mut rng).unwrap()).collect();
        assert!(chi_square(&draws, &probabilities(1.0)).0 < 18.47);
        assert_eq!(rng.get_word_pos(), 40_000, "a draw takes one 64-bit word");
    }

    #[test]
    fn the_logprob_is_of_the_distribution_drawn_from() {
        for temperature in [1.0, 0.6] {
            let expected = probabilities(temperature);
            for draw in draws(&Sampling { temperature, ..Sampling::default() }, 200) {
                let error = f64::from(draw.logprob) - expected[draw.id as usize].ln();
                assert!(error.abs() < 1e-6, "{draw:?}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_reports_temperature_1() {
        let draw = draws(&Sampling { temperature: 0.0, top_k: 3, top_p: 0.1, ..Sampling::default() }, 1)[0];
        assert_eq!(draw.id, 1);
        assert!((f64::from(draw.logprob) - probabilities(1.0)[1].ln()).abs() < 1e-6);
    }

    #[test]
    fn top_k_and_top_p_keep_what_they_should() {
        let p = probabilities(1.0);
        // Sorted: tokens 1 and 3 (equal), 4, 0, 2, 5.
        for (top_k, top_p, kept) in [
            (1, 1.0, vec![1]),
            (3, 1.0, vec![1, 3, 4]),
            (0, 1e-9, vec![1]),
            (0, p[1] + p[3] - 1e-6, vec![1, 3]),
            (0, p[1] + p[3] + 1e-6, vec![1, 3, 4]),
            // 0.75 of the two that top-k left is more than one of them holds
            (2, 0.75, vec![1, 3]),
            (2, 0.5 - 1e-6, vec![1]),
            (6, 1.0, vec![0, 1, 2, 3, 4]),
        ] {
            let draws = draws(&Sampling { top_k, top_p, ..Sampling::default() }, 4000);
            let mass: f64 = kept.iter().map(|&id| p[id]).sum();
            let mut seen: Vec<usize> = draws.iter().map(|draw| draw.id as usize).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, kept, "top_k {top_k} top_p {top_p}");
            for draw in &draws {
                assert!((f64::from(draw.logprob) - (p[draw.id as usize] / mass).ln()).abs() < 1e-5, "{draw:?}");
            }
            let inside: Vec<f64> = (0..6).map(|id| if kept.contains(&id) { p[id] / mass } else { 0.0 }).collect();
            assert!(chi_square(&draws, &inside).0 < 18.47);
        }
    }

    #[test]
    fn top_p_over_many_tokens_keeps_the_smallest_sufficient_set() {
        // Weights fall slowly, so that the sorting goes on for several pieces.
        let logits: Vec<f32> = (0..1000).map(|id| ((id * 7919) % 1000) as f32 * -0.004).collect();
        let mut sampler = Sampler::default();
        sampler
            .draw(&logits, &Sampling { top_p: 0.8, ..Sampling::default() }, &mut stream(StreamSeed::default()))
            .unwrap();
        let mut sorted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = sorted.iter().sum();
        let mut sum = 0.0;
        let needed = 1 + sorted
            .iter()
            .take_while(|&&weight| {
                sum += weight;
                sum < 0.8 * total
            })
            .count();
        assert_eq!(sampler.order.len(), needed);
        assert!(sampler.order.windows(2).all(|pair| logits[pair[0] as usize] > logits[pair[1] as usize]));
    }

    #[test]
    fn streams_differ_by_each_part_of_the_seed() {
        let base = StreamSeed { seed: 1, trajectory: 2, step: 3 };
        let first = |seed: StreamSeed| stream(seed).next_u64();
        assert_eq!(first(base), first(base));
        let others = [
            StreamSeed { seed: 2, ..base },
            StreamSeed { trajectory: 3, ..base },
            StreamSeed { step: 2, ..base },
            StreamSeed { seed: 2, trajectory: 1, ..base },
        ];
        assert!(others.iter().all(|&seed| first(seed) != first(base)));
    }

    #[test]
    fn logits_that_are_not_finite_give_nothing() {
        let mut sampler = Sampler::default();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                let mut logits = LOGITS;
                logits[2] = bad;
                let sampling = Sampling { temperature, ..Sampling::default() };
                assert_eq!(sampler.draw(&logits, &sampling, &mut stream(StreamSeed::default())), None);
            }
        }
    }

    #[test]
    fn extreme_logits_stay_finite() {
        let mut sampler = Sampler::default();
        let sampling = Sampling { temperature: 1e-3, ..Sampling::default() };
        let draw = sampler.draw(&[3e38, -3e38, 0.0], &sampling, &mut stream(StreamSeed::default())).unwrap();
        assert_eq!(draw, Draw { id: 0, logprob: 0.0 });
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        let message = |sampling: Sampling| check(&sampling).unwrap_err().message;
        let base = Sampling::default;
        assert!(check(&base()).is_ok() && check(&Sampling { temperature: 0.0, ..base() }).is_ok());
        assert!(message(Sampling { temperature: -1.0, ..base() }).contains("temperature is -1"));
        assert!(message(Sampling { temperature: f64::NAN, ..base() }).contains("temperature is NaN"));
        assert!(message(Sampling { top_p: 0.0, ..base() }).contains("top_p is 0"));
        assert!(message(Sampling { max_new_tokens: 0, ..base() }).contains("max_new_tokens is 0"));
        assert!(message(Sampling { stop: vec![String::new()], ..base() }).contains("empty string"));
    }
}
