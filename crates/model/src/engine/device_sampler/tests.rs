//! Comparison with the host's sampler, and with exact distributions.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::{BLOCK, DeviceSampler, Kinds, drawn};
use crate::engine::running::{Running, WaitingRequest};
use crate::engine::sampler::{Drawn, Sampler, stream, uniform};
use r1_base::mdp::{Request, Sampling, StreamSeed};

fn seed(draw: usize) -> StreamSeed {
    StreamSeed { seed: 11, trajectory: draw as u64 / 7, step: (draw % 7) as u32 }
}

/// Settings of every kind, one after the other in a batch.
fn settings(vocab: usize) -> Vec<Sampling> {
    let base = Sampling::default;
    vec![
        base(),
        Sampling { temperature: 0.0, ..base() },
        Sampling { temperature: 0.6, top_logprobs: 3, ..base() },
        Sampling { top_k: 5, ..base() },
        Sampling { top_k: vocab, top_logprobs: 2 * vocab, ..base() },
        Sampling { top_p: 0.9, ..base() },
        Sampling { top_p: 0.5, top_logprobs: 4, ..base() },
        Sampling { min_p: 0.1, temperature: 1.7, ..base() },
        Sampling { min_p: 1.0, ..base() },
        Sampling { top_k: 7, top_p: 0.8, min_p: 0.05, top_logprobs: 9, ..base() },
        Sampling { repetition_penalty: 1.3, logit_bias: [(1, 2.5), (4, -3.0)].into(), ..base() },
        Sampling { temperature: 0.0, repetition_penalty: 0.5, top_logprobs: 2, ..base() },
        Sampling { repetition_penalty: 2.0, logit_bias: [(0, -10000.0)].into(), top_p: 0.7, ..base() },
        Sampling { top_k: 1, ..base() },
    ]
}

/// Logits of several kinds: continuous, with many ties, equal, with impossible tokens.
fn logits(random: &mut ChaCha8Rng, row: usize, vocab: usize) -> Vec<f32> {
    let mut number = || (random.next_u32() >> 8) as f32 / (1 << 24) as f32 * 8.0 - 4.0;
    match row % 5 {
        0 | 1 => (0..vocab).map(|_| number()).collect(),
        2 => (0..vocab).map(|_| number().round()).collect(),
        3 => vec![1.0; vocab],
        _ => (0..vocab).map(|id| if id % 3 == row % 3 { f32::NEG_INFINITY } else { number() }).collect(),
    }
}

/// A request in a slot, whose random numbers begin at `seed`.
fn running(slot: usize, sampling: &Arc<Sampling>, seen: &[u32], seed: StreamSeed) -> Running {
    let request = Request {
        prompt_ids: seen.to_vec(),
        sampling: Arc::clone(sampling),
        stop_ids: Arc::default(),
        seed,
        conversation: 0,
        chat: None,
    };
    let (sender, _) = tokio::sync::oneshot::channel();
    let waiting = WaitingRequest { request, reply: sender.into(), tokens: None, deadline: None };
    let mut running = Running::new(waiting, slot, 0);
    // The last number of a block: fewer are computed.
    running.unread = BLOCK - 1;
    running
}

/// The random numbers of the draws of [`running`].
fn random(seed: StreamSeed) -> ChaCha8Rng {
    let mut random = stream(seed);
    random.set_word_pos(2 * (BLOCK as u128 - 1));
    random
}

/// Draws a token for each row of logits `[N, V]` in a separate slot.
fn draw(logits: &Tensor, rows: &[Running], by_kernels: bool) -> Vec<Option<Drawn>> {
    let (count, vocab) = (rows.len() as i64, logits.size()[1]);
    let requests: Vec<&Running> = rows.iter().collect();
    let mut sampler = DeviceSampler::new(vocab as usize, Device::Cpu, rows.len()).unwrap();
    sampler.by_kernels = by_kernels;
    sampler.join(&requests).unwrap();
    sampler.set(&requests).unwrap();
    let mut kinds = Kinds::default();
    for row in rows {
        kinds.add(&row.request.sampling, vocab);
    }
    let positions: Vec<i64> =
        rows.iter().map(|row| (row.sequence.len().saturating_sub(1) + BLOCK - 1) as i64).collect();
    let slots = Tensor::arange(count, (Kind::Int64, Device::Cpu));
    let (_, sampled) = sampler.draw(logits, &slots, &Tensor::from_slice(&positions), kinds).unwrap();
    let numbers: Vec<f64> = super::list(&sampled[0]).unwrap();
    let rest = |row: usize| sampled.get(1).map(|rest| rest.get(row as i64).to_kind(Kind::Int));
    let each = rows.iter().zip(numbers.chunks_exact(numbers.len() / rows.len())).enumerate();
    each.map(|(at, (row, numbers))| drawn(numbers, kinds, || rest(at), &row.request.sampling).unwrap()).collect()
}

