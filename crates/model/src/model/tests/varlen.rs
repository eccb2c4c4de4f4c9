//! Comparison of variable-length attention with padded attention. Plain operations replace the GPU
//! kernel.

use tch::{Kind, Tensor};

use super::families::{WAYS, cases};
use super::{distance, gradients, ids, pack, predicting};
use crate::model::cache::{Decoding, Layout};
use crate::model::network::Graphs;
use crate::model::{KvCache, Model, Span};
use crate::native;

type Step = fn(&Model, &mut KvCache, &[Span<'_>], &dyn Fn() -> bool) -> r1_base::error::Result<Option<Tensor>>;

#[test]
fn varlen_rows_and_gradients_match_padded_attention() {
    native::set_threads(1);
    for case in cases("golden") {
        let mut model = case.model();
        let rows = case.rows();
        let (places, targets) = predicting(&rows);
        let mut learn = |varlen: bool| {
            model.varlen = varlen;
            let hidden = model.forward_plain(&pack(&rows)).unwrap();
            let (logp, _) = model.logprobs(&hidden.index_select(0, &places), &targets, 1.0, 64).unwrap();
            (hidden.detach(), gradients(&model, &logp.mean(None)))
        };
        let ((padded, expected), (varlen_rows, actual)) = (learn(false), learn(true));
        assert!(
            distance(&varlen_rows, &padded) < WAYS,
            "{}: rows differ by {}",
            case.name,
            distance(&varlen_rows, &padded)
        );
        for ((name, expected), (_, actual)) in
            expected.iter().zip(&actual).filter(|((_, gradient), _)| gradient.defined())
        {
            assert!(
                distance(actual, expected) < WAYS,
                "{}: {name} differs by {}",
                case.name,
                distance(actual, expected)
            );
        }
    }
}

/// Prefill, decode of more and fewer sequences than recorded, a mixture; sequences that grow past
/// the capacity.
#[test]
fn varlen_steps_over_the_cache_match_padded_attention() {
    native::set_threads(1);
    for case in cases("golden") {
        let model = case.model();
        let vocab = model.config.vocab_size as u64;
        let new = |spare| {
            let layout = Layout::Tokens { spare };
            KvCache::new(&model.config, 11, 8, layout, model.device(), Kind::Float).unwrap()
        };
        let (mut varlen_cache, mut padded) = (new(1), new(0));
        let mut lengths = [0; 11];
        for round in 0..6 {
            let chosen = (0..11)
                .rev()
                .filter(|slot| [true, true, slot % 4 != 2, true, slot % 2 == 1, true][round] || *slot == 6);
            let spans: Vec<(usize, Vec<u32>)> = chosen
                .map(|slot| {
                    let count = [1 + slot, 1, 1, 1 + slot % 3, 1, 60][round];
                    (slot, ids((1 + slot + 50 * round) as u64, count, vocab))
                })
                .collect();
            let items: Vec<Span<'_>> =
                spans.iter().map(|(slot, ids)| Span { slot: *slot, start: lengths[*slot], ids }).collect();
            let longest = items.iter().map(|span| span.start + span.ids.len()).max().unwrap();
            let step = |cache: &mut KvCache, step: Step| {
                cache.reserve(longest).unwrap();
                tch::no_grad(|| step(&model, cache, &items, &|| false)).unwrap().unwrap()
            };
            let (actual, expected) =
                (step(&mut varlen_cache, Model::step_varlen), step(&mut padded, Model::step_plain));
            // Prompts in the same step do not keep decoding sequences from a graph.
            let single = items.iter().any(|span| span.ids.len() == 1);
            let wanted = match (single, model.config.experts) {
                (false, _) => Decoding::None,
                (true, None) if !model.has_dynamic_rope() => Decoding::Recordable,
                (true, _) => Decoding::Eager,
            };
            assert_eq!(varlen_cache.decoding(), wanted, "{} round {round}", case.name);
            assert_eq!(actual.size(), expected.size(), "{} round {round}", case.name);
            let worst = distance(&actual, &expected);
            assert!(worst < 2.0 * WAYS, "{} round {round}: logits differ by {worst}", case.name);
            for (slot, ids) in &spans {
                lengths[*slot] += ids.len();
            }
        }
    }
}

#[test]
fn varlen_cache_grows_and_copies() {
    let case = &cases("golden")[0];
    let model = case.model();
    let prompt = ids(3, 20, model.config.vocab_size as u64);
    let mut cache =
        KvCache::new(&model.config, 3, 8, Layout::Tokens { spare: 1 }, model.device(), Kind::Float).unwrap();
    let bytes = cache.bytes();
    let run = |cache: &mut KvCache, slot, start, ids: &[u32]| {
        tch::no_grad(|| model.step_varlen(cache, &[Span { slot, start, ids }], &|| false)).unwrap().unwrap()
    };
    let whole = run(&mut cache, 0, 0, &prompt);
    cache.copy_prefix(0, 2, 15).unwrap();
    cache.reserve(200).unwrap();
    assert_eq!(cache.bytes(), bytes / KvCache::GRAIN * cache.capacity());
    assert!(distance(&run(&mut cache, 2, 15, &prompt[15..]), &whole) < WAYS);
    assert!(distance(&run(&mut cache, 0, 19, &prompt[19..]), &whole) < WAYS);
}

#[test]
fn steps_are_eager_without_graphs_and_after_a_failed_recording() {
    let case = &cases("golden")[0];
    let mut model = case.model();
    let run = |model: &Model| {
        let layout = Layout::Tokens { spare: 1 };
        let mut cache = KvCache::new(&model.config, 3, 8, layout, model.device(), Kind::Float).unwrap();
        let items = [Span { slot: 0, start: 0, ids: &[5] }, Span { slot: 2, start: 0, ids: &[7, 9] }];
        let logits = tch::no_grad(|| model.step_varlen(&mut cache, &items, &|| false)).unwrap().unwrap();
        (logits, cache.decoding())
    };
    let (expected, decoding) = run(&model);
    assert_eq!(decoding, Decoding::Recordable);
    model.graphs.replace(Graphs::Failed("out of memory".to_owned()));
    let (actual, decoding) = run(&model);
    assert_eq!(decoding, Decoding::Eager);
    assert!(distance(&actual, &expected) < WAYS);
    model.set_graphs(false);
    assert_eq!(run(&model).1, Decoding::Eager);
    // On the CPU there is nothing to warn of.
    assert_eq!(model.graphs_failure(), None);
}

#[test]
fn all_sizes_of_a_step_are_recorded_with_the_first_one() {
    let case = &cases("golden")[0];
    let mut model = case.model();
    model.use_gpu_paths();
    model.stub_launches();
    let mut cache = model.new_cache(20, 8).unwrap();
    cache.set_next(&[(3, 5, 0), (7, 9, 0)]).unwrap();
    let greedy = |logits: &Tensor, _: &Tensor, _: &Tensor| {
        let ids = logits.f_argmax(1, true)?;
        Ok((Some(ids.shallow_clone()), vec![ids]))
    };
    let step = |cache: &mut KvCache, kind| {
        model.decode_ahead(cache, &[3, 7], kind, &greedy).unwrap();
        let sizes: Vec<(usize, u64)> = cache.prepared.iter().map(|it| (it.size, it.sampling)).collect();
        sizes
    };
    let mut sizes = step(&mut cache, 1);
    // The step that was launched is the last one.
    assert_eq!(sizes.last(), Some(&(2, 1)));
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 24].map(|size| (size, 1)));
    // Later, only the size that is needed.
    cache.recording = crate::model::decode::RECORDING;
    assert_eq!(step(&mut cache, 2).len(), 7);
    // Recording has changed no slot that is in use.
    let ids = model.decode_ahead(&mut cache, &[3, 7], 1, &greedy).unwrap().remove(0);
    assert_eq!(ids.size(), [2, 1]);
    let next = cache.next.get(0).index_select(0, &Tensor::from_slice(&[3_i64, 7]));
    assert_eq!(Vec::<i64>::try_from(next).unwrap(), [5, 9]);
}
