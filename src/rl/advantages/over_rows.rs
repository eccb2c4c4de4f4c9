//! Runs estimators over rows: reads the inputs of each, and writes the advantages.

use std::collections::BTreeMap;

use super::anchors::{Anchor, AnchoredStep, anchor_advantages};
use super::group::{Deviation, group_normalized, mean, remax};
use super::sequence::{discounted_returns, gae, gae_bilevel, whiten_all};
use super::settings::{Gae, GaeBilevel, GaeToken, Gigpo, GigpoMode, Remax, Tree};
use super::tree::{Leaf, tree_advantages};
use crate::error::{Error, Kind, Result};
use crate::rl::rows::{Batch, Path, StepRow};

/// Advantages of a batch, shaped like its rows: one number per token, 0 where nothing was sampled and on every row that does
/// not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    pub advantages: Vec<Vec<f64>>,
    /// What the critic should have said, where `targets` is true; 0 elsewhere.
    pub returns: Vec<Vec<f64>>,
    /// Where the critic is trained; nowhere for estimators without one.
    pub targets: Vec<Vec<bool>>,
    /// Rows that are trained on: not those of failures and greedy baselines.
    pub counted: Vec<bool>,
}

impl Advantages {
    /// Refuses advantages and critic's targets that are NaN or infinite, as sums of rewards that are too large for an
    /// `f64` make them. `rows` are those that the advantages were estimated from.
    ///
    /// # Errors
    /// [`Kind::Numeric`] names the trajectory (by number) and the step.
    pub fn finite(&self, rows: &[StepRow]) -> Result<()> {
        for (what, lists) in [("an advantage", &self.advantages), ("a return", &self.returns)] {
            for (row, list) in rows.iter().zip(lists) {
                if let Some(bad) = list.iter().find(|number| !number.is_finite()) {
                    return Err(Error::new(Kind::Numeric, format!("{what} is {bad}"))
                        .in_step(row.trajectory, row.step)
                        .hint("look at the size of the rewards"));
                }
            }
        }
        Ok(())
    }

    /// Rows of which none counts.
    pub fn none(rows: &[StepRow]) -> Self {
        let zeros: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.mask.len()]).collect();
        let targets = rows.iter().map(|row| vec![false; row.mask.len()]).collect();
        Self { advantages: zeros.clone(), returns: zeros, targets, counted: vec![false; rows.len()] }
    }

    pub(super) fn empty(batch: &Batch<'_>) -> Self {
        let mut found = Self::none(batch.rows);
        for path in batch.counted() {
            for &i in &path.rows {
                found.counted[i] = true;
            }
        }
        found
    }

    /// A step that several trajectories share is one decision: its advantage, and what a critic is to learn there, is the
    /// mean over those of them that count. Where no step is shared nothing changes.
    pub fn share(&mut self, rows: &[StepRow]) {
        let mut copies: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.shared.is_some()) {
            copies.entry(row.decision()).or_default();
        }
        if copies.is_empty() {
            return;
        }
        for (i, row) in rows.iter().enumerate().filter(|(i, _)| self.counted[*i]) {
            if let Some(own) = copies.get_mut(&row.decision()) {
                own.push(i);
            }
        }
        for places in copies.values().filter(|places| places.len() > 1) {
            for list in [&mut self.advantages, &mut self.returns] {
                let tokens = places.iter().map(|&i| list[i].len()).min().unwrap_or(0);
                let of = |k: usize| mean(&places.iter().map(|&i| list[i][k]).collect::<Vec<_>>());
                let shared: Vec<f64> = (0..tokens).map(of).collect();
                for &i in places {
                    list[i].clone_from(&shared);
                }
            }
        }
    }

    /// One advantage for each row.
    fn put_row(&mut self, rows: &[StepRow], row: usize, advantage: f64) {
        for (place, sampled) in self.advantages[row].iter_mut().zip(&rows[row].mask) {
            *place = if *sampled { advantage } else { 0.0 };
        }
    }

    pub(super) fn put_trajectories(&mut self, rows: &[StepRow], paths: &[&Path], advantages: &[f64]) {
        for (path, advantage) in paths.iter().zip(advantages) {
            for &i in &path.rows {
                self.put_row(rows, i, *advantage);
            }
        }
    }

    /// A list per trajectory with an entry per sampled token.
    pub(super) fn put_tokens(&mut self, rows: &[StepRow], paths: &[&Path], advantages: &[Vec<f64>]) {
        for (path, own) in paths.iter().zip(advantages) {
            for (i, k, advantage) in places(rows, path).zip(own).map(|((i, k), a)| (i, k, *a)) {
                self.advantages[i][k] = advantage;
            }
        }
    }

    /// The critic's targets at sampled tokens.
    fn put_returns(&mut self, rows: &[StepRow], paths: &[&Path], returns: &[Vec<f64>]) {
        for (path, own) in paths.iter().zip(returns) {
            for ((i, k), target) in places(rows, path).zip(own) {
                self.returns[i][k] = *target;
                self.targets[i][k] = true;
            }
        }
    }
}

