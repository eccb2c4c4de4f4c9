//! The advantages of a step's trajectories: their source, and their forms for the records.

use super::custom_estimator::ScriptEstimator;
use super::given_advantages::{self, GivenAdvantages};
use super::steps::{of_trajectory, shape_rewards};
use crate::config::OnNan;
use crate::error::{Error, Kind, Result, Subject, trajectories_place};
use crate::mdp::{StepRow, Trajectory};
use crate::rl::advantages::{Advantages, Estimator};
use crate::rl::kl::{KlKind, kl_value};
use crate::rl::rewards::{ReturnScale, RewardShaping};

/// The configuration that turns rewards into advantages.
pub struct AdvantageConfig<'a> {
    pub source: AdvantageSource<'a>,
    pub shaping: RewardShaping,
    /// The running standard deviation of returns, if rewards are divided by it. A batch updates it.
    pub returns: &'a mut Option<ReturnScale>,
    /// Returns for the critic to predict, instead of the source's returns.
    pub given_returns: Option<&'a [GivenAdvantages]>,
    pub on_nan: OnNan,
}

impl<'a> AdvantageConfig<'a> {
    /// The advantages of an estimator.
    pub fn new(estimator: &'a Estimator, shaping: RewardShaping, returns: &'a mut Option<ReturnScale>) -> Self {
        let source = AdvantageSource::Estimator(estimator);
        Self { source, shaping, returns, given_returns: None, on_nan: OnNan::Stop }
    }
}

pub enum AdvantageSource<'a> {
    Estimator(&'a Estimator),
    /// The recipe's function `advantage`.
    Script(&'a mut ScriptEstimator),
    /// Numbers that a program passes for each of its trajectories.
    Given(&'a [GivenAdvantages]),
}

/// Shapes the rewards of a step's trajectories in `steps` and computes the advantages of their
/// tokens. Failed trajectories have none.
///
/// # Errors
/// `Kind::Numeric` names the trajectory whose rewards, values or advantages are NaN or infinite;
/// with `on_nan = "skip"` no trajectory has an advantage instead.
pub fn compute_advantages(
    steps: &mut Vec<StepRow>,
    config: AdvantageConfig<'_>,
    trajectories: &[Trajectory],
) -> Result<Advantages> {
    let AdvantageConfig { source, shaping, returns, given_returns, on_nan } = config;
    let returns_before = *returns;
    let result = shape_rewards(steps, &shaping, returns, trajectories).and_then(|()| {
        let mut result = match source {
            AdvantageSource::Estimator(estimator) => estimator.estimate(steps, false)?,
            AdvantageSource::Script(function) => function.estimate(steps, trajectories)?,
            AdvantageSource::Given(advantages) => given_advantages::advantages(steps, trajectories, advantages)?,
        };
        if let Some(numbers) = given_returns {
            given_advantages::put_returns(&mut result, steps, trajectories, numbers)?;
        }
        result.finite(steps)?;
        Ok(result)
    });
    match result.map_err(|error| with_trajectory_ids(error, trajectories)) {
        Err(error) if error.kind == Kind::Numeric && on_nan == OnNan::Skip => {
            Ok(Advantages { skipped: Some(error), ..Advantages::none(steps) })
        }
        Err(error) => {
            *returns = returns_before;
            Err(error)
        }
        advantages => advantages,
    }
}

/// The steps that are trained on, each once, with the advantages of their tokens.
fn trained<'a>(
    advantages: &'a Advantages,
    steps: &'a [StepRow],
) -> impl Iterator<Item = (&'a StepRow, &'a Vec<f64>)> + 'a {
    let all = steps.iter().zip(&advantages.advantages).zip(&advantages.counted);
    all.filter(|((row, _), counted)| **counted && row.shared.is_none()).map(|(step, _)| step)
}

