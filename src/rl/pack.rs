//! Packing: the steps of a trajectory merged into rows, rows put into micro-batches, and the tensors of one.
//!
//! Consecutive steps whose prompts extend each other token by token become one row, so that an append-only environment
//! costs O(T) and not O(T^2); a rewritten context starts a new row. No padding and no tokenising: the ids are those that
//! the policy saw and sampled.

use std::collections::HashMap;

use tch::{Device, Tensor};

use super::aggregate::first_steps;
use super::rows::StepRow;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Routing, Step, Support, Trajectory};

/// One training sequence. All vectors have one entry per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub ids: Vec<u32>,
    /// True on sampled tokens, but for those of a fork's shared steps.
    pub loss_mask: Vec<bool>,
    /// Behaviour log-probability of each sampled token; 0 elsewhere.
    pub logprobs: Vec<f32>,
    /// The step that sampled the token, or whose prompt showed it first.
    pub steps: Vec<u32>,
    /// What sampled tokens were drawn from, where that is not everything.
    pub support: Support,
    /// The experts that its tokens were routed to, where that is recorded and the learner is to do the same.
    pub routing: Routing,
    /// The caller's number of the trajectory.
    pub trajectory: usize,
}

impl Row {
    fn new(trajectory: usize) -> Self {
        Self {
            ids: Vec::new(),
            loss_mask: Vec::new(),
            logprobs: Vec::new(),
            steps: Vec::new(),
            support: Support::default(),
            routing: Routing::default(),
            trajectory,
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// How many tokens the policy sampled.
    pub fn sampled(&self) -> usize {
        self.loss_mask.iter().filter(|sampled| **sampled).count()
    }

    fn push(&mut self, ids: &[u32], logprobs: Option<&[f32]>, support: &Support, step: usize) {
        self.support.append(self.ids.len(), ids.len(), support);
        self.ids.extend_from_slice(ids);
        self.loss_mask.resize(self.ids.len(), logprobs.is_some());
        match logprobs {
            Some(logprobs) => self.logprobs.extend_from_slice(logprobs),
            None => self.logprobs.resize(self.ids.len(), 0.0),
        }
        self.steps.resize(self.ids.len(), step as u32);
    }
}

/// The rows of one trajectory: a step whose prompt starts with all of the current row goes on in it, any other step
/// starts a new one. The steps that a fork shares with its parent are no more than context: its parent's rows have their
/// sampled tokens. Rows without a sampled token are left out.
///
/// # Errors
/// [`Kind::Internal`] if a step has no prompt (its first token could not be predicted), or a different number of ids and
/// log-probabilities.
pub fn merge(trajectory: &Trajectory, index: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut row = Row::new(index);
    for (step, transition) in trajectory.steps.iter().enumerate() {
        let problem = if transition.logprobs.len() != transition.response_ids.len() {
            Some(format!(
                "a step has {} log-probabilities for {} sampled tokens",
                transition.logprobs.len(),
                transition.response_ids.len()
            ))
        } else if transition.prompt_ids.is_empty() {
            Some("a step has an empty prompt".to_owned())
        } else {
            let told = |id| format!("a step sampled token {id}, which is not among those it was drawn from");
            outside(transition).map(told)
        };
        if let Some(problem) = problem {
            return Err(Error::new(Kind::Internal, problem).at(format!("trajectory {} step {step}", trajectory.id)));
        }
        let new = if let Some(new) = transition.prompt_ids.strip_prefix(row.ids.as_slice()) {
            new
        } else {
            rows.push(std::mem::replace(&mut row, Row::new(index)));
            transition.prompt_ids.as_slice()
        };
        row.push(new, None, &Support::default(), step);
        row.routing.extend(&transition.routing);
        // What a fork shares with its parent is learned from there, once.
        if step < trajectory.shared_steps() {
            row.push(&transition.response_ids, None, &Support::default(), step);
        } else {
            row.push(&transition.response_ids, Some(&transition.logprobs), &transition.support, step);
        }
    }
    rows.push(row);
    rows.retain(|row| row.sampled() > 0);
    Ok(rows)
}

/// Tokens that a trajectory's own steps would be, each a row with its whole prompt: what [`merge`] is compared with.
pub fn separate_tokens(trajectory: &Trajectory) -> usize {
    let own = trajectory.own_steps().iter().filter(|step| !step.response_ids.is_empty());
    own.map(|step| step.prompt_ids.len() + step.response_ids.len()).sum()
}

/// A token of the reply that is not in what it was drawn from.
fn outside(step: &Step) -> Option<u32> {
    let of = |place: usize| step.support.of(place);
    let odd = |(place, id): &(usize, &u32)| !of(*place).is_empty() && !of(*place).contains(id);
    step.response_ids.iter().enumerate().find(odd).map(|(_, id)| *id)
}

/// Advantages of step rows brought to packed rows: for every row a number per token, 0 where nothing was sampled.
/// `advantages` and `steps` are a batch's [`super::advantages::Advantages::advantages`] and rows; a step that is not among
/// them has 0. Tokens of a step are matched in order of sampling.
pub fn spread(rows: &[Row], steps: &[StepRow], advantages: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let key = |row: &StepRow| (row.trajectory as usize, row.step as u32);
    let places: HashMap<(usize, u32), usize> = steps.iter().enumerate().map(|(i, row)| (key(row), i)).collect();
    let of_row = |row: &Row| {
        let (mut values, mut seen) = (vec![0.0; row.len()], (u32::MAX, 0));
        for i in (0..row.len()).filter(|&i| row.loss_mask[i]) {
            seen = if seen.0 == row.steps[i] { (seen.0, seen.1 + 1) } else { (row.steps[i], 0) };
            let found = places.get(&(row.trajectory, row.steps[i])).and_then(|&place| {
                let sampled = advantages[place].iter().zip(&steps[place].mask).filter(|(_, sampled)| **sampled);
                sampled.map(|(value, _)| *value).nth(seen.1)
            });
            values[i] = found.unwrap_or(0.0);
        }
        values
    };
    rows.iter().map(of_row).collect()
}

/// Splits rows into micro-batches of at most `tokens` tokens (a longer row is alone), as few as that needs and about
/// equally full. Rows that begin alike, as the replies to one prompt and the branches of a trajectory do, stay together as
/// far as they fit: a model computes their beginning once. Each micro-batch lists places in `rows`, in ascending order. The
/// same rows always give the same split.
pub fn micro_batches(rows: &[Row], tokens: usize) -> Vec<Vec<usize>> {
    let bundles = bundles(rows, tokens);
    let size = |bundle: &Vec<usize>| bundle.iter().map(|&i| rows[i].len()).sum::<usize>();
    let total: usize = rows.iter().map(Row::len).sum();
    let fewest = total.div_ceil(tokens.max(1)).clamp(1, bundles.len().max(1));
    let mut loads = vec![0; fewest];
    let mut batches = vec![Vec::new(); fewest];
    // Largest first, each into the emptiest batch: the classic rule for equal loads.
    let mut order: Vec<(usize, Vec<usize>)> = bundles.into_iter().map(|bundle| (size(&bundle), bundle)).collect();
    order.sort_by_key(|(size, bundle)| (std::cmp::Reverse(*size), bundle.first().copied()));
    for (size, bundle) in order {
        let emptiest = (0..loads.len()).min_by_key(|&batch| (loads[batch], batch)).unwrap_or(0);
        let fits = loads[emptiest] == 0 || loads[emptiest] + size <= tokens;
        let batch = if fits { emptiest } else { loads.len() };
        if !fits {
            loads.push(0);
            batches.push(Vec::new());
        }
        loads[batch] += size;
        batches[batch].extend(bundle);
    }
    batches.retain(|batch| !batch.is_empty());
    for batch in &mut batches {
        batch.sort_unstable();
    }
    batches
}

/// Rows in bundles of at most `tokens` tokens, in each of which neighbours in alphabetical order have at least a quarter of
/// the shorter one in common.
fn bundles(rows: &[Row], tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| rows[a].ids.cmp(&rows[b].ids).then(a.cmp(&b)));
    let alike = |a: &Row, b: &Row| {
        let common = a.ids.iter().zip(&b.ids).take_while(|(a, b)| a == b).count();
        4 * common >= a.len().min(b.len())
    };
    let mut bundles: Vec<Vec<usize>> = Vec::new();
    let mut load = 0;
    for i in order {
        load += rows[i].len();
        match bundles.last_mut() {
            Some(bundle) if load <= tokens && bundle.last().is_some_and(|&last| alike(&rows[last], &rows[i])) => {
                bundle.push(i);
            }
            _ => {
                load = rows[i].len();
                bundles.push(vec![i]);
            }
        }
    }
    bundles
}

/// The tensors of one micro-batch: T tokens of packed rows, of which N are sampled.
#[derive(Debug)]
pub struct MicroBatch {
    /// `[T]` i64, rows one after the other.
    pub ids: Tensor,
    /// `[T]` i64, counted from 0 in each row.
    pub positions: Tensor,
    /// Row lengths; they add up to T.
    pub lengths: Vec<i64>,
    /// `[N]` i64: where in T the hidden state is that predicts each sampled token (the token before it).
    pub predict: Tensor,
    /// `[N]` i64: the sampled tokens.
    pub targets: Tensor,
    /// What they were drawn from, if not all from everything: ids, and `[N]` where those of each token end, i64 on the CPU.
    pub support: Option<(Tensor, Tensor)>,
    /// `[T, width]` i64: the experts that tokens were routed to, -1 where that is not recorded; none without a record.
    pub routing: Option<Tensor>,
    /// `[N]` f32: their behaviour log-probabilities.
    pub logp_old: Tensor,
    /// `[N]` f32: their advantages.
    pub advantages: Tensor,
    /// `[N]` i64: the trajectory of each.
    pub sequence: Tensor,
    /// `[N]` i64: the step of each, the steps of all trajectories of the mini-batch numbered one after the other.
    pub step: Tensor,
    /// Row and place in it of each sampled token.
    pub tokens: Vec<(usize, usize)>,
}

impl MicroBatch {
    /// Packs `rows[members]`. `advantage` gives the advantage of a sampled token from its row and its place in it:
    /// `|row, _| per_trajectory[row.trajectory]`, or by step `|row, i| per_step[row.trajectory][row.steps[i] as usize]`.
    pub fn new(
        rows: &[Row],
        members: &[usize],
        advantage: impl Fn(&Row, usize) -> f64,
        device: Device,
    ) -> Result<Self> {
        let one = |row: usize| -> Vec<f64> { (0..rows[row].len()).map(|i| advantage(&rows[row], i)).collect() };
        Self::build(rows, members, one, device)
    }

