//! Tests of the engine with a tiny random model.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt;
use tch::{Device, Kind, Tensor};

use super::client::EngineMessage;
use super::{Engine, EngineClient, EngineOptions, SamplingMode, Stats, TokenBytes, bounded, channel};
use crate::adamw::{AdamW, AdamWOptions};
use crate::model::{Config, Model, Packed};
use r1_base::error::{self, Result};
use r1_base::mdp::{Completion, FinishReason, Policy, Request, Sampling, StreamSeed};

mod ahead;
mod device;
mod real;
mod recurrent;
mod serving;
mod sleep;
mod versions;

const VOCAB: usize = 50;

fn config() -> Config {
    Config {
        vocab_size: VOCAB,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        max_position_embeddings: 96,
        tie_word_embeddings: false,
        // Large enough for logits that differ.
        initializer_range: 0.3,
        ..Config::default()
    }
}

fn model() -> Rc<Model> {
    Rc::new(Model::init(config(), Device::Cpu, Kind::Float, 1).unwrap())
}

/// Token 0 is `a`, 1 `b`, …; tokens from 26 on are alternating bytes of `é`.
fn vocab() -> Arc<TokenBytes> {
    let e = "é".as_bytes();
    let bytes = (0..VOCAB).map(|id| if id < 26 { vec![b'a' + id as u8] } else { vec![e[id % 2]] }).collect();
    Arc::new(TokenBytes::new(bytes))
}

fn options(slots: usize) -> EngineOptions {
    EngineOptions { slots, ..EngineOptions::sized(&config(), (Kind::Float, Device::Cpu), 128, 0) }
}

fn engine(slots: usize) -> Engine {
    Engine::new(model(), vocab(), options(slots)).unwrap()
}

fn request(prompt: &[u32], trajectory: u64, sampling: Sampling) -> Request {
    Request {
        prompt_ids: prompt.to_vec(),
        sampling: Arc::new(sampling),
        stop_ids: Arc::new(Vec::new()),
        seed: StreamSeed { seed: 5, trajectory, step: 0 },
        conversation: trajectory,
        chat: None,
    }
}

fn sampled(tokens: usize) -> Sampling {
    Sampling { max_new_tokens: tokens, ..Sampling::default() }
}

fn greedy(tokens: usize) -> Sampling {
    Sampling { temperature: 0.0, ..sampled(tokens) }
}

/// A prompt of `length` ids, different for each `which`.
fn prompt(which: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| (which * 7 + at * 3 + at * at) % VOCAB as u32).collect()
}

/// Serves requests that are queued before the engine starts.
fn serve(engine: &mut Engine, requests: Vec<Request>) -> (Vec<Result<Completion>>, Result<Stats>) {
    let (client, queue) = channel();
    let receivers: Vec<_> = requests.into_iter().map(|request| client.submit(request)).collect();
    drop(client);
    let stats = engine.serve(queue);
    (receivers.into_iter().map(|receiver| receiver.blocking_recv().unwrap()).collect(), stats)
}

fn replies(engine: &mut Engine, requests: Vec<Request>) -> (Vec<Completion>, Stats) {
    let (completions, stats) = serve(engine, requests);
    (completions.into_iter().map(Result::unwrap).collect(), stats.unwrap())
}

/// Log-probabilities `[V]` after `ids`, from the learner's forward pass.
fn naive(model: &Model, ids: &[u32]) -> Vec<f32> {
    let _guard = tch::no_grad_guard();
    let hidden = model.forward(&Packed::from_rows(&[ids], Device::Cpu).unwrap()).unwrap();
    let logits: Tensor = model.logits(&hidden.narrow(0, ids.len() as i64 - 1, 1)).unwrap();
    logits.log_softmax(-1, Kind::Float).view(-1).try_into().unwrap()
}

