//! Generation of the CPU kernels from bf16 weights, compared with the same weights in f32.

use tch::{Device, Kind, Tensor};

use super::{distance, ids, pack, rows, tiny};
use crate::model::cache::Layout;
use crate::model::{Config, KvCache, LoraConfig, Model, Span};
use crate::native;

/// A bf16 model with odd widths, one of them long enough for sums in several parts, and the same
/// model in f32.
fn twins(tied: bool) -> (Model, Model) {
    twins_of(tied, 53)
}

fn twins_of(tied: bool, vocab_size: usize) -> (Model, Model) {
    let small = tiny(tied, Kind::BFloat16);
    let config = Config { hidden_size: 37, intermediate_size: 3401, head_norms: tied, vocab_size, ..small.config };
    let half = Model::init(config.clone(), Device::Cpu, Kind::BFloat16, 3).unwrap();
    let whole = Model::init(config, Device::Cpu, Kind::Float, 3).unwrap();
    tch::no_grad(|| {
        for (index, (name, mut tensor)) in half.parameters().into_iter().enumerate() {
            if tensor.dim() == 1 {
                let ramp = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu));
                let offset = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
                tensor.copy_(&(((ramp * 0.7 + index as f64).sin() * 0.3) + offset));
            }
        }
    });
    copy(&half, &whole);
    (half, whole)
}

fn copy(from: &Model, to: &Model) {
    let _guard = tch::no_grad_guard();
    for ((_, from), (_, mut to)) in from.parameters().into_iter().zip(to.parameters()) {
        to.copy_(&from);
    }
}

/// Spans of several slots: prefill, batched decode, a mixture, a single sequence.
fn spans(round: usize) -> Vec<(usize, Vec<u32>)> {
    (0..12)
        .filter(|slot| round < 3 || slot % 7 == round)
        .map(|slot| (slot, ids((slot + 50 * round) as u64, [1 + slot * 3, 1, 1 + slot % 5, 1, 100][round], 53)))
        .collect()
}

fn items<'a>(spans: &'a [(usize, Vec<u32>)], lengths: &[usize]) -> Vec<Span<'a>> {
    spans.iter().map(|(slot, ids)| Span { slot: *slot, start: lengths[*slot], ids }).collect()
}

#[test]
fn bf16_steps_match_the_same_weights_in_f32() {
    for tied in [true, false] {
        let (half, whole) = twins(tied);
        let (mut native, mut exact) = (half.new_cache(12, 8).unwrap(), whole.new_cache(12, 8).unwrap());
        let mut plain =
            KvCache::new(&half.config, 12, 200, Layout::Tokens { spare: 0 }, Device::Cpu, Kind::BFloat16).unwrap();
        let mut lengths = [0; 12];
        for round in 0..5 {
            let spans = spans(round);
            let actual = half.step(&mut native, &items(&spans, &lengths)).unwrap();
            let expected = whole.step(&mut exact, &items(&spans, &lengths)).unwrap();
            let rounded =
                tch::no_grad(|| half.step_plain(&mut plain, &items(&spans, &lengths), &|| false)).unwrap().unwrap();
            let difference = distance(&actual, &expected);
            // On processors with bf16 products, activations are rounded to bf16, as in libtorch's
            // operations.
            let limit = match native::kernels() {
                "avx512bf16" => distance(&rounded, &expected),
                _ => 2e-5 * expected.abs().max().double_value(&[]),
            };
            assert!(difference < limit, "round {round} differs by {difference}, more than {limit}");
            for (slot, ids) in &spans {
                lengths[*slot] += ids.len();
            }
        }
    }
}

#[test]
fn bf16_generation_is_batch_invariant() {
    independent(&twins(true).0);
}

/// Large models have another code path for few tokens.
#[test]
fn bf16_generation_is_batch_invariant_in_a_large_model() {
    independent(&twins_of(true, 240_000).0);
}

fn independent(half: &Model) {
    let (mut together, mut alone) = (half.new_cache(12, 8).unwrap(), half.new_cache(12, 8).unwrap());
    let mut lengths = [0; 12];
    for round in 0..5 {
        let spans = spans(round);
        let batched = half.step(&mut together, &items(&spans, &lengths)).unwrap();
        for (index, (slot, ids)) in (0..).zip(&spans) {
            // A prompt in two chunks, if it is long enough.
            let cut = ids.len() / 2;
            let mut start = lengths[*slot];
            for piece in [&ids[..cut], &ids[cut..]] {
                if piece.is_empty() {
                    continue;
                }
                let last = half.step(&mut alone, &[Span { slot: *slot, start, ids: piece }]).unwrap();
                start += piece.len();
                if start == lengths[*slot] + ids.len() {
                    assert_eq!(last.get(0), batched.get(index), "slot {slot} of round {round}");
                }
            }
            lengths[*slot] = start;
        }
    }
}

#[test]
fn bf16_kernels_use_changed_weights() {
    let (half, _) = twins(false);
    let other = Model::init(half.config.clone(), Device::Cpu, Kind::BFloat16, 4).unwrap();
    let prompt = ids(3, 9, 53);
    let logits = |model: &Model| {
        model.step(&mut model.new_cache(1, 16).unwrap(), &[Span { slot: 0, start: 0, ids: &prompt }]).unwrap()
    };
    let mut before = logits(&half);
    for (name, parameter) in half.parameters() {
        // Not by a common factor, which has no effect on norm weights followed by another norm.
        let ramp = Tensor::arange(parameter.numel() as i64, (Kind::Float, Device::Cpu)).sin().view_as(&parameter);
        tch::no_grad(|| parameter.shallow_clone().copy_(&(&parameter + ramp)));
        copy(&half, &other);
        let after = logits(&half);
        assert!(after != before, "{name} is not seen");
        assert_eq!(after, logits(&other), "{name}");
        before = after;
    }
}

#[test]
fn bf16_training_uses_the_plain_operations() {
    let (mut half, _) = twins(true);
    let batch = pack(&rows(&[5, 1, 17], 53));
    assert_eq!(half.forward(&batch).unwrap(), half.forward_plain(&batch).unwrap());
    let (logp, _) = half.logprobs(&half.forward(&batch).unwrap(), &batch.ids, 1.0, 8).unwrap();
    assert_eq!(logp.kind(), Kind::Float);
    // Generation with an adapter, and its cache, too.
    assert_eq!(half.cache_kind(), Kind::Float);
    half.add_adapter(LoraConfig::new(2, 4.0, &["q_proj"]), 1).unwrap();
    assert_eq!(half.cache_kind(), Kind::BFloat16);
    assert_eq!(
        half.step(&mut half.new_cache(1, 8).unwrap(), &[Span { slot: 0, start: 0, ids: &[1, 2] }]).unwrap().size(),
        [1, 53]
    );
}