    /// Packs `rows[members]` with an advantage for every token of every row, as [`spread`] gives them.
    pub fn with_advantages(rows: &[Row], members: &[usize], advantages: &[Vec<f64>], device: Device) -> Result<Self> {
        Self::build(rows, members, |row| advantages[row].clone(), device)
    }

    fn build(
        rows: &[Row],
        members: &[usize],
        advantages_of: impl Fn(usize) -> Vec<f64>,
        device: Device,
    ) -> Result<Self> {
        let first_step = first_steps(rows);
        let total: usize = members.iter().map(|&i| rows[i].len()).sum();
        let (mut ids, mut positions) = (Vec::with_capacity(total), Vec::with_capacity(total));
        let mut lengths = Vec::with_capacity(members.len());
        let (mut predict, mut targets) = (Vec::new(), Vec::new());
        let (mut sequence, mut step) = (Vec::new(), Vec::new());
        let (mut logp_old, mut advantages) = (Vec::new(), Vec::new());
        let mut tokens = Vec::new();
        let (mut support, mut ends) = (Vec::new(), Vec::new());
        for &member in members {
            let (row, of_row) = (&rows[member], advantages_of(member));
            let start = ids.len() as i64;
            ids.extend(row.ids.iter().map(|&id| i64::from(id)));
            positions.extend(0..row.len() as i64);
            lengths.push(row.len() as i64);
            for i in (0..row.len()).filter(|&i| row.loss_mask[i]) {
                predict.push(start + i as i64 - 1);
                targets.push(i64::from(row.ids[i]));
                support.extend(row.support.of(i).iter().map(|&id| i64::from(id)));
                ends.push(support.len() as i64);
                sequence.push(row.trajectory as i64);
                logp_old.push(row.logprobs[i]);
                advantages.push(of_row[i] as f32);
                tokens.push((member, i));
                step.push((first_step[row.trajectory] + row.steps[i] as usize) as i64);
            }
        }
        let support = if support.is_empty() {
            None
        } else {
            Some((Tensor::f_from_slice(&support)?, Tensor::f_from_slice(&ends)?))
        };
        let integers = |data: &[i64]| -> Result<Tensor> { Ok(Tensor::f_from_slice(data)?.f_to_device(device)?) };
        let floats = |data: &[f32]| -> Result<Tensor> { Ok(Tensor::f_from_slice(data)?.f_to_device(device)?) };
        Ok(Self {
            ids: integers(&ids)?,
            positions: integers(&positions)?,
            lengths,
            predict: integers(&predict)?,
            targets: integers(&targets)?,
            support,
            routing: routing(rows, members)?.map(|experts| experts.f_to_device(device)).transpose()?,
            logp_old: floats(&logp_old)?,
            advantages: floats(&advantages)?,
            sequence: integers(&sequence)?,
            step: integers(&step)?,
            tokens,
        })
    }

