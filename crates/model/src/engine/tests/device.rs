//! Sampling with tensor operations, and decode steps launched as graphs.

use super::*;

/// Every kind of sampling, stop strings, penalties, recorded sets, shared prefixes, few slots.
pub(super) fn varied() -> Vec<Request> {
    let settings = [
        sampled(20),
        greedy(9),
        Sampling { top_k: 9, top_p: 0.8, min_p: 0.02, ..sampled(12) },
        Sampling { stop: vec!["q".to_owned(), "é".to_owned()], ..sampled(30) },
        Sampling { repetition_penalty: 1.4, top_logprobs: 3, ..sampled(15) },
        Sampling { temperature: 1.6, logit_bias: [(3, 4.0)].into(), top_p: 0.9, top_logprobs: 5, ..sampled(15) },
    ];
    let all = settings.iter().cycle().zip(0..).take(24);
    all.map(|(sampling, n)| request(&prompt(n / 3, 5 + n), u64::from(n), sampling.clone())).collect()
}

#[test]
fn tensor_sampling_gives_the_completions_of_the_host() {
    let run = |mode: SamplingMode| {
        let mut engine = engine(5);
        engine.set_sampling(mode);
        replies(&mut engine, varied())
    };
    let ((expected, host), (actual, tensors)) = (run(SamplingMode::Host), run(SamplingMode::Device));
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_eq!(actual.token_ids, expected.token_ids);
        assert_eq!((&actual.support, actual.finish_reason), (&expected.support, expected.finish_reason));
        assert_eq!(actual.top_logprobs.len(), expected.top_logprobs.len());
        let close = actual.logprobs.iter().zip(&expected.logprobs).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "{:?} {:?}", actual.logprobs, expected.logprobs);
    }
    let reasons: Vec<_> = expected.iter().map(|completion| completion.finish_reason).collect();
    assert!(reasons.contains(&FinishReason::StopString) && reasons.contains(&FinishReason::Length));
    assert_eq!((host.sampled_tokens, host.decode_steps), (tensors.sampled_tokens, tensors.decode_steps));
}

#[test]
fn tensor_sampling_serves_cancelled_and_failing_requests() {
    let mut engine = engine(3);
    engine.set_sampling(SamplingMode::Device);
    let (client, queue) = channel();
    let mut receivers: Vec<_> = varied().into_iter().map(|request| client.submit(request)).collect();
    // Every second receiver is dropped.
    receivers = receivers.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).map(|(_, kept)| kept).collect();
    drop(client);
    engine.serve(queue).unwrap();
    let (expected, _) = replies(&mut self::engine(3), varied());
    for (receiver, expected) in receivers.into_iter().zip(expected.iter().step_by(2)) {
        assert_eq!(receiver.blocking_recv().unwrap().unwrap().token_ids, expected.token_ids);
    }
    let broken = Rc::new(Model::init(config(), Device::Cpu, Kind::Float, 1).unwrap());
    tch::no_grad(|| {
        let (_, mut norm) = broken.parameters().into_iter().find(|(name, _)| name == "model.norm.weight").unwrap();
        let _ = norm.fill_(f64::NAN);
    });
    let mut engine = Engine::new(broken, vocab(), options(2)).unwrap();
    engine.set_sampling(SamplingMode::Device);
    let (replies, served) = serve(&mut engine, vec![request(&prompt(1, 5), 4, sampled(3))]);
    let error = replies[0].as_ref().unwrap_err();
    assert_eq!((error.kind, served.unwrap_err().kind), (error::Kind::Numeric, error::Kind::Numeric));
    assert!(error.place.as_ref().unwrap().contains("trajectory 4"), "{error}");
}

/// A model with the code paths of bf16 on a GPU, on the CPU: variable-length attention, whose
/// decode steps can be recorded. f64, because the CPU kernels compute f32.
pub(super) fn as_on_a_gpu() -> Rc<Model> {
    let mut model = Model::init(config(), Device::Cpu, Kind::Double, 1).unwrap();
    model.use_gpu_paths();
    Rc::new(model)
}

/// Every decode step is launched as a graph although prompts arrive continuously.
#[test]
fn decode_steps_can_be_launched_as_graphs_while_prompts_are_prefilled() {
    let options = EngineOptions { prefill_tokens: 8, ..options(4) };
    let mut engine = Engine::new(as_on_a_gpu(), vocab(), options).unwrap();
    let requests: Vec<Request> =
        (0..12).map(|n| request(&prompt(n, 30), u64::from(n), sampled(6 + n as usize))).collect();
    let (completions, stats) = replies(&mut engine, requests.clone());
    assert!(stats.decoding_steps > 30 && stats.decoding_steps < stats.decode_steps, "{stats:?}");
    assert_eq!(stats.recordable_steps, stats.decoding_steps);
    assert_eq!((stats.graph_steps, stats.graph_share()), (0, Some(0.0)));
    // Some of these calls also had prompts: 30 tokens a prompt, 8 a call.
    let prefills = 12 * 30u64.div_ceil(8);
    assert!(stats.decoding_steps + prefills > stats.decode_steps + 12, "{stats:?}");
    for (request, completion) in requests.into_iter().zip(completions) {
        let mut alone = Engine::new(as_on_a_gpu(), vocab(), self::options(1)).unwrap();
        let (expected, _) = replies(&mut alone, vec![request]);
        assert_eq!(completion.token_ids, expected[0].token_ids);
    }
    assert_eq!(replies(&mut self::engine(2), vec![request(&prompt(1, 5), 1, sampled(4))]).1.graph_share(), None);
}
