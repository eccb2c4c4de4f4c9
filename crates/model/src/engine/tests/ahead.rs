//! Steps that are queued before the tokens of the step before are read.

use super::device::{as_on_a_gpu, varied};
use super::*;
use crate::engine::outcome::ServeOutcome;
use crate::engine::step::QueueResult;
use crate::native::meta;

fn engines(slots: usize, options: &EngineOptions) -> [Engine; 2] {
    let engine = || {
        let options = EngineOptions { slots, ..options.clone() };
        Engine::new(as_on_a_gpu(), vocab(), options).unwrap()
    };
    let (mut ahead, mut waiting) = (engine(), engine());
    ahead.set_sampling(SamplingMode::Ahead);
    waiting.set_sampling(SamplingMode::Device);
    [ahead, waiting]
}

/// Ragged prompts and responses, shared prefixes, stop ids, stop strings, both kinds of sampling.
fn plain() -> Vec<Request> {
    let request = |n: u32| {
        let stop = if n.is_multiple_of(3) { vec!["é".to_owned(), "qz".to_owned()] } else { Vec::new() };
        let temperature = [1.0, 0.0, 0.7, 1.4][n as usize % 4];
        let sampling = Sampling { temperature, stop, ..sampled(1 + (n as usize * 11) % 75) };
        let mut request = request(&prompt(n / 4, 3 + (n * 5) % 25), u64::from(n), sampling);
        if n.is_multiple_of(5) {
            request.stop_ids = Arc::new(vec![n % 7, 20, 31]);
        }
        request
    };
    (0..20).map(request).collect()
}

fn assert_equal(actual: &Completion, expected: &Completion, what: usize) {
    assert_eq!(actual.token_ids, expected.token_ids, "request {what}");
    // Slots become free a step later, so that another slot, and its prefix, can be chosen.
    assert_eq!(actual.finish_reason, expected.finish_reason, "request {what}");
    assert_eq!(actual.support, expected.support, "request {what}");
    let close = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a - b).abs() < 1e-6;
    let all = actual.logprobs.iter().zip(&expected.logprobs).all(|(&a, &b)| close(a, b));
    assert!(all && actual.logprobs.len() == expected.logprobs.len(), "request {what}");
    assert_eq!(actual.top_logprobs.len(), expected.top_logprobs.len(), "request {what}");
    for (actual, expected) in actual.top_logprobs.iter().zip(&expected.top_logprobs) {
        let all = actual.iter().zip(expected).all(|(a, b)| a.0 == b.0 && close(a.1, b.1));
        assert!(all && actual.len() == expected.len(), "request {what}: {actual:?} {expected:?}");
    }
}

#[test]
fn queued_steps_give_the_same_completions() {
    for (slots, prefill_tokens) in [(1, 64), (5, 7), (20, 2048)] {
        let options = EngineOptions { prefill_tokens, ..options(1) };
        let [mut ahead, mut waiting] = engines(slots, &options);
        let ((actual, ahead_stats), (expected, other)) = (replies(&mut ahead, plain()), replies(&mut waiting, plain()));
        for (what, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_equal(actual, expected, what);
        }
        let reasons: Vec<_> = actual.iter().map(|completion| completion.finish_reason).collect();
        for reason in [FinishReason::Stop, FinishReason::StopString, FinishReason::Length] {
            assert!(reasons.contains(&reason), "{reasons:?}");
        }
        assert!(
            actual.iter().any(|completion| completion.token_ids.len() > 2 * 32),
            "several blocks of random numbers"
        );
        assert_eq!(ahead_stats.sampled_tokens, other.sampled_tokens);
        let prompts = ahead_stats.prefilled_tokens + ahead_stats.cached_tokens;
        assert_eq!(prompts, other.prefilled_tokens + other.cached_tokens);
        assert_eq!(ahead_stats.recordable_steps, ahead_stats.decoding_steps);
        // No conversation is released, and half of the slots can stay reserved.
        let batch = slots.div_ceil(2) as u64;
        assert!(ahead_stats.decoding_steps > 60 && ahead_stats.max_batch >= batch, "{ahead_stats:?}");
    }
}

