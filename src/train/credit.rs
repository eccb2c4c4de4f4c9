//! Credit: what every sampled token of a step's trajectories is worth, and what the critic should have said.

use super::steps::Steps;
use crate::config::OnNan;
use crate::error::{Error, Kind, Result, Subject, trajectories_place};
use crate::mdp::Trajectory;
use crate::rl::advantages::Advantages;
use crate::rl::kl::{KlKind, kl_value};
use crate::rl::pack::{Row, spread};
use crate::rl::rewards::{Grouping, ReturnScale, Shaping, shape};
use crate::rl::rows::StepRow;

/// Advantages and critic's targets of a batch.
pub(super) struct Credit {
    steps: Steps,
    found: Advantages,
    /// Why nothing can be learned from the batch: a number is NaN or infinite, and the recipe goes on without it.
    pub(super) skipped: Option<Error>,
}

/// How a recipe makes credit of rewards.
pub(super) struct Ways<'a> {
    pub(super) shaping: &'a Shaping,
    /// The running deviation of returns; taken up and handed on where the recipe divides by it.
    pub(super) returns: &'a mut Option<ReturnScale>,
    pub(super) on_nan: OnNan,
}

impl Credit {
    /// Shapes the rewards and runs the estimator. Failures have no advantage.
    ///
    /// # Errors
    /// `Kind::Numeric` names the trajectory whose rewards, values or advantages are NaN or infinite; with
    /// `on_nan = "skip"` nobody has an advantage instead.
    pub(super) fn assign(
        mut steps: Steps,
        ways: Ways<'_>,
        estimate: impl FnOnce(&[StepRow]) -> Result<Advantages>,
        trajectories: &[Trajectory],
    ) -> Result<Self> {
        let Ways { shaping, returns, on_nan } = ways;
        let nothing = Advantages::none(&steps.rows);
        let found = (|| {
            let shaping = steps.scaled(shaping, returns)?;
            if let Some((Grouping::Inductive, _)) = shaping.normalize {
                steps.tag(trajectories)?;
            }
            if shaping.has_parts() {
                steps.part(trajectories);
            }
            steps.rows = shape(&steps.rows, &shaping, false)?;
            let found = estimate(&steps.rows)?;
            found.finite(&steps.rows)?;
            Ok(found)
        })();
        match found.map_err(|error: Error| named(error, trajectories)) {
            Ok(found) => Ok(Self { found, steps, skipped: None }),
            Err(error) if error.kind == Kind::Numeric && on_nan == OnNan::Skip => {
                Ok(Self { found: nothing, steps, skipped: Some(error) })
            }
            Err(error) => Err(error),
        }
    }

    /// The advantage of every token of the rows; 0 where nothing was sampled.
    pub(super) fn advantages(&self, rows: &[Row]) -> Vec<Vec<f64>> {
        spread(rows, &self.steps.rows, &self.found.advantages)
    }

    /// What the critic should have said before every token of the rows, and whether it is asked there.
    pub(super) fn targets(&self, rows: &[Row]) -> (Vec<Vec<f64>>, Vec<Vec<bool>>) {
        let number = |list: &Vec<bool>| list.iter().map(|&asked| f64::from(u8::from(asked))).collect();
        let asked: Vec<Vec<f64>> = self.found.targets.iter().map(number).collect();
        let asked = spread(rows, &self.steps.rows, &asked);
        let truth = |list: Vec<f64>| list.into_iter().map(|number| number > 0.0).collect();
        let returns = spread(rows, &self.steps.rows, &self.found.returns);
        (returns, asked.into_iter().map(truth).collect())
    }

