//! Advantages and returns that a program passes to `t:update`, instead of an estimator's.

use serde::Deserialize;

use super::generated::acting_step;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::Advantages;
use crate::rl::rows::StepRow;

/// Advantages or returns of a trajectory that a program computed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum GivenAdvantages {
    /// One number for all tokens.
    All(f64),
    Steps(Vec<GivenStep>),
}

/// Advantages of a step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum GivenStep {
    All(f64),
    Tokens(Vec<f64>),
}

/// The given numbers for the step of `row`; `None` for a trajectory without given numbers. A
/// generated step has the number of the acting step that it belongs to.
fn given_for(
    row: &StepRow,
    trajectories: &[Trajectory],
    numbers: &[GivenAdvantages],
    what: &str,
) -> Result<Option<GivenStep>> {
    let wrong = |why: String| Err(Error::new(Kind::Usage, why).in_step(row.trajectory, row.step));
    let steps = match numbers.get(row.trajectory as usize) {
        None => return Ok(None),
        Some(GivenAdvantages::All(number)) => return Ok(Some(GivenStep::All(*number))),
        Some(GivenAdvantages::Steps(steps)) => steps,
    };
    match steps.get(acting_step(&trajectories[row.trajectory as usize], row.step as usize)) {
        Some(GivenStep::Tokens(tokens)) if tokens.len() != row.mask.len() => {
            wrong(format!("{} {what} for {} sampled tokens", tokens.len(), row.mask.len()))
        }
        Some(step) => Ok(Some(step.clone())),
        None => wrong(format!("there are {what} for {} steps only", steps.len())),
    }
}

fn counts(row: &StepRow) -> bool {
    row.status.is_none_or(|status| !status.is_failure())
}

/// Converts given advantages to the tokens of steps.
pub(crate) fn advantages(
    rows: &[StepRow],
    trajectories: &[Trajectory],
    numbers: &[GivenAdvantages],
) -> Result<Advantages> {
    let mut result = Advantages::none(rows);
    for (index, row) in rows.iter().enumerate() {
        let row_advantages = match given_for(row, trajectories, numbers, "advantages")? {
            None => continue,
            Some(GivenStep::All(advantage)) => vec![advantage; row.mask.len()],
            Some(GivenStep::Tokens(tokens)) => tokens,
        };
        result.counted[index] = counts(row);
        if result.counted[index] {
            result.advantages[index] = row_advantages;
        }
    }
    result.share(rows);
    Ok(result)
}

/// Sets the critic's targets to the given returns: at each token, or at the first token of a step
/// that has one number.
pub(crate) fn put_returns(
    advantages: &mut Advantages,
    rows: &[StepRow],
    trajectories: &[Trajectory],
    numbers: &[GivenAdvantages],
) -> Result<()> {
    let mut result = Advantages::none(rows);
    for (index, row) in rows.iter().enumerate() {
        let row_returns = given_for(row, trajectories, numbers, "returns")?.filter(|_| counts(row));
        result.counted[index] = row_returns.is_some();
        match row_returns {
            None => {}
            Some(GivenStep::Tokens(tokens)) => {
                result.returns[index] = tokens;
                result.targets[index].clone_from(&row.mask);
            }
            Some(GivenStep::All(number)) => {
                if let Some(first) = row.mask.iter().position(|sampled| *sampled) {
                    result.returns[index][first] = number;
                    result.targets[index][first] = true;
                }
            }
        }
    }
    result.share(rows);
    (advantages.returns, advantages.targets) = (result.returns, result.targets);
    Ok(())
}
