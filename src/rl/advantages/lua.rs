//! Estimators that are functions `advantage` in Lua: their groups from rows, and their numbers in
//! rows.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::result::Advantages;
use super::statistics::places_of;
use super::whiten::{Whiten, whiten_weighted};
use crate::algorithms::{
    AlgorithmFile, AlgorithmNeed, Anchor, Estimated, GroupInput, GroupMember, Level, MemberAdvantages, TokenLists,
};
use crate::error::Result;
use crate::rl::options::{refuse_rest, table};
use crate::rl::rows::{Batch, Path, StepRow};

/// What the host must know about a function `advantage`.
#[derive(Clone, Debug, Default)]
pub struct AdvantageFunction {
    pub needs: Vec<AlgorithmNeed>,
    pub level: Level,
    /// Whitening of its numbers over the sampled tokens of the batch: the option `whiten`.
    pub whiten: Whiten,
}

impl AdvantageFunction {
    /// The estimator of an algorithm with these options.
    pub fn of(algorithm: &AlgorithmFile, options: &Map<String, Value>) -> Self {
        let whiten = options.get("whiten").and_then(|how| serde_json::from_value(how.clone()).ok());
        let (needs, level) = (algorithm.needs.clone(), algorithm.level(options));
        Self { needs, level, whiten: whiten.unwrap_or_default() }
    }

    /// The advantages of `rows`. `call` returns the numbers of the function for the groups of the
    /// batch. Failed trajectories are left out.
    ///
    /// # Errors
    /// Errors of `call`, and of [`Estimator::estimate`](super::Estimator::estimate).
    pub fn estimate(
        &self,
        rows: &[StepRow],
        call: impl FnOnce(&mut Vec<GroupInput>) -> Result<Vec<Estimated>>,
    ) -> Result<Advantages> {
        let batch = Batch::new(rows, false)?;
        let mut advantages = Advantages::empty(&batch);
        self.write(&batch, &batch.compared(&self.needs), &mut advantages, call)?;
        advantages.share(rows);
        Ok(advantages)
    }

    fn write(
        &self,
        batch: &Batch<'_>,
        compared: &[&Path],
        advantages: &mut Advantages,
        call: impl FnOnce(&mut Vec<GroupInput>) -> Result<Vec<Estimated>>,
    ) -> Result<()> {
        let (mut order, mut groups) = (Vec::new(), Vec::new());
        let group_of: Vec<u64> = compared.iter().map(|path| path.group).collect();
        for places in places_of(&group_of).values() {
            let paths: Vec<&Path> = places.iter().map(|&index| compared[index]).collect();
            if let Some(group) = self.group(batch, &paths)? {
                order.extend(places);
                groups.push(group);
            }
        }
        // By trajectory, whatever its group.
        let mut numbers: BTreeMap<usize, MemberAdvantages> = BTreeMap::new();
        let mut indices = order.into_iter();
        for Estimated { advantages: of_group, returns } in call(&mut groups)? {
            let members: Vec<usize> = indices.by_ref().take(of_group.len()).collect();
            for (&member, targets) in members.iter().zip(returns.iter().flatten()) {
                advantages.put_targets(batch.rows, compared[member], targets);
            }
            numbers.extend(members.into_iter().zip(of_group));
        }
        let values: Vec<f64> = numbers.values().flat_map(MemberAdvantages::as_slice).copied().collect();
        let weights: Vec<f64> =
            numbers.iter().flat_map(|(&member, list)| weights(batch, compared[member], list)).collect();
        let mut whitened = whiten_weighted(&values, &weights, self.whiten).into_iter();
        for (member, numbers) in numbers {
            let path = compared[member];
            let values: Vec<f64> = whitened.by_ref().take(numbers.as_slice().len()).collect();
            match numbers {
                MemberAdvantages::Tokens(_) => advantages.put_tokens(batch.rows, path, &values),
                MemberAdvantages::Trajectory(_) => advantages.put_trajectory(batch.rows, path, values[0]),
                MemberAdvantages::Steps(_) => {
                    for (&row, value) in path.rows.iter().zip(values) {
                        advantages.put_row(batch.rows, row, value);
                    }
                }
            }
        }
        Ok(())
    }

