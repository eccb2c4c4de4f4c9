//! Tests of packing rows.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::super::tests::{step, trajectory};
use super::*;

#[test]
fn prompts_that_extend_merge_and_others_start_a_row() {
    let steps = vec![step(&[1, 2], &[3, 4]), step(&[1, 2, 3, 4, 5], &[6]), step(&[1, 9], &[7])];
    let rows = merge(&trajectory(steps), 4).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6]);
    assert_eq!(rows[0].loss_mask, [false, false, true, true, false, true]);
    assert_eq!(rows[0].logprobs, [0.0, 0.0, -3.0, -4.0, 0.0, -6.0]);
    assert_eq!(rows[0].steps, [0, 0, 0, 0, 1, 1]);
    assert_eq!((&rows[1].ids, &rows[1].steps, rows[1].trajectory), (&vec![1, 9, 7], &vec![2; 3], 4));
    let mut fork = trajectory(vec![step(&[1, 2], &[3, 4]), step(&[1, 2, 3, 4, 5], &[6]), step(&[1, 9], &[])]);
    assert_eq!(separate_tokens(&fork), 10, "a step without a response is not trained on");
    fork.fork = Some(crate::mdp::Fork { parent: "0-0-1".to_owned(), step: 1 });
    assert_eq!(separate_tokens(&fork), 6);
}

#[test]
fn the_sampling_support_of_a_token_moves_with_it() {
    let among = |sets: &[&[u32]]| {
        let mut support = Support::default();
        for ids in sets {
            support.push(ids);
        }
        support
    };
    let mut steps = vec![step(&[1, 2], &[3]), step(&[1, 2, 3, 4], &[5, 6]), step(&[1, 2, 3, 4, 5, 6], &[7])];
    steps[1].support = among(&[&[2, 5, 9], &[6]]);
    let mut all = trajectory(steps);
    let rows = merge(&all, 0).unwrap();
    let sets: Vec<&[u32]> = (0..rows[0].len()).map(|index| rows[0].support.of(index)).collect();
    assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(sets, [&[][..], &[], &[], &[], &[2, 5, 9], &[6], &[]]);
    let batch = MicroBatch::new(&rows, &[0], 1 << 20, Device::Cpu).unwrap();
    let (ids, ends) = batch.support.unwrap();
    assert_eq!(Vec::<i64>::try_from(&ids).unwrap(), [2, 5, 9, 6]);
    assert_eq!(Vec::<i64>::try_from(&ends).unwrap(), [0, 3, 4, 4]);
    all.steps[1].support = among(&[&[2, 5, 9], &[7]]);
    let error = merge(&all, 0).unwrap_err();
    assert_eq!(error.message, "a step sampled token 6, which is not among those it was drawn from");
    let whole = merge(&trajectory(vec![step(&[1], &[2])]), 0).unwrap();
    assert!(MicroBatch::new(&whole, &[0], 1 << 20, Device::Cpu).unwrap().support.is_none());
}

