//! Weights that change while requests are running.

use super::device::as_on_a_gpu;
use super::*;

fn change(model: &Model) {
    tch::no_grad(|| {
        for (_, mut tensor) in model.parameters() {
            let values = Tensor::arange(tensor.numel() as i64, (tensor.kind(), Device::Cpu)).sin() * 0.1;
            let _ = tensor.g_add_(&values.view_as(&tensor));
        }
    });
}

/// Each token has the log-probability of the version of the weights that is recorded for it, given
/// all tokens before it.
#[test]
fn running_requests_go_on_with_new_weights() {
    for mode in [SamplingMode::Host, SamplingMode::Device, SamplingMode::Ahead] {
        let model = || if mode == SamplingMode::Host { model() } else { as_on_a_gpu() };
        let (old, new, model) = (model(), model(), model());
        change(&new);
        // Prompts in pieces: at the change some are not computed to the end, and one waits.
        let options = EngineOptions { prefill_tokens: 8, ..options(3) };
        let mut engine = Engine::new(Rc::clone(&model), vocab(), options).unwrap();
        engine.set_sampling(mode);
        engine.set_policy_version(6).unwrap();
        let (client, queue) = channel();
        let requests: Vec<Request> =
            (0..4).map(|n| request(&prompt(n, 10 + 5 * n), u64::from(n), sampled(20))).collect();
        let coming: Vec<_> = requests.iter().map(|request| client.submit(request.clone())).collect();
        drop(client);
        for _ in 0..8 {
            assert!(engine.step(&queue));
        }
        change(&model);
        engine.set_policy_version(7).unwrap();
        while engine.step(&queue) {}
        let mut mixed = 0;
        for (request, coming) in requests.iter().zip(coming) {
            let completion = coming.blocking_recv().unwrap().unwrap();
            assert_eq!((completion.token_ids.len(), completion.policy_versions.len()), (20, 20));
            assert!(completion.policy_versions.is_sorted());
            mixed += usize::from(completion.policy_versions[0] == 6 && completion.policy_versions[19] == 7);
            let mut ids = request.prompt_ids.clone();
            let tokens = completion.token_ids.iter().zip(&completion.logprobs).zip(&completion.policy_versions);
            for ((&id, logprob), version) in tokens {
                let expected = naive(if *version == 6 { &old } else { &new }, &ids)[id as usize];
                assert!((logprob - expected).abs() < 1e-4, "{mode:?}: {logprob} {expected}");
                ids.push(id);
            }
        }
        assert!((1..4).contains(&mixed), "{mixed} responses have tokens of both versions");
    }
}
