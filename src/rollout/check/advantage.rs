//! Tests a recipe's estimator (`advantage`) on groups of the tested trajectories.

use super::contract::TestedTrajectory;
use super::{CheckReport, Finding};
use crate::algorithms::{Anchor, Estimated, GroupInput, GroupMember, Level, MemberAdvantages, TokenLists};
use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::script::{Script, Split, Worker};

/// Calls it on typical groups: different rewards, equal rewards, and a single trajectory left after
/// failures. Parts, tasks and lengths come from tested trajectories; rewards and values are made
/// up.
pub(super) fn check(tried: &[TestedTrajectory], worker: &Worker, script: &Script, report: &mut CheckReport) {
    let Some(learner) = script.settings.trainer.learner() else { return };
    let played = |it: &&TestedTrajectory| {
        it.which.split == Split::Train && !it.trajectory.status.is_failure() && !it.trajectory.steps.is_empty()
    };
    let trajectories: Vec<&Trajectory> = tried.iter().filter(played).map(|it| &it.trajectory).collect();
    if !learner.estimator.is_of_recipe() || trajectories.is_empty() {
        return;
    }
    let critic = script.settings.trainer.has_critic();
    let size = learner.group_size.max(2);
    for (what, size, failed, reward) in [
        ("rewards that differ", size, 0, (|index| index as f64 - 0.5) as fn(usize) -> f64),
        ("equal rewards", size, 0, |_| 1.0),
        ("a single trajectory", 1, size - 1, |_| 1.0),
    ] {
        let members = (0..size).map(|index| member(trajectories[index % trajectories.len()], reward(index), critic));
        let members = members.map(|member| with_inputs(member, script)).collect();
        let input = GroupInput { members, failed, greedy: Some(0.0) };
        if let Err(mut error) = advantages(worker, &input, critic) {
            error.message = format!("for a group with {what}: {}", error.message);
            // The other groups would most likely fail in the same way.
            return report.add(Finding::error("advantage", error));
        }
    }
}

/// A trajectory with `reward` at its last step.
fn member(trajectory: &Trajectory, reward: f64, critic: bool) -> GroupMember {
    let mut member = GroupMember::of(trajectory);
    let steps = member.rewards.len();
    member.rewards = vec![0.0; steps];
    member.rewards[steps - 1] = reward;
    member.total = reward;
    if critic {
        member.values = Some(vec![0.5; steps]);
        member.next_value = member.truncated.then_some(0.5);
    }
    member
}

/// Adds the inputs that an algorithm needs.
fn with_inputs(member: GroupMember, script: &Script) -> GroupMember {
    let Some(algorithm) = &script.declared else { return member };
    let tokens: usize = member.tokens.iter().sum();
    let mut rewards = vec![0.0; tokens];
    if let Some(last) = rewards.last_mut() {
        *last = member.total;
    }
    let lists =
        TokenLists { rewards, positions: (1..=tokens).collect(), logp: vec![-1.0; tokens], squares: vec![0.5; tokens] };
    GroupMember {
        anchors: vec![Anchor::Seen(String::new()); member.rewards.len()],
        logp: Some(-1.0),
        by_token: (algorithm.level(&script.advantage_options) == Level::Token).then_some(lists),
        ..member
    }
}

fn advantages(worker: &Worker, group: &GroupInput, critic: bool) -> Result<()> {
    let Some(Estimated { advantages, returns }) = worker.advantages(std::slice::from_ref(group), 1)?.pop() else {
        return Ok(());
    };
    let broken = |why: &str| -> Result<(), Error> { Err(worker.broken_advantage(why)) };
    if critic && returns.is_none() {
        return broken(
            "advantage must return a second list, of returns by step: what the critic should have predicted",
        );
    }
    for (what, lists) in [("an advantage", Some(advantages)), ("a return", returns)] {
        let numbers = lists.iter().flatten().flat_map(MemberAdvantages::as_slice);
        if let Some(bad) = numbers.copied().find(|number| !number.is_finite()) {
            let bad = if bad.is_nan() { "NaN".to_owned() } else { bad.to_string() };
            return broken(&format!("{what} is {bad}"));
        }
    }
    Ok(())
}