    /// The mean KL(policy || reference) of a sampled token before the update, by the formula of a penalty in the reward;
    /// `None` without tokens that count, or without the reference's log-probabilities.
    pub(super) fn kl(&self, kind: KlKind) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0_usize);
        let rows = self.steps.rows.iter().zip(&self.found.counted);
        for (row, _) in rows.filter(|(row, counted)| **counted && row.shared.is_none()) {
            let both = row.logp_old.iter().zip(&row.logp_ref).zip(&row.mask);
            for ((own, reference), _) in both.filter(|(_, sampled)| **sampled) {
                sum += kl_value(own - reference, kind);
                count += 1;
            }
        }
        (count > 0).then(|| sum / count as f64)
    }

    /// The mean advantage of each step, for the records.
    pub(super) fn by_step(&self, trajectories: &[Trajectory]) -> Vec<Option<Vec<f64>>> {
        let mean = |row: usize| {
            let tokens = &self.found.advantages[row];
            tokens.iter().sum::<f64>() / tokens.len().max(1) as f64
        };
        let of = |index: usize| {
            let steps = self.steps.of_trajectory(index);
            let counts = steps.clone().next().is_some_and(|first| self.found.counted[first]);
            counts.then(|| steps.map(mean).collect())
        };
        (0..trajectories.len()).map(of).collect()
    }

    /// The advantages of each step's sampled tokens.
    pub(super) fn by_token(&self, trajectories: &[Trajectory]) -> Vec<Option<Vec<Vec<f64>>>> {
        let of = |index: usize| {
            let steps = self.steps.of_trajectory(index);
            let counts = steps.clone().next().is_some_and(|first| self.found.counted[first]);
            counts.then(|| steps.map(|row| self.found.advantages[row].clone()).collect())
        };
        (0..trajectories.len()).map(of).collect()
    }

    /// Every sampled token's advantage, of trajectories that count; those of shared steps once.
    pub(super) fn all(&self) -> impl Iterator<Item = f64> + '_ {
        let rows = self.found.advantages.iter().zip(&self.found.counted).zip(&self.steps.rows);
        rows.filter(|((_, counted), row)| **counted && row.shared.is_none())
            .flat_map(|((list, _), row)| list.iter().zip(&row.mask).filter(|(_, mask)| **mask).map(|(a, _)| *a))
    }
}

