#![allow(clippy::unwrap_used)]

use super::*;

const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -30.0];

fn probabilities(temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = LOGITS.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn draws(sampling: &Sampling, count: u32) -> Vec<TokenDraw> {
    let mut sampler = Sampler::default();
    let seed = |step| StreamSeed { seed: 7, trajectory: 3, step };
    (0..count).map(|step| sampler.draw(&mut LOGITS.clone(), &[], sampling, &mut stream(seed(step))).unwrap()).collect()
}

/// Chi-square statistic of the draws over the tokens with an expected count of at least 5.
fn chi_square(draws: &[TokenDraw], expected: &[f64]) -> (f64, usize) {
    let mut terms = 0;
    let statistic = (0..).zip(expected).fold(0.0, |sum, (id, p)| {
        let expected = p * draws.len() as f64;
        let penalised = draws.iter().filter(|draw| draw.id == id).count() as f64;
        if expected < 5.0 {
            return sum;
        }
        terms += 1;
        sum + (penalised - expected).powi(2) / expected
    });
    (statistic, terms)
}

#[test]
fn sampled_frequencies_match_the_probabilities() {
    for temperature in [1.0, 0.6, 2.0] {
        let draws = draws(&Sampling { temperature, ..Sampling::default() }, 20_000);
        let (statistic, terms) = chi_square(&draws, &probabilities(temperature));
        // 99.9th percentile with 4 degrees of freedom
        assert!(terms == 5 && statistic < 18.47, "chi-square {statistic} at temperature {temperature}");
    }
}

#[test]
fn random_stream_words_are_independent_draws() {
    let (mut sampler, sampling) = (Sampler::default(), Sampling::default());
    let mut rng = stream(StreamSeed { seed: 1, trajectory: 2, step: 3 });
    let draws: Vec<TokenDraw> =
        (0..20_000).map(|_| sampler.draw(&mut LOGITS.clone(), &[], &sampling, &mut rng).unwrap()).collect();
    assert!(chi_square(&draws, &probabilities(1.0)).0 < 18.47);
    assert_eq!(rng.get_word_pos(), 40_000, "a draw takes one 64-bit word");
}

#[test]
fn sampler_logprob_is_of_the_sampling_distribution() {
    for temperature in [1.0, 0.6] {
        let expected = probabilities(temperature);
        for draw in draws(&Sampling { temperature, ..Sampling::default() }, 200) {
            let error = f64::from(draw.logprob) - expected[draw.id as usize].ln();
            assert!(error.abs() < 1e-6, "{draw:?}");
        }
    }
}

#[test]
fn greedy_sampling_takes_the_argmax_and_reports_temperature_1() {
    let draw = draws(&Sampling { temperature: 0.0, top_k: 3, top_p: 0.1, ..Sampling::default() }, 1)[0];
    assert_eq!(draw.id, 1);
    assert!((f64::from(draw.logprob) - probabilities(1.0)[1].ln()).abs() < 1e-6);
}

#[test]
fn top_k_and_top_p_keep_the_most_likely_tokens() {
    let p = probabilities(1.0);
    // Sorted: tokens 1 and 3 (equal), 4, 0, 2, 5.
    for (top_k, top_p, kept) in [
        (1, 1.0, vec![1]),
        (3, 1.0, vec![1, 3, 4]),
        (0, 1e-9, vec![1]),
        (0, p[1] + p[3] - 1e-6, vec![1, 3]),
        (0, p[1] + p[3] + 1e-6, vec![1, 3, 4]),
        // 0.75 of the mass of the two tokens kept by top-k needs both
        (2, 0.75, vec![1, 3]),
        (2, 0.5 - 1e-6, vec![1]),
        (6, 1.0, vec![0, 1, 2, 3, 4]),
    ] {
        let draws = draws(&Sampling { top_k, top_p, ..Sampling::default() }, 4000);
        let mass: f64 = kept.iter().map(|&id| p[id]).sum();
        let mut penalised: Vec<usize> = draws.iter().map(|draw| draw.id as usize).collect();
        penalised.sort_unstable();
        penalised.dedup();
        assert_eq!(penalised, kept, "top_k {top_k} top_p {top_p}");
        for draw in &draws {
            assert!((f64::from(draw.logprob) - (p[draw.id as usize] / mass).ln()).abs() < 1e-5, "{draw:?}");
        }
        let inside: Vec<f64> = (0..6).map(|id| if kept.contains(&id) { p[id] / mass } else { 0.0 }).collect();
        assert!(chi_square(&draws, &inside).0 < 18.47);
    }
}

#[test]
fn min_p_is_relative_to_the_most_likely_token() {
    let p = probabilities(1.0);
    for (sampling, kept) in [
        (Sampling { min_p: 1.0, ..Sampling::default() }, vec![1, 3]),
        (Sampling { min_p: p[4] / p[1] - 1e-6, ..Sampling::default() }, vec![1, 3, 4]),
        (Sampling { min_p: p[4] / p[1] + 1e-6, ..Sampling::default() }, vec![1, 3]),
        // After top-k and top-p, which it does not change.
        (Sampling { min_p: 0.01, top_k: 3, ..Sampling::default() }, vec![1, 3, 4]),
        (Sampling { min_p: 0.99, top_p: 0.99, ..Sampling::default() }, vec![1, 3]),
    ] {
        let draws = draws(&sampling, 2000);
        let mut penalised: Vec<usize> = draws.iter().map(|draw| draw.id as usize).collect();
        penalised.sort_unstable();
        penalised.dedup();
        assert_eq!(penalised, kept, "{sampling:?}");
        let mass: f64 = kept.iter().map(|&id| p[id]).sum();
        let worst = draws.iter().map(|draw| f64::from(draw.logprob) - (p[draw.id as usize] / mass).ln());
        assert!(worst.fold(0.0, |worst: f64, error| worst.max(error.abs())) < 1e-5);
    }
}

#[test]
fn repetition_penalty_and_logit_bias_change_logits() {
    let sampling = Sampling {
        temperature: 0.0,
        repetition_penalty: 2.0,
        logit_bias: [(4, 0.75), (1000, 1.0)].into(),
        top_logprobs: 6,
        ..Sampling::default()
    };
    let mut sampler = Sampler::default();
    let mut logits = LOGITS;
    let draw = sampler.draw(&mut logits, &[1, 2, 3, 9999], &sampling, &mut stream(StreamSeed::default())).unwrap();
    // Tokens 1 and 3 halved, the negative 2 doubled, 4 raised.
    let expected: [f64; 6] = [0.5, 1.0, -2.0, 1.0, 1.75, -30.0];
    let total = expected.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    assert_eq!(draw.id, 4);
    let top = sampler.top(&logits, 6, &draw);
    assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [4, 1, 3, 0, 2, 5]);
    assert_eq!(top[0], (draw.id, draw.logprob));
    for (id, logprob) in top {
        assert!((f64::from(logprob) - (expected[id as usize] - total)).abs() < 1e-5, "{id} {logprob}");
    }
}