    /// The argument of the function for a group; `None` if its greedy baseline failed.
    fn group(&self, batch: &Batch<'_>, paths: &[&Path]) -> Result<Option<GroupInput>> {
        let of_group = || batch.paths.iter().filter(|path| path.group == paths[0].group);
        let failed = of_group().filter(|path| path.failed && !path.greedy).count();
        let mut input = GroupInput { failed, ..GroupInput::default() };
        if self.needs.contains(&AlgorithmNeed::Greedy) {
            let mut baselines = of_group().filter(|path| path.greedy);
            input.greedy = match (baselines.next(), baselines.next()) {
                (Some(baseline), None) if baseline.failed => return Ok(None),
                (Some(baseline), None) => Some(baseline.total),
                (None, _) => return Err(batch.missing(paths[0], "its group has no greedy baseline")),
                _ => return Err(batch.missing(paths[0], "its group has more than one greedy baseline")),
            };
        }
        // The decisions of the group, numbered from 1, and those after which trajectories forked.
        let mut decisions: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut number = |row: &StepRow| {
            let next = decisions.len() + 1;
            *decisions.entry(row.decision()).or_insert(next)
        };
        let numbers: Vec<Vec<usize>> = paths.iter().map(|path| batch.steps(path).map(&mut number).collect()).collect();
        let last_shared = |(path, numbers): (&&Path, &Vec<usize>)| {
            let shared = batch.steps(path).zip(numbers).filter(|(row, _)| row.shared.is_some());
            shared.last().map(|(_, number)| *number)
        };
        let forked: Vec<usize> = paths.iter().zip(&numbers).filter_map(last_shared).collect();
        for (path, decisions) in paths.iter().zip(numbers) {
            let anchors = if self.needs.contains(&AlgorithmNeed::Anchors) {
                anchors(batch, path, &decisions, &forked)?
            } else {
                Vec::new()
            };
            let logp = if self.needs.contains(&AlgorithmNeed::Logp) { Some(mean_logp(batch, path)?) } else { None };
            let by_token = if self.level == Level::Token { Some(self.by_token(batch, path)?) } else { None };
            let member = GroupMember { decisions, anchors, logp, by_token, ..member(batch, path, paths) };
            input.members.push(member);
        }
        Ok(Some(input))
    }

    fn by_token(&self, batch: &Batch<'_>, path: &Path) -> Result<TokenLists> {
        let mut lists = TokenLists { rewards: batch.token_rewards(path), ..TokenLists::default() };
        let mut before = 0;
        for row in batch.steps(path) {
            let tokens = row.mask.len();
            let sampled = || row.mask.iter().enumerate().filter(|(_, sampled)| **sampled).map(|(k, _)| k);
            lists.positions.extend(sampled().map(|k| before + k + 1));
            before += tokens;
            if self.needs.contains(&AlgorithmNeed::Squares) {
                if row.logp_old.len() != tokens || row.sum_pi_squared.len() != tokens {
                    let message = "a step has no `logp_old` or no `sum_pi_squared`, one for every token";
                    return Err(batch.missing(path, message));
                }
                lists.logp.extend(sampled().map(|k| row.logp_old[k]));
                lists.squares.extend(sampled().map(|k| row.sum_pi_squared[k]));
            }
        }
        Ok(lists)
    }
}

/// The number of sampled tokens that each of the numbers belongs to.
fn weights(batch: &Batch<'_>, path: &Path, numbers: &MemberAdvantages) -> Vec<f64> {
    match numbers {
        MemberAdvantages::Trajectory(_) => vec![path.tokens as f64],
        MemberAdvantages::Steps(_) => batch.steps(path).map(|row| row.sampled() as f64).collect(),
        MemberAdvantages::Tokens(list) => vec![1.0; list.len()],
    }
}