/// Row and place of every sampled token of a trajectory.
pub(super) fn places<'a>(rows: &'a [StepRow], path: &'a Path) -> impl Iterator<Item = (usize, usize)> + 'a {
    path.rows.iter().flat_map(|&i| rows[i].mask.iter().enumerate().filter(|(_, m)| **m).map(move |(k, _)| (i, k)))
}

pub(super) fn missing(batch: &Batch<'_>, path: &Path, what: &str) -> Error {
    let place = path.rows.first().map_or(0, |&i| batch.rows[i].trajectory);
    Error::new(Kind::Usage, what).in_trajectories(vec![place], None)
}

/// V after the last step: 0 when the task ended, the critic's value of the next observation when a limit cut it.
fn value_after(batch: &Batch<'_>, path: &Path, bootstrap: bool) -> Result<f64> {
    match batch.steps(path).next_back() {
        Some(last) if last.truncated && bootstrap => {
            last.next_value.filter(|value| value.is_finite()).ok_or_else(|| {
                missing(batch, path, "a truncated trajectory has no `next_value`")
                    .hint("give the critic's value of the next observation, or set `bootstrap = false`")
            })
        }
        _ => Ok(0.0),
    }
}

/// The values of a trajectory's sampled tokens, by step.
fn token_values(batch: &Batch<'_>, path: &Path) -> Result<Vec<Vec<f64>>> {
    let own = |row: &StepRow| {
        let values = row.token_values();
        if values.len() == row.sampled() {
            Ok(values)
        } else {
            Err(missing(batch, path, "a step has no `values`, one for every token"))
        }
    };
    batch.steps(path).map(own).collect()
}

/// The mean log-probability of a trajectory's sampled tokens, under the current policy where it is known.
pub(super) fn mean_logp(batch: &Batch<'_>, path: &Path) -> Result<f64> {
    let mut sum = 0.0;
    for row in batch.steps(path) {
        let logp = if row.logp.is_empty() { &row.logp_old } else { &row.logp };
        if logp.len() != row.mask.len() {
            return Err(missing(batch, path, "a step has neither `logp` nor `logp_old`"));
        }
        sum += logp.iter().zip(&row.mask).filter(|(_, m)| **m).map(|(logp, _)| logp).sum::<f64>();
    }
    Ok(sum / path.tokens.max(1) as f64)
}

