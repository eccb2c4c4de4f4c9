//! What updates compute for sampled tokens is stored with the trajectories.

use std::path::Path;
use std::sync::LazyLock;

use r1::mdp::{Step, Trajectory};
use r1::store::read_trajectories;

use super::recipe::{HELD_OUT, recipe};
use super::run_files::training_steps;
use super::{directory, succeed};

/// Rewards differ within a group.
static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("reward", "function(state, outcome) return { outcome = #outcome.text % 3 } end"),
        ("data", HELD_OUT),
        ("trainer", "r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-3 }"),
    ])
});

/// The trajectories of each step of a run of [`RECIPE`], and the share of clipped tokens in its
/// metrics.
fn trained(dir: &Path, settings: &[&str]) -> Vec<(Vec<Trajectory>, f64)> {
    succeed(dir, &[&["run", "a.lua", "-q"], settings].concat());
    let run = dir.join("runs/a");
    let metrics = training_steps(&run);
    let of = |line: &serde_json::Value| {
        let path = run.join(format!("trajectories/step-{:06}.parquet", line["step"].as_u64().unwrap()));
        (read_trajectories(&path).unwrap(), line["policy/clip_frac"].as_f64().unwrap_or(0.0))
    };
    metrics.iter().map(of).collect()
}

fn close(a: &[f32], b: &[f32], difference: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < difference)
}

#[test]
fn numbers_of_grpo_are_stored_for_each_sampled_token() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    // Rows without an advantage are computed too: the KL has a gradient there.
    let settings = ["trainer.kl.coef=0.1", "trainer.epochs=3", "trainer.lr=0.02", "trainer.clip=[0.05,0.05]"];
    let steps = trained(dir.path(), &settings);
    let mut has_clipped = false;
    for (trajectories, clip_frac) in &steps {
        for trajectory in trajectories {
            let group: Vec<f64> = trajectories
                .iter()
                .filter(|other| other.group == trajectory.group)
                .map(Trajectory::total_reward)
                .collect();
            let mean = group.iter().sum::<f64>() / 4.0;
            let std = (group.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
            let advantage = (trajectory.total_reward() - mean) / (std + 1e-6);
            for step in &trajectory.steps {
                let (numbers, tokens) = (&step.trained, step.response_ids.len());
                assert!(numbers.advantages.iter().all(|token| (token - advantage).abs() < 1e-9), "{advantage}");
                assert_eq!(numbers.advantages.len(), tokens);
                // Those of the first epoch, before the weights changed.
                assert!(close(&numbers.learner_logprobs, &step.logprobs, 1e-4), "{step:?}");
                assert!(numbers.entropies.len() == tokens && numbers.entropies.iter().all(|entropy| *entropy > 0.0));
                assert_eq!(numbers.loss_mask, vec![true; tokens]);
                assert_eq!((numbers.clipped.len(), numbers.reference_logprobs.len()), (tokens, tokens));
                assert!(numbers.values.is_empty() && numbers.returns.is_empty());
            }
        }
        let clipped = trajectories.iter().flat_map(|one| &one.steps).flat_map(|step| &step.trained.clipped);
        assert_eq!(clipped.clone().any(|clipped| *clipped), *clip_frac > 0.0);
        has_clipped |= *clip_frac > 0.0;
    }
    assert!(has_clipped, "the settings clip nothing");
    // The reference policy is the one that the run started from.
    let all = |(trajectories, _): &(Vec<Trajectory>, f64), difference: f32| {
        let is_close = |step: &Step| close(&step.trained.reference_logprobs, &step.logprobs, difference);
        trajectories.iter().flat_map(|one| &one.steps).all(is_close)
    };
    assert!(all(&steps[0], 1e-4) && !all(&steps[1], 1e-2));
    // As data of programs.
    let code = "local s = r1.store.trajectories('runs/a', 1, { ids = true })[1].steps[1] \
                return #s.trained.advantages == #s.response_ids, s.trained.loss_mask[1], s.trained.values == nil";
    assert_eq!(succeed(dir.path(), &["lua", "-e", code]), "true\ntrue\ntrue\n");
}

#[test]
fn values_and_returns_of_a_critic_are_stored() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    for (trajectories, _) in trained(dir.path(), &["trainer.algorithm=ppo"]) {
        for step in trajectories.iter().flat_map(|one| &one.steps) {
            let (numbers, tokens) = (&step.trained, step.response_ids.len());
            assert_eq!([numbers.values.len(), numbers.returns.len(), numbers.advantages.len()], [tokens; 3]);
            assert!(numbers.returns.iter().any(|target| target.is_finite()));
            assert!(numbers.reference_logprobs.is_empty());
        }
    }
}

/// Trajectories of a group with equal rewards are not computed, and failed ones are not in the
/// update.
#[test]
fn numbers_that_an_update_does_not_compute_are_absent() {
    let recipe = RECIPE.replace("#outcome.text % 3", "1");
    let dir = directory(&[("a.lua", &recipe)], true);
    for (trajectories, _) in trained(dir.path(), &[]) {
        for step in trajectories.iter().flat_map(|one| &one.steps) {
            let numbers = &step.trained;
            assert_eq!(numbers.advantages, vec![0.0; step.response_ids.len()]);
            assert!(numbers.learner_logprobs.is_empty() && numbers.entropies.is_empty() && numbers.clipped.is_empty());
        }
    }
}
