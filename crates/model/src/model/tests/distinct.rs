//! Shared prefixes are computed once in the plain operations without a change of results: every
//! family, type and kind of attention, adapters, checkpointing.

use tch::{Kind, Tensor};

use super::families::{WAYS, cases};
use super::{distance, ids, pack, predicting, rows, tiny};
use crate::model::shared_prefix::PrefixDedup;
use crate::model::{LoraConfig, Model};
use crate::native;

/// Two groups of responses to one prompt, some of which branch from the middle of another, and a
/// separate row.
fn alike(vocab: u64) -> Vec<Vec<u32>> {
    let prompts = rows(&[9, 6], vocab);
    let mut all: Vec<Vec<u32>> = (0..4).map(|n| [prompts[0].clone(), ids(20 + n, 3, vocab)].concat()).collect();
    all.push([all[0].clone(), ids(31, 4, vocab)].concat());
    all.push(ids(33, 5, vocab));
    all.extend((0..3).map(|n| [prompts[1].clone(), ids(40 + n, 1 + n as usize, vocab)].concat()));
    all
}

/// Hidden states of the rows and gradients of a loss over all of them: in one batch, or one by one.
fn learn(model: &Model, rows: &[Vec<u32>], plain: bool, together: bool) -> (Tensor, Vec<(String, Tensor)>) {
    for (_, mut parameter) in model.parameters() {
        parameter.zero_grad();
    }
    let batches: Vec<&[Vec<u32>]> = if together { vec![rows] } else { rows.chunks(1).collect() };
    let mut all = Vec::new();
    for batch in batches {
        let (places, targets) = predicting(batch);
        let loss = |hidden: &Tensor| {
            let (logp, _) = model.logprobs(&hidden.index_select(0, &places), &targets, 1.0, 64).unwrap();
            (logp * (targets.to_kind(model.kind()) * 0.3).sin()).sum(None)
        };
        if plain {
            let hidden = model.forward_plain(&pack(batch)).unwrap();
            loss(&hidden).backward();
            all.push(hidden.detach());
        } else {
            let pass = model.learn(&pack(batch)).unwrap();
            let loss = loss(pass.hidden());
            all.push(pass.hidden().detach());
            pass.backward(&loss).unwrap();
        }
    }
    let wanted = model.parameters().into_iter().filter(|(_, tensor)| tensor.grad().defined());
    (Tensor::cat(&all, 0), wanted.map(|(name, tensor)| (name, tensor.grad().copy())).collect())
}

fn same(model: &Model, rows: &[Vec<u32>], plain: bool, tolerance: f64, what: &str) {
    let (apart, expected) = learn(model, rows, plain, false);
    let (together, actual) = learn(model, rows, plain, true);
    assert!(distance(&together, &apart) < tolerance, "{what}: rows differ by {}", distance(&together, &apart));
    assert!(!actual.is_empty() && expected.len() == actual.len(), "{what}");
    for ((name, expected), (_, actual)) in expected.iter().zip(&actual) {
        let size = expected.abs().max().double_value(&[]).max(1.0);
        let off = distance(actual, expected) / size;
        assert!(off < tolerance, "{what}: {name} differs by {off}");
    }
}

#[test]
fn distinct_tokens_have_distinct_prefixes() {
    let round_trip = |rows: &[&[u32]]| {
        let rows: Vec<Vec<u32>> = rows.iter().map(|row| row.to_vec()).collect();
        let distinct = PrefixDedup::find(&pack(&rows)).unwrap()?;
        let positions = Tensor::arange(rows.concat().len() as i64, (Kind::Int64, tch::Device::Cpu));
        let first = distinct.take(&positions).unwrap();
        let back = distinct.spread(&first).unwrap();
        Some((Vec::<i64>::try_from(first).unwrap(), Vec::<i64>::try_from(back).unwrap()))
    };
    // The 3 of the second row follows another token; the last row equals the first.
    let (first, back) = round_trip(&[&[1, 2, 3], &[1, 4, 3], &[1, 2, 3]]).unwrap();
    assert_eq!(first, [0, 1, 2, 4, 5]);
    assert_eq!(back, [0, 1, 2, 0, 4, 5, 0, 1, 2]);
    assert!(round_trip(&[&[1, 2, 3]]).is_none() && round_trip(&[&[1, 2], &[2, 1]]).is_none());
    // Saving a fifth is below the threshold, saving a quarter is not.
    assert!(round_trip(&[&[1, 2, 3, 4, 5], &[1, 2, 6, 7, 8]]).is_none());
    assert!(round_trip(&[&[1, 2, 3, 4], &[1, 2, 5, 6]]).is_some());
}

#[test]
fn prefix_dedup_in_f64_gives_equal_results() {
    let rows = alike(53);
    assert!(PrefixDedup::find(&pack(&rows)).unwrap().is_some());
    for tied in [true, false] {
        let mut model = tiny(tied, Kind::Double);
        same(&model, &rows, false, 1e-12, "kept");
        model.set_checkpointing(true);
        same(&model, &rows, false, 1e-12, "computed again");
        model.varlen = true;
        same(&model, &rows, false, 1e-12, "end to end");
    }
}

#[test]
fn prefix_dedup_works_for_every_family() {
    native::set_threads(1);
    for case in cases("golden") {
        let model = case.model();
        let rows = alike(model.config.vocab_size as u64).split_off(5);
        same(&model, &rows, true, 4.0 * WAYS, &case.name);
    }
}

#[test]
fn prefix_dedup_works_with_lora_and_bf16() {
    let rows = alike(53);
    for (kind, tolerance) in [(Kind::Double, 1e-12), (Kind::Float, 1e-4)] {
        let mut model = tiny(true, kind);
        model.add_adapter(LoraConfig::new(2, 4.0, &["q_proj", "v_proj", "down_proj"]), 3).unwrap();
        tch::no_grad(|| {
            for (name, mut tensor) in model.parameters() {
                if name.contains("lora_B") {
                    let _ = tensor.fill_(0.1);
                }
            }
        });
        same(&model, &rows, false, tolerance, &format!("{kind:?}"));
    }
    same(&tiny(true, Kind::BFloat16), &rows, false, 0.1, "bf16");
}