pub(super) fn step_gae(batch: &Batch<'_>, paths: &[&Path], options: Gae, found: &mut Advantages) -> Result<()> {
    let (mut all, mut places) = (Vec::new(), Vec::new());
    for path in paths {
        // A step without sampled tokens and values is no decision; its reward joins the step before it, or else the first.
        let (mut decisions, mut rewards, mut values) = (Vec::new(), Vec::<f64>::new(), Vec::new());
        let mut pending = 0.0;
        for (&i, row) in path.rows.iter().zip(batch.steps(path)) {
            match (row.state_value(), rewards.last_mut()) {
                (Some(value), _) => {
                    decisions.push(i);
                    rewards.push(row.reward() + std::mem::take(&mut pending));
                    values.push(value);
                }
                (None, _) if row.sampled() > 0 => return Err(missing(batch, path, "a step has no `values`")),
                (None, Some(last)) => *last += row.reward(),
                (None, None) => pending += row.reward(),
            }
        }
        let after = value_after(batch, path, options.bootstrap)?;
        let advantages = gae(&rewards, &values, after, options.gamma, options.lambda);
        for ((&i, advantage), value) in decisions.iter().zip(&advantages).zip(&values) {
            // One target a step, at the state before it: where its first sampled token is predicted.
            if let Some(first) = batch.rows[i].mask.iter().position(|sampled| *sampled) {
                found.returns[i][first] = advantage + value;
                found.targets[i][first] = true;
            }
        }
        all.push(advantages);
        places.push(decisions);
    }
    for (decisions, advantages) in places.iter().zip(whiten_all(&all, options.whiten)) {
        for (&i, advantage) in decisions.iter().zip(advantages) {
            found.put_row(batch.rows, i, advantage);
        }
    }
    Ok(())
}

pub(super) fn token_gae(batch: &Batch<'_>, paths: &[&Path], options: GaeToken, found: &mut Advantages) -> Result<()> {
    let (mut all, mut returns) = (Vec::new(), Vec::new());
    for path in paths {
        let values = token_values(batch, path)?.concat();
        let after = value_after(batch, path, options.bootstrap)?;
        let advantages = gae(&batch.token_rewards(path), &values, after, options.gamma, options.lambda);
        returns.push(advantages.iter().zip(&values).map(|(advantage, value)| advantage + value).collect());
        all.push(advantages);
    }
    found.put_returns(batch.rows, paths, &returns);
    found.put_tokens(batch.rows, paths, &whiten_all(&all, options.whiten));
    Ok(())
}

