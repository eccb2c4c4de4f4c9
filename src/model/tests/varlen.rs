//! Comparison of variable-length attention with padded attention. Plain operations replace the GPU
//! kernel.

use tch::{Kind, Tensor};

use super::families::{WAYS, cases};
use super::{distance, gradients, ids, pack, predicting};
use crate::model::cache::Layout;
use crate::model::{KvCache, Model, Span};
use crate::native;

type Step = fn(&Model, &mut KvCache, &[Span<'_>], &dyn Fn() -> bool) -> crate::error::Result<Option<Tensor>>;

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
        let ((padded, expected), (own, found)) = (learn(false), learn(true));
        assert!(distance(&own, &padded) < WAYS, "{}: rows differ by {}", case.name, distance(&own, &padded));
        for ((name, expected), (_, found)) in expected.iter().zip(&found).filter(|((_, own), _)| own.defined()) {
            assert!(distance(found, expected) < WAYS, "{}: {name} differs by {}", case.name, distance(found, expected));
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
        let (mut own, mut padded) = (new(1), new(0));
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
            let (found, expected) = (step(&mut own, Model::step_varlen), step(&mut padded, Model::step_plain));
            assert_eq!(found.size(), expected.size(), "{} round {round}", case.name);
            let worst = distance(&found, &expected);
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