#[test]
fn top_logprobs_are_of_the_sampling_distribution() {
    let sampling = Sampling { top_k: 3, top_logprobs: 5, ..Sampling::default() };
    let mut sampler = Sampler::default();
    let mut logits = LOGITS;
    let draw = sampler.draw(&mut logits, &[], &sampling, &mut stream(StreamSeed::default())).unwrap();
    let top = sampler.top(&logits, sampling.top_logprobs, &draw);
    assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 4], "tokens that were cut are not reported");
    assert!((top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum::<f64>() - 1.0).abs() < 1e-6);
}

#[test]
fn top_p_over_many_tokens_keeps_the_smallest_sufficient_set() {
    // Weights decrease slowly, so that sorting takes several blocks.
    let logits: Vec<f32> = (0..1000).map(|id| ((id * 7919) % 1000) as f32 * -0.004).collect();
    let sampling = Sampling { top_p: 0.8, ..Sampling::default() };
    let mut sampler = Sampler::default();
    sampler.draw(&mut logits.clone(), &[], &sampling, &mut stream(StreamSeed::default())).unwrap();
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
fn random_streams_differ_by_each_part_of_the_seed() {
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
fn every_token_of_a_large_vocabulary_can_be_drawn() {
    // Equal probabilities over several blocks, the last one short, some tokens impossible.
    let possible = |id: usize| id % 3 != 1;
    let logits: Vec<f32> = (0..101).map(|id| if possible(id) { 1.0 } else { f32::NEG_INFINITY }).collect();
    let sampling = Sampling::default();
    let mut sampler = Sampler::default();
    let mut rng = stream(StreamSeed::default());
    let draws: Vec<TokenDraw> =
        (0..10_000).map(|_| sampler.draw(&mut logits.clone(), &[], &sampling, &mut rng).unwrap()).collect();
    let count = (0..101).filter(|&id| possible(id)).count() as f64;
    let expected: Vec<f64> = (0..101).map(|id| if possible(id) { 1.0 / count } else { 0.0 }).collect();
    let (statistic, terms) = chi_square(&draws, &expected);
    // 99.9th percentile with 66 degrees of freedom
    assert!(terms == 67 && statistic < 107.3, "chi-square {statistic} over {terms}");
    assert!(draws.iter().all(|draw| possible(draw.id as usize)));
}

#[test]
fn inverse_cdf_past_the_sum_gives_the_last_possible_token() {
    assert_eq!(walk([0.5, 0.25, 0.0].into_iter(), 0.75).0, 1);
    assert_eq!(walk([0.0, 0.5].into_iter(), 0.0).0, 1);
}

#[test]
fn nan_logits_give_no_sample() {
    let mut sampler = Sampler::default();
    for bad in [f32::NAN, f32::INFINITY] {
        for temperature in [0.0, 0.5, 1.0] {
            let mut logits = LOGITS;
            logits[2] = bad;
            let sampling = Sampling { temperature, ..Sampling::default() };
            assert_eq!(sampler.draw(&mut logits, &[], &sampling, &mut stream(StreamSeed::default())), None);
        }
    }
}

#[test]
fn invalid_sampling_settings_are_refused() {
    let message = |sampling: Sampling| check(&sampling).unwrap_err().message;
    let base = Sampling::default;
    assert!(check(&base()).is_ok() && check(&Sampling { temperature: 0.0, ..base() }).is_ok());
    assert!(message(Sampling { temperature: -1.0, ..base() }).contains("temperature is -1"));
    assert!(message(Sampling { temperature: f64::NAN, ..base() }).contains("temperature is NaN"));
    assert!(message(Sampling { top_p: 0.0, ..base() }).contains("top_p is 0"));
    assert!(message(Sampling { max_new_tokens: 0, ..base() }).contains("max_new_tokens is 0"));
    assert!(message(Sampling { stop: vec![String::new()], ..base() }).contains("empty string"));
}