pub(super) fn bilevel(batch: &Batch<'_>, paths: &[&Path], options: GaeBilevel, found: &mut Advantages) -> Result<()> {
    let (mut all, mut returns) = (Vec::new(), Vec::new());
    for path in paths {
        // A step without sampled tokens is no turn; its reward joins the turn before it, or else the first.
        let (mut rewards, mut values): (Vec<f64>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        let mut pending = 0.0;
        for (row, own) in batch.steps(path).zip(token_values(batch, path)?) {
            match rewards.last_mut() {
                Some(last) if own.is_empty() => *last += row.reward(),
                None if own.is_empty() => pending += row.reward(),
                _ => {
                    rewards.push(row.reward() + std::mem::take(&mut pending));
                    values.push(own);
                }
            }
        }
        let GaeBilevel { gamma_turn, gamma, lambda, bootstrap, .. } = options;
        let after = value_after(batch, path, bootstrap)?;
        let advantages = gae_bilevel(&rewards, &values, after, gamma_turn, gamma, lambda).concat();
        returns.push(advantages.iter().zip(values.concat()).map(|(advantage, value)| advantage + value).collect());
        all.push(advantages);
    }
    found.put_returns(batch.rows, paths, &returns);
    found.put_tokens(batch.rows, paths, &whiten_all(&all, options.whiten));
    Ok(())
}

pub(super) fn gigpo(batch: &Batch<'_>, paths: &[&Path], options: Gigpo, found: &mut Advantages) -> Result<()> {
    let deviation = match options.mode {
        GigpoMode::MeanStd => Deviation::Std,
        GigpoMode::Mean => Deviation::None,
    };
    let returns: Vec<f64> = paths.iter().map(|path| path.total).collect();
    let groups: Vec<u64> = paths.iter().map(|path| path.group).collect();
    let trajectories = group_normalized(&returns, &groups, deviation, options.epsilon);
    // A decision that several trajectories share is one step, worth the mean of what came of it.
    let mut places: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    let mut steps: Vec<(AnchoredStep<'_>, Vec<f64>)> = Vec::new();
    let forked = forked_states(batch, paths);
    for path in paths {
        let rewards: Vec<f64> = batch.steps(path).map(StepRow::reward).collect();
        let mut before = None;
        for (row, discounted) in batch.steps(path).zip(discounted_returns(&rewards, options.gamma)) {
            let decision = row.decision();
            let place = *places.entry(decision).or_insert(steps.len());
            if let Some((_, all)) = steps.get_mut(place) {
                all.push(discounted);
            } else {
                let anchor = match (before.and_then(|before| forked.get(&before)), row.anchor.as_deref()) {
                    (Some(state), _) => Anchor::State(*state),
                    (None, Some(seen)) => Anchor::Seen(seen),
                    (None, None) => return Err(missing(batch, path, "a step has no `anchor`")),
                };
                steps.push((AnchoredStep { group: path.group, anchor, discounted }, vec![discounted]));
            }
            before = Some(decision);
        }
    }
    let worth = |discounted: &[f64]| if let [one] = discounted { *one } else { mean(discounted) };
    let distinct: Vec<AnchoredStep<'_>> =
        steps.iter().map(|(step, all)| AnchoredStep { discounted: worth(all), ..*step }).collect();
    let by_step = anchor_advantages(&distinct, options.similarity, deviation, options.epsilon);
    for (path, trajectory) in paths.iter().zip(trajectories) {
        for &i in &path.rows {
            let step = places.get(&batch.rows[i].decision()).map_or(0.0, |&place| by_step[place]);
            found.put_row(batch.rows, i, trajectory + options.weight * step);
        }
    }
    Ok(())
}

/// The states that trajectories were forked at, by the decision before each, with a number for each.
fn forked_states(batch: &Batch<'_>, paths: &[&Path]) -> BTreeMap<(u64, u64), u64> {
    let last_shared = |path: &&Path| batch.steps(path).rev().find(|row| row.shared.is_some()).map(StepRow::decision);
    let decisions: std::collections::BTreeSet<_> = paths.iter().filter_map(last_shared).collect();
    decisions.into_iter().zip(0..).collect()
}

pub(super) fn tree(batch: &Batch<'_>, paths: &[&Path], options: Tree, found: &mut Advantages) {
    let mut numbers: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let leaf = |path: &&Path| {
        let number = |row: &StepRow| {
            let next = numbers.len() as u64;
            *numbers.entry(row.decision()).or_insert(next)
        };
        let nodes = batch.steps(path).map(number).collect();
        Leaf { group: path.group, total: path.total, nodes }
    };
    let leaves: Vec<Leaf> = paths.iter().map(leaf).collect();
    let advantages = tree_advantages(&leaves, options.local, options.normalize, options.epsilon);
    for (path, own) in paths.iter().zip(advantages) {
        for (&i, advantage) in path.rows.iter().zip(own) {
            found.put_row(batch.rows, i, advantage);
        }
    }
}

/// ReMax. A greedy baseline that failed is no baseline: its group has no advantage.
pub(super) fn greedy(batch: &Batch<'_>, paths: &[&Path], options: Remax, found: &mut Advantages) -> Result<()> {
    let mut compared = Vec::with_capacity(paths.len());
    let mut baselines = Vec::with_capacity(paths.len());
    for path in paths {
        let mut own = batch.paths.iter().filter(|other| other.greedy && other.group == path.group);
        match (own.next(), own.next()) {
            (Some(baseline), None) if baseline.failed => {}
            (Some(baseline), None) => {
                compared.push(*path);
                baselines.push(baseline.total);
            }
            (None, _) => return Err(missing(batch, path, "its group has no greedy baseline")),
            _ => return Err(missing(batch, path, "its group has more than one greedy baseline")),
        }
    }
    let returns: Vec<f64> = compared.iter().map(|path| path.total).collect();
    if options.reward_to_go {
        let to_go = |(path, baseline): (&&Path, &f64)| {
            discounted_returns(&batch.token_rewards(path), 1.0).into_iter().map(|r| r - baseline).collect()
        };
        let tokens: Vec<Vec<f64>> = compared.iter().zip(&baselines).map(to_go).collect();
        found.put_tokens(batch.rows, &compared, &tokens);
    } else {
        found.put_trajectories(batch.rows, &compared, &remax(&returns, &baselines));
    }
    Ok(())
}
