//! Comparison of the CPU kernels with the plain operations, and of the plain operations' gradients
//! with finite differences.

use tch::{Kind, Tensor};

use super::{distance, gradients, ids, pack, predicting, rows, tiny};
use crate::adamw::{AdamW, AdamWOptions};
use crate::model::cache::Layout;
use crate::model::{KvCache, Model, Span};
use crate::native;

/// A scalar of log-probabilities and entropies, computed in chunks of `chunk`.
fn loss(model: &Model, hidden: &Tensor, rows: &[Vec<u32>], chunk: usize) -> Tensor {
    let (places, targets) = predicting(rows);
    let hidden = hidden.index_select(0, &places);
    let (logp, entropy) = model.logprobs(&hidden, &targets, 0.8, chunk).unwrap();
    let weights = Tensor::arange(logp.size()[0], (logp.kind(), logp.device())).cos();
    (logp * &weights).mean(None) + (entropy * weights.square()).mean(None) * 0.3
}

/// The same scalar with plain operations, without chunks.
fn plain_loss(model: &Model, hidden: &Tensor, rows: &[Vec<u32>]) -> Tensor {
    let (places, targets) = predicting(rows);
    let log_all = (model.logits(&hidden.index_select(0, &places)).unwrap() / 0.8).log_softmax(-1, None);
    let logp = log_all.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1);
    let entropy = -(log_all.exp() * &log_all).sum_dim_intlist(-1, false, None);
    let weights = Tensor::arange(logp.size()[0], (logp.kind(), logp.device())).cos();
    (logp * &weights).mean(None) + (entropy * weights.square()).mean(None) * 0.3
}

#[test]
fn native_logprobs_over_a_support_match_plain() {
    for (kind, close) in [(Kind::Double, 1e-12), (Kind::Float, 2e-5)] {
        let model = tiny(false, kind);
        let rows = rows(&[9, 30, 64], 53);
        let (places, targets) = predicting(&rows);
        let hidden = || model.forward(&pack(&rows)).unwrap().index_select(0, &places);
        // A third of the positions use the whole vocabulary, one its target only, the others a
        // subset.
        let (mut ids, mut ends, mut away) = (Vec::new(), Vec::new(), Vec::new());
        for (index, target) in (0_i64..).zip(Vec::<i64>::try_from(&targets).unwrap()) {
            let kept = |id: i64| index % 3 == 0 || id == target || (index != 1 && (id * 7 + index) % 5 < index % 4);
            ids.extend((0..53).filter(|&id| index % 3 != 0 && kept(id)));
            ends.push(ids.len() as i64);
            away.extend((0..53).map(|id| !kept(id)));
        }
        let support = (Tensor::from_slice(&ids), Tensor::from_slice(&ends));
        let mixed = |logp: &Tensor, entropy: &Tensor| {
            let weights = Tensor::arange(logp.size()[0], (logp.kind(), logp.device())).cos();
            (logp * &weights).mean(None) + (entropy * weights.square()).mean(None) * 0.3
        };
        let logits = model.logits(&hidden()).unwrap() / 0.8;
        let log_all = logits.masked_fill(&Tensor::from_slice(&away).view([-1, 53]), -1e30).log_softmax(-1, None);
        let logp = log_all.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1);
        let entropy = -(log_all.exp() * &log_all).sum_dim_intlist(-1, false, None);
        let expected = gradients(&model, &mixed(&logp, &entropy));
        for chunk in [7, 4096] {
            let (actual, spread) = model.logprobs_among(&hidden(), &targets, Some(&support), 0.8, chunk).unwrap();
            assert!(distance(&actual, &logp) < close && distance(&spread, &entropy) < close);
            assert!(actual.double_value(&[1]).abs() < 1e-6 && spread.double_value(&[1]).abs() < 1e-6);
            for ((name, actual), (_, expected)) in gradients(&model, &mixed(&actual, &spread)).iter().zip(&expected) {
                assert!(relative(actual, expected) < close, "{name} by {}", relative(actual, expected));
            }
        }
        let refused = |ids: &[i64], ends: &[i64], why: &str| {
            let support = (Tensor::from_slice(ids), Tensor::from_slice(ends));
            let one = Tensor::from_slice(&[5_i64]);
            let error = model.logprobs_among(&hidden().narrow(0, 0, 1), &one, Some(&support), 0.8, 4).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        };
        refused(&[4, 6], &[2], "target 5 is not in its support");
        refused(&[5, 53], &[2], "id 53 of a support is outside the vocabulary of 53");
        refused(&[5], &[1, 1], "the support is for 2 positions of 1");
        refused(&[5], &[2], "the support ends at 2");
    }
}

fn relative(a: &Tensor, b: &Tensor) -> f64 {
    distance(a, b) / b.abs().max().double_value(&[]).max(1e-3)
}

