//! Valid combinations of estimators and losses, and their requirements on a run.

use super::advantages::{Estimator, Level, Need};
use super::objective::{Formula, Objective, Unit};
use crate::error::{Error, Kind, Result};

/// What a run provides to an estimator and a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host<'a> {
    /// Trajectories per task.
    pub group_size: usize,
    /// Which of [`Need::Critic`], [`Need::Reference`], [`Need::Greedy`] and [`Need::Anchors`] there
    /// are.
    pub has: &'a [Need],
    /// Whether trajectories share steps, which then have the mean of their advantages.
    pub branches: bool,
}

/// Refuses a combination that can't work or makes no sense, with the reason.
///
/// # Errors
/// [`Kind::Usage`].
pub fn check(estimator: &Estimator, objective: &Objective, host: &Host<'_>) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(Kind::Usage, message).hint(hint.to_owned()));
    for (name, need) in estimator
        .needs()
        .iter()
        .map(|need| (estimator.name(), *need))
        .chain(objective.needs().into_iter().map(|need| (objective.name, need)))
    {
        let (what, hint) = match need {
            Need::Critic => ("a critic", "train with PPO, or choose an estimator over groups such as `grpo`"),
            Need::Reference => ("a reference model", "set one, or `kl_coef = 0`"),
            Need::Groups => ("groups of at least two trajectories", "raise `group_size`"),
            Need::Greedy => ("a greedy baseline rollout for every group", "turn on greedy baseline rollouts"),
            Need::Anchors => ("the observation of every step", "keep the prompts as anchors"),
            // Every host has the log-probabilities of the rollout and can score its tokens again;
            // what parts a reward has is known with the first trajectories.
            Need::Logp | Need::WholeBatch | Need::Squares | Need::Parts => continue,
        };
        let there = if need == Need::Groups { host.group_size > 1 } else { host.has.contains(&need) };
        if !there {
            return refuse(format!("`{name}` needs {what}"), hint);
        }
    }
    let by_sequence = matches!(objective.formula, Formula::Gspo(_) | Formula::GeoMean(_));
    if by_sequence && estimator.level() == Level::Token {
        return refuse(
            format!(
                "`{}` has one ratio for a sequence, and `{}` an advantage for every token of it",
                objective.name,
                estimator.name()
            ),
            "choose an estimator by step or trajectory, such as `gae` or `grpo`, or a token loss such as `ppo`",
        );
    }
    if objective.name == "pspo" && estimator.name() != "gae" {
        return refuse(
            format!("`pspo` is defined with step-level `gae`, not with `{}`", estimator.name()),
            "`gspo` is the same loss for other estimators",
        );
    }
    if by_sequence && objective.terms.ratio_over == Unit::Trajectory && host.branches {
        return refuse(
            format!(
                "`{}` over trajectories needs one advantage for each, and steps that branches share have their own",
                objective.name
            ),
            "set `ratio_over = \"step\"`",
        );
    }
    if by_sequence && objective.terms.ratio_over == Unit::Trajectory && estimator.level() == Level::Step {
        return refuse(
            format!(
                "`{}` over trajectories needs one advantage for each, and `{}` has one a step",
                objective.name,
                estimator.name()
            ),
            "set `ratio_over = \"step\"`",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    const ALL: Host<'static> =
        Host { group_size: 4, has: &[Need::Critic, Need::Reference, Need::Greedy, Need::Anchors], branches: false };
    const LESS: Host<'static> = Host { group_size: 4, has: &[Need::Critic, Need::Greedy], branches: false };

    fn refused(estimator: &str, loss: &str, options: &Value, host: &Host<'_>) -> Option<String> {
        let estimator = Estimator::new(estimator, &Value::Null).unwrap();
        let objective = Objective::new(loss, options).unwrap();
        check(&estimator, &objective, host).err().map(|error| error.to_string())
    }

    #[test]
    fn every_name_is_found_and_answers_to_it() {
        for name in Estimator::NAMES {
            assert_eq!(Estimator::new(name, &Value::Null).unwrap().name(), name);
        }
        for name in Objective::NAMES {
            assert_eq!(Objective::new(name, &Value::Null).unwrap().name, name);
        }
    }

    #[test]
    fn what_makes_sense_runs() {
        for estimator in Estimator::NAMES {
            for loss in
                ["ppo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl", "gpg"]
            {
                assert_eq!(refused(estimator, loss, &Value::Null, &ALL), None, "{estimator} {loss}");
            }
        }
        assert_eq!(refused("gae", "pspo", &Value::Null, &ALL), None);
        assert_eq!(refused("grpo", "gspo", &json!({"ratio_over": "trajectory"}), &ALL), None);
        assert_eq!(refused("reinforce_pp", "ppo", &Value::Null, &Host::default()), None);
    }

    #[test]
    fn what_makes_none_is_refused_with_the_reason() {
        let bare = Host { group_size: 1, has: &[], branches: false };
        let says = |estimator, loss, options: Value, host, words: &str| {
            let message = refused(estimator, loss, &options, host).unwrap();
            assert!(message.contains(words), "{message}");
        };
        says("gae", "ppo", Value::Null, &bare, "`gae` needs a critic");
        says("grpo", "ppo", Value::Null, &bare, "`grpo` needs groups of at least two");
        says("remax", "ppo", Value::Null, &bare, "`remax` needs a greedy baseline");
        says("gigpo", "ppo", Value::Null, &LESS, "`gigpo` needs the observation");
        says("rloo", "ppo", json!({"kl_coef": 0.1}), &LESS, "`ppo` needs a reference model");
        says("gae_token", "gspo", Value::Null, &ALL, "one ratio for a sequence");
        says("reinforce_pp", "geo_mean", Value::Null, &ALL, "one ratio for a sequence");
        says("grpo", "pspo", Value::Null, &ALL, "`pspo` is defined with step-level `gae`");
        says("gigpo", "gspo", json!({"ratio_over": "trajectory"}), &ALL, "needs one advantage for each");
        let trees = Host { branches: true, ..ALL };
        says("grpo", "gspo", json!({"ratio_over": "trajectory"}), &trees, "steps that branches share");
        assert_eq!(refused("tree", "gspo", &Value::Null, &trees), None);
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        let estimator = |name: &str, options: Value| Estimator::new(name, &options).unwrap_err().to_string();
        let loss = |name: &str, options: Value| Objective::new(name, &options).unwrap_err().to_string();
        assert_eq!(estimator("grop", Value::Null), "there is no estimator `grop`\n  hint: did you mean grpo?");
        assert!(loss("gsp", Value::Null).starts_with("there is no loss `gsp`\n  hint: did you mean gspo"));
        assert_eq!(
            estimator("gae", json!({"lamda": 0.9})),
            "`gae` has no option `lamda`\n  hint: did you mean lambda?"
        );
        assert!(loss("ppo", json!({"clip_hi": 0.3})).contains("did you mean clip_high"));
        assert!(loss("sapo", json!({"clip_high": 0.3})).contains("`sapo` has no option `clip_high`"));
        assert!(estimator("gae", json!({"gamma": 1.5})).contains("option `gamma` of `gae` is from 0 to 1, not 1.5"));
        assert!(loss("ppo", json!({"clip_low": -0.1})).contains("option `clip_low` of `ppo`"));
        assert!(estimator("gigpo", json!({"mode": "std"})).contains("option `mode` of `gigpo`: unknown variant"));
        assert!(estimator("rloo", json!(3)).contains("the options of `rloo` are a table, not 3"));
    }
}