/// Log-probabilities are bitwise equal with the CPU kernels, which sum in the same order for every
/// batch. libtorch, in a build without them, rounds differently.
fn assert_same(actual: &[f32], expected: &[f32]) {
    if crate::native::has_cpu_kernels() {
        assert_eq!(actual, expected);
    } else {
        let close = actual.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(close && actual.len() == expected.len(), "{actual:?} {expected:?}");
    }
}

#[test]
fn greedy_responses_equal_a_full_forward_per_token() {
    let mut engine = engine(3);
    let requests: Vec<Request> = (0..5).map(|n| request(&prompt(n, 4 + 3 * n), u64::from(n), greedy(12))).collect();
    let (completions, _) = replies(&mut engine, requests.clone());
    let model = model();
    for (request, completion) in requests.iter().zip(completions) {
        let mut ids = request.prompt_ids.clone();
        assert_eq!(completion.token_ids.len(), 12);
        for (&id, logprob) in completion.token_ids.iter().zip(completion.logprobs) {
            let expected = naive(&model, &ids);
            let best = (0..VOCAB).max_by(|&a, &b| expected[a].total_cmp(&expected[b])).unwrap();
            assert_eq!(id as usize, best);
            assert!((logprob - expected[best]).abs() < 1e-4);
            ids.push(id);
        }
    }
}

#[test]
fn completion_has_top_logprobs_and_support() {
    let cut = Sampling { top_k: 9, top_p: 0.8, min_p: 0.02, ..sampled(12) };
    let (completions, _) =
        replies(&mut engine(2), vec![request(&prompt(1, 6), 1, cut), request(&prompt(2, 6), 2, sampled(9))]);
    assert!(completions[1].support.is_whole());
    let (model, mut ids, mut sizes) = (model(), prompt(1, 6), Vec::new());
    for (index, (&id, logprob)) in completions[0].token_ids.iter().zip(&completions[0].logprobs).enumerate() {
        let (all, kept) = (naive(&model, &ids), completions[0].support.of(index));
        assert!(kept.contains(&id) && kept.is_sorted());
        let least = kept.iter().map(|&id| all[id as usize]).fold(f32::INFINITY, f32::min);
        assert!((0..VOCAB).filter(|id| !kept.contains(&(*id as u32))).all(|id| all[id] <= least + 1e-4));
        let mass: f32 = kept.iter().map(|&id| all[id as usize].exp()).sum();
        assert!((logprob - (all[id as usize] - mass.ln())).abs() < 1e-4);
        sizes.push(kept.len());
        ids.push(id);
    }
    assert!(sizes.len() == 12 && sizes.iter().all(|size| (1..=9).contains(size)), "{sizes:?}");
}

#[test]
fn seeded_response_does_not_depend_on_the_batch_or_the_slot() {
    let submitted = request(&prompt(3, 20), 42, sampled(24));
    let (alone, _) = replies(&mut engine(1), vec![submitted.clone()]);
    let others = |range: std::ops::Range<u32>| {
        range.map(|n| request(&prompt(n % 5, 10 + n), u64::from(n), sampled(5 + n as usize)))
    };
    for (slots, prefill_tokens) in [(16, 2048), (4, 2048), (16, 7)] {
        let options = EngineOptions { prefill_tokens, ..options(slots) };
        let mut engine = Engine::new(model(), vocab(), options).unwrap();
        let requests = others(0..6).chain([submitted.clone()]).chain(others(6..12)).collect();
        let (crowd, stats) = replies(&mut engine, requests);
        assert_eq!(crowd[6].token_ids, alone[0].token_ids);
        assert_same(&crowd[6].logprobs, &alone[0].logprobs);
        assert!(stats.max_batch > 1);
    }
}

#[test]
fn different_seeds_give_different_responses() {
    let requests = (0..4).map(|n| request(&prompt(1, 12), n, sampled(16))).collect();
    let (completions, _) = replies(&mut engine(4), requests);
    assert!((1..4).all(|n| completions[n].token_ids != completions[0].token_ids));
}

