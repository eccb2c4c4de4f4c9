//! Packing: steps of a trajectory are merged into rows, and rows into micro-batches with their
//! tensors.
//!
//! Consecutive steps whose prompts extend each other token by token become one row, so that an
//! append-only environment costs O(T) and not O(T^2); a rewritten context starts a new row. There
//! is no padding and no tokenisation: the ids are the ids of the prompts and the sampled ids.

use std::borrow::Borrow;
use std::collections::HashMap;

use tch::{Device, Tensor};

use super::advantages::Advantages;
use super::aggregate::first_steps;
use super::rows::StepRow;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Routing, Step, Support, Trajectory, image_id, image_number};
use crate::native::upload;

/// One training sequence: a table with one row per token. Forward passes, losses and the critic
/// read it. Each field that is a list is a column with one entry per token. The columns from
/// `advantages` on are for an update (docs/lab/decisions/0005-one-table-of-tokens.md). They are 0
/// on tokens that the policy did not sample, and empty if they are not computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub ids: Vec<u32>,
    /// True on sampled tokens, except in a fork's shared steps.
    pub loss_mask: Vec<bool>,
    /// Log-probability of each sampled token under the sampler; 0 elsewhere.
    pub logprobs: Vec<f32>,
    /// The step that sampled the token, or whose prompt was the first to contain it.
    pub steps: Vec<u32>,
    /// The ids that sampled tokens were drawn from, if sampling was restricted.
    pub support: Support,
    /// The experts that its tokens were routed to, if they are recorded and replayed.
    pub routing: Routing,
    /// The caller's number of the trajectory.
    pub trajectory: usize,
    /// Its index among the rows of an update, which its parts in mini-batches keep.
    pub number: usize,
    /// The number of its group, for losses in Lua, which may compare groups.
    pub group: usize,
    pub advantages: Vec<f64>,
    /// Log-probability under the learner before the update, if it replaces the sampler's.
    pub logp_old: Vec<f32>,
    /// Log-probability under the reference policy.
    pub logp_ref: Vec<f32>,
    /// Off-policy weights.
    pub weights: Vec<f32>,
    /// Sum of squared probabilities over the vocabulary.
    pub sum_pi_squared: Vec<f32>,
    /// Total reward of the trajectory.
    pub rewards: Vec<f32>,
    /// The critic's value before the update.
    pub values: Vec<f32>,
    /// The critic's training targets, where `targets` is true.
    pub returns: Vec<f64>,
    pub targets: Vec<bool>,
}

impl Row {
    fn new(trajectory: usize) -> Self {
        Self { trajectory, ..Self::default() }
    }