#[test]
fn native_forward_and_gradients_match_the_plain_operations() {
    // The last case has several chunks of rows of different sizes.
    let many: Vec<usize> = (0..60).map(|row| 20 + row * 37 % 90).chain([1, 900, 2]).collect();
    for (tied, lengths) in [(true, vec![5, 1, 17, 33]), (false, vec![130, 2, 64]), (true, many)] {
        let model = tiny(tied, Kind::Float);
        let rows = rows(&lengths, 53);
        let (native, plain) = (model.forward(&pack(&rows)).unwrap(), model.forward_plain(&pack(&rows)).unwrap());
        assert!(relative(&native, &plain) < 1e-5, "hidden states differ by {}", distance(&native, &plain));
        let expected = gradients(&model, &plain_loss(&model, &plain, &rows));
        for chunk in [37, 4096] {
            let actual = gradients(&model, &loss(&model, &native, &rows, chunk));
            for ((name, actual), (_, expected)) in actual.iter().zip(&expected) {
                assert!(relative(actual, expected) < 2e-5, "{name} by {}", relative(actual, expected));
            }
        }
    }
}

/// Groups of rows with a common prompt, some with longer common prefixes; a row that is a prefix of
/// others, equal rows, and a separate row.
fn family() -> Vec<Vec<u32>> {
    let mut rows = vec![ids(99, 30, 53)];
    for group in 0..3 {
        let prompt = [ids(1, 9, 53), ids(40 + group, 12 + 70 * group as usize, 53)].concat();
        let replies = [ids(5, 20, 53), ids(6, 33, 53), [ids(6, 17, 53), ids(8, 5, 53)].concat(), ids(5, 20, 53)];
        rows.extend(replies.iter().map(|reply| [&prompt[..], reply].concat()));
        rows.push([&prompt[..], &ids(6, 17, 53)].concat());
    }
    rows.push(rows[1][..13].to_vec());
    rows.swap(2, 9);
    rows
}

