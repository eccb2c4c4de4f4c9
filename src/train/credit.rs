//! Credit: what every sampled token of a step's trajectories is worth, and what the critic should have said.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::Advantages;
use crate::rl::pack::{Row, spread};
use crate::rl::rewards::{Shaping, shape};
use crate::rl::rows::StepRow;
use crate::text::Renderer;

/// The steps of a batch of trajectories as estimators take them, in order.
pub(super) struct Steps {
    pub(super) rows: Vec<StepRow>,
    /// The place in `rows` of each trajectory's first step.
    first: Vec<usize>,
}

impl Steps {
    /// `greedy` tells the companions, whose rewards are a baseline for others.
    pub(super) fn of(trajectories: &[Trajectory], greedy: impl Fn(usize) -> bool) -> Self {
        let (mut rows, mut first) = (Vec::new(), Vec::with_capacity(trajectories.len()));
        for (index, trajectory) in trajectories.iter().enumerate() {
            first.push(rows.len());
            let greedy = greedy(index);
            rows.extend(StepRow::of(trajectory, index).into_iter().map(|row| StepRow { greedy, ..row }));
        }
        let mut steps = Self { rows, first };
        steps.join(trajectories);
        steps
    }

    /// Says of every step that a fork shares which trajectory took it.
    fn join(&mut self, trajectories: &[Trajectory]) {
        let places: HashMap<&str, usize> = trajectories.iter().map(|t| t.id.as_str()).zip(0..).collect();
        for (index, trajectory) in trajectories.iter().enumerate() {
            for step in 0..trajectory.shared_steps() {
                // A parent may be a fork itself.
                let mut taker = index;
                while let Some(fork) = trajectories[taker].fork.as_ref().filter(|fork| step < fork.step as usize)
                    && let Some(&parent) = places.get(fork.parent.as_str())
                    && parent != taker
                {
                    taker = parent;
                }
                self.rows[self.first[index] + step].shared = (taker != index).then_some(taker as u64);
            }
        }
    }

    fn of_trajectory(&self, trajectory: usize) -> std::ops::Range<usize> {
        self.first[trajectory]..self.first.get(trajectory + 1).copied().unwrap_or(self.rows.len())
    }

    /// The last step of a trajectory, if it has any.
    pub(super) fn last(&mut self, trajectory: usize) -> Option<&mut StepRow> {
        let place = self.of_trajectory(trajectory).next_back()?;
        self.rows.get_mut(place)
    }

    /// Gives every step what its policy was shown that the steps before did not show: the newest observation.
    pub(super) fn anchor(&mut self, trajectories: &[Trajectory], renderer: &Renderer) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            let mut seen: Vec<u32> = Vec::new();
            for (place, step) in self.of_trajectory(index).zip(&trajectory.steps) {
                let new = step.prompt_ids.strip_prefix(seen.as_slice()).unwrap_or(&step.prompt_ids);
                self.rows[place].anchor = Some(renderer.tokenizer().decode(new, false));
                seen = [step.prompt_ids.as_slice(), &step.response_ids].concat();
            }
        }
    }

    /// Brings a number per token of training rows to the steps they are made of.
    pub(super) fn fill(&mut self, rows: &[Row], numbers: &[Vec<f32>], field: fn(&mut StepRow) -> &mut Vec<f64>) {
        let mut last = None;
        for (row, numbers) in rows.iter().zip(numbers) {
            for place in (0..row.len()).filter(|&place| row.loss_mask[place]) {
                let step = self.first[row.trajectory] + row.steps[place] as usize;
                let list = field(&mut self.rows[step]);
                // What was there before, such as the sampler's own, makes way.
                if last != Some(step) {
                    list.clear();
                    last = Some(step);
                }
                list.push(f64::from(numbers[place]));
            }
        }
        // Shared steps have tokens in the rows of the trajectory that took them only.
        for place in 0..self.rows.len() {
            let StepRow { shared, step, .. } = self.rows[place];
            if let Some(taker) = shared {
                let taken = field(&mut self.rows[self.first[taker as usize] + step as usize]).clone();
                *field(&mut self.rows[place]) = taken;
            }
        }
    }
}