/// Every setting of sampling, in batches of one setting and of all.
#[test]
fn queued_steps_sample_with_every_setting() {
    let settings = [
        Sampling { top_k: 3, ..sampled(40) },
        // More tokens than a step copies to the host.
        Sampling { top_k: 20, top_p: 0.98, ..sampled(30) },
        Sampling { top_p: 0.9, temperature: 1.7, top_logprobs: 3, ..sampled(20) },
        Sampling { min_p: 0.05, top_logprobs: 20, ..sampled(20) },
        Sampling { repetition_penalty: 1.8, ..sampled(40) },
        Sampling { repetition_penalty: 1.5, ..greedy(40) },
        Sampling { logit_bias: [(3, 5.0), (0, -3.0), (49, 2.0)].into(), ..sampled(20) },
        Sampling { top_logprobs: 100, ..sampled(9) },
        Sampling { top_logprobs: 2, ..greedy(9) },
        Sampling { repetition_penalty: 0.8, top_k: 6, min_p: 0.1, logit_bias: [(7, 4.0)].into(), ..sampled(35) },
        sampled(50),
    ];
    let of = |settings: &[Sampling]| -> Vec<Request> {
        let all = settings.iter().cycle().zip(0..).take(settings.len().max(3));
        all.map(|(sampling, n)| request(&prompt(n / 3, 5 + n), u64::from(n), sampling.clone())).collect()
    };
    for requests in settings.iter().map(|setting| of(std::slice::from_ref(setting))).chain([of(&settings)]) {
        let [mut ahead, mut waiting] = engines(11, &options(1));
        let ((actual, ahead_stats), (expected, _)) =
            (replies(&mut ahead, requests.clone()), replies(&mut waiting, requests));
        for (what, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_equal(actual, expected, what);
        }
        // No slot is used twice, so that the same prefixes are found.
        let prefilled = |all: &[Completion]| all.iter().map(|one| one.prefilled).collect::<Vec<_>>();
        assert_eq!(prefilled(&actual), prefilled(&expected));
        assert!(
            ahead.on_device.is_some() && ahead_stats.recordable_steps == ahead_stats.decoding_steps,
            "{ahead_stats:?}"
        );
    }
}

/// Requests with settings that the device does not sample within a step share the engine.
#[test]
fn steps_of_both_kinds_alternate() {
    let many: std::collections::BTreeMap<u32, f64> = (0..20).map(|id| (id, 1.5)).collect();
    let requests = || {
        let mut others = varied();
        for request in others.iter_mut().step_by(5) {
            request.sampling = Arc::new(Sampling { logit_bias: many.clone(), ..(*request.sampling).clone() });
        }
        plain().into_iter().take(8).chain(others).chain(plain().into_iter().skip(14)).collect::<Vec<_>>()
    };
    let [mut ahead, mut waiting] = engines(6, &options(1));
    let ((actual, _), (expected, _)) = (replies(&mut ahead, requests()), replies(&mut waiting, requests()));
    for (what, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        assert_equal(actual, expected, what);
    }
}