/// Draws `rows` rows with both samplers from one batch of tensors.
fn both(random_logits: &mut ChaCha8Rng, rows: usize, vocab: usize, begin: usize) -> Vec<(Drawn, Drawn)> {
    let settings: Vec<Arc<Sampling>> = settings(vocab).into_iter().map(Arc::new).collect();
    let all: Vec<Vec<f32>> = (0..rows).map(|row| logits(random_logits, row + begin, vocab)).collect();
    let penalised = [0, 2, 3, vocab as u32 - 1];
    let settings_of = |row: usize| &settings[(begin + row) % settings.len()];
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, vocab as i64]);
    let requests: Vec<Running> =
        (0..rows).map(|row| running(row, settings_of(row), &penalised, seed(begin + row))).collect();
    let actual = draw(&batch, &requests, true);
    let mut host = Sampler::default();
    let expected = all.into_iter().enumerate().map(|(row, mut logits)| {
        host.draw_recorded(&mut logits, &penalised, settings_of(row), &mut random(seed(begin + row))).unwrap()
    });
    actual.into_iter().map(Option::unwrap).zip(expected).collect()
}

/// Equal, but for the last bit of a logarithm.
fn assert_equal(actual: &Drawn, expected: &Drawn, what: usize) {
    let close = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a - b).abs() <= 2e-7 * a.abs().max(1.0);
    assert_eq!((actual.id, &actual.support), (expected.id, &expected.support), "draw {what}");
    assert!(close(actual.logprob, expected.logprob), "draw {what}: {actual:?} {expected:?}");
    assert_eq!(actual.top.len(), expected.top.len(), "draw {what}");
    for (actual, expected) in actual.top.iter().zip(&expected.top) {
        assert!(actual.0 == expected.0 && close(actual.1, expected.1), "draw {what}: {actual:?} {expected:?}");
    }
}

#[test]
fn a_million_draws_equal_those_of_the_host() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut begin = 0;
    // Vocabularies below, at and above the size of a block.
    for (vocab, rows, batches) in [(6, 4000, 225), (33, 4000, 25), (128, 1000, 10), (300, 500, 4)] {
        for _ in 0..batches {
            for (row, (actual, expected)) in both(&mut random, rows, vocab, begin).iter().enumerate() {
                assert_equal(actual, expected, begin + row);
            }
            begin += rows;
        }
    }
    assert!(begin > 1_000_000, "{begin}");
}

#[test]
fn draws_from_a_large_vocabulary_equal_those_of_the_host() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for (row, (actual, expected)) in both(&mut random, 140, 50_257, 0).iter().enumerate() {
        assert_equal(actual, expected, row);
    }
}

/// The softmax of libtorch rounds differently: a token may be another one only where the random
/// number is next to its border in the cumulative distribution.
#[test]
fn libtorchs_softmax_changes_tokens_only_at_the_borders() {
    let (vocab, rows) = (40, 100_000);
    let mut numbers = ChaCha8Rng::seed_from_u64(5);
    let all: Vec<Vec<f32>> = (0..rows).map(|_| logits(&mut numbers, 0, vocab)).collect();
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, vocab as i64]);
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    let sampling = Arc::new(sampling);
    let uniforms: Vec<f64> = (0..rows).map(|row| uniform(&mut random(seed(row)))).collect();
    let requests: Vec<Running> = (0..rows).map(|row| running(row, &sampling, &[], seed(row))).collect();
    let (kernels, libtorch) = (draw(&batch, &requests, true), draw(&batch, &requests, false));
    let mut differing = 0;
    for (row, (tensor_draw, other)) in kernels.iter().zip(&libtorch).enumerate() {
        let (tensor_draw, other) = (tensor_draw.as_ref().unwrap(), other.as_ref().unwrap());
        if tensor_draw.id == other.id {
            assert!((tensor_draw.logprob - other.logprob).abs() < 1e-5);
            continue;
        }
        differing += 1;
        let weights: Vec<f64> = all[row].iter().map(|logit| (f64::from(*logit) / 0.7).exp()).collect();
        let border: f64 =
            weights[..=tensor_draw.id.min(other.id) as usize].iter().sum::<f64>() / weights.iter().sum::<f64>();
        assert!((border - uniforms[row]).abs() < 1e-6, "row {row}: {border} {}", uniforms[row]);
    }
    assert!(differing < 20, "{differing} of {rows} differ");
}