/// Advantages and critic's targets of a batch.
pub(super) struct Credit {
    steps: Steps,
    found: Advantages,
}

impl Credit {
    /// Shapes the rewards and runs the estimator. Failures have no advantage.
    ///
    /// # Errors
    /// `Kind::Numeric` names the trajectory whose rewards or values are NaN or infinite.
    pub(super) fn assign(
        mut steps: Steps,
        shaping: &Shaping,
        estimate: impl FnOnce(&[StepRow]) -> Result<Advantages>,
        trajectories: &[Trajectory],
    ) -> Result<Self> {
        let found = (|| {
            steps.rows = shape(&steps.rows, shaping, false)?;
            estimate(&steps.rows)
        })();
        Ok(Self { found: found.map_err(|error| named(error, trajectories))?, steps })
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

    /// Every sampled token's advantage, of trajectories that count; those of shared steps once.
    pub(super) fn all(&self) -> impl Iterator<Item = f64> + '_ {
        let rows = self.found.advantages.iter().zip(&self.found.counted).zip(&self.steps.rows);
        rows.filter(|((_, counted), row)| **counted && row.shared.is_none())
            .flat_map(|((list, _), row)| list.iter().zip(&row.mask).filter(|(_, mask)| **mask).map(|(a, _)| *a))
    }
}

/// What the functions of `rl` call trajectory 7 has a name of its own here.
pub(super) fn named(error: Error, trajectories: &[Trajectory]) -> Error {
    let Some(place) = error.place.as_deref().and_then(|place| place.strip_prefix("trajectory ")) else { return error };
    let name = |word: &str| {
        let number = word.trim_end_matches(',');
        let trajectory = number.parse::<usize>().ok().and_then(|number| trajectories.get(number));
        trajectory.map_or_else(|| word.to_owned(), |trajectory| word.replacen(number, &trajectory.id, 1))
    };
    // Numbers of trajectories come first; what follows counts something else.
    let words: Vec<&str> = place.split(' ').collect();
    let numbers = words.iter().take_while(|word| word.trim_end_matches(',').parse::<usize>().is_ok()).count();
    let renamed: Vec<String> =
        words.iter().enumerate().map(|(i, word)| if i < numbers { name(word) } else { (*word).to_owned() }).collect();
    let place = format!("trajectory {}", renamed.join(" "));
    Error { place: Some(place), ..error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;
    use crate::mdp::{FinishReason, Fork, Status, Step, Support};
    use crate::rl::advantages::Estimator;
    use crate::rl::pack::merge;

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
            next_prompt_ids: Vec::new(),
        }
    }

    fn trajectory(id: &str, steps: Vec<Step>) -> Trajectory {
        Trajectory {
            id: id.to_owned(),
            task_index: 0,
            task: serde_json::Value::Null,
            group: 0,
            sample: 0,
            fork: None,
            seed: 0,
            script_hash: String::new(),
            status: Status::Terminated,
            error: None,
            steps,
            outcome_reward: 0.0,
            reward_parts: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            record: Vec::new(),
        }
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
            Credit::assign(steps, &Shaping::default(), |rows| estimator.estimate(rows, false), &trajectories).unwrap()
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
        let credit = Credit::assign(steps, &Shaping::default(), |rows| gae.estimate(rows, false), &trajectories);
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
            Credit::assign(steps, &Shaping::default(), |steps| gae.estimate(steps, false), &trajectories).unwrap();
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
            Credit::assign(steps, &Shaping::default(), |steps| grpo.estimate(steps, false), all)
        };
        let error = assign(&trajectories).err().unwrap().to_string();
        assert!(error.contains("trajectory 4-2-1 step 0"), "{error}");
        trajectories[1].steps[0].reward = 1.0;
        trajectories[1].status = Status::EnvError;
        assert_eq!(assign(&trajectories).unwrap().by_step(&trajectories), [None, None]);
    }
}
