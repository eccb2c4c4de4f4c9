//! Advantages and returns that a program passes to `t:update`, instead of those of an estimator.

use super::generated::Trainable;
use crate::error::{Error, Kind, Result};
use crate::rl::advantages::Advantages;
use crate::rl::rows::StepRow;
use crate::script::services::training::{GivenAdvantages, GivenStep};

/// The given advantages of a step.
enum Numbers<'a> {
    /// One number for all of its tokens.
    All(f64),
    Tokens(&'a [f64]),
}

/// The given advantages for the step of `row`; `None` for a trajectory without given numbers. A
/// generated step has the number of the acting step that it belongs to.
fn given_for<'a>(
    row: &StepRow,
    trainable: &Trainable<'_>,
    given: &'a [GivenAdvantages],
    what: &str,
) -> Result<Option<Numbers<'a>>> {
    let trajectory = row.trajectory as usize;
    let wrong = |why: String| Err(Error::new(Kind::Usage, why).in_step(row.trajectory, row.step));
    let steps = match given.get(trajectory) {
        None => return Ok(None),
        Some(GivenAdvantages::All(number)) => return Ok(Some(Numbers::All(*number))),
        Some(GivenAdvantages::Steps(steps)) => steps,
    };
    match steps.get(trainable.acting_step(trajectory, row.step as usize)) {
        Some(GivenStep::All(number)) => Ok(Some(Numbers::All(*number))),
        Some(GivenStep::Tokens(tokens)) if tokens.len() == row.mask.len() => Ok(Some(Numbers::Tokens(tokens))),
        Some(GivenStep::Tokens(tokens)) => {
            wrong(format!("{} {what} for {} sampled tokens", tokens.len(), row.mask.len()))
        }
        None => wrong(format!("there are {what} for {} steps only", steps.len())),
    }
}

fn counts(row: &StepRow) -> bool {
    row.status.is_none_or(|status| !status.is_failure())
}

/// Converts given advantages to the tokens of steps.
pub(crate) fn advantages(rows: &[StepRow], trainable: &Trainable<'_>, given: &[GivenAdvantages]) -> Result<Advantages> {
    let mut found = Advantages::none(rows);
    for (place, row) in rows.iter().enumerate() {
        let own = match given_for(row, trainable, given, "advantages")? {
            None => continue,
            Some(Numbers::All(advantage)) => vec![advantage; row.mask.len()],
            Some(Numbers::Tokens(tokens)) => tokens.to_vec(),
        };
        found.counted[place] = counts(row);
        if found.counted[place] {
            found.advantages[place] = own;
        }
    }
    found.share(rows);
    Ok(found)
}

/// Sets the critic's targets to the given returns: at each token, or at the first token of a step
/// that has one number.
pub(crate) fn put_returns(
    advantages: &mut Advantages,
    rows: &[StepRow],
    trainable: &Trainable<'_>,
    given: &[GivenAdvantages],
) -> Result<()> {
    let mut found = Advantages::none(rows);
    for (place, row) in rows.iter().enumerate() {
        let own = given_for(row, trainable, given, "returns")?.filter(|_| counts(row));
        found.counted[place] = own.is_some();
        match own {
            None => {}
            Some(Numbers::Tokens(tokens)) => {
                found.returns[place] = tokens.to_vec();
                found.targets[place].clone_from(&row.mask);
            }
            Some(Numbers::All(number)) => {
                if let Some(first) = row.mask.iter().position(|sampled| *sampled) {
                    found.returns[place][first] = number;
                    found.targets[place][first] = true;
                }
            }
        }
    }
    found.share(rows);
    (advantages.returns, advantages.targets) = (found.returns, found.targets);
    Ok(())
}