/// The advantage of every sampled token of trained trajectories; shared steps are included once.
pub(crate) fn of_tokens<'a>(advantages: &'a Advantages, steps: &'a [StepRow]) -> impl Iterator<Item = f64> + 'a {
    trained(advantages, steps)
        .flat_map(|(row, list)| list.iter().zip(&row.mask).filter(|(_, mask)| **mask).map(|(a, _)| *a))
}

/// The mean KL(policy || reference) of a sampled token before the update, by the formula of a
/// penalty in the reward; `None` without trained tokens, or without the reference's
/// log-probabilities.
pub(crate) fn mean_kl(advantages: &Advantages, steps: &[StepRow], kind: KlKind) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_usize);
    for (row, _) in trained(advantages, steps) {
        let both = row.logp_old.iter().zip(&row.logp_ref).zip(&row.mask);
        for ((policy, reference), _) in both.filter(|(_, sampled)| **sampled) {
            sum += kl_value(policy - reference, kind);
            count += 1;
        }
    }
    (count > 0).then(|| sum / count as f64)
}

/// For each of `count` trajectories, the advantages of the tokens of each step; `None` for one that
/// is not trained on.
pub(crate) fn by_token(advantages: &Advantages, steps: &[StepRow], count: usize) -> Vec<Option<Vec<Vec<f64>>>> {
    let of = |index: usize| {
        let places = of_trajectory(steps, index);
        let counts = advantages.counted.get(places.start).filter(|_| !places.is_empty());
        counts.is_some_and(|counts| *counts).then(|| advantages.advantages[places].to_vec())
    };
    (0..count).map(of).collect()
}

