//! Models with a recurrent state per sequence.

use super::*;

fn recurrent() -> Model {
    let config = serde_json::json!({
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": VOCAB, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6,
        "max_position_embeddings": 256, "initializer_range": 0.3, "tie_word_embeddings": false,
    });
    Model::init(Config::from_json(&config).unwrap(), Device::Cpu, Kind::Float, 1).unwrap()
}

fn engine(model: Model, slots: usize, prefill_tokens: usize) -> Engine {
    let sized = EngineOptions::sized(&model.config, model.cache_options(), slots, 0);
    let options = EngineOptions { slots, prefill_tokens, ..sized };
    Engine::new(Rc::new(model), vocab(), options).unwrap()
}

/// Every token is the best one, with its log-probability.
fn check(model: &Model, request: &Request, completion: &Completion) {
    let mut ids = request.prompt_ids.clone();
    for (&id, logprob) in completion.token_ids.iter().zip(&completion.logprobs) {
        let expected = naive(model, &ids);
        let best = (0..VOCAB).max_by(|&a, &b| expected[a].total_cmp(&expected[b])).unwrap();
        assert_eq!(id as usize, best, "after {} tokens", ids.len());
        assert!((logprob - expected[best]).abs() < 1e-4);
        ids.push(id);
    }
}

fn turn(engine: &mut Engine, requests: &[Request]) -> Vec<Completion> {
    let (completions, _) = replies(engine, requests.to_vec());
    requests.iter().zip(&completions).for_each(|(request, completion)| check(&recurrent(), request, completion));
    completions
}

#[test]
fn states_are_reused_in_groups_turns_and_forks() {
    crate::native::set_threads(1);
    for (gpu_paths, prefill_tokens) in [(false, 2048), (false, 10), (true, 2048)] {
        let mut model = recurrent();
        if gpu_paths {
            model.use_gpu_paths();
        }
        let mut engine = engine(model, 4, prefill_tokens);
        engine.set_sampling(if gpu_paths { SamplingMode::Ahead } else { SamplingMode::Host });
        // A group and another prompt: the prompt of the group is computed once, but for its last
        // token.
        let asked: Vec<u32> = prompt(1, 30);
        let mut requests: Vec<Request> = (0..3).map(|n| request(&asked, n, greedy(5 + n as usize))).collect();
        requests.push(request(&prompt(2, 17), 3, greedy(9)));
        let completions = turn(&mut engine, &requests);
        let computed: Vec<usize> = completions.iter().map(|completion| completion.prefilled).collect();
        assert_eq!(computed, [30, 1, 1, 17], "{gpu_paths} {prefill_tokens}");

        // The next turn of a conversation goes on from the end of the last.
        let longer = [asked.clone(), completions[0].token_ids.clone(), prompt(5, 6)].concat();
        let second = turn(&mut engine, &[request(&longer, 0, greedy(6))]);
        assert_eq!(second[0].prefilled, 1 + 6);
        // A fork from the prompt of the first turn, which other conversations have kept.
        let fork = [asked.clone(), prompt(7, 9)].concat();
        let forked = turn(&mut engine, &[request(&fork, 1, greedy(6))]);
        assert_eq!(forked[0].prefilled, 1 + 9);
        // A context that is cut in the middle of the prompt has no state, and is computed again.
        let cut = [asked[..20].to_vec(), prompt(8, 12)].concat();
        let rewritten = turn(&mut engine, &[request(&cut, 0, greedy(6))]);
        assert_eq!(rewritten[0].prefilled, 32);
    }
}

#[test]
fn many_requests_share_few_slots() {
    let mut engine = engine(recurrent(), 2, 16);
    let requests: Vec<Request> = (0..9)
        .map(|n| request(&[prompt(1, 12 + n % 3), prompt(n, 1 + 3 * n)].concat(), u64::from(n), greedy(1 + n as usize)))
        .collect();
    let _ = turn(&mut engine, &requests);
    turn(&mut engine, &requests);
}

#[test]
fn memory_of_states_is_planned() {
    let model = recurrent();
    let options = EngineOptions::sized(&model.config, model.cache_options(), 3, 0);
    let cache = model.new_cache(options.slots, options.capacity).unwrap();
    assert_eq!(options.bytes(&model.config, Kind::Float), cache.bytes() as u64);
}
