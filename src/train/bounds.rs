//! Refusals of invalid settings of reinforcement learning: numbers out of their range, trees
//! without room, sampling that training can't score.

use crate::config::{Branch, BranchAt, Learner, MiniBatchBy, Settings, Trainer, check_ranges};
use crate::error::{Error, Kind, Result};
use crate::mdp::Sampling;

/// The refusal of a setting.
pub(super) fn refusal(key: &str, message: impl Into<String>) -> Error {
    Error::new(Kind::Script, message).about_setting(key)
}

/// Refuses numbers outside of their ranges, and numbers that contradict each other.
pub(super) fn numbers(learner: &Learner) -> Result<()> {
    let refuse = |key: &str, message: String, hint: &str| Err(refusal(&format!("trainer.{key}"), message).hint(hint));
    check_ranges(&Settings { trainer: Trainer::Grpo(learner.clone()), ..Settings::default() })?;
    let trajectories = learner.group_size * learner.groups_per_step;
    if learner.mini_batches > trajectories {
        return refuse(
            "mini_batches",
            format!("trainer.mini_batches is {} and a step has {trajectories} trajectories", learner.mini_batches),
            "give fewer mini-batches",
        );
    }
    if learner.mini_batch_by == MiniBatchBy::Step && learner.mini_batches > 1 {
        let message = format!("trainer.mini_batches is {} and trainer.mini_batch_by \"step\"", learner.mini_batches);
        return refuse(
            "mini_batches",
            message,
            "by step there is one for each number of a step: leave trainer.mini_batches out",
        );
    }
    if let Some((low, high)) = learner.clip
        && !(low > 0.0 && low <= 1.0 && high > 0.0 && high.is_finite())
    {
        let message = format!("trainer.clip is {{ {low}, {high} }}");
        return refuse("clip", message, "both are above 0, the first at most 1");
    }
    if learner.critic.shared && !learner.critic.privileged.is_empty() {
        let message = "trainer.critic.privileged is for the critic alone, and trainer.critic.shared has it read what the policy reads";
        return refuse(
            "critic.privileged",
            message.to_owned(),
            "leave trainer.critic.shared out: the critic is then a model of its own",
        );
    }
    if !learner.entropy.is_finite() {
        return refuse("entropy", format!("trainer.entropy is {}", learner.entropy), "give a number");
    }
    Ok(())
}

/// Refuses invalid trees.
pub(super) fn branches(learner: &Learner) -> Result<()> {
    let refuse =
        |key: &str, message: String, hint: &str| Err(refusal(&format!("trainer.branch.{key}"), message).hint(hint));
    let Branch { roots, at, width, rounds } = &learner.branch;
    if *roots == 0 {
        return Ok(());
    }
    if *roots > learner.group_size {
        let message = format!("trainer.branch.roots is {roots} and trainer.group_size {}", learner.group_size);
        return refuse("roots", message, "the roots are among the group: give fewer than it has members");
    }
    if *width == 0 {
        return refuse("width", "trainer.branch.width is 0".to_owned(), "give at least 1: branches from one state");
    }
    let branches = (learner.group_size - roots) / roots;
    if *rounds == 0 || *rounds > branches.max(1) {
        let message = format!("trainer.branch.rounds is {rounds}, and {branches} trajectories branch off each root");
        return refuse("rounds", message, "give at least 1, and a trajectory for each round");
    }
    match at {
        BranchAt::Steps(list) if list.is_empty() || list.contains(&0) => refuse(
            "at",
            format!("trainer.branch.at is {list:?}"),
            "list numbers of steps: 1 is the state after the first; roots begin at 0",
        ),
        _ => Ok(()),
    }
}

/// Refuses a tree of trajectories that have one step.
pub(super) fn room_to_branch(settings: &Settings, learner: &Learner) -> Result<()> {
    if learner.branch.roots == 0 || settings.environments().iter().any(|(_, env)| env.max_steps > 1) {
        return Ok(());
    }
    let message = "trainer.branch branches off middle states, and env.max_steps is 1: there are none";
    Err(refusal("trainer.branch.roots", message).hint("raise env.max_steps, or set trainer.branch.roots = 0"))
}

/// Refuses sampling settings that training can't score.
pub(super) fn sampled(sampling: &Sampling) -> Result<()> {
    let refuse = |key: &str, message: &str, hint: &str| Err(refusal(key, message).hint(hint));
    if sampling.penalises() || !sampling.logit_bias.is_empty() {
        return refuse(
            if sampling.penalises() { "sampling.repetition_penalty" } else { "sampling.logit_bias" },
            "sampling.repetition_penalty and sampling.logit_bias sample from another distribution than the policy's, \
             which training can't score",
            "leave them out; they are for `r1 infer` and `r1 lua`",
        );
    }
    if sampling.temperature < 0.0 {
        return refuse("sampling.temperature", "sampling.temperature is below 0", "train at temperature 1");
    }
    if sampling.temperature == 0.0 {
        return refuse(
            "sampling.temperature",
            "sampling.temperature is 0: every try at a task is the same, and there is no distribution to learn",
            "train at temperature 1; eval.temperature may be 0",
        );
    }
    Ok(())
}