/// The state before each step: its observation, or the decision before it if trajectories were
/// forked there.
fn anchors(batch: &Batch<'_>, path: &Path, decisions: &[usize], forked: &[usize]) -> Result<Vec<Anchor>> {
    let anchor = |(step, row): (usize, &StepRow)| {
        let before = step.checked_sub(1).map(|before| decisions[before]).filter(|before| forked.contains(before));
        match (before, &row.anchor) {
            (Some(before), _) => Ok(Anchor::After(before)),
            (None, Some(seen)) => Ok(Anchor::Seen(seen.clone())),
            (None, None) => Err(batch.missing(path, "a step has no `anchor`")),
        }
    };
    batch.steps(path).enumerate().map(anchor).collect()
}

/// The mean log-probability of a trajectory's sampled tokens, under the current policy if it is
/// known.
fn mean_logp(batch: &Batch<'_>, path: &Path) -> Result<f64> {
    let mut sum = 0.0;
    for row in batch.steps(path) {
        let logp = if row.logp.is_empty() { &row.logp_old } else { &row.logp };
        if logp.len() != row.mask.len() {
            return Err(batch.missing(path, "a step has neither `logp` nor `logp_old`"));
        }
        sum += logp.iter().zip(&row.mask).filter(|(_, sampled)| **sampled).map(|(logp, _)| logp).sum::<f64>();
    }
    Ok(sum / path.tokens.max(1) as f64)
}

/// What every function reads about a trajectory of the group `paths`.
fn member(batch: &Batch<'_>, path: &Path, paths: &[&Path]) -> GroupMember {
    let steps: Vec<&StepRow> = batch.steps(path).collect();
    let last = steps.last();
    let number = |path: &Path| path.rows.first().map_or(u64::MAX, |&row| batch.rows[row].trajectory);
    let shared: Vec<u64> = steps.iter().map_while(|row| row.shared).collect();
    let fork = shared.last().map(|taker| (paths.iter().position(|other| number(other) == *taker), shared.len()));
    let values: Option<Vec<f64>> = steps.iter().map(|row| row.state_value()).collect();
    let mut parts = BTreeMap::new();
    for (name, value) in steps.iter().flat_map(|row| &row.parts) {
        *parts.entry(name.clone()).or_default() += value;
    }
    GroupMember {
        number: number(path),
        total: path.total,
        rewards: steps.iter().map(|row| row.reward()).collect(),
        tokens: steps.iter().map(|row| row.sampled()).collect(),
        status: last.and_then(|row| row.status),
        parts,
        terminated: last.is_some_and(|row| row.terminated),
        truncated: last.is_some_and(|row| row.truncated),
        fork,
        next_value: values.as_ref().and_then(|_| last.and_then(|row| row.next_value)),
        values,
        ..GroupMember::default()
    }
}

/// A function of a file of r1, with its options.
#[derive(Clone, Debug)]
pub(super) struct LuaEstimator {
    file: &'static AlgorithmFile,
    pub(super) options: Map<String, Value>,
    pub(super) function: AdvantageFunction,
}

impl LuaEstimator {
    /// # Errors
    /// `Kind::Usage` for an option that the file does not declare, or a value out of its range.
    pub(super) fn new(file: &'static AlgorithmFile, options: &Value) -> Result<Self> {
        let mut rest = table(file.name, options)?;
        let options = file.take_options(file.name, &mut rest)?;
        refuse_rest(file.name, &rest, &options.keys().cloned().collect::<Vec<_>>())?;
        Ok(Self { file, function: AdvantageFunction::of(file, &options), options })
    }

    pub(super) fn estimate(&self, batch: &Batch<'_>, paths: &[&Path], advantages: &mut Advantages) -> Result<()> {
        // Sums of rewards that overflow have no order; `Advantages::finite` reports them.
        if let Some(path) = paths.iter().find(|path| !path.total.is_finite()) {
            advantages.put_trajectory(batch.rows, path, path.total);
            return Ok(());
        }
        self.function.write(batch, paths, advantages, |groups| self.file.advantages(groups, &self.options))
    }
}
