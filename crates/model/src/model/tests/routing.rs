//! Routing replay: recorded experts give the same result, and are used after a change of the
//! router.

use tch::{Device, Kind, Tensor};

use super::families::{Case, cases};
use super::{distance, pack, predicting, rows};
use crate::model::{Model, Packed, Span};

/// The golden mixtures of experts.
fn mixtures() -> Vec<Model> {
    let all: Vec<Model> = cases("golden").iter().filter(|case| case.name.contains("moe")).map(Case::model).collect();
    assert!(!all.is_empty());
    all
}

/// Experts of rows as recorded by a step, `[T, width]`.
fn recorded(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    let mut cache = model.new_cache(rows.len(), 64).unwrap();
    cache.record_routing();
    let spans: Vec<Span<'_>> = rows.iter().enumerate().map(|(slot, ids)| Span { slot, start: 0, ids }).collect();
    let _ = model.step(&mut cache, &spans).unwrap();
    let experts: Vec<i64> = cache.take_routing().unwrap().into_iter().map(i64::from).collect();
    assert!(cache.take_routing().unwrap().is_empty(), "it is taken once");
    Tensor::from_slice(&experts).view([-1, model.routing_width() as i64])
}

/// Log-probabilities of the rows, and the gradients of their sum by name.
fn learned(model: &Model, rows: &[Vec<u32>], routing: Option<&Tensor>) -> (Tensor, Vec<(String, Tensor)>) {
    for (_, mut parameter) in model.parameters() {
        parameter.zero_grad();
    }
    let (places, targets) = predicting(rows);
    let batch = Packed { routing: routing.map(Tensor::shallow_clone), ..pack(rows) };
    let pass = model.learn(&batch).unwrap();
    let (logp, _) = model.logprobs(&pass.hidden().index_select(0, &places), &targets, 1.0, 64).unwrap();
    let values = logp.detach();
    pass.backward(&logp.sum(Kind::Float)).unwrap();
    let wanted = model.parameters().into_iter().filter(|(_, tensor)| tensor.grad().defined());
    (values, wanted.map(|(name, tensor)| (name, tensor.grad().copy())).collect())
}

#[test]
fn routing_replay_of_the_same_experts_changes_nothing() {
    for mut model in mixtures() {
        let rows = rows(&[7, 5, 9], model.config.vocab_size as u64);
        let routing = recorded(&model, &rows);
        for checkpointing in [false, true] {
            model.set_checkpointing(checkpointing);
            let (free, gradients) = learned(&model, &rows, None);
            let (replayed, actual) = learned(&model, &rows, Some(&routing));
            assert!(distance(&replayed, &free) < 1e-6);
            assert_eq!(gradients.len(), actual.len());
            for ((name, expected), (_, actual)) in gradients.iter().zip(&actual) {
                assert!(distance(actual, expected) < 1e-5, "{name}");
            }
            assert!(
                actual
                    .iter()
                    .any(|(name, it)| name.ends_with("mlp.gate.weight") && it.abs().max().double_value(&[]) > 0.0)
            );
            // -1 uses the router's choice.
            let (left, _) = learned(&model, &rows, Some(&routing.full_like(-1)));
            assert!(distance(&left, &free) < 1e-6);
        }
    }
}

#[test]
fn routing_replay_uses_recorded_experts_after_a_router_change() {
    for model in mixtures() {
        let rows = vec![super::ids(3, 6, model.config.vocab_size as u64)];
        let routing = recorded(&model, &rows);
        let before = learned(&model, &rows, None).0;
        tch::no_grad(|| {
            for (name, mut tensor) in model.parameters() {
                if name.ends_with("mlp.gate.weight") {
                    tensor.copy_(&tensor.flip([0]));
                }
            }
        });
        let chosen_now = recorded(&model, &rows);
        let sets = |routing: &Tensor| Vec::<i64>::try_from(routing.flatten(0, 1)).unwrap();
        assert_ne!(sets(&routing), sets(&chosen_now));
        let (free, _) = learned(&model, &rows, None);
        let (replayed, gradients) = learned(&model, &rows, Some(&routing));
        assert!(distance(&free, &replayed) > 1e-4 && distance(&before, &replayed) > 1e-6);
        // The recorded experts get gradients.
        let (chosen, experts) = (model.config.experts.unwrap().chosen, model.config.experts.unwrap().count);
        let sparse: Vec<usize> =
            (0..model.config.num_hidden_layers).filter(|&index| model.config.layer(index).sparse).collect();
        for (ordinal, index) in sparse.iter().enumerate() {
            let of_layer = routing.narrow(1, (ordinal * chosen) as i64, chosen as i64).flatten(0, 1);
            // The last token predicts nothing, and no other token attends to it.
            let used = Vec::<i64>::try_from(of_layer.narrow(0, 0, (rows[0].len() - 1) as i64 * chosen as i64)).unwrap();
            for expert in 0..experts {
                let name = format!("model.layers.{index}.mlp.experts.{expert}.down_proj.weight");
                let learns = gradients.iter().any(|(key, it)| *key == name && it.abs().max().double_value(&[]) > 0.0);
                assert_eq!(learns, used.contains(&(expert as i64)), "{name}");
            }
        }
    }
}

#[test]
fn routing_record_of_another_model_is_refused() {
    let model = mixtures().remove(0);
    let routing = Some(Tensor::zeros([4, model.routing_width() as i64 + 1], (Kind::Int64, Device::Cpu)));
    let batch = Packed { routing, ..pack(&rows(&[4], 20)) };
    assert!(model.forward(&batch).unwrap_err().message.contains("the model chooses"));
    assert_eq!(super::tiny(true, Kind::Float).routing_width(), 0);
}
