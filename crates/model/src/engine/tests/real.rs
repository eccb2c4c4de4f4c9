//! Samples of SmolLM2-135M-Instruct compared with the probabilities of transformers.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::{Engine, EngineOptions, TokenBytes, replies, request, sampled};
use crate::model::tests::real::{real_golden, real_model};
use r1_base::mdp::Sampling;

#[test]
#[ignore = "needs SmolLM2-135M-Instruct: just test-real"]
fn real_model_samples_have_the_probabilities_of_transformers() {
    const DRAWS: u64 = 1000;
    let golden = &real_golden()["sampling"];
    let prompt: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
    let expected: HashMap<u32, f64> = serde_json::from_value(golden["probabilities"].clone()).unwrap();
    let number = |name: &str| golden[name].as_f64().unwrap();
    let sampling = Sampling { temperature: number("temperature"), top_p: number("top_p"), ..sampled(1) };
    let model = Rc::new(real_model());
    let options = EngineOptions::sized(&model.config, (tch::Kind::Float, tch::Device::Cpu), 64, 128);
    let bytes = Arc::new(TokenBytes::new(vec![b"a".to_vec(); model.config.vocab_size]));
    let mut engine = Engine::new(model, bytes, options).unwrap();
    let requests = (0..DRAWS).map(|draw| request(&prompt, draw, sampling.clone())).collect();
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for completion in replies(&mut engine, requests).0 {
        *counts.entry(completion.token_ids[0]).or_default() += 1;
    }
    // Every draw is in the nucleus. A thousand draws from 225 tokens have a total variation of
    // 0.08.
    let outside: Vec<&u32> = counts.keys().filter(|id| !expected.contains_key(id)).collect();
    assert!(outside.is_empty(), "{outside:?}");
    let share = |id: &u32| counts.get(id).copied().unwrap_or(0) as f64 / DRAWS as f64;
    let variation: f64 = expected.iter().map(|(id, probability)| (share(id) - probability).abs()).sum::<f64>() / 2.0;
    assert!(variation < 0.12, "total variation {variation}");
}