/// A response whose first tokens are sampled one step at a time, and the others ahead: the next
/// prompt of the conversation reuses all of it.
#[test]
fn tokens_of_both_kinds_of_steps_are_in_the_cache() {
    let [mut engine, mut waiting] = engines(2, &options(2));
    let submitted = request(&prompt(3, 9), 1, sampled(20));
    let (expected, _) = replies(&mut waiting, vec![submitted.clone()]);
    let (client, queue) = channel();
    let reply = client.submit(submitted.clone());
    for (modes, mode) in
        [SamplingMode::Device, SamplingMode::Ahead, SamplingMode::Host, SamplingMode::Ahead].iter().enumerate()
    {
        engine.set_sampling(*mode);
        for _ in 0..if modes == 3 { 100 } else { 4 } {
            engine.step(&queue);
        }
    }
    let reply = reply.blocking_recv().unwrap().unwrap();
    assert_eq!(reply.token_ids, expected[0].token_ids);
    let next = [&submitted.prompt_ids[..], &reply.token_ids, &[7, 8]].concat();
    let again = engine.generate(request(&next, 1, sampled(3)), &|| false, &mut |_| ()).unwrap();
    // All but the last token of the response, which was not in the cache, and two new ones.
    assert_eq!(again.prefilled, 3);
}

/// The token that is sampled after the end of a response is neither stored nor streamed, and the
/// next prompt of the conversation reuses what the synchronous engine reuses.
#[test]
fn a_token_after_the_end_is_dropped() {
    let [mut ahead, mut waiting] = engines(2, &options(2));
    let (free, _) = replies(&mut waiting, vec![request(&prompt(3, 9), 1, sampled(30))]);
    let mut submitted = request(&prompt(3, 9), 1, sampled(30));
    let stop = free[0].token_ids[6];
    let end = free[0].token_ids.iter().position(|&id| id == stop).unwrap();
    submitted.stop_ids = Arc::new(vec![stop]);
    let mut contexts = Vec::new();
    for engine in [&mut ahead, &mut waiting] {
        engine.clear_cache().unwrap();
        let mut streamed = Vec::new();
        let reply = engine.generate(submitted.clone(), &|| false, &mut |id| streamed.push(id)).unwrap();
        assert_eq!((&reply.token_ids, reply.finish_reason), (&streamed, FinishReason::Stop));
        assert_eq!(reply.token_ids, free[0].token_ids[..=end]);
        let next = [&submitted.prompt_ids[..], &reply.token_ids, &[7, 8]].concat();
        let again = engine.generate(request(&next, 1, sampled(9)), &|| false, &mut |_| ()).unwrap();
        // All but the last token of the response, which was not in the cache, and two new ones.
        assert_eq!(again.prefilled, 3);
        contexts.push(again.token_ids);
    }
    assert_eq!(contexts[0], contexts[1]);
}

#[test]
fn a_stopped_reply_has_the_tokens_that_were_seen() {
    let [mut ahead, _] = engines(2, &options(2));
    let submitted = request(&prompt(4, 40), 1, greedy(12));
    let mut seen = Vec::new();
    let whole = ahead.generate(submitted.clone(), &|| false, &mut |id| seen.push(id)).unwrap();
    assert_eq!(whole.token_ids, seen);
    let left = Cell::new(3);
    let cut = ahead.generate(submitted.clone(), &|| left.get() == 0, &mut |_| left.set(left.get() - 1)).unwrap();
    assert_eq!((cut.finish_reason, &cut.token_ids[..]), (FinishReason::Length, &seen[..3]));
    // What was queued when it stopped does not affect later requests.
    let again = ahead.generate(submitted, &|| false, &mut |_| ()).unwrap();
    assert_eq!(again.token_ids, whole.token_ids);
}

