//! Generated text that is trained on (`r1.generate(…, { train = true })`): additional steps between
//! the acting steps, read from the record of the trajectory.

use std::borrow::Cow;

use crate::mdp::{ExternalCall, GeneratedText, Step, Trajectory};

/// The trajectories with a step for each text that a script generated with `train = true`. Nothing
/// is copied if there are no such texts.
pub(crate) fn with_generated_steps(trajectories: &[Trajectory]) -> Cow<'_, [Trajectory]> {
    if trajectories.iter().any(|trajectory| trajectory.record.iter().any(|exchange| read(exchange).is_some())) {
        trajectories.iter().map(with_generated).collect()
    } else {
        Cow::Borrowed(trajectories)
    }
}

/// The acting step that a step belongs to: itself, or for a generated step the next acting one.
pub(crate) fn acting_step(trajectory: &Trajectory, step: usize) -> usize {
    trajectory.steps.iter().take(step).filter(|step| !step.generated).count()
}

/// Values per step, without generated steps.
pub(crate) fn without_generated<T>(trajectories: &[Trajectory], by_step: Vec<Option<Vec<T>>>) -> Vec<Option<Vec<T>>> {
    let acted = |(numbers, trajectory): (Option<Vec<T>>, &Trajectory)| {
        let pairs = numbers?.into_iter().zip(&trajectory.steps);
        Some(pairs.filter(|(_, step)| !step.generated).map(|(number, _)| number).collect())
    };
    by_step.into_iter().zip(trajectories).map(acted).collect()
}

fn with_generated(trajectory: &Trajectory) -> Trajectory {
    let mut steps = Vec::with_capacity(trajectory.steps.len());
    // Text generated after the last step is placed before it: the outcome belongs to the end.
    let last = trajectory.steps.len().saturating_sub(1);
    let mut fork = trajectory.fork.clone();
    for (index, step) in trajectory.steps.iter().enumerate() {
        let here = |exchange: &&ExternalCall| (exchange.step as usize).min(last) == index;
        let exchanges = trajectory.record.iter().filter(here);
        if let (Some(fork), Some(at)) = (&mut fork, trajectory.fork.as_ref().map(|fork| fork.step as usize)) {
            // A fork shares the text generated for its parent up to the reply at which they differ,
            // including the observation of that step.
            let shared =
                exchanges.clone().filter(|exchange| index < at || (index == at && exchange.at.starts_with("context")));
            fork.step += if index <= at { shared.filter_map(read).count() as u32 } else { 0 };
        }
        steps.extend(exchanges.filter_map(read));
        steps.push(step.clone());
    }
    Trajectory { fork, steps, ..trajectory.clone() }
}

/// The step of an exchange, if it is trained on.
fn read(exchange: &ExternalCall) -> Option<Step> {
    let (GeneratedText { text, finish_reason, .. }, sampled) = exchange.generated()?;
    Some(Step {
        prompt_ids: sampled.prompt_ids,
        response_ids: sampled.token_ids,
        logprobs: sampled.logprobs,
        text,
        finish_reason,
        new_row: true,
        support: sampled.support,
        generated: true,
        ..Step::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::mdp::{Answer, testing};
    use crate::rl::pack::merge;

    fn step(prompt: &[u32], reply: &[u32]) -> Step {
        let generated = exchange(0, prompt, reply, true);
        Step { reward: 1.0, new_row: false, generated: false, ..read(&generated).unwrap() }
    }

    fn exchange(step: u64, prompt: &[u32], reply: &[u32], train: bool) -> ExternalCall {
        let logprobs: Vec<f64> = reply.iter().map(|id| f64::from(-0.1_f32 * *id as f32)).collect();
        ExternalCall {
            step,
            at: "context".to_owned(),
            kind: "generate".to_owned(),
            request: json!({ "train": train }),
            answer: Some(Answer::Ok(json!({
                "text": "t", "finish_reason": "stop", "tokens": reply.len(), "prompt_ids": prompt, "token_ids": reply, "logprobs": logprobs,
            }))),
        }
    }

    fn trajectory(record: Vec<ExternalCall>) -> Trajectory {
        let steps = vec![step(&[1], &[2]), step(&[1, 2, 3], &[4]), step(&[9], &[5])];
        Trajectory { record, ..testing::trajectory(steps) }
    }

    #[test]
    fn trained_texts_are_inserted_before_the_step_that_they_were_generated_for() {
        let record =
            vec![exchange(0, &[7], &[8], false), exchange(2, &[7, 7], &[6, 6], true), exchange(3, &[7], &[8], true)];
        let trajectories = [trajectory(record), trajectory(Vec::new())];
        let trained = with_generated_steps(&trajectories);
        let prompts: Vec<&[u32]> = trained[0].steps.iter().map(|step| step.prompt_ids.as_slice()).collect();
        assert_eq!(prompts, [&[1][..], &[1, 2, 3], &[7, 7], &[7], &[9]]);
        assert_eq!(trained[0].steps[2].logprobs, [-0.6_f32, -0.6]);
        assert_eq!(trained[0].total_reward().to_bits(), trajectories[0].total_reward().to_bits());
        assert_eq!(trained[1], trajectories[1]);
        let rows = merge(&trained[0], 0).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>(),
            [vec![1, 2, 3, 4], vec![7, 7, 6, 6], vec![7, 8], vec![9, 5]]
        );
        let numbers = vec![Some(vec![0.0, 1.0, 2.0, 3.0, 4.0]), None];
        assert_eq!(without_generated(&trained, numbers), [Some(vec![0.0, 1.0, 4.0]), None]);
        assert_eq!([0, 1, 2, 3, 4].map(|step| acting_step(&trained[0], step)), [0, 1, 2, 2, 2]);
    }

    #[test]
    fn a_fork_shares_texts_generated_before_it() {
        let at_step = |exchange: ExternalCall| ExternalCall { at: "step".to_owned(), ..exchange };
        let record = vec![exchange(0, &[7], &[8], true), exchange(1, &[7, 7], &[6], true)];
        let mut root = trajectory(record.clone());
        root.record.push(at_step(exchange(1, &[8], &[9], true)));
        let mut fork = trajectory(record);
        fork.id = "1-0-1".to_owned();
        fork.record.push(at_step(exchange(1, &[8], &[10], true)));
        fork.fork = Some(crate::mdp::Fork { parent: root.id.clone(), step: 1 });
        let all = [root, fork];
        let trained = with_generated_steps(&all);
        // Generated, acted, generated: three steps are the parent's.
        assert_eq!(trained[1].shared_steps(), 3);
        assert_eq!(trained[0].steps[..3], trained[1].steps[..3]);
        assert_ne!(trained[0].steps[3], trained[1].steps[3]);
    }

    #[test]
    fn nothing_is_copied_without_generated_texts() {
        let trajectories = [trajectory(vec![exchange(0, &[7], &[8], false)])];
        let trained = with_generated_steps(&trajectories);
        assert!(matches!(trained, Cow::Borrowed(_)));
        assert_eq!(without_generated(&trained, vec![Some(vec![1.0, 2.0, 3.0])]), [Some(vec![1.0, 2.0, 3.0])]);
    }
}