#[test]
fn a_prompt_that_cuts_the_reply_starts_a_row() {
    let rows = merge(&trajectory(vec![step(&[1], &[2, 3]), step(&[1, 2], &[4])]), 0).unwrap();
    assert_eq!(rows.iter().map(Row::len).collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn rows_without_samples_are_left_out_and_bad_steps_are_errors() {
    assert!(merge(&trajectory(vec![step(&[1, 2], &[])]), 0).unwrap().is_empty());
    assert!(merge(&trajectory(vec![]), 0).unwrap().is_empty());
    let mut bad = trajectory(vec![step(&[1], &[2])]);
    bad.steps[0].logprobs.clear();
    let error = merge(&bad, 0).unwrap_err();
    assert_eq!(error.to_string(), "a step has 0 log-probabilities for 1 sampled tokens\n  --> trajectory 0-0-0 step 0");
    assert!(merge(&trajectory(vec![step(&[], &[2])]), 0).is_err());
}

#[test]
fn predict_points_at_the_token_before_each_sampled_one() {
    let mut rows =
        merge(&trajectory(vec![step(&[1, 2], &[3]), step(&[1, 2, 3, 5], &[6]), step(&[8], &[9])]), 2).unwrap();
    rows[0].logp_ref = vec![0.0, 0.0, 1.0, 0.0, 2.0];
    rows[1].logp_ref = vec![0.0, 3.0];
    for row in &mut rows {
        row.advantages = row.steps.iter().map(|&step| f64::from(step)).collect();
    }
    let batch = MicroBatch::new(&rows, &[0, 1], 1 << 20, Device::Cpu).unwrap();
    let integers = |tensor: &Tensor| Vec::<i64>::try_from(tensor).unwrap();
    assert_eq!(integers(&batch.ids), [1, 2, 3, 5, 6, 8, 9]);
    assert_eq!(integers(&batch.positions), [0, 1, 2, 3, 4, 0, 1]);
    assert_eq!(batch.lengths, [5, 2]);
    assert_eq!(integers(&batch.predict), [1, 3, 5]);
    assert_eq!(integers(&batch.targets), [3, 6, 9]);
    assert_eq!(integers(&batch.sequence), [2, 2, 2]);
    assert_eq!(Vec::<f32>::try_from(&batch.logp_old).unwrap(), [-3.0, -6.0, -9.0]);
    assert_eq!(Vec::<f32>::try_from(&batch.advantages).unwrap(), [0.0, 1.0, 2.0]);
    assert_eq!(integers(&batch.step), [0, 1, 2]);
    assert_eq!(batch.sampled(), 3);
    assert_eq!(batch.tokens, [(0, 2), (0, 4), (1, 1)]);
    let column = batch.column(&rows, |row| &row.logp_ref).unwrap().unwrap();
    assert_eq!(Vec::<f32>::try_from(&column).unwrap(), [1.0, 2.0, 3.0]);
    assert!(batch.column(&rows, |row| &row.values).unwrap().is_none());
}

#[test]
fn advantages_of_steps_reach_their_tokens() {
    let trajectory = trajectory(vec![step(&[1], &[2, 3]), step(&[1, 2, 3, 5], &[6]), step(&[8], &[9])]);
    let mut rows = merge(&trajectory, 4).unwrap();
    let steps = StepRow::of(&trajectory, 4);
    let advantages = Advantages {
        advantages: vec![vec![1.0, 2.0], vec![3.0]],
        returns: vec![vec![4.0, 0.0], vec![5.0]],
        targets: vec![vec![true, false], vec![true]],
        counted: vec![true; 2],
        skipped: None,
    };
    put_advantages(&mut rows, &steps[..2], &advantages);
    assert_eq!(rows[0].advantages, [0.0, 1.0, 2.0, 0.0, 3.0]);
    assert_eq!((rows[1].advantages.clone(), rows[1].returns.len()), (vec![0.0, 0.0], 0));
    assert!(rows[0].has_gradient() && !rows[1].has_gradient());
    let batch = MicroBatch::new(&rows, &[0, 1], 1 << 20, Device::Cpu).unwrap();
    assert_eq!(Vec::<f32>::try_from(&batch.advantages).unwrap(), [1.0, 2.0, 3.0, 0.0]);
    rows[0].values = vec![0.5; 5];
    put_advantages(&mut rows, &steps[..2], &advantages);
    assert_eq!(rows[0].returns, [0.0, 4.0, 0.0, 0.0, 5.0]);
    assert_eq!(rows[0].targets, [false, true, false, false, true]);
}

fn row_of(id: u32, length: usize) -> Row {
    let mut row = Row::new(0);
    row.push(&vec![id; length], None, &Support::default(), 0);
    row
}

#[test]
fn rows_with_a_common_prefix_share_a_micro_batch() {
    // Three groups of four, in turn; the second is so long that it needs two micro-batches.
    let row = |i: u32| {
        let (group, id) = (i % 3, i / 3);
        let mut row = row_of(100 + group, if group == 1 { 8 } else { 4 });
        row.push(&vec![id; if group == 1 { 2 } else { 1 }], None, &Support::default(), 0);
        row
    };
    let rows: Vec<Row> = (0..12).map(row).collect();
    assert_eq!(micro_batches(&rows, 20, 1), [vec![0, 3, 6, 9], vec![1, 4], vec![2, 5, 8, 11], vec![7, 10]]);
    // A branch stays with its parent, although another row is between them.
    let mut rows = vec![row_of(1, 6), row_of(2, 6), row_of(1, 4)];
    rows[2].push(&[9, 9, 9], None, &Support::default(), 0);
    assert_eq!(micro_batches(&rows, 13, 1), [vec![0, 2], vec![1]]);
    // Rows with a short common prefix are put into the emptiest micro-batch.
    let mut rows: Vec<Row> = (0..4).map(|_| row_of(7, 1)).collect();
    for (id, row) in (1..).zip(&mut rows) {
        row.push(&vec![id; [9, 9, 5, 5][id as usize - 1]], None, &Support::default(), 0);
    }
    assert_eq!(micro_batches(&rows, 16, 1), [vec![0, 2], vec![1, 3]]);
}

/// Rows that differ in an image are in an order that does not depend on its number.
#[test]
fn micro_batches_do_not_depend_on_the_numbers_of_images() {
    let rows = |numbers: [u32; 4]| -> Vec<Row> {
        let row = |number: u32| {
            let mut row = row_of(7, 2);
            row.push(&[image_id(number); 4], None, &Support::default(), 0);
            row
        };
        numbers.map(row).into()
    };
    let split = |numbers| micro_batches(&rows(numbers), 12, 1);
    assert_eq!(split([0, 1, 2, 3]), [vec![0, 1], vec![2, 3]]);
    assert_eq!(split([3, 1, 0, 2]), split([0, 1, 2, 3]));
}

/// As many micro-batches for each shard, if there are enough rows, and about as many tokens.
#[test]
fn micro_batches_are_a_multiple_of_the_shards() {
    let rows: Vec<Row> = (0..11).map(|id| row_of(id, 4 + id as usize % 3)).collect();
    let loads = |tokens, shards| -> Vec<usize> {
        let load = |batch: &Vec<usize>| batch.iter().map(|&i| rows[i].len()).sum();
        micro_batches(&rows, tokens, shards).iter().map(load).collect()
    };
    assert_eq!(loads(1000, 4), [15, 11, 14, 14]);
    assert_eq!(loads(12, 4).len(), 8);
    assert_eq!(micro_batches(&rows[..2], 1000, 4).len(), 2);
}

#[test]
fn the_split_is_balanced() {
    let lengths = [5, 5, 5, 5, 20, 3];
    let rows: Vec<Row> = (0..).zip(lengths).map(|(id, length)| row_of(id, length)).collect();
    assert_eq!(micro_batches(&rows, 12, 1), [vec![4], vec![0, 3], vec![1, 5], vec![2]]);
    assert_eq!(micro_batches(&rows, 1000, 1), [vec![0, 1, 2, 3, 4, 5]]);
    assert!(micro_batches::<Row>(&[], 12, 1).is_empty());
}

proptest! {
    #[test]
    fn micro_batches_contain_every_row_once_within_the_budget(
        made in prop::collection::vec((0..9_u32, 1..50_usize), 0..60), tokens in 0..120_usize,
    ) {
        let rows: Vec<Row> = made.iter().map(|&(id, length)| row_of(id, length)).collect();
        let lengths: Vec<usize> = rows.iter().map(Row::len).collect();
        let batches = micro_batches(&rows, tokens, 1);
        let mut seen: Vec<usize> = batches.concat();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..rows.len()).collect::<Vec<_>>());
        for batch in &batches {
            let load: usize = batch.iter().map(|&i| lengths[i]).sum();
            prop_assert!(load <= tokens || batch.len() == 1);
        }
    }
}