/// Receivers are dropped while their requests run, and others join.
#[test]
fn cancelled_requests_and_new_ones_share_queued_steps() {
    let [mut ahead, mut waiting] = engines(3, &options(3));
    let (expected, _) = replies(&mut waiting, plain());
    let (client, queue) = channel();
    let progress = ahead.progress();
    let trajectories = std::thread::spawn(move || {
        let mut kept = Vec::new();
        for (at, submitted) in plain().into_iter().enumerate() {
            let before = progress.stats().sampled_tokens;
            let running = client.submit(submitted);
            if at % 3 == 1 {
                // Cancelled a few tokens later, if others are running.
                for _ in 0..200 {
                    if progress.stats().sampled_tokens > before + 4 {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                drop(running);
            } else {
                kept.push((at, running));
            }
        }
        drop(client);
        kept.into_iter().map(|(at, reply)| (at, reply.blocking_recv().unwrap().unwrap())).collect::<Vec<_>>()
    });
    let stats = ahead.serve(queue).unwrap();
    let actual = trajectories.join().unwrap();
    assert_eq!((actual.len(), stats.finished), (13, 20));
    for (at, actual) in actual {
        assert_eq!(actual.token_ids, expected[at].token_ids, "request {at}");
        assert_eq!(actual.finish_reason, expected[at].finish_reason);
    }
}

#[test]
fn logits_that_are_not_finite_fail_only_their_request() {
    let model = as_on_a_gpu();
    tch::no_grad(|| {
        let (_, embedding) = model.parameters().into_iter().find(|(name, _)| name.contains("embed_tokens")).unwrap();
        let _ = embedding.get(49).fill_(f64::NAN);
    });
    let mut engine = Engine::new(model, vocab(), options(4)).unwrap();
    engine.set_sampling(SamplingMode::Ahead);
    let clean = request(&[1, 2, 3], 1, sampled(1));
    let (completions, stats) = serve(&mut engine, vec![clean, request(&[1, 49, 3], 77, sampled(4))]);
    assert!(completions[0].is_ok() && stats.is_ok());
    let error = completions[1].as_ref().unwrap_err();
    assert_eq!(error.kind, error::Kind::Numeric);
    assert!(error.place.as_ref().unwrap().contains("conversation 77"), "{error}");
}

/// Every part of a step runs on tensors without numbers: prefill, decoding, sampling, inputs. An
/// operation that waits for the device fails there. Only reading the tokens needs them.
#[test]
fn a_step_does_not_wait_for_the_device() {
    let json = serde_json::json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": VOCAB, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 96,
    });
    let config = Config::from_json(&json).unwrap();
    let kinds = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling::default(),
        Sampling { top_k: 5, top_p: 0.9, top_logprobs: 2, ..Sampling::default() },
        Sampling { repetition_penalty: 1.2, logit_bias: [(3, 1.5)].into(), ..Sampling::default() },
    ];
    // One kind at a time, and all in one batch.
    for batch in [&kinds[..1], &kinds[1..2], &kinds[2..3], &kinds[3..], &kinds] {
        meta::with(|| {
            let model = Rc::new(Model::init(config.clone(), Device::Cpu, Kind::BFloat16, 1).unwrap());
            let mut engine = Engine::new(model, vocab(), EngineOptions { prefill_tokens: 30, ..options(6) }).unwrap();
            engine.set_sampling(SamplingMode::Ahead);
            let mut replies = Vec::new();
            for n in 0..5 {
                let (reply, receiver) = tokio::sync::oneshot::channel();
                let kind = batch[n as usize % batch.len()].clone();
                let sampling = Sampling { max_new_tokens: if n == 2 { 2 } else { 40 }, ..kind };
                let request = request(&prompt(n, 9), u64::from(n), sampling);
                engine.accept(EngineMessage::Generate { request, reply: reply.into(), tokens: None });
                replies.push(receiver);
            }
            engine.assign_slots();
            let mut counts = Vec::new();
            for _ in 0..40 {
                let plan = engine.plan(SamplingMode::Ahead).unwrap();
                let QueueResult::Step(step) = engine.queue(&plan, SamplingMode::Ahead, &|| false).unwrap() else {
                    panic!("it was stopped")
                };
                counts.push(engine.running.iter().map(|running| running.unread).sum::<usize>());
                engine.in_flight = step;
            }
            // Prompts over two steps; the third request ends after two tokens.
            assert_eq!((counts[0], counts[1], counts[3]), (3, 8, 16), "{counts:?}");
            assert!(engine.settle(&mut ServeOutcome::default(), &mut |_| ()).is_err());
        })
        .unwrap();
    }
}
