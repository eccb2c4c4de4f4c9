//! The key-value cache between rollouts: released, allocated again, without its content; weights
//! that are merged for sampling; profiles.

use super::device::as_on_a_gpu;
use super::*;
use crate::model::LoraConfig;

#[test]
fn a_released_cache_is_allocated_again_and_empty() {
    for ahead in [false, true] {
        let mut engine = Engine::new(if ahead { as_on_a_gpu() } else { model() }, vocab(), options(3)).unwrap();
        if ahead {
            engine.set_sampling(SamplingMode::Ahead);
        }
        let requests = || (0..4_u32).map(|n| request(&prompt(2, 20), u64::from(n), sampled(30))).collect::<Vec<_>>();
        let (expected, first) = replies(&mut engine, requests());
        let bytes = engine.cache_bytes();
        engine.sleep().unwrap();
        assert_eq!((engine.cache_bytes(), bytes > 0), (0, true));
        // Twice is as once.
        engine.sleep().unwrap();
        let (actual, again) = replies(&mut engine, requests());
        assert_eq!(engine.cache_bytes(), bytes);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!((&actual.token_ids, actual.prefilled), (&expected.token_ids, expected.prefilled));
            assert_same(&actual.logprobs, &expected.logprobs);
        }
        // Nothing of the first rollout was left.
        assert_eq!((again.prefilled_tokens, again.cached_tokens), (first.prefilled_tokens, first.cached_tokens));
        // A longer request after a release grows the cache.
        engine.sleep().unwrap();
        let (long, _) = replies(&mut engine, vec![request(&prompt(1, 90), 1, greedy(50))]);
        assert_eq!(long[0].token_ids.len(), 6);
    }
}

#[test]
fn a_cache_is_not_released_while_requests_run() {
    let mut engine = engine(1);
    let (reply, _receiver) = tokio::sync::oneshot::channel();
    engine.accept(EngineMessage::Generate {
        request: request(&prompt(1, 9), 1, sampled(3)),
        reply: reply.into(),
        tokens: None,
    });
    engine.assign_slots();
    assert_eq!(engine.sleep().unwrap_err().kind, error::Kind::Internal);
    assert!(engine.cache_bytes() > 0);
}

/// A model with an adapter that has an effect, and the same with the adapter merged.
fn adapted(merged: bool) -> Rc<Model> {
    let mut model = Model::init(config(), Device::Cpu, Kind::Float, 1).unwrap();
    model.add_adapter(LoraConfig::new(4, 8.0, &["q_proj", "v_proj", "up_proj", "down_proj"]), 3).unwrap();
    fill(&model, 0.05);
    model.set_merged_sampling(merged).unwrap();
    Rc::new(model)
}

/// Sets the second matrices of the adapter.
fn fill(model: &Model, size: f64) {
    tch::no_grad(|| {
        for (name, mut tensor) in model.parameters() {
            if name.contains("lora_B") {
                let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu)).sin() * size;
                tensor.copy_(&values.view_as(&tensor));
            }
        }
    });
}

#[test]
fn merged_weights_give_the_samples_of_the_adapter_and_follow_updates() {
    let requests = || (0..5).map(|n| request(&prompt(n, 12), u64::from(n), sampled(25))).collect::<Vec<_>>();
    let engine = |model: &Rc<Model>| Engine::new(Rc::clone(model), vocab(), options(4)).unwrap();
    let (apart, merged) = (adapted(false), adapted(true));
    assert!(merged.samples_merged() && merged.merged_bytes() > 0 && apart.merged_bytes() == 0);
    let before: Vec<Tensor> = merged.parameters().iter().map(|(_, tensor)| tensor.detach_copy()).collect();
    let (mut merged_engine, mut expected) = (engine(&merged), engine(&apart));
    let mut largest = 0.0_f32;
    for size in [0.05, 0.3, -0.2] {
        for model in [&apart, &merged] {
            fill(model, size);
        }
        merged_engine.clear_cache().unwrap();
        expected.clear_cache().unwrap();
        let ((actual, _), (expected, _)) =
            (replies(&mut merged_engine, requests()), replies(&mut expected, requests()));
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual.token_ids, expected.token_ids);
            for (a, b) in actual.logprobs.iter().zip(&expected.logprobs) {
                largest = largest.max((a - b).abs());
            }
        }
    }
    // f32: the rounding of another order of sums.
    assert!(largest < 1e-4, "{largest}");
    // The weights themselves are those from before, to the bit.
    fill(&merged, 0.05);
    for (before, (name, after)) in before.iter().zip(merged.parameters()) {
        assert!(before.equal(&after), "{name}");
    }
    // Without the adapter, the samples equal the samples of the model.
    let base = Rc::new(Model::init(config(), Device::Cpu, Kind::Float, 1).unwrap());
    let (plain, _) = replies(&mut engine(&base), requests());
    let (disabled, _) = merged.without_adapter(|| replies(&mut engine(&merged), requests()));
    assert_eq!(plain[0].token_ids, disabled[0].token_ids);
}

#[test]
fn decode_steps_are_profiled() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(as_on_a_gpu(), vocab(), options(2)).unwrap();
    engine.set_sampling(SamplingMode::Ahead);
    engine.profile_steps(4, dir.path().join("decode.json"));
    replies(&mut engine, vec![request(&prompt(1, 9), 1, sampled(40))]);
    let (steps, all) = engine.take_profile().unwrap().unwrap();
    assert_eq!(steps, 4);
    // Two layers of seven projections in each of four steps, and the head.
    let count = |name: &str| all.iter().find(|operation| operation.name == name).map_or(0, |operation| operation.count);
    assert_eq!((count("aten::linear"), count("aten::embedding")), (4 * (2 * 7 + 1), 4), "{all:?}");
    assert!(dir.path().join("decode.json").is_file());
    assert!(engine.take_profile().unwrap().is_none());
    // Requests that end first end the profile.
    engine.profile_steps(1000, dir.path().join("short.json"));
    replies(&mut engine, vec![request(&prompt(2, 9), 1, sampled(20))]);
    let (steps, _) = engine.take_profile().unwrap().unwrap();
    assert!(steps < 20 && dir.path().join("short.json").is_file());
}
