//! What scripts had the policy write and want trained (`r1.generate(…, { train = true })`): steps of their own, between those
//! that acted, made from the trajectory's record.

use std::borrow::Cow;

use serde_json::Value;

use crate::mdp::{Answer, Exchange, FinishReason, Step, Trajectory};

/// Trajectories as they are learned from.
pub(super) struct Learned<'a> {
    trajectories: Cow<'a, [Trajectory]>,
    /// Of each trajectory's steps, whether it was written for a script; empty if none was.
    written: Vec<Vec<bool>>,
}

impl<'a> Learned<'a> {
    pub(super) fn of(trajectories: &'a [Trajectory]) -> Self {
        if !trajectories.iter().any(|trajectory| trajectory.record.iter().any(|exchange| read(exchange).is_some())) {
            return Self { trajectories: Cow::Borrowed(trajectories), written: Vec::new() };
        }
        let (learned, written) = trajectories.iter().map(with_written).unzip();
        Self { trajectories: Cow::Owned(learned), written }
    }

    pub(super) fn trajectories(&self) -> &[Trajectory] {
        &self.trajectories
    }

    /// The step of the script that a step belongs to: itself, or the one that it was written for.
    pub(super) fn acted(&self, trajectory: usize, step: usize) -> usize {
        match self.written.get(trajectory) {
            Some(written) => written.iter().take(step).filter(|written| !**written).count(),
            None => step,
        }
    }

    /// Values per step without those of steps that were written for a script.
    pub(super) fn own<T>(&self, by_step: Vec<Option<Vec<T>>>) -> Vec<Option<Vec<T>>> {
        if self.written.is_empty() {
            return by_step;
        }
        let acted = |(numbers, written): (Option<Vec<T>>, &Vec<bool>)| {
            let pairs = numbers?.into_iter().zip(written);
            Some(pairs.filter(|(_, written)| !**written).map(|(number, _)| number).collect())
        };
        by_step.into_iter().zip(&self.written).map(acted).collect()
    }
}

fn with_written(trajectory: &Trajectory) -> (Trajectory, Vec<bool>) {
    let mut steps = Vec::with_capacity(trajectory.steps.len());
    let mut written = Vec::new();
    // What was written after the last step stands before it: the outcome belongs to the end.
    let last = trajectory.steps.len().saturating_sub(1);
    let mut fork = trajectory.fork.clone();
    for (place, step) in trajectory.steps.iter().enumerate() {
        let here = |exchange: &&Exchange| (exchange.step as usize).min(last) == place;
        let own = trajectory.record.iter().filter(here);
        if let (Some(fork), Some(at)) = (&mut fork, trajectory.fork.as_ref().map(|fork| fork.step as usize)) {
            // A fork has what was written for its parent up to the reply in which they part, the view of that included.
            let shared =
                own.clone().filter(|exchange| place < at || (place == at && exchange.at.starts_with("context")));
            fork.step += if place <= at { shared.filter_map(read).count() as u32 } else { 0 };
        }
        steps.extend(own.filter_map(read));
        written.resize(steps.len(), true);
        steps.push(step.clone());
        written.push(false);
    }
    (Trajectory { fork, steps, ..trajectory.clone() }, written)
}