/// Chi-square of 40,000 draws in one batch against exact probabilities.
#[test]
fn draws_have_the_exact_distribution() {
    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -30.0];
    let rows = 40_000;
    let batch = Tensor::from_slice(&LOGITS).unsqueeze(0).repeat([rows as i64, 1]);
    for (sampling, kept) in [
        (Sampling::default(), &[0, 1, 2, 3, 4][..]),
        (Sampling { temperature: 0.6, ..Sampling::default() }, &[0, 1, 2, 3, 4]),
        (Sampling { top_k: 3, ..Sampling::default() }, &[1, 3, 4]),
        (Sampling { top_p: 0.8, ..Sampling::default() }, &[1, 3, 4]),
        (Sampling { min_p: 0.2, ..Sampling::default() }, &[0, 1, 3, 4]),
    ] {
        let shared = Arc::new(sampling.clone());
        let requests: Vec<Running> = (0..rows).map(|row| running(row, &shared, &[], seed(row))).collect();
        let mut counts = [0_usize; 6];
        let weight = |id: usize| (f64::from(LOGITS[id]) / sampling.temperature).exp();
        let mass: f64 = kept.iter().map(|&id| weight(id)).sum();
        for drawn in draw(&batch, &requests, false) {
            let drawn = drawn.unwrap();
            counts[drawn.id as usize] += 1;
            assert!((f64::from(drawn.logprob) - (weight(drawn.id as usize) / mass).ln()).abs() < 1e-5);
        }
        let expected = |id: usize| weight(id) / mass * rows as f64;
        let statistic: f64 = kept.iter().map(|&id| (counts[id] as f64 - expected(id)).powi(2) / expected(id)).sum();
        assert_eq!(kept.iter().map(|&id| counts[id]).sum::<usize>(), rows, "{sampling:?} {counts:?}");
        // 99.9th percentile with 4 degrees of freedom; fewer have a lower one.
        assert!(statistic < 18.47, "{sampling:?}: chi-square {statistic}");
    }
}

#[test]
fn rows_with_logits_that_are_not_finite_fail_alone() {
    let mut numbers = ChaCha8Rng::seed_from_u64(6);
    let settings: Vec<Arc<Sampling>> = settings(20).into_iter().map(Arc::new).collect();
    let rows = settings.len() * 3;
    let mut all: Vec<Vec<f32>> = (0..rows).map(|row| logits(&mut numbers, row, 20)).collect();
    for (row, logits) in all.iter_mut().enumerate() {
        match row % 3 {
            0 => logits[row % 20] = f32::NAN,
            1 => logits[row % 20] = f32::INFINITY,
            _ => {}
        }
    }
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, 20]);
    let requests: Vec<Running> = (0..rows).map(|row| running(row, &settings[row / 3], &[], seed(row))).collect();
    for by_kernels in [true, false] {
        let drawn = draw(&batch, &requests, by_kernels);
        for (row, drawn) in drawn.iter().enumerate() {
            assert_eq!(drawn.is_some(), row % 3 == 2, "row {row}");
        }
    }
}

#[test]
fn a_draw_does_not_depend_on_its_batch() {
    let mut numbers = ChaCha8Rng::seed_from_u64(7);
    let settings: Vec<Arc<Sampling>> = settings(30).into_iter().map(Arc::new).collect();
    let rows = settings.len();
    let all: Vec<Vec<f32>> = (0..rows).map(|row| logits(&mut numbers, row, 30)).collect();
    let row = |slot: usize, at: usize| running(slot, &settings[at], &[2, 5], seed(at));
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, 30]);
    let together = draw(&batch, &(0..rows).map(|at| row(at, at)).collect::<Vec<_>>(), true);
    for (at, drawn) in together.iter().enumerate() {
        let alone = draw(&Tensor::from_slice(&all[at]).unsqueeze(0), &[row(0, at)], true);
        assert_equal(drawn.as_ref().unwrap(), alone[0].as_ref().unwrap(), at);
    }
}