#[test]
fn a_group_prompt_is_prefilled_once() {
    let requests = (0..8).map(|n| request(&prompt(1, 40), n, sampled(4))).collect();
    let (completions, stats) = replies(&mut engine(8), requests);
    assert_eq!(completions.iter().map(|c| c.prefilled).collect::<Vec<_>>(), [40, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!((stats.prefilled_tokens, stats.cached_tokens), (47, 7 * 39));
    assert_eq!(stats.sampled_tokens, 32);
    // The first prompt, then the others together with its response: one step more than the longest
    // response.
    assert_eq!((stats.decode_steps, stats.max_batch), (5, 8));
}

#[test]
fn a_group_wider_than_the_engine_still_shares_its_prompt() {
    let requests = (0..8).map(|n| request(&prompt(1, 40), n, sampled(4))).collect();
    let (_, stats) = replies(&mut engine(3), requests);
    assert_eq!(stats.prefilled_tokens, 47);
    assert_eq!(stats.max_batch, 3);
}

#[test]
fn a_long_group_prompt_is_shared_once_its_pieces_are_done() {
    let options = EngineOptions { prefill_tokens: 16, ..options(4) };
    let mut engine = Engine::new(model(), vocab(), options).unwrap();
    let requests = (0..4).map(|n| request(&prompt(1, 44), n, greedy(4))).collect();
    let (completions, stats) = replies(&mut engine, requests);
    assert_eq!(stats.prefilled_tokens, 47);
    assert!(completions.iter().all(|completion| completion.token_ids == completions[0].token_ids));
}

#[test]
fn the_next_step_prefills_only_new_tokens() {
    let mut engine = engine(4);
    let first = prompt(2, 10);
    let (completions, _) = replies(&mut engine, vec![request(&first, 1, greedy(6))]);
    let second = [&first[..], &completions[0].token_ids, &[7, 8, 9]].concat();
    let (again, stats) = replies(&mut engine, vec![request(&second, 1, greedy(6))]);
    // The last sampled token was never fed to the model.
    assert_eq!((again[0].prefilled, stats.cached_tokens), (4, 15));
    let (fresh, _) = replies(&mut self::engine(1), vec![request(&second, 1, greedy(6))]);
    assert_eq!((fresh[0].prefilled, &fresh[0].token_ids), (19, &again[0].token_ids));
    assert_same(&fresh[0].logprobs, &again[0].logprobs);
}

/// Five steps of a growing context, in a group: the group's prompt is computed once, and of each
/// later prompt only the environment's tokens and the last sampled token.
#[test]
fn multi_step_trajectories_prefill_new_tokens_only() {
    let first = prompt(3, 20);
    for slots in [8, 4] {
        let mut engine = engine(slots);
        let mut contexts = vec![first.clone(); 4];
        let (mut computed, mut shown) = (0, 0);
        for step in 0..5 {
            let submitted = (0..).zip(&contexts).map(|(trajectory, context)| {
                let mut submitted = request(context, trajectory, sampled(4 + trajectory as usize));
                submitted.seed.step = step;
                submitted
            });
            let (completions, stats) = replies(&mut engine, submitted.collect());
            computed += stats.prefilled_tokens;
            for (trajectory, (context, completion)) in contexts.iter_mut().zip(completions).enumerate() {
                let expected = match (step, trajectory) {
                    (0, 0) => first.len(),
                    (0, _) => 1,
                    (step, _) => 1 + step as usize,
                };
                assert_eq!(completion.prefilled, expected, "trajectory {trajectory}, step {step}, {slots} slots");
                shown += context.len();
                context.extend(completion.token_ids);
                context.extend(prompt(9, step + 1));
            }
        }
        // 20 and 3 times 1, then 4 times 2 + 3 + 4 + 5.
        assert_eq!((computed, shown), (23 + 56, 700), "{slots} slots");
    }
}

/// After an update, keys of the old weights give wrong log-probabilities; a cleared cache gives
/// the log-probabilities of the new weights.
#[test]
fn changed_weights_need_a_cleared_cache() {
    let model = model();
    let mut engine = Engine::new(Rc::clone(&model), vocab(), options(4)).unwrap();
    let asked = prompt(2, 20);
    let sampled_once = |engine: &mut Engine| replies(engine, vec![request(&asked, 1, sampled(1))]).0.remove(0);
    sampled_once(&mut engine);
    let mut optimizer = AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
    let hidden = model.forward(&Packed::from_rows(&[&asked], Device::Cpu).unwrap()).unwrap();
    model.logits(&hidden).unwrap().square().mean(Kind::Float).backward();
    optimizer.step(1e-2, 0.0).unwrap();

    let expected = naive(&model, &asked);
    let error = |completion: &Completion| (completion.logprobs[0] - expected[completion.token_ids[0] as usize]).abs();
    let stale = sampled_once(&mut engine);
    assert!(stale.prefilled == 1 && error(&stale) > 1e-3, "{} {}", stale.prefilled, error(&stale));
    engine.clear_cache().unwrap();
    let fresh = sampled_once(&mut engine);
    assert!(fresh.prefilled == 20 && error(&fresh) < 1e-4, "{} {}", fresh.prefilled, error(&fresh));
}

#[test]
fn stop_id_ends_the_response_and_is_kept() {
    let mut submitted = request(&prompt(3, 9), 1, greedy(20));
    let (free, _) = replies(&mut engine(1), vec![submitted.clone()]);
    let stop = free[0].token_ids[4];
    let end = free[0].token_ids.iter().position(|&id| id == stop).unwrap();
    submitted.stop_ids = Arc::new(vec![VOCAB as u32 + 3, stop]);
    let (stopped, _) = replies(&mut engine(1), vec![submitted]);
    assert_eq!(stopped[0].finish_reason, FinishReason::Stop);
    assert_eq!(stopped[0].token_ids, free[0].token_ids[..=end]);
    assert_eq!(free[0].finish_reason, FinishReason::Length);
}

#[test]
fn stop_string_ends_the_response_with_the_token_that_completes_it() {
    let submitted = request(&prompt(3, 9), 1, sampled(40));
    let (free, _) = replies(&mut engine(1), vec![submitted]);
    let ids = &free[0].token_ids;
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| vocab().get(id).to_vec()).collect();
    // Every token is one byte: a split character, and letters, both spanning tokens.
    let cut = bytes.windows(2).position(|pair| pair == "é".as_bytes()).unwrap();
    let letters = bytes.windows(2).position(|pair| pair.iter().all(u8::is_ascii)).unwrap();
    let word = String::from_utf8(bytes[letters..letters + 2].to_vec()).unwrap();
    for (stop, index) in [("é".to_owned(), cut), (word, letters)] {
        let sampling = Sampling { stop: vec!["zzzz".to_owned(), stop], ..sampled(40) };
        let (stopped, _) = replies(&mut engine(1), vec![request(&prompt(3, 9), 1, sampling)]);
        assert_eq!(stopped[0].finish_reason, FinishReason::StopString);
        assert_eq!(stopped[0].token_ids, ids[..index + 2]);
        assert_eq!(stopped[0].logprobs.len(), index + 2);
    }
}

#[test]
fn full_context_ends_the_response() {
    let (completions, _) = replies(&mut engine(1), vec![request(&prompt(1, 90), 1, greedy(50))]);
    assert_eq!((completions[0].token_ids.len(), completions[0].finish_reason), (6, FinishReason::Length));
}

#[test]
fn invalid_requests_fail_alone_with_their_reason() {
    let mut engine = engine(4);
    let requests = vec![
        request(&prompt(1, 96), 1, greedy(4)),
        request(&[], 2, greedy(4)),
        request(&[3, 50], 3, greedy(4)),
        request(&[3], 4, Sampling { top_p: 2.0, ..greedy(4) }),
        request(&[3], 5, greedy(4)),
    ];
    let (completions, stats) = serve(&mut engine, requests);
    let messages: Vec<String> = completions
        .iter()
        .filter_map(|completion| completion.as_ref().err())
        .map(|error| error.message.clone())
        .collect();
    assert_eq!(
        messages,
        [
            "the prompt has 96 tokens and leaves no room for a response in a context of 96",
            "the prompt is empty",
            "the prompt has token id 50, outside the model's vocabulary of 50",
            "sampling.top_p is 2; it must be above 0 and at most 1 (off)",
        ]
    );
    assert_eq!(completions[4].as_ref().unwrap().token_ids.len(), 4);
    assert_eq!(stats.unwrap().finished, 5);
}

/// A model with NaN logits for sequences that contain token 49.
fn poisoned() -> Rc<Model> {
    let model = model();
    let _guard = tch::no_grad_guard();
    let (_, embedding) = model.parameters().into_iter().find(|(name, _)| name.contains("embed_tokens")).unwrap();
    let _ = embedding.get(49).fill_(f64::NAN);
    model
}

#[test]
fn nan_logits_fail_only_their_request() {
    let mut engine = Engine::new(poisoned(), vocab(), options(4)).unwrap();
    let clean = request(&[1, 2, 3], 1, Sampling { top_k: 1, ..sampled(1) });
    let (completions, stats) = serve(&mut engine, vec![clean, request(&[1, 49, 3], 77, sampled(4))]);
    assert!(completions[0].is_ok() && stats.is_ok());
    let error = completions[1].as_ref().unwrap_err();
    assert_eq!(error.kind, error::Kind::Numeric);
    assert!(error.place.as_ref().unwrap().contains("conversation 77"), "{error}");
}

#[test]
fn nan_logits_for_every_request_end_the_serve() {
    let mut engine = Engine::new(poisoned(), vocab(), options(4)).unwrap();
    let requests = (0..3).map(|n| request(&[1, 49, 3], n, sampled(4))).collect();
    let (completions, stats) = serve(&mut engine, requests);
    assert!(completions.iter().all(Result::is_err));
    assert_eq!(stats.unwrap_err().kind, error::Kind::Numeric);
}

/// The penalty applies to prompt and response, independent of the batch.
#[test]
fn repetition_penalty_equals_that_of_penalised_logits() {
    let mut engine = engine(3);
    let penalty = Sampling { repetition_penalty: 3.0, logit_bias: [(7, 0.5), (8, -100.0)].into(), ..greedy(20) };
    let submitted = request(&prompt(4, 10), 1, Sampling { top_logprobs: 2, ..penalty });
    let (completions, _) = replies(&mut engine, vec![request(&prompt(5, 9), 2, sampled(30)), submitted.clone()]);
    let reply = &completions[1];
    let model = model();
    let _guard = tch::no_grad_guard();
    let mut ids = submitted.prompt_ids.clone();
    for (index, &id) in reply.token_ids.iter().enumerate() {
        let hidden = model.forward(&Packed::from_rows(&[&ids[..]], Device::Cpu).unwrap()).unwrap();
        let logits = model.logits(&hidden.narrow(0, ids.len() as i64 - 1, 1)).unwrap();
        let mut logits: Vec<f32> = logits.view(-1).try_into().unwrap();
        for (_, logit) in logits.iter_mut().enumerate().filter(|(id, _)| ids.contains(&(*id as u32))) {
            *logit = if *logit > 0.0 { *logit / 3.0 } else { *logit * 3.0 };
        }
        logits[7] += 0.5;
        logits[8] -= 100.0;
        let logprobs: Vec<f32> = Tensor::from_slice(&logits).log_softmax(-1, Kind::Float).try_into().unwrap();
        let best = (0..VOCAB).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(id as usize, best, "token {index}");
        assert!((reply.logprobs[index] - logprobs[best]).abs() < 1e-4);
        let [first, second] = reply.top_logprobs[index][..] else { panic!("expected two top_logprobs") };
        assert!(first.0 == id && (first.1 - logprobs[best]).abs() < 1e-4 && second.1 <= first.1);
        ids.push(id);
    }
}

#[test]
fn key_value_cache_grows_to_its_predicted_size() {
    let config = Config { max_position_embeddings: 700, ..config() };
    let model = Rc::new(Model::init(config.clone(), Device::Cpu, Kind::Float, 1).unwrap());
    let options =
        EngineOptions { slots: 2, capacity: 600, ..EngineOptions::sized(&config, (Kind::Float, Device::Cpu), 128, 0) };
    let largest = options.bytes(&config, Kind::Float) as usize;
    let mut engine = Engine::new(model, vocab(), options).unwrap();
    assert!(engine.cache.bytes() < largest);
    let (completions, _) = replies(&mut engine, vec![request(&prompt(1, 598), 1, greedy(9))]);
    assert_eq!(completions[0].token_ids.len(), 2);
    assert_eq!(engine.cache.bytes(), largest);
    assert_eq!(engine.progress().stats().in_flight, 0);
}

/// A mixture of experts: two of four for each token, in both layers.
fn mixture() -> Rc<Model> {
    let json = serde_json::json!({
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": VOCAB, "hidden_size": 32,
        "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 96, "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": false, "initializer_range": 0.3,
    });
    Rc::new(Model::init(Config::from_json(&json).unwrap(), Device::Cpu, Kind::Float, 1).unwrap())
}

/// The routing of shared prefixes and continued conversations equals the routing of separate
/// prompts.
#[test]
fn expert_routing_is_recorded_with_prefix_reuse() {
    let model = mixture();
    let options = EngineOptions {
        slots: 3,
        prefill_tokens: 7,
        ..EngineOptions::sized(&model.config, (Kind::Float, Device::Cpu), 128, 0)
    };
    let engine = || {
        let mut engine = Engine::new(Rc::clone(&model), vocab(), options.clone()).unwrap();
        engine.record_routing().unwrap();
        engine
    };
    let alone = |request: Request| engine().generate(request, &|| false, &mut |_| ()).unwrap();
    let shared = prompt(1, 20);
    let with_last =
        |last: u32, trajectory: u64| request(&[shared.as_slice(), &[last]].concat(), trajectory, sampled(6));
    let mut busy = engine();
    let (first, _) = serve(&mut busy, (0..5).map(|at| with_last(at, u64::from(at))).collect());
    for (at, completion) in (0..).zip(&first) {
        let completion = completion.as_ref().unwrap();
        let alone = alone(with_last(at, u64::from(at)));
        assert_same(&completion.logprobs, &alone.logprobs);
        let logprobs = completion.logprobs.clone();
        assert_eq!(*completion, Completion { prefilled: completion.prefilled, logprobs, ..alone });
        // Prompt and response without the last token.
        assert_eq!((completion.routing.width, completion.routing.tokens()), (4, 21 + 6 - 1));
        assert!(completion.routing.experts.iter().all(|expert| *expert < 4));
    }
    // A conversation continues in its slot.
    let again = |completion: &Completion| {
        let ids = [shared.as_slice(), &[4], &completion.token_ids, &[7, 9]].concat();
        Request { seed: StreamSeed { seed: 5, trajectory: 4, step: 1 }, ..request(&ids, 4, sampled(3)) }
    };
    let next = again(first[4].as_ref().unwrap());
    let (second, _) = serve(&mut busy, vec![next.clone()]);
    let second = second[0].as_ref().unwrap();
    assert!(second.prefilled < next.prompt_ids.len());
    let fresh = alone(next);
    assert_eq!((&second.routing, &second.token_ids), (&fresh.routing, &fresh.token_ids));
    let mut dense = Engine::new(self::model(), vocab(), self::options(1)).unwrap();
    assert!(dense.record_routing().unwrap_err().message.contains("no mixture of experts"));
}