/// Adds the ids of trajectories to an error of `rl`, which has only their numbers.
pub(crate) fn with_trajectory_ids(error: Error, trajectories: &[Trajectory]) -> Error {
    let Some(Subject::Trajectories { numbers, step }) = error.subject.as_deref() else { return error };
    let name = |number: &u64| {
        let index = usize::try_from(*number).ok();
        let trajectory = index.and_then(|index| trajectories.get(index));
        trajectory.map_or_else(|| number.to_string(), |trajectory| trajectory.id.clone())
    };
    let plain: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    if error.place.as_ref().is_some_and(|location| *location != trajectories_place(&plain, *step)) {
        return error;
    }
    let location = trajectories_place(&numbers.iter().map(name).collect::<Vec<String>>(), *step);
    Error { place: Some(location), ..error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;
    use crate::mdp::{Fork, Status, Step, testing};
    use crate::rl::pack::{Row, merge, put_advantages};
    use crate::rl::rewards::{Grouping, Method, Shaping};
    use crate::train::learn::steps::{read_columns, scaled, training_steps};

    fn step(prompt: &[u32], reply: &[u32], reward: f64) -> Step {
        Step { reward, ..testing::step(prompt, reply) }
    }

    fn trajectory(id: &str, steps: Vec<Step>) -> Trajectory {
        Trajectory { id: id.to_owned(), ..testing::trajectory(steps) }
    }

    fn config<'a>(estimator: &'a Estimator, returns: &'a mut Option<ReturnScale>) -> AdvantageConfig<'a> {
        AdvantageConfig::new(estimator, RewardShaping::default(), returns)
    }

    /// Steps with their advantages.
    type Computed = (Vec<StepRow>, Advantages);

    fn compute(mut steps: Vec<StepRow>, config: AdvantageConfig<'_>, trajectories: &[Trajectory]) -> Result<Computed> {
        let advantages = compute_advantages(&mut steps, config, trajectories)?;
        Ok((steps, advantages))
    }

    fn step_means((steps, advantages): &Computed, trajectories: &[Trajectory]) -> Vec<Option<Vec<f64>>> {
        let mean = |tokens: &Vec<f64>| tokens.iter().sum::<f64>() / tokens.len().max(1) as f64;
        let of = |steps: Option<Vec<Vec<f64>>>| Some(steps?.iter().map(mean).collect());
        by_token(advantages, steps, trajectories.len()).into_iter().map(of).collect()
    }

    fn tokens((steps, advantages): &Computed) -> Vec<f64> {
        of_tokens(advantages, steps).collect()
    }

    /// The advantages of the tokens of rows.
    fn column((steps, advantages): &Computed, rows: &[Row]) -> Vec<Vec<f64>> {
        let mut rows = rows.to_vec();
        put_advantages(&mut rows, steps, advantages);
        rows.into_iter().map(|row| row.advantages).collect()
    }

    /// A root of two steps that is right, a branch after its first step that is wrong, another root
    /// that is wrong.
    fn tree() -> [Trajectory; 3] {
        let first = || step(&[1], &[2, 3], 0.0);
        let [root, mut branch, other] = [
            trajectory("1-0-0", vec![first(), step(&[1, 2, 3, 4], &[5], 1.0)]),
            trajectory("1-0-1", vec![first(), step(&[1, 2, 3, 4], &[6, 7], 0.0)]),
            trajectory("1-0-2", vec![step(&[1], &[9], 0.0)]),
        ];
        branch.fork = Some(Fork { parent: root.id.clone(), step: 1 });
        [root, branch, other]
    }

    #[test]
    fn a_shared_step_is_trained_once_with_the_mean_of_its_advantages() {
        let trajectories = tree();
        let rows = rows(&trajectories);
        assert_eq!(rows[0].loss_mask, [false, true, true, false, true]);
        assert_eq!(rows[1].loss_mask, [false, false, false, false, true, true], "the prefix is context");
        assert_eq!(rows.iter().map(Row::sampled).sum::<usize>(), 6, "as many as were sampled");
        let batch = |name: &str| {
            let estimator = Estimator::new(name, &serde_json::json!({ "normalize": "none" })).unwrap();
            let steps = training_steps(&trajectories, |_| false);
            compute(steps, config(&estimator, &mut None), &trajectories).unwrap()
        };
        let (grpo, third) = (batch("grpo"), 1.0 / 3.0);
        let advantages = column(&grpo, &rows);
        let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15);
        // Totals 1, 0, 0 less their mean; the shared step has the mean of 2/3 and -1/3.
        assert!(close(&advantages[0], &[0.0, third / 2.0, third / 2.0, 0.0, 2.0 * third]), "{advantages:?}");
        assert!(close(&advantages[1], &[0.0, 0.0, 0.0, 0.0, -third, -third]), "{advantages:?}");
        assert!(close(&advantages[2], &[0.0, -third]));
        let by_step = step_means(&grpo, &trajectories);
        assert_eq!(by_step[0].as_ref().unwrap()[0], by_step[1].as_ref().unwrap()[0]);
        assert_eq!(tokens(&grpo).len(), 6);
        // A tree also compares the two continuations with the state between them, whose value is
        // 1/2.
        let advantages = column(&batch("tree"), &rows);
        assert!(close(&advantages[0], &[0.0, third / 2.0, third / 2.0, 0.0, 7.0 / 12.0]));
        assert!(close(&advantages[1], &[0.0, 0.0, 0.0, 0.0, -5.0 / 12.0, -5.0 / 12.0]));
    }

    #[test]
    fn a_shared_step_has_the_values_of_its_parent_trajectory() {
        let trajectories = tree();
        let mut rows = rows(&trajectories);
        let mut steps = training_steps(&trajectories, |_| false);
        for row in &mut rows {
            row.values = (0..row.len()).map(|i| i as f32).collect();
        }
        read_columns(&mut steps, &rows);
        assert_eq!(steps.iter().map(|row| row.shared).collect::<Vec<_>>(), [None, None, Some(0), None, None]);
        assert_eq!(steps[2].values, [1.0, 2.0]);
        assert_eq!(steps[3].values, [4.0, 5.0]);
        // The return of a shared step is the mean over its continuations.
        let gae = Estimator::new("gae", &serde_json::json!({ "whiten": "none" })).unwrap();
        let advantages = compute_advantages(&mut steps, config(&gae, &mut None), &trajectories).unwrap();
        put_advantages(&mut rows, &steps, &advantages);
        assert_eq!(rows[0].returns, [0.0, 0.5, 0.0, 0.0, 1.0]);
        assert_eq!(rows[1].targets, [false, false, false, false, true, false]);
    }

    #[test]
    fn a_fork_of_a_fork_shares_steps_with_both() {
        let [root, mut branch, mut twig] = tree();
        branch.steps.push(step(&[1, 2, 3, 4, 6, 7, 8], &[9], 0.0));
        twig.steps = branch.steps.clone();
        twig.fork = Some(Fork { parent: branch.id.clone(), step: 2 });
        let steps = training_steps(&[twig, branch, root], |_| false);
        let shared: Vec<Option<u64>> = steps.iter().map(|row| row.shared).collect();
        assert_eq!(shared, [Some(2), Some(1), None, Some(2), None, None, None, None]);
    }

    fn rows(trajectories: &[Trajectory]) -> Vec<Row> {
        trajectories.iter().enumerate().flat_map(|(i, trajectory)| merge(trajectory, i).unwrap()).collect()
    }

    #[test]
    fn values_are_copied_to_steps_and_returns_to_rows() {
        let trajectories = [
            trajectory("1-0-0", vec![step(&[1], &[2, 3], 0.0), step(&[1, 2, 3, 4], &[5], 1.0)]),
            trajectory("1-0-1", vec![step(&[1], &[7], -1.0)]),
        ];
        let mut rows = rows(&trajectories);
        rows[0].values = vec![0.0, 0.25, 0.5, 0.0, 0.75];
        rows[1].values = vec![0.0, 0.125];
        let mut steps = training_steps(&trajectories, |_| false);
        read_columns(&mut steps, &rows);
        assert_eq!(steps[0].values, [0.25, 0.5]);
        assert_eq!(steps[1].values, [0.75]);
        assert_eq!(steps[2].values, [0.125]);
        let gae = Estimator::new("gae", &serde_json::json!({ "whiten": "none" })).unwrap();
        let batch = compute(steps, config(&gae, &mut None), &trajectories).unwrap();
        put_advantages(&mut rows, &batch.0, &batch.1);
        assert_eq!(rows[0].targets, [false, true, false, false, true]);
        assert_eq!(rows[1].targets, [false, true]);
        assert_eq!((rows[0].returns[1], rows[0].returns[4], rows[1].returns[1]), (1.0, 1.0, -1.0));
        assert_eq!(rows[0].advantages, [0.0, 0.75, 0.75, 0.0, 0.25]);
        assert_eq!(rows[1].advantages, [0.0, -1.125]);
        assert_eq!(step_means(&batch, &trajectories), [Some(vec![0.75, 0.25]), Some(vec![-1.125])]);
        assert_eq!(tokens(&batch), [0.75, 0.75, 0.25, -1.125]);
    }

    #[test]
    fn failures_have_no_advantage_and_nan_rewards_name_the_trajectory() {
        let mut trajectories = [trajectory("4-2-0", vec![]), trajectory("4-2-1", vec![step(&[1], &[2], f64::NAN)])];
        let grpo = Estimator::new("grpo", &serde_json::Value::Null).unwrap();
        let assign = |all: &[Trajectory]| compute(training_steps(all, |_| false), config(&grpo, &mut None), all);
        let error = assign(&trajectories).err().unwrap().to_string();
        assert!(error.contains("trajectory 4-2-1 step 0"), "{error}");
        trajectories[1].steps[0].reward = 1.0;
        trajectories[1].status = Status::EnvError;
        assert_eq!(step_means(&assign(&trajectories).unwrap(), &trajectories), [None, None]);
    }

    #[test]
    fn the_only_trajectory_of_a_group_without_failure_has_advantage_zero() {
        let survivor = trajectory("1-0-0", vec![step(&[1], &[2, 3], 50.0)]);
        let lost = Trajectory { status: Status::EnvError, ..trajectory("1-0-1", vec![]) };
        let assign = |all: &[Trajectory], name: &str, baseline: Option<usize>| {
            let estimator = Estimator::new(name, &serde_json::Value::Null).unwrap();
            let steps = training_steps(all, |index| Some(index) == baseline);
            let batch = compute(steps, config(&estimator, &mut None), all).unwrap();
            step_means(&batch, all).swap_remove(0).unwrap()
        };
        let both = [survivor.clone(), lost];
        for name in ["grpo", "rloo", "opo", "gpg", "tree", "max_rl", "grpo_passk", "rapo", "reinforce_pp_baseline"] {
            assert_eq!(assign(&both, name, None), [0.0], "{name}");
        }
        assert_eq!(assign(&both, "remax", Some(1)), [0.0], "a greedy baseline that failed is not compared with");
        assert_eq!(assign(&[survivor], "rloo", None), [50.0], "a group of one that nothing failed in");
    }

    #[test]
    fn tags_come_from_the_dataset_rows_and_a_missing_tag_is_an_error() {
        // Two kinds of task with unrelated rewards, each in a separate group.
        let of = |index: usize, tag: serde_json::Value, reward: f64| Trajectory {
            task: serde_json::json!({ "tag": tag }),
            task_index: index as u64,
            group: index as u64,
            ..trajectory(&format!("1-{index}-0"), vec![step(&[1], &[2], reward)])
        };
        let tags = ["easy".into(), 7.into(), 7.into(), "easy".into()];
        let mut all: Vec<Trajectory> =
            tags.into_iter().zip([100.0, 1.0, 3.0, 104.0]).enumerate().map(|(i, (tag, r))| of(i, tag, r)).collect();
        let shaping = Shaping { normalize: Some((Grouping::Inductive, Method::Mean)), ..Shaping::default() };
        let plain = Estimator::new("reinforce_pp", &serde_json::json!({ "whiten": "none" })).unwrap();
        let assign = |all: &[Trajectory]| {
            let mut returns = None;
            let config = AdvantageConfig::new(&plain, shaping.clone().into(), &mut returns);
            compute(training_steps(all, |_| false), config, all)
        };
        assert_eq!(tokens(&assign(&all).unwrap()), [-2.0, -1.0, 1.0, 2.0]);
        all[2].task = serde_json::json!({ "question": "?" });
        let error = assign(&all).err().unwrap();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Data, Some("training row 3")));
        assert!(error.message.contains("no `tag`"), "{error}");
    }

    #[test]
    fn infinite_advantages_stop_the_run_or_skip_the_batch() {
        // The rewards are numbers, and their differences are not.
        let huge = [f64::MAX, f64::MIN];
        let all = [0, 1].map(|i| trajectory(&format!("4-2-{i}"), vec![step(&[1], &[2], huge[i])]));
        let grpo = Estimator::new("grpo", &serde_json::Value::Null).unwrap();
        let assign = |on_nan| {
            let mut returns = None;
            let config = AdvantageConfig { on_nan, ..config(&grpo, &mut returns) };
            compute(training_steps(&all, |_| false), config, &all)
        };
        let error = assign(OnNan::Stop).err().unwrap();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Numeric, Some("trajectory 4-2-0 step 0")));
        assert!(error.message.starts_with("an advantage is"), "{error}");
        let batch = assign(OnNan::Skip).unwrap();
        assert_eq!((tokens(&batch).len(), step_means(&batch, &all)), (0, vec![None, None]));
        assert_eq!(batch.1.skipped.unwrap().to_string(), error.to_string());
    }

    #[test]
    fn tool_rewards_are_shaped_as_process_rewards() {
        let tool = |reward| crate::mdp::ToolRecord {
            name: "t".to_owned(),
            arguments: serde_json::Value::Null,
            kind: crate::mdp::CallKind::Ran,
            output: String::new(),
            ok: true,
            reward,
            seconds: 0.0,
            ..crate::mdp::ToolRecord::default()
        };
        // Outcomes 1 and 0; process rewards 0.5 and 2.
        let mut all = [0, 1].map(|i| trajectory(&format!("1-0-{i}"), vec![step(&[1], &[2, 3], [1.5, 2.0][i])]));
        all[0].steps[0].tools = vec![tool(0.25), tool(0.25)];
        all[1].steps[0].tools = vec![tool(2.0)];
        let estimate = |shaping: serde_json::Value| {
            let shaping: Shaping = serde_json::from_value(shaping).unwrap();
            let plain = Estimator::new("grpo", &serde_json::json!({ "normalize": "none" })).unwrap();
            let mut returns = None;
            let config = AdvantageConfig::new(&plain, shaping.into(), &mut returns);
            let batch = compute(training_steps(&all, |_| false), config, &all).unwrap();
            step_means(&batch, &all).into_iter().map(|advantages| advantages.unwrap()[0]).collect::<Vec<_>>()
        };
        let close = |actual: &[f64], half: f64| (actual[0] + half).abs() < 1e-12 && (actual[1] - half).abs() < 1e-12;
        // Together 1.5 and 2; process rewards divided by 2; outcomes normalised to 1/2 and -1/2 and
        // process rewards not.
        assert!(close(&estimate(serde_json::json!({})), 0.25));
        let prime = 2.000_001;
        assert!(close(&estimate(serde_json::json!({ "prime": true })), (2.0 / prime - (1.0 + 0.5 / prime)) / 2.0));
        assert!(close(&estimate(serde_json::json!({ "normalize": ["state", "mean"] })), 0.25));
        let clipped = estimate(serde_json::json!({ "normalize": ["state", "mean"], "prime": true }));
        assert!(close(&clipped, (1.5 / prime - 1.0) / 2.0), "{clipped:?}");
    }

    #[test]
    fn returns_are_divided_by_their_running_deviation() {
        let sampled = |rewards: [f64; 2]| {
            [0, 1].map(|i| {
                let steps = vec![step(&[1], &[2], rewards[i]), step(&[1, 2, 3], &[4], 1.0)];
                trajectory(&format!("1-0-{i}"), steps)
            })
        };
        let shaping = Shaping { running: Some(0.5), ..Shaping::default() };
        let plain = Estimator::new("grpo", &serde_json::json!({ "normalize": "none" })).unwrap();
        let (mut returns, mut by_hand) = (None, ReturnScale::new(0.5));
        for rewards in [[2.0, 4.0], [0.0, -6.0]] {
            let all = sampled(rewards);
            let config = AdvantageConfig::new(&plain, shaping.clone().into(), &mut returns);
            let batch = compute(training_steps(&all, |_| false), config, &all).unwrap();
            by_hand.update(&[vec![rewards[0], 1.0], vec![rewards[1], 1.0]]);
            let want = (rewards[0] - rewards[1]) / 2.0 * by_hand.factor();
            let actual = step_means(&batch, &all)[0].as_ref().unwrap()[0];
            assert!((actual - want).abs() < 1e-12, "{actual} {want}");
        }
        assert_eq!(returns, Some(by_hand));
        // Another discount starts new statistics.
        let other = Shaping { running: Some(0.9), ..Shaping::default() };
        scaled(&training_steps(&sampled([1.0, 2.0]), |_| false), &other, &mut returns).unwrap();
        assert_eq!(returns.map(|scale| (scale.gamma, scale.count.round())), Some((0.9, 4.0)));
    }
}
