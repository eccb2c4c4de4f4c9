//! Agreement of packed, batched and cached computation.

use tch::{Kind, Tensor};

use super::{distance, ids, pack, rows, tiny};
use crate::model::{Model, Span};

const LENGTHS: [usize; 6] = [5, 1, 17, 16, 33, 5];

#[test]
fn packed_rows_equal_separate_rows() {
    let model = tiny(true, Kind::Float);
    let rows = rows(&LENGTHS, 53);
    let all = model.forward(&pack(&rows)).unwrap();
    let alone: Vec<Tensor> = rows.iter().map(|row| model.forward(&pack(std::slice::from_ref(row))).unwrap()).collect();
    assert!(distance(&all, &Tensor::cat(&alone, 0)) < 1e-5);
}

#[test]
fn forward_is_deterministic() {
    let model = tiny(false, Kind::Float);
    let rows = rows(&[70, 3, 40, 65, 9], 53);
    let run = || {
        let hidden = model.forward(&pack(&rows)).unwrap();
        let targets = Tensor::arange(hidden.size()[0], (Kind::Int64, tch::Device::Cpu)).remainder(53);
        let (logp, entropy) = model.logprobs(&hidden, &targets, 0.8, 50).unwrap();
        let (_, leaves): (Vec<String>, Vec<Tensor>) = model.parameters().into_iter().unzip();
        let mut all = Tensor::run_backward(&[(&logp + &entropy * 0.1).sum(Kind::Float)], &leaves, false, false);
        all.push(logp);
        all
    };
    let first = run();
    for _ in 0..3 {
        assert!(first.iter().zip(run()).all(|(a, b)| a.equal(&b)));
    }
}

fn last_logits(model: &Model, rows: &[Vec<u32>]) -> Tensor {
    let hidden = model.forward(&pack(rows)).unwrap();
    let ends: Vec<i64> = rows
        .iter()
        .scan(0, |end, row| {
            *end += row.len() as i64;
            Some(*end - 1)
        })
        .collect();
    model.logits(&hidden.index_select(0, &Tensor::from_slice(&ends))).unwrap()
}

#[test]
fn cached_steps_equal_a_full_forward() {
    for tied in [true, false] {
        let model = tiny(tied, Kind::Float);
        let rows = rows(&LENGTHS, 53);
        let mut cache = model.new_cache(8, 4).unwrap();
        // Prefills a part of every row, then the rest in chunks of different sizes, with prefill
        // and decode in one call.
        let slot = |row: usize| (row * 5 + 1) % 8;
        let mut done = vec![0; rows.len()];
        let mut round = 0;
        let mut finished: Vec<Option<Tensor>> = (0..rows.len()).map(|_| None).collect();
        while done.iter().zip(&rows).any(|(done, row)| *done < row.len()) {
            let pieces: Vec<(usize, usize)> = (0..rows.len())
                .filter(|&row| done[row] < rows[row].len())
                .map(|row| (row, [3, 1, 9, 1, 1][(round + row) % 5].min(rows[row].len() - done[row])))
                .collect();
            let spans: Vec<Span<'_>> = pieces
                .iter()
                .map(|&(row, count)| Span {
                    slot: slot(row),
                    start: done[row],
                    ids: &rows[row][done[row]..done[row] + count],
                })
                .collect();
            let logits = model.step(&mut cache, &spans).unwrap();
            for (index, &(row, count)) in pieces.iter().enumerate() {
                done[row] += count;
                if done[row] == rows[row].len() {
                    finished[row] = Some(logits.get(index as i64));
                }
            }
            round += 1;
        }
        let stepped = Tensor::stack(&finished.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0);
        assert!(distance(&stepped, &last_logits(&model, &rows)) < 1e-5);
        assert!(cache.capacity() >= 33);
    }
}

#[test]
fn copied_cache_prefix_continues_as_the_original() {
    let model = tiny(true, Kind::Float);
    let prompt = ids(3, 20, 53);
    let mut cache = model.new_cache(3, 32).unwrap();
    let _ = model.step(&mut cache, &[Span { slot: 2, start: 0, ids: &prompt }]).unwrap();
    cache.copy_prefix(2, 0, 12).unwrap();
    let copied = model.step(&mut cache, &[Span { slot: 0, start: 12, ids: &prompt[12..] }]).unwrap();
    let whole = last_logits(&model, std::slice::from_ref(&prompt));
    assert!(distance(&copied, &whole) < 1e-5);
    assert!(cache.copy_prefix(0, 3, 1).is_err());
    assert!(cache.copy_prefix(0, 1, 1000).is_err());
}

#[test]
fn invalid_spans_are_refused() {
    let model = tiny(true, Kind::Float);
    let mut cache = model.new_cache(2, 8).unwrap();
    let one = Span { slot: 0, start: 0, ids: &[1] };
    for items in [
        vec![Span { slot: 2, ..one }],
        vec![Span { ids: &[], ..one }],
        vec![one, one],
        vec![Span { ids: &[53], ..one }],
    ] {
        assert!(model.step(&mut cache, &items).is_err());
    }
}

#[test]
fn logprobs_and_entropy_match_the_logits() {
    let model = tiny(false, Kind::Double);
    let hidden = model.forward(&pack(&rows(&[9, 4], 53))).unwrap();
    let targets = Tensor::from_slice(&[5i64, 1, 0, 52, 7, 7, 3, 9, 30, 2, 2, 51, 11]);
    let (logp, entropy) = model.logprobs(&hidden, &targets, 0.7, 5).unwrap();
    let log_all = (model.logits(&hidden).unwrap() / 0.7).log_softmax(-1, Kind::Double);
    assert_eq!((logp.kind(), entropy.kind()), (Kind::Double, Kind::Double));
    assert!(distance(&logp, &log_all.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1)) < 1e-5);
    assert!(distance(&entropy, &-(log_all.exp() * &log_all).sum_dim_intlist(-1, false, Kind::Double)) < 1e-5);
    let none = model.logprobs(&hidden.narrow(0, 0, 0), &targets.narrow(0, 0, 0), 1.0, 5).unwrap();
    assert_eq!(none.0.size(), [0]);
}