/// The step that an exchange stands for, if it is to be trained on.
fn read(exchange: &Exchange) -> Option<Step> {
    if exchange.kind != "generate" || exchange.request["train"] != Value::Bool(true) {
        return None;
    }
    let Some(Answer::Ok(answer)) = &exchange.answer else { return None };
    let ids = |name: &str| {
        let list = answer[name].as_array()?;
        list.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Option<Vec<u32>>>()
    };
    let logprobs = answer["logprobs"].as_array()?.iter().map(|number| Some(number.as_f64()? as f32));
    let reasons = [FinishReason::Stop, FinishReason::StopString, FinishReason::Length, FinishReason::Deadline];
    Some(Step {
        prompt_ids: ids("prompt_ids")?,
        response_ids: ids("token_ids")?,
        logprobs: logprobs.collect::<Option<Vec<f32>>>()?,
        text: answer["text"].as_str()?.to_owned(),
        finish_reason: reasons.into_iter().find(|reason| answer["finish_reason"] == reason.name())?,
        reward: 0.0,
        terminated: false,
        truncated: false,
        tools: Vec::new(),
        prefilled: 0,
        new_row: true,
        support: serde_json::from_value(answer["support"].clone()).unwrap_or_default(),
        routing: crate::mdp::Routing::default(),
        privileged: None,
        next_privileged: None,
        next_prompt_ids: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::mdp::Status;
    use crate::rl::pack::merge;

    fn step(prompt: &[u32], reply: &[u32]) -> Step {
        let written = exchange(0, prompt, reply, true);
        Step { reward: 1.0, new_row: false, ..read(&written).unwrap() }
    }

    fn exchange(step: u64, prompt: &[u32], reply: &[u32], train: bool) -> Exchange {
        let logprobs: Vec<f64> = reply.iter().map(|id| f64::from(-0.1_f32 * *id as f32)).collect();
        Exchange {
            step,
            at: "context".to_owned(),
            kind: "generate".to_owned(),
            request: json!({ "train": train }),
            answer: Some(Answer::Ok(json!({
                "text": "t", "finish_reason": "stop", "tokens": reply.len(), "prompt_ids": prompt, "token_ids": reply, "logprobs": logprobs,
            }))),
        }
    }

    fn trajectory(record: Vec<Exchange>) -> Trajectory {
        Trajectory {
            id: "1-0-0".to_owned(),
            split: crate::mdp::Split::Train,
            task_index: 0,
            task: json!({}),
            group: 0,
            sample: 0,
            fork: None,
            seed: 0,
            script_hash: String::new(),
            status: Status::Terminated,
            truncated_by: None,
            retries: 0,
            error: None,
            steps: vec![step(&[1], &[2]), step(&[1, 2, 3], &[4]), step(&[9], &[5])],
            outcome_reward: 0.0,
            reward_parts: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            record,
        }
    }

    #[test]
    fn what_is_to_be_trained_stands_before_the_step_it_was_written_for() {
        let record =
            vec![exchange(0, &[7], &[8], false), exchange(2, &[7, 7], &[6, 6], true), exchange(3, &[7], &[8], true)];
        let own = [trajectory(record), trajectory(Vec::new())];
        let learned = Learned::of(&own);
        let taught = learned.trajectories();
        let prompts: Vec<&[u32]> = taught[0].steps.iter().map(|step| step.prompt_ids.as_slice()).collect();
        assert_eq!(prompts, [&[1][..], &[1, 2, 3], &[7, 7], &[7], &[9]]);
        assert_eq!(taught[0].steps[2].logprobs, [-0.6_f32, -0.6]);
        assert_eq!(taught[0].total_reward().to_bits(), own[0].total_reward().to_bits());
        assert_eq!(taught[1], own[1]);
        let rows = merge(&taught[0], 0).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>(),
            [vec![1, 2, 3, 4], vec![7, 7, 6, 6], vec![7, 8], vec![9, 5]]
        );
        let numbers = vec![Some(vec![0.0, 1.0, 2.0, 3.0, 4.0]), None];
        assert_eq!(learned.own(numbers), [Some(vec![0.0, 1.0, 4.0]), None]);
        assert_eq!([0, 1, 2, 3, 4].map(|step| learned.acted(0, step)), [0, 1, 2, 2, 2]);
    }

    #[test]
    fn a_fork_shares_what_was_written_before_it() {
        let at_step = |exchange: Exchange| Exchange { at: "step".to_owned(), ..exchange };
        let record = vec![exchange(0, &[7], &[8], true), exchange(1, &[7, 7], &[6], true)];
        let mut root = trajectory(record.clone());
        root.record.push(at_step(exchange(1, &[8], &[9], true)));
        let mut fork = trajectory(record);
        fork.id = "1-0-1".to_owned();
        fork.record.push(at_step(exchange(1, &[8], &[10], true)));
        fork.fork = Some(crate::mdp::Fork { parent: root.id.clone(), step: 1 });
        let all = [root, fork];
        let learned = Learned::of(&all);
        let taught = learned.trajectories();
        // Written, acted, written: three steps are the parent's.
        assert_eq!(taught[1].shared_steps(), 3);
        assert_eq!(taught[0].steps[..3], taught[1].steps[..3]);
        assert_ne!(taught[0].steps[3], taught[1].steps[3]);
    }

    #[test]
    fn without_any_nothing_is_copied() {
        let own = [trajectory(vec![exchange(0, &[7], &[8], false)])];
        let learned = Learned::of(&own);
        assert!(matches!(learned.trajectories, Cow::Borrowed(_)));
        assert_eq!(learned.own(vec![Some(vec![1.0])]), [Some(vec![1.0])]);
    }
}