    /// Whether a token has an advantage that is not 0.
    pub fn has_gradient(&self) -> bool {
        self.advantages.iter().any(|advantage| *advantage != 0.0)
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Number of tokens that the policy sampled.
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

/// The rows of one trajectory: a step whose prompt starts with all of the current row extends it;
/// any other step starts a new row. The steps that a fork shares with its parent are only context:
/// the rows of the parent have their sampled tokens. Rows without a sampled token are left out.
///
/// # Errors
/// [`Kind::Internal`] if a step has no prompt (its first token could not be predicted), or a
/// different number of ids and log-probabilities.
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
            let not_in_support = |id| format!("a step sampled token {id}, which is not among those it was drawn from");
            outside(transition).map(not_in_support)
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
        // Shared steps are trained in the rows of the parent, once.
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

/// The number of tokens if each of a trajectory's own steps were a row with its whole prompt, for
/// comparison with [`merge`].
pub fn separate_tokens(trajectory: &Trajectory) -> usize {
    let steps = trajectory.own_steps().iter().filter(|step| !step.response_ids.is_empty());
    steps.map(|step| step.prompt_ids.len() + step.response_ids.len()).sum()
}

/// A sampled token that is not in its support.
fn outside(step: &Step) -> Option<u32> {
    let of = |index: usize| step.support.of(index);
    let odd = |(index, id): &(usize, &u32)| !of(*index).is_empty() && !of(*index).contains(id);
    step.response_ids.iter().enumerate().find(odd).map(|(_, id)| *id)
}

/// Writes the advantages of steps into the rows that hold their tokens; for rows with a critic's
/// values also its targets. `advantages` are the advantages of `steps`; a step that is not in
/// `steps` has 0. The tokens of a step are matched in the order of sampling.
pub fn put_advantages(rows: &mut [Row], steps: &[StepRow], advantages: &Advantages) {
    let key = |row: &StepRow| (row.trajectory as usize, row.step as u32);
    let places: HashMap<(usize, u32), usize> = steps.iter().enumerate().map(|(i, row)| (key(row), i)).collect();
    for row in rows {
        row.advantages = vec![0.0; row.len()];
        let critic = !row.values.is_empty();
        if critic {
            (row.returns, row.targets) = (vec![0.0; row.len()], vec![false; row.len()]);
        }
        let mut seen = (u32::MAX, 0);
        for i in (0..row.len()).filter(|&i| row.loss_mask[i]) {
            seen = if seen.0 == row.steps[i] { (seen.0, seen.1 + 1) } else { (row.steps[i], 0) };
            let Some(&step) = places.get(&(row.trajectory, row.steps[i])) else { continue };
            let mut sampled = (0..steps[step].mask.len()).filter(|&k| steps[step].mask[k]);
            let Some(token) = sampled.nth(seen.1) else { continue };
            row.advantages[i] = advantages.advantages[step][token];
            if critic {
                row.returns[i] = advantages.returns[step][token];
                row.targets[i] = advantages.targets[step][token];
            }
        }
    }
}

/// Splits rows into micro-batches of at most `tokens` tokens (a longer row is alone), as few as
/// possible and about equally full. Rows with a common prefix, such as the responses to one prompt
/// and the branches of a trajectory, stay in the same micro-batch if they fit: a model computes
/// their prefix once. The number of micro-batches is a multiple of `shards`, if there are enough
/// rows. Each micro-batch lists indices of `rows`, in ascending order. The same rows always give
/// the same split.
pub fn micro_batches<R: Borrow<Row>>(rows: &[R], tokens: usize, shards: usize) -> Vec<Vec<usize>> {
    let rows: Vec<&Row> = rows.iter().map(Borrow::borrow).collect();
    let total: usize = rows.iter().map(|row| row.len()).sum();
    let bundles = bundles(&rows, tokens.min(total.div_ceil(shards)));
    let size = |bundle: &Vec<usize>| bundle.iter().map(|&i| rows[i].len()).sum::<usize>();
    let fewest = total.div_ceil(tokens.max(1)).next_multiple_of(shards).clamp(1, bundles.len().max(1));
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

/// Bundles of rows of at most `tokens` tokens. Within a bundle, neighbours in lexicographic order
/// share a prefix of at least a quarter of the shorter one.
fn bundles(rows: &[&Row], tokens: usize) -> Vec<Vec<usize>> {
    let ids = comparable_ids(rows);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| ids[a].cmp(&ids[b]).then(a.cmp(&b)));
    let alike = |a: &Row, b: &Row| {
        let common = a.ids.iter().zip(&b.ids).take_while(|(a, b)| a == b).count();
        4 * common >= a.len().min(b.len())
    };
    let mut bundles: Vec<Vec<usize>> = Vec::new();
    let mut load = 0;
    for i in order {
        load += rows[i].len();
        match bundles.last_mut() {
            Some(bundle) if load <= tokens && bundle.last().is_some_and(|&last| alike(rows[last], rows[i])) => {
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

/// The ids of rows, with images numbered in the order of the rows: processes of a run have other
/// numbers for the same images, and have to make the same micro-batches.
fn comparable_ids(rows: &[&Row]) -> Vec<Vec<u32>> {
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let mut comparable = |id: u32| {
        let Some(number) = image_number(id) else { return id };
        let next = numbers.len() as u32;
        image_id(*numbers.entry(number).or_insert(next))
    };
    rows.iter().map(|row| row.ids.iter().map(|&id| comparable(id)).collect()).collect()
}

/// The tensors of one micro-batch: T tokens of packed rows, of which N are sampled. The model reads
/// the tokens, the loss the sampled ones.
#[derive(Debug)]
pub struct MicroBatch {
    /// `[T]` i64, rows one after the other.
    pub ids: Tensor,
    /// `[T]` i64, counted from 0 in each row.
    pub positions: Tensor,
    /// Row lengths; they add up to T.
    pub lengths: Vec<i64>,
    /// `[N]` i64: the index in T of the hidden state that predicts each sampled token (the token
    /// before it).
    pub predict: Tensor,
    /// `[N]` i64: the sampled tokens.
    pub targets: Tensor,
    /// The support that they were drawn from, if sampling was restricted: ids, and `[N]` the end
    /// offset of each token's ids, i64 on the CPU.
    pub support: Option<(Tensor, Tensor)>,
    /// `[T, width]` i64: the experts that tokens were routed to, -1 for tokens without a record;
    /// `None` without any record.
    pub routing: Option<Tensor>,
    /// `[N]` f32: their behaviour log-probabilities.
    pub logp_old: Tensor,
    /// `[N]` f32: their advantages.
    pub advantages: Tensor,
    /// `[N]` i64: the trajectory of each.
    pub sequence: Tensor,
    /// `[N]` i64: the step of each, the steps of all trajectories of the mini-batch numbered one
    /// after the other.
    pub step: Tensor,
    /// `[N]` i64: the group of each.
    pub group: Tensor,
    /// The numbers in `sequence`, `step` and `group` are below it.
    pub sequences: i64,
    /// Row of each sampled token, and its position in the row.
    pub tokens: Vec<(usize, usize)>,
    /// `ids`, `positions` and `routing` on the host.
    pub on_host: [Vec<i64>; 3],
}

/// Refuses ids outside a vocabulary, and sampled tokens outside their support.
fn check_ids(row: &Row, vocab: usize) -> Result<()> {
    let supports = (0..row.len()).flat_map(|index| row.support.of(index));
    // The softmax over a support does not read targets that are on a GPU.
    let outside = |index: &usize| {
        let support = row.support.of(*index);
        row.loss_mask[*index] && !support.is_empty() && !support.contains(&row.ids[*index])
    };
    if let Some(index) = (0..row.len()).find(outside) {
        let message = format!("token {index} of a row is not in the set that it was drawn from");
        return Err(Error::new(Kind::Internal, message).at(format!("trajectory {}", row.trajectory)));
    }
    let Some(id) = row.ids.iter().chain(supports).find(|&&id| id as usize >= vocab && image_number(id).is_none())
    else {
        return Ok(());
    };
    let message = format!("token id {id} is outside the model's vocabulary of {vocab}");
    Err(Error::new(Kind::Model, message)
        .at(format!("trajectory {}", row.trajectory))
        .hint("the tokenizer belongs to another model"))
}

impl MicroBatch {
    /// Packs `rows[members]` for a model with a vocabulary of this size.
    ///
    /// # Errors
    /// [`Kind::Model`] for an id outside the vocabulary, with its trajectory. A GPU does not check
    /// ids, and cannot be used after an access out of bounds.
    pub fn new(rows: &[Row], members: &[usize], vocab: usize, device: Device) -> Result<Self> {
        for row in members.iter().map(|&member| &rows[member]) {
            check_ids(row, vocab)?;
        }
        let first_step = first_steps(rows);
        let total: usize = members.iter().map(|&i| rows[i].len()).sum();
        let (mut ids, mut positions) = (Vec::with_capacity(total), Vec::with_capacity(total));
        let mut lengths = Vec::with_capacity(members.len());
        let (mut predict, mut targets) = (Vec::new(), Vec::new());
        let (mut sequence, mut step, mut group) = (Vec::new(), Vec::new(), Vec::new());
        let (mut logp_old, mut advantages) = (Vec::new(), Vec::new());
        let mut tokens = Vec::new();
        let (mut support, mut ends) = (Vec::new(), Vec::new());
        for &member in members {
            let row = &rows[member];
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
                group.push(row.group as i64);
                logp_old.push(row.logprobs[i]);
                advantages.push(row.advantages.get(i).copied().unwrap_or(0.0) as f32);
                tokens.push((member, i));
                step.push((first_step[row.trajectory] + row.steps[i] as usize) as i64);
            }
        }
        let support = if support.is_empty() {
            None
        } else {
            Some((Tensor::f_from_slice(&support)?, Tensor::f_from_slice(&ends)?))
        };
        let integers = |data: &[i64]| -> Result<Tensor> { upload(&Tensor::f_from_slice(data)?, device) };
        let floats = |data: &[f32]| -> Result<Tensor> { upload(&Tensor::f_from_slice(data)?, device) };
        let routing = routing(rows, members)?;
        let routed = routing.as_ref().map(|experts| Vec::<i64>::try_from(experts.f_flatten(0, 1)?)).transpose()?;
        Ok(Self {
            ids: integers(&ids)?,
            positions: integers(&positions)?,
            lengths,
            predict: integers(&predict)?,
            targets: integers(&targets)?,
            support,
            routing: routing.map(|experts| upload(&experts, device)).transpose()?,
            logp_old: floats(&logp_old)?,
            advantages: floats(&advantages)?,
            sequences: sequence.iter().chain(&step).chain(&group).max().map_or(0, |limit| limit + 1),
            sequence: integers(&sequence)?,
            group: integers(&group)?,
            step: integers(&step)?,
            tokens,
            on_host: [ids, positions, routed.unwrap_or_default()],
        })
    }

    /// `[N]` f32: a column of the rows that the micro-batch was packed from, at its sampled tokens;
    /// `None` where the rows do not have the column.
    pub fn column(&self, rows: &[Row], column: impl Fn(&Row) -> &Vec<f32>) -> Result<Option<Tensor>> {
        if rows.iter().all(|row| column(row).is_empty()) {
            return Ok(None);
        }
        let values: Vec<f32> = self.tokens.iter().map(|&(row, index)| column(&rows[row])[index]).collect();
        Ok(Some(upload(&Tensor::f_from_slice(&values)?, self.targets.device())?))
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
        for index in 0..row.len() {
            let expert_id = |expert: &u16| if *expert == Routing::MISSING { -1 } else { i64::from(*expert) };
            let row_experts = row.routing.of(index);
            experts.extend(row_experts.iter().map(expert_id));
            experts.extend(std::iter::repeat_n(-1, width - row_experts.len()));
        }
    }
    Ok(Some(Tensor::f_from_slice(&experts)?.f_view([-1, width as i64])?))
}

#[cfg(test)]
mod tests;
