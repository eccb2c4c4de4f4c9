//! Settings of reinforcement learning that can't be, whatever is learned: numbers out of their range, trees without room,
//! sampling that training can't score.

use crate::config::{Branch, BranchAt, Learner, MiniBatchBy, Settings};
use crate::error::{Error, Kind, Result};
use crate::mdp::Sampling;

/// The refusal of a setting.
pub(super) fn refusal(key: &str, message: impl Into<String>) -> Error {
    Error::new(Kind::Script, message).about_setting(key)
}

/// Numbers that can't be, whatever the algorithm.
pub(super) fn numbers(learner: &Learner) -> Result<()> {
    let refuse = |key: &str, message: String, hint: &str| Err(refusal(&format!("trainer.{key}"), message).hint(hint));
    let counts = [
        ("group_size", learner.group_size),
        ("groups_per_step", learner.groups_per_step),
        ("epochs", learner.epochs),
        ("mini_batches", learner.mini_batches),
        ("tokens_per_batch", learner.tokens_per_batch),
    ];
    if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return refuse(name, format!("trainer.{name} is 0"), "give at least 1, or leave it out for the default");
    }
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
    if !(learner.step_ratio_clip >= 0.0 && learner.step_ratio_clip < 1.0) {
        return refuse(
            "step_ratio_clip",
            format!("trainer.step_ratio_clip is {}", learner.step_ratio_clip),
            "give a number from 0 up to below 1, such as 0.2",
        );
    }
    if let Some((low, high)) = learner.clip
        && !(low > 0.0 && low <= 1.0 && high > 0.0 && high.is_finite())
    {
        let message = format!("trainer.clip is {{ {low}, {high} }}");
        return refuse("clip", message, "both are above 0, the first at most 1");
    }
    let from_zero = [
        ("lr", learner.lr),
        ("final_lr", learner.final_lr),
        ("weight_decay", learner.weight_decay),
        ("max_grad_norm", learner.max_grad_norm),
        ("kl.coef", learner.kl.coef),
        ("kl.target", learner.kl.target),
        ("critic.lr", learner.critic.lr),
        ("critic.clip", learner.critic.clip),
        ("critic.weight", learner.critic.weight),
        ("max_mismatch", learner.max_mismatch),
        ("recompute_above", learner.recompute_above),
    ];
    if let Some((name, value)) = from_zero.into_iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
        return refuse(name, format!("trainer.{name} is {value}"), "give a number from 0 up");
    }
    if learner.critic.shared && !learner.critic.privileged.is_empty() {
        let message = "trainer.critic.privileged is for the critic alone, and trainer.critic.shared has it read what the policy reads";
        return refuse(
            "critic.privileged",
            message.to_owned(),
            "leave trainer.critic.shared out: the critic is then a model of its own",
        );
    }
    if !(0.0..1.0).contains(&learner.ema) {
        return refuse(
            "ema",
            format!("trainer.ema is {}", learner.ema),
            "give a number from 0 up to below 1, such as 0.99",
        );
    }
    if !(learner.filter.keep > 0.0 && learner.filter.keep <= 1.0) {
        return refuse(
            "filter.keep",
            format!("trainer.filter.keep is {}", learner.filter.keep),
            "give a share above 0, at most 1",
        );
    }
    if !(learner.kl.horizon > 0.0 && learner.entropy.is_finite()) {
        let key = if learner.kl.horizon > 0.0 { "entropy" } else { "kl.horizon" };
        let message = format!("trainer.kl.horizon is {} and trainer.entropy {}", learner.kl.horizon, learner.entropy);
        return refuse(key, message, "give numbers, the first above 0");
    }
    Ok(())
}

/// Trees that can't be.
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

/// What is sampled must be what is scored.
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
