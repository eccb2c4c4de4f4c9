//! Comparison with the host's sampler, and with exact distributions.

#![allow(clippy::unwrap_used)]

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::{SamplerRow, by_libtorch, draw, draw_from};
use crate::engine::sampler::{Drawn, Sampler, stream, uniform};
use r1_base::mdp::{Sampling, StreamSeed};

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
        Sampling { repetition_penalty: 1.3, logit_bias: [(1, 2.5), (4, -3.0), (9999, 1.0)].into(), ..base() },
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

/// Draws `rows` rows with both samplers from one batch of tensors.
fn both(random: &mut ChaCha8Rng, rows: usize, vocab: usize, begin: usize) -> Vec<(Drawn, Drawn)> {
    let settings = settings(vocab);
    let all: Vec<Vec<f32>> = (0..rows).map(|row| logits(random, row + begin, vocab)).collect();
    let penalised = [0, 2, 3, vocab as u32 - 1, 99_999_999];
    let settings_of = |row: usize| &settings[(begin + row) % settings.len()];
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, vocab as i64]);
    let wanted: Vec<SamplerRow<'_>> = (0..rows)
        .map(|row| SamplerRow {
            sampling: settings_of(row),
            penalised: &penalised,
            uniform: uniform(&mut stream(seed(begin + row))),
        })
        .collect();
    let actual = draw(&batch, &wanted).unwrap();
    let mut host = Sampler::default();
    let expected = all.into_iter().enumerate().map(|(row, mut logits)| {
        host.draw_recorded(&mut logits, &penalised, settings_of(row), &mut stream(seed(begin + row))).unwrap()
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
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let all: Vec<Vec<f32>> = (0..rows).map(|_| logits(&mut random, 0, vocab)).collect();
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, vocab as i64]);
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    let uniforms: Vec<f64> = (0..rows).map(|row| uniform(&mut stream(seed(row)))).collect();
    let wanted: Vec<SamplerRow<'_>> =
        uniforms.iter().map(|&uniform| SamplerRow { sampling: &sampling, penalised: &[], uniform }).collect();
    let tensor_draw = draw(&batch, &wanted).unwrap();
    let other = draw_from(&batch, &wanted, by_libtorch).unwrap();
    let mut differing = 0;
    for (row, (tensor_draw, other)) in tensor_draw.iter().zip(&other).enumerate() {
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
        let wanted: Vec<SamplerRow<'_>> = (0..rows)
            .map(|row| SamplerRow { sampling: &sampling, penalised: &[], uniform: uniform(&mut stream(seed(row))) })
            .collect();
        let mut counts = [0_usize; 6];
        let weight = |id: usize| (f64::from(LOGITS[id]) / sampling.temperature).exp();
        let mass: f64 = kept.iter().map(|&id| weight(id)).sum();
        for drawn in draw_from(&batch, &wanted, by_libtorch).unwrap() {
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
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let settings = settings(20);
    let rows = settings.len() * 3;
    let mut all: Vec<Vec<f32>> = (0..rows).map(|row| logits(&mut random, row, 20)).collect();
    for (row, logits) in all.iter_mut().enumerate() {
        match row % 3 {
            0 => logits[row % 20] = f32::NAN,
            1 => logits[row % 20] = f32::INFINITY,
            _ => {}
        }
    }
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, 20]);
    let wanted: Vec<SamplerRow<'_>> =
        (0..rows).map(|row| SamplerRow { sampling: &settings[row / 3], penalised: &[], uniform: 0.3 }).collect();
    for softmax in [super::by_kernels, by_libtorch] {
        let drawn = draw_from(&batch, &wanted, softmax).unwrap();
        for (row, drawn) in drawn.iter().enumerate() {
            assert_eq!(drawn.is_some(), row % 3 == 2, "row {row}");
        }
    }
}

#[test]
fn a_draw_does_not_depend_on_its_batch() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let settings = settings(30);
    let rows = settings.len();
    let all: Vec<Vec<f32>> = (0..rows).map(|row| logits(&mut random, row, 30)).collect();
    let row =
        |at: usize| SamplerRow { sampling: &settings[at], penalised: &[2, 5], uniform: uniform(&mut stream(seed(at))) };
    let batch = Tensor::from_slice(&all.concat()).view([rows as i64, 30]);
    let together = draw(&batch, &(0..rows).map(row).collect::<Vec<_>>()).unwrap();
    for (at, drawn) in together.iter().enumerate() {
        let alone = draw(&Tensor::from_slice(&all[at]).unsqueeze(0), &[row(at)]).unwrap();
        assert_equal(drawn.as_ref().unwrap(), alone[0].as_ref().unwrap(), at);
    }
    assert!(draw(&Tensor::zeros([0, 30], (Kind::Float, Device::Cpu)), &[]).unwrap().is_empty());
}