/// Names the trajectories of an error by their ids: the functions of `rl` know their numbers only.
pub(super) fn named(error: Error, trajectories: &[Trajectory]) -> Error {
    let Some(Subject::Trajectories { numbers, step }) = error.subject.as_deref() else { return error };
    let name = |number: &u64| {
        let place = usize::try_from(*number).ok();
        let trajectory = place.and_then(|place| trajectories.get(place));
        trajectory.map_or_else(|| number.to_string(), |trajectory| trajectory.id.clone())
    };
    let plain: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    if error.place.as_ref().is_some_and(|place| *place != trajectories_place(&plain, *step)) {
        return error;
    }
    let place = trajectories_place(&numbers.iter().map(name).collect::<Vec<String>>(), *step);
    Error { place: Some(place), ..error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;
    use crate::mdp::{FinishReason, Fork, Status, Step, Support};
    use crate::rl::advantages::Estimator;
    use crate::rl::pack::merge;
    use crate::rl::rewards::Method;

    fn step(prompt: &[u32], reply: &[u32], reward: f64) -> Step {
        Step {
            prompt_ids: prompt.to_vec(),
            response_ids: reply.to_vec(),
            logprobs: vec![-1.0; reply.len()],
            text: String::new(),
            finish_reason: FinishReason::Stop,
            reward,
            terminated: false,
            truncated: false,
            tools: Vec::new(),
            prefilled: 0,
            new_row: false,
            support: Support::default(),
            routing: crate::mdp::Routing::default(),
            privileged: None,
            next_privileged: None,
            next_prompt_ids: Vec::new(),
        }
    }

    fn trajectory(id: &str, steps: Vec<Step>) -> Trajectory {
        Trajectory {
            id: id.to_owned(),
            split: crate::mdp::Split::Train,
            task_index: 0,
            task: serde_json::Value::Null,
            group: 0,
            sample: 0,
            fork: None,
            seed: 0,
            script_hash: String::new(),
            status: Status::Terminated,
            truncated_by: None,
            retries: 0,
            error: None,
            steps,
            outcome_reward: 0.0,
            reward_parts: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            record: Vec::new(),
        }
    }

    static PLAIN: Shaping =
        Shaping { overlong: None, prime: false, normalize: None, scale: None, running: None, kl: None };

    fn plainly(returns: &mut Option<ReturnScale>) -> Ways<'_> {
        Ways { shaping: &PLAIN, returns, on_nan: OnNan::Stop }
    }

    /// A root of two steps that is right, a branch after its first step that is wrong, a root of its own that is wrong.
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
    fn a_shared_step_is_learned_from_once_with_the_mean_of_its_advantages() {
        let trajectories = tree();
        let rows = rows(&trajectories);
        assert_eq!(rows[0].loss_mask, [false, true, true, false, true]);
        assert_eq!(rows[1].loss_mask, [false, false, false, false, true, true], "the prefix is context");
        assert_eq!(rows.iter().map(Row::sampled).sum::<usize>(), 6, "as many as were sampled");
        let credit = |name: &str| {
            let estimator = Estimator::new(name, &serde_json::json!({ "normalize": "none" })).unwrap();
            let steps = Steps::of(&trajectories, |_| false);
            Credit::assign(steps, plainly(&mut None), |rows| estimator.estimate(rows, false), &trajectories).unwrap()
        };
        let (grpo, third) = (credit("grpo"), 1.0 / 3.0);
        let advantages = grpo.advantages(&rows);
        let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15);
        // Totals 1, 0, 0 less their mean; the shared step has the mean of 2/3 and -1/3.
        assert!(close(&advantages[0], &[0.0, third / 2.0, third / 2.0, 0.0, 2.0 * third]), "{advantages:?}");
        assert!(close(&advantages[1], &[0.0, 0.0, 0.0, 0.0, -third, -third]), "{advantages:?}");
        assert!(close(&advantages[2], &[0.0, -third]));
        let by_step = grpo.by_step(&trajectories);
        assert_eq!(by_step[0].as_ref().unwrap()[0], by_step[1].as_ref().unwrap()[0]);
        assert_eq!(grpo.all().count(), 6);
        // A tree also compares the two continuations with the state between them, whose value is 1/2.
        let advantages = credit("tree").advantages(&rows);
        assert!(close(&advantages[0], &[0.0, third / 2.0, third / 2.0, 0.0, 7.0 / 12.0]));
        assert!(close(&advantages[1], &[0.0, 0.0, 0.0, 0.0, -5.0 / 12.0, -5.0 / 12.0]));
    }

    #[test]
    fn values_of_a_shared_step_are_those_of_the_trajectory_that_took_it() {
        let trajectories = tree();
        let rows = rows(&trajectories);
        let mut steps = Steps::of(&trajectories, |_| false);
        let values: Vec<Vec<f32>> = rows.iter().map(|row| (0..row.len()).map(|i| i as f32).collect()).collect();
        steps.fill(&rows, &values, |row| &mut row.values);
        assert_eq!(steps.rows.iter().map(|row| row.shared).collect::<Vec<_>>(), [None, None, Some(0), None, None]);
        assert_eq!(steps.rows[2].values, [1.0, 2.0]);
        assert_eq!(steps.rows[3].values, [4.0, 5.0]);
        // The return of a shared step is the mean over what came of it.
        let gae = Estimator::new("gae", &serde_json::json!({ "whiten": "none" })).unwrap();
        let credit = Credit::assign(steps, plainly(&mut None), |rows| gae.estimate(rows, false), &trajectories);
        let (returns, asked) = credit.unwrap().targets(&rows);
        assert_eq!(returns[0], [0.0, 0.5, 0.0, 0.0, 1.0]);
        assert_eq!(asked[1], [false, false, false, false, true, false]);
    }

    #[test]
    fn a_fork_of_a_fork_shares_with_both() {
        let [root, mut branch, mut twig] = tree();
        branch.steps.push(step(&[1, 2, 3, 4, 6, 7, 8], &[9], 0.0));
        twig.steps = branch.steps.clone();
        twig.fork = Some(Fork { parent: branch.id.clone(), step: 2 });
        let steps = Steps::of(&[twig, branch, root], |_| false);
        let shared: Vec<Option<u64>> = steps.rows.iter().map(|row| row.shared).collect();
        assert_eq!(shared, [Some(2), Some(1), None, Some(2), None, None, None, None]);
    }

    fn rows(trajectories: &[Trajectory]) -> Vec<Row> {
        trajectories.iter().enumerate().flat_map(|(i, trajectory)| merge(trajectory, i).unwrap()).collect()
    }

    #[test]
    fn values_go_to_their_steps_and_come_back_as_targets() {
        let trajectories = [
            trajectory("1-0-0", vec![step(&[1], &[2, 3], 0.0), step(&[1, 2, 3, 4], &[5], 1.0)]),
            trajectory("1-0-1", vec![step(&[1], &[7], -1.0)]),
        ];
        let rows = rows(&trajectories);
        let values = [vec![0.0, 0.25, 0.5, 0.0, 0.75], vec![0.0, 0.125]];
        let mut steps = Steps::of(&trajectories, |_| false);
        steps.fill(&rows, &values, |row| &mut row.values);
        assert_eq!(steps.rows[0].values, [0.25, 0.5]);
        assert_eq!(steps.rows[1].values, [0.75]);
        assert_eq!(steps.rows[2].values, [0.125]);
        let gae = Estimator::new("gae", &serde_json::json!({ "whiten": "none" })).unwrap();
        let credit =
            Credit::assign(steps, plainly(&mut None), |steps| gae.estimate(steps, false), &trajectories).unwrap();
        let (returns, asked) = credit.targets(&rows);
        assert_eq!(asked, [vec![false, true, false, false, true], vec![false, true]]);
        assert_eq!((returns[0][1], returns[0][4], returns[1][1]), (1.0, 1.0, -1.0));
        assert_eq!(credit.advantages(&rows), [vec![0.0, 0.75, 0.75, 0.0, 0.25], vec![0.0, -1.125]]);
        assert_eq!(credit.by_step(&trajectories), [Some(vec![0.75, 0.25]), Some(vec![-1.125])]);
        assert_eq!(credit.all().collect::<Vec<_>>(), [0.75, 0.75, 0.25, -1.125]);
    }

    #[test]
    fn failures_have_no_credit_and_a_broken_reward_is_named() {
        let mut trajectories = [trajectory("4-2-0", vec![]), trajectory("4-2-1", vec![step(&[1], &[2], f64::NAN)])];
        let grpo = Estimator::new("grpo", &serde_json::Value::Null).unwrap();
        let assign = |all: &[Trajectory]| {
            let steps = Steps::of(all, |_| false);
            Credit::assign(steps, plainly(&mut None), |steps| grpo.estimate(steps, false), all)
        };
        let error = assign(&trajectories).err().unwrap().to_string();
        assert!(error.contains("trajectory 4-2-1 step 0"), "{error}");
        trajectories[1].steps[0].reward = 1.0;
        trajectories[1].status = Status::EnvError;
        assert_eq!(assign(&trajectories).unwrap().by_step(&trajectories), [None, None]);
    }

    #[test]
    fn the_survivor_of_a_group_teaches_nothing_even_if_the_others_never_began() {
        let survivor = trajectory("1-0-0", vec![step(&[1], &[2, 3], 50.0)]);
        let lost = Trajectory { status: Status::EnvError, ..trajectory("1-0-1", vec![]) };
        let assign = |all: &[Trajectory], name: &str, companion: Option<usize>| {
            let estimator = Estimator::new(name, &serde_json::Value::Null).unwrap();
            let steps = Steps::of(all, |index| Some(index) == companion);
            let mut returns = None;
            let ways = plainly(&mut returns);
            let credit = Credit::assign(steps, ways, |steps| estimator.estimate(steps, false), all).unwrap();
            credit.by_step(all).swap_remove(0).unwrap()
        };
        let both = [survivor.clone(), lost];
        for name in ["grpo", "rloo", "opo", "gpg", "tree", "max_rl", "grpo_passk", "rapo", "reinforce_pp_baseline"] {
            assert_eq!(assign(&both, name, None), [0.0], "{name}");
        }
        assert_eq!(assign(&both, "remax", Some(1)), [0.0], "a companion that failed is no baseline");
        assert_eq!(assign(&[survivor], "rloo", None), [50.0], "a group of one that nothing failed in");
    }

    #[test]
    fn tags_come_from_the_rows_and_a_row_without_one_is_named() {
        // Two kinds of task whose rewards have nothing in common, each in a group of its own.
        let of = |place: usize, tag: serde_json::Value, reward: f64| Trajectory {
            task: serde_json::json!({ "tag": tag }),
            task_index: place as u64,
            group: place as u64,
            ..trajectory(&format!("1-{place}-0"), vec![step(&[1], &[2], reward)])
        };
        let tags = ["easy".into(), 7.into(), 7.into(), "easy".into()];
        let mut all: Vec<Trajectory> =
            tags.into_iter().zip([100.0, 1.0, 3.0, 104.0]).enumerate().map(|(i, (tag, r))| of(i, tag, r)).collect();
        let shaping = Shaping { normalize: Some((Grouping::Inductive, Method::Mean)), ..Shaping::default() };
        let plain = Estimator::new("reinforce_pp", &serde_json::json!({ "whiten": "none" })).unwrap();
        let assign = |all: &[Trajectory]| {
            let mut returns = None;
            let ways = Ways { shaping: &shaping, ..plainly(&mut returns) };
            Credit::assign(Steps::of(all, |_| false), ways, |rows| plain.estimate(rows, false), all)
        };
        assert_eq!(assign(&all).unwrap().all().collect::<Vec<_>>(), [-2.0, -1.0, 1.0, 2.0]);
        all[2].task = serde_json::json!({ "question": "?" });
        let error = assign(&all).err().unwrap();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Data, Some("training row 3")));
        assert!(error.message.contains("no `tag`"), "{error}");
    }

    #[test]
    fn numbers_that_are_none_stop_or_teach_nothing() {
        // The rewards are numbers, and their differences are not.
        let huge = [f64::MAX, f64::MIN];
        let all = [0, 1].map(|i| trajectory(&format!("4-2-{i}"), vec![step(&[1], &[2], huge[i])]));
        let grpo = Estimator::new("grpo", &serde_json::Value::Null).unwrap();
        let assign = |on_nan| {
            let ways = Ways { shaping: &PLAIN, returns: &mut None, on_nan };
            Credit::assign(Steps::of(&all, |_| false), ways, |rows| grpo.estimate(rows, false), &all)
        };
        let error = assign(OnNan::Stop).err().unwrap();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Numeric, Some("trajectory 4-2-0 step 0")));
        assert!(error.message.starts_with("an advantage is"), "{error}");
        let credit = assign(OnNan::Skip).unwrap();
        assert_eq!((credit.all().count(), credit.by_step(&all)), (0, vec![None, None]));
        assert_eq!(credit.skipped.unwrap().to_string(), error.to_string());
    }

    #[test]
    fn what_tools_earn_is_shaped_apart() {
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
        // Outcomes 1 and 0; the first was given 0.5 for a call, the second 2.
        let mut all = [0, 1].map(|i| trajectory(&format!("1-0-{i}"), vec![step(&[1], &[2, 3], [1.5, 2.0][i])]));
        all[0].steps[0].tools = vec![tool(0.25), tool(0.25)];
        all[1].steps[0].tools = vec![tool(2.0)];
        let estimate = |shaping: serde_json::Value| {
            let shaping: Shaping = serde_json::from_value(shaping).unwrap();
            let plain = Estimator::new("grpo", &serde_json::json!({ "normalize": "none" })).unwrap();
            let ways = Ways { shaping: &shaping, returns: &mut None, on_nan: OnNan::Stop };
            let steps = Steps::of(&all, |_| false);
            let credit = Credit::assign(steps, ways, |rows| plain.estimate(rows, false), &all).unwrap();
            credit.by_step(&all).into_iter().map(|own| own.unwrap()[0]).collect::<Vec<_>>()
        };
        let close = |found: &[f64], half: f64| (found[0] + half).abs() < 1e-12 && (found[1] - half).abs() < 1e-12;
        // Together 1.5 and 2; process rewards divided by 2; outcomes normalised to 1/2 and -1/2 and process rewards not.
        assert!(close(&estimate(serde_json::json!({})), 0.25));
        let prime = 2.000_001;
        assert!(close(&estimate(serde_json::json!({ "prime": true })), (2.0 / prime - (1.0 + 0.5 / prime)) / 2.0));
        assert!(close(&estimate(serde_json::json!({ "normalize": ["state", "mean"] })), 0.25));
        let clipped = estimate(serde_json::json!({ "normalize": ["state", "mean"], "prime": true }));
        assert!(close(&clipped, (1.5 / prime - 1.0) / 2.0), "{clipped:?}");
    }

    #[test]
    fn returns_are_divided_by_their_running_deviation() {
        let batch = |rewards: [f64; 2]| {
            [0, 1].map(|i| {
                let steps = vec![step(&[1], &[2], rewards[i]), step(&[1, 2, 3], &[4], 1.0)];
                trajectory(&format!("1-0-{i}"), steps)
            })
        };
        let shaping = Shaping { running: Some(0.5), ..Shaping::default() };
        let plain = Estimator::new("grpo", &serde_json::json!({ "normalize": "none" })).unwrap();
        let (mut returns, mut by_hand) = (None, ReturnScale::new(0.5));
        for rewards in [[2.0, 4.0], [0.0, -6.0]] {
            let all = batch(rewards);
            let ways = Ways { shaping: &shaping, ..plainly(&mut returns) };
            let steps = Steps::of(&all, |_| false);
            let credit = Credit::assign(steps, ways, |rows| plain.estimate(rows, false), &all).unwrap();
            by_hand.update(&[vec![rewards[0], 1.0], vec![rewards[1], 1.0]]);
            let want = (rewards[0] - rewards[1]) / 2.0 * by_hand.factor();
            let found = credit.by_step(&all)[0].as_ref().unwrap()[0];
            assert!((found - want).abs() < 1e-12, "{found} {want}");
        }
        assert_eq!(returns, Some(by_hand));
        // Another discount begins anew.
        let other = Shaping { running: Some(0.9), ..Shaping::default() };
        Steps::of(&batch([1.0, 2.0]), |_| false).scaled(&other, &mut returns).unwrap();
        assert_eq!(returns.map(|own| (own.gamma, own.count.round())), Some((0.9, 4.0)));
    }
}