    /// `[N]` f32: a number for each sampled token, from lists with one for every token of every row.
    pub fn column(&self, lists: &[Vec<f32>]) -> Result<Tensor> {
        let values: Vec<f32> = self.tokens.iter().map(|&(row, place)| lists[row][place]).collect();
        Ok(Tensor::f_from_slice(&values)?.f_to_device(self.targets.device())?)
    }

    /// N, the number of sampled tokens.
    pub fn sampled(&self) -> usize {
        self.targets.numel()
    }
}

/// The experts of the tokens of `rows[members]`, as [`MicroBatch::routing`].
fn routing(rows: &[Row], members: &[usize]) -> Result<Option<Tensor>> {
    let width = members.iter().map(|&member| rows[member].routing.width).max().unwrap_or(0) as usize;
    if width == 0 {
        return Ok(None);
    }
    let mut experts: Vec<i64> = Vec::new();
    for row in members.iter().map(|&member| &rows[member]) {
        for place in 0..row.len() {
            let known = |expert: &u16| if *expert == Routing::MISSING { -1 } else { i64::from(*expert) };
            let own = row.routing.of(place);
            experts.extend(own.iter().map(known));
            experts.extend(std::iter::repeat_n(-1, width - own.len()));
        }
    }
    Ok(Some(Tensor::f_from_slice(&experts)?.f_view([-1, width as i64])?))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(separate_tokens(&fork), 10, "nothing is learned from a step without a reply");
        fork.fork = Some(crate::mdp::Fork { parent: "0-0-1".to_owned(), step: 1 });
        assert_eq!(separate_tokens(&fork), 6);
    }