#[test]
fn native_prefix_dedup_equals_separate_rows() {
    let rows = family();
    for (kind, batch) in [
        ("rows", pack(&rows)),
        ("shifted rows", {
            // The same ids at other positions are not the same tokens.
            let mut batch = pack(&rows);
            let shift = Tensor::cat(
                &batch
                    .lengths
                    .iter()
                    .zip(0..)
                    .map(|(&n, row)| Tensor::full(n, row % 2, (Kind::Int64, tch::Device::Cpu)))
                    .collect::<Vec<_>>(),
                0,
            );
            batch.positions += shift;
            // The copy on the host has the former positions.
            batch.on_host = None;
            batch
        }),
    ] {
        let model = tiny(true, Kind::Float);
        let (native, plain) = (model.forward(&batch).unwrap(), model.forward_plain(&batch).unwrap());
        assert!(relative(&native, &plain) < 1e-5, "{kind} differ by {}", distance(&native, &plain));
        let expected = gradients(&model, &plain_loss(&model, &plain, &rows));
        for ((name, actual), (_, expected)) in
            gradients(&model, &loss(&model, &native, &rows, 64)).iter().zip(&expected)
        {
            assert!(relative(actual, expected) < 2e-5, "{kind}: {name} by {}", relative(actual, expected));
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    let model = tiny(false, Kind::Double);
    let rows = rows(&[4, 9, 1, 6], 53);
    let at = || loss(&model, &model.forward(&pack(&rows)).unwrap(), &rows, 5);
    let actual = gradients(&model, &at());
    let step = 1e-5;
    for (index, (name, parameter)) in model.parameters().into_iter().enumerate() {
        // Along one random direction per parameter.
        let ramp = Tensor::arange(parameter.numel() as i64, (Kind::Double, tch::Device::Cpu));
        let direction = (ramp * 1.3 + index as f64).sin().view_as(&parameter);
        let shifted = |by: f64| {
            let _guard = tch::no_grad_guard();
            let mut parameter = parameter.shallow_clone();
            let before = parameter.copy();
            let _ = parameter.g_add_(&(&direction * by));
            let value = at().double_value(&[]);
            parameter.copy_(&before);
            value
        };
        let slope = (shifted(step) - shifted(-step)) / (2.0 * step);
        let expected = (&actual[index].1 * &direction).sum(Kind::Double).double_value(&[]);
        assert!((slope - expected).abs() < 1e-6 * expected.abs().max(1.0), "{name}: {slope} is not {expected}");
    }
}

#[test]
fn native_steps_match_the_plain_operations() {
    let model = tiny(true, Kind::Float);
    let mut native = model.new_cache(40, 8).unwrap();
    let mut plain =
        KvCache::new(&model.config, 40, 8, Layout::Tokens { spare: 0 }, model.device(), model.kind()).unwrap();
    let mut lengths = [0; 40];
    // Prefill, batched decode (each thread computes its own sequences), a mixture, a single
    // sequence.
    for round in 0..6 {
        let spans: Vec<(usize, Vec<u32>)> = (0..40)
            .filter(|slot| round < 4 || slot % 7 == round)
            .map(|slot| (slot, ids((slot + 50 * round) as u64, [1 + slot * 3, 1, 1, 1 + slot % 5, 1, 100][round], 53)))
            .collect();
        let items: Vec<Span<'_>> =
            spans.iter().map(|(slot, ids)| Span { slot: *slot, start: lengths[*slot], ids }).collect();
        let actual = model.step(&mut native, &items).unwrap();
        plain.reserve(260).unwrap();
        let expected = tch::no_grad(|| model.step_plain(&mut plain, &items, &|| false)).unwrap().unwrap();
        assert!(relative(&actual, &expected) < 1e-5, "round {round} differs by {}", distance(&actual, &expected));
        for (slot, ids) in &spans {
            lengths[*slot] += ids.len();
        }
    }
}

#[test]
fn native_kernels_use_changed_weights() {
    let model = tiny(true, Kind::Float);
    let rows = rows(&[9, 4], 53);
    for (_, parameter) in model.parameters() {
        let _ = tch::no_grad(|| parameter.shallow_clone().g_mul_scalar_(1.01));
        let (native, plain) = (model.forward(&pack(&rows)).unwrap(), model.forward_plain(&pack(&rows)).unwrap());
        assert!(relative(&native, &plain) < 1e-5);
    }
    let hidden = model.forward(&pack(&rows)).unwrap();
    let loss = loss(&model, &hidden, &rows, 8);
    let _ = tch::no_grad(|| model.parameters()[3].1.shallow_clone().g_mul_scalar_(1.01));
    let leaves: Vec<Tensor> = model.parameters().into_iter().map(|(_, leaf)| leaf).collect();
    let error = Tensor::f_run_backward(&[loss], &leaves, false, false).unwrap_err().to_string();
    assert!(error.contains("weights changed between forward and backward"), "{error}");
}

/// The packed copy of the weights is invalidated by libtorch's version counters, after any change
/// of a weight and after an optimiser step.
#[test]
fn changed_weights_have_a_new_version() {
    let model = tiny(true, Kind::Float);
    let rows = rows(&[9, 4], 53);
    let seen = |what: &str| {
        let (native, plain) = (model.forward(&pack(&rows)).unwrap(), model.forward_plain(&pack(&rows)).unwrap());
        assert!(relative(&native, &plain) < 1e-5, "{what}: the kernels compute with old weights");
    };
    seen("before");
    let _ = tch::no_grad(|| model.parameters()[2].1.view(-1).get(7).g_add_scalar_(0.5));
    seen("one number");
    let mut optimizer = AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
    loss(&model, &model.forward(&pack(&rows)).unwrap(), &rows, 8).backward();
    let versions = || model.parameters().iter().map(|(_, weight)| weight.internal_version()).collect::<Vec<_>>();
    let before = versions();
    optimizer.step(1e-2, 0.0).unwrap();
    assert!(versions().iter().zip(&before).all(|(now, before)| now > before), "{before:?} {:?}", versions());
    seen("a step of the optimiser");
}

#[test]
fn invalid_native_batches_are_refused() {
    let model = tiny(true, Kind::Float);
    let mut batch = pack(&rows(&[4, 3], 53));
    batch.lengths = vec![4, 4];
    assert!(model.forward(&batch).unwrap_err().message.contains("different numbers of tokens"));
    assert!(model.forward(&pack(&[vec![53]])).unwrap_err().message.contains("outside the vocabulary"));
    let hidden = Tensor::zeros([2, 24], (Kind::Float, tch::Device::Cpu));
    assert!(model.logprobs(&hidden, &Tensor::from_slice(&[1i64, 53]), 1.0, 4).is_err());
    assert!(model.logprobs(&hidden, &Tensor::from_slice(&[1i64]), 1.0, 4).is_err());
    assert!(model.logprobs(&hidden, &Tensor::from_slice(&[1i64, 2]), 0.0, 4).is_err());
    assert_eq!(model.forward(&pack(&[])).unwrap().size(), [0, 24]);
}

/// The other tests run with the best instruction set of the processor. This one runs them again in
/// processes that are limited to the lower ones.
#[test]
fn the_kernels_of_lower_instruction_sets_pass_the_same_tests() {
    let sets = ["base", "avx2", "avx512", "avx512bf16"];
    let level = |name: &str| sets.iter().position(|set| *set == name);
    let selected = level(native::kernels()).expect("a known instruction set");
    if let Ok(limit) = std::env::var("R1_KERNELS") {
        assert!(level(&limit).is_none_or(|limit| selected <= limit));
        return;
    }
    for set in &sets[..selected] {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--test-threads", "1", "model::tests::native::", "model::tests::half::"])
            .env("R1_KERNELS", set)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && printed.contains(" 0 failed"), "{set}: {printed}");
    }
}