    #[test]
    fn what_tokens_were_drawn_from_goes_with_them() {
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
        let sets: Vec<&[u32]> = (0..rows[0].len()).map(|place| rows[0].support.of(place)).collect();
        assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sets, [&[][..], &[], &[], &[], &[2, 5, 9], &[6], &[]]);
        let batch = MicroBatch::new(&rows, &[0], |_, _| 0.0, Device::Cpu).unwrap();
        let (ids, ends) = batch.support.unwrap();
        assert_eq!(Vec::<i64>::try_from(&ids).unwrap(), [2, 5, 9, 6]);
        assert_eq!(Vec::<i64>::try_from(&ends).unwrap(), [0, 3, 4, 4]);
        all.steps[1].support = among(&[&[2, 5, 9], &[7]]);
        let error = merge(&all, 0).unwrap_err();
        assert_eq!(error.message, "a step sampled token 6, which is not among those it was drawn from");
        let whole = merge(&trajectory(vec![step(&[1], &[2])]), 0).unwrap();
        assert!(MicroBatch::new(&whole, &[0], |_, _| 0.0, Device::Cpu).unwrap().support.is_none());
    }

    #[test]
    fn a_prompt_that_cuts_the_reply_starts_a_row() {
        let rows = merge(&trajectory(vec![step(&[1], &[2, 3]), step(&[1, 2], &[4])]), 0).unwrap();
        assert_eq!(rows.iter().map(Row::len).collect::<Vec<_>>(), [3, 3]);
    }

    #[test]
    fn rows_without_samples_vanish_and_bad_steps_are_named() {
        assert!(merge(&trajectory(vec![step(&[1, 2], &[])]), 0).unwrap().is_empty());
        assert!(merge(&trajectory(vec![]), 0).unwrap().is_empty());
        let mut bad = trajectory(vec![step(&[1], &[2])]);
        bad.steps[0].logprobs.clear();
        let error = merge(&bad, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a step has 0 log-probabilities for 1 sampled tokens\n  --> trajectory 0-0-0 step 0"
        );
        assert!(merge(&trajectory(vec![step(&[], &[2])]), 0).is_err());
    }

    #[test]
    fn gather_indices_point_at_the_token_before() {
        let rows =
            merge(&trajectory(vec![step(&[1, 2], &[3]), step(&[1, 2, 3, 5], &[6]), step(&[8], &[9])]), 2).unwrap();
        let batch = MicroBatch::new(&rows, &[0, 1], |row, i| f64::from(row.steps[i]), Device::Cpu).unwrap();
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
        let lists = [vec![0.0, 0.0, 1.0, 0.0, 2.0], vec![0.0, 3.0]];
        assert_eq!(Vec::<f32>::try_from(&batch.column(&lists).unwrap()).unwrap(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn advantages_of_steps_reach_their_tokens() {
        let trajectory = trajectory(vec![step(&[1], &[2, 3]), step(&[1, 2, 3, 5], &[6]), step(&[8], &[9])]);
        let rows = merge(&trajectory, 4).unwrap();
        let steps = StepRow::of(&trajectory, 4);
        let spread = spread(&rows, &steps[..2], &[vec![1.0, 2.0], vec![3.0]]);
        assert_eq!(spread, [vec![0.0, 1.0, 2.0, 0.0, 3.0], vec![0.0, 0.0]]);
        let batch = MicroBatch::with_advantages(&rows, &[0, 1], &spread, Device::Cpu).unwrap();
        assert_eq!(Vec::<f32>::try_from(&batch.advantages).unwrap(), [1.0, 2.0, 3.0, 0.0]);
    }

    /// A row of one id.
    fn row_of(id: u32, length: usize) -> Row {
        let mut row = Row::new(0);
        row.push(&vec![id; length], None, &Support::default(), 0);
        row
    }

    #[test]
    fn rows_that_begin_alike_stay_together_as_far_as_they_fit() {
        // Three groups of four, dealt in turn; the second has so much that it takes two micro-batches.
        let row = |i: u32| {
            let (group, own) = (i % 3, i / 3);
            let mut row = row_of(100 + group, if group == 1 { 8 } else { 4 });
            row.push(&vec![own; if group == 1 { 2 } else { 1 }], None, &Support::default(), 0);
            row
        };
        let rows: Vec<Row> = (0..12).map(row).collect();
        assert_eq!(micro_batches(&rows, 20), [vec![0, 3, 6, 9], vec![1, 4], vec![2, 5, 8, 11], vec![7, 10]]);
        // A branch goes with what it left, although another row is between them in number.
        let mut rows = vec![row_of(1, 6), row_of(2, 6), row_of(1, 4)];
        rows[2].push(&[9, 9, 9], None, &Support::default(), 0);
        assert_eq!(micro_batches(&rows, 13), [vec![0, 2], vec![1]]);
        // What hardly anything is shared by goes where there is room.
        let mut rows: Vec<Row> = (0..4).map(|_| row_of(7, 1)).collect();
        for (own, row) in (1..).zip(&mut rows) {
            row.push(&vec![own; [9, 9, 5, 5][own as usize - 1]], None, &Support::default(), 0);
        }
        assert_eq!(micro_batches(&rows, 16), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn the_split_is_balanced() {
        let lengths = [5, 5, 5, 5, 20, 3];
        let rows: Vec<Row> = (0..).zip(lengths).map(|(id, length)| row_of(id, length)).collect();
        assert_eq!(micro_batches(&rows, 12), [vec![4], vec![0, 3], vec![1, 5], vec![2]]);
        assert_eq!(micro_batches(&rows, 1000), [vec![0, 1, 2, 3, 4, 5]]);
        assert!(micro_batches(&[], 12).is_empty());
    }

    proptest! {
        #[test]
        fn the_split_holds_every_row_once_within_the_budget(
            made in prop::collection::vec((0..9_u32, 1..50_usize), 0..60), tokens in 0..120_usize,
        ) {
            let rows: Vec<Row> = made.iter().map(|&(id, length)| row_of(id, length)).collect();
            let lengths: Vec<usize> = rows.iter().map(Row::len).collect();
            let batches = micro_batches(&rows, tokens);
            let mut seen: Vec<usize> = batches.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows.len()).collect::<Vec<_>>());
            for batch in &batches {
                let load: usize = batch.iter().map(|&i| lengths[i]).sum();
                prop_assert!(load <= tokens || batch.len() == 1);
            }
        }
    }
}
