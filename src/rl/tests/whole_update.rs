//! Invariants of packing, loss and aggregation together, for any trajectories.

use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

use super::{step, trajectory};
use crate::config::LossAgg;
use crate::mdp::Trajectory;
use crate::rl::advantages::{Deviation, Estimator, group_normalized};
use crate::rl::aggregate::{Denominators, aggregate};
use crate::rl::losses::{Clip, ppo_clip};
use crate::rl::objective::{Inputs, PolicyLoss};
use crate::rl::pack::{MicroBatch, Row, merge, micro_batches};
use crate::rl::rows::StepRow;

const CLIP: Clip = Clip { low: 0.2, high: 0.28, dual: None };

/// A replacement for a model: the log-probability of a token is a parameter selected by the token
/// and all tokens before it, as in a causal model. Returns that parameter's index for every token
/// of `ids`.
fn contexts(ids: &[u32], vocabulary: &mut Vec<Vec<u32>>) -> Vec<i64> {
    (0..ids.len())
        .map(|i| {
            let context = &ids[..=i];
            let index = vocabulary.iter().position(|index| index == context);
            index.unwrap_or_else(|| {
                vocabulary.push(context.to_vec());
                vocabulary.len() - 1
            }) as i64
        })
        .collect()
}

/// Loss and its gradient with respect to the log-probability of every context.
fn loss_and_gradient(
    rows: &[Row],
    split: &[Vec<usize>],
    advantages: &[f64],
    objective: &PolicyLoss,
    vocabulary: &mut Vec<Vec<u32>>,
) -> (f64, Vec<f64>) {
    let gathers: Vec<Vec<i64>> = rows.iter().map(|row| contexts(&row.ids, vocabulary)).collect();
    let table: Vec<f64> = (0..vocabulary.len()).map(|i| -0.3 - 0.07 * ((i * 7) % 31) as f64).collect();
    let table = Tensor::from_slice(&table).set_requires_grad(true);
    let denominators = objective.denominators(rows);
    let with_advantage = |row: &Row| Row { advantages: vec![advantages[row.trajectory]; row.len()], ..row.clone() };
    let rows: &[Row] = &rows.iter().map(with_advantage).collect::<Vec<Row>>();
    let batch_of = |members: &[usize]| MicroBatch::new(rows, members, 1 << 20, Device::Cpu).unwrap();
    let logp_of = |batch: &MicroBatch, members: &[usize]| {
        let gather: Vec<i64> = members.iter().flat_map(|&i| gathers[i].clone()).collect();
        let all = table.index_select(0, &Tensor::from_slice(&gather)); // [T]: token i given those before it
        all.index_select(0, &(&batch.predict + 1))
    };
    let double = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    // Selections over the whole mini-batch are made once, then split.
    let members = whole(rows).remove(0);
    let batch = batch_of(&members);
    let (logp, logp_old, advantages_of) =
        (logp_of(&batch, &members), double(&batch.logp_old), double(&batch.advantages));
    let inputs = Inputs { advantages: &advantages_of, ..Inputs::of(&batch, &logp, &logp_old) };
    let selected = objective.select(&inputs).unwrap();
    let mut places: Vec<(i64, i64)> = Vec::new(); // where each row's tokens are among all, and how many
    for row in rows {
        let first = places.last().map_or(0, |(first, count)| first + count);
        places.push((first, row.sampled() as i64));
    }
    let mut total = 0.0;
    for members in split {
        let batch = batch_of(members);
        let (logp, logp_old) = (logp_of(&batch, members), double(&batch.logp_old));
        let logp_ref = &logp_old - 0.2;
        let chosen = selected.as_ref().map(|all| {
            Tensor::cat(&members.iter().map(|&i| all.narrow(0, places[i].0, places[i].1)).collect::<Vec<_>>(), 0)
        });
        let inputs = Inputs {
            advantages: &double(&batch.advantages),
            logp_ref: Some(&logp_ref),
            entropy: Some(&logp),
            selected: chosen.as_ref(),
            ..Inputs::of(&batch, &logp, &logp_old)
        };
        let share = objective.compute(&inputs, &denominators).unwrap().loss;
        share.backward();
        total += share.double_value(&[]);
    }
    (total, Vec::try_from(table.grad()).unwrap())
}

/// Every loss with every aggregation over both kinds of sequences, and all terms.
fn objectives() -> Vec<PolicyLoss> {
    let mut all: Vec<PolicyLoss> =
        PolicyLoss::names().into_iter().map(|name| PolicyLoss::named(name).unwrap()).collect();
    for loss_agg in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] {
        for seq in ["trajectory", "step"] {
            let options = serde_json::json!({
                "loss_agg": loss_agg, "seq": seq, "kl_coef": 0.1, "entropy_coef": 0.03, "kl_times_ratio": true,
            });
            all.push(PolicyLoss::new("dapo", &options).unwrap());
        }
    }
    // With so few tokens the share must be large to select one.
    for (name, options) in [
        ("clip_cov", serde_json::json!({"share": 0.4, "cov_low": -9.0, "cov_high": 9.0})),
        ("kl_cov", serde_json::json!({"share": 0.4})),
    ] {
        all.push(PolicyLoss::new(name, &options).unwrap());
    }
    all
}

/// Trajectories with random rewards whose steps extend, rewrite or cut the context.
fn trajectories() -> impl Strategy<Value = Vec<Trajectory>> {
    let ids = |limit: usize| prop::collection::vec(0..4_u32, 1..=limit);
    let steps = prop::collection::vec((ids(3), ids(3), 0..4_u32, -1.0..1.0_f64), 1..4);
    prop::collection::vec((steps, 0..3_u64), 1..6).prop_map(|all| {
        all.into_iter()
            .map(|(steps, group)| {
                let mut context: Vec<u32> = Vec::new();
                let mut made = trajectory(Vec::new());
                made.group = group;
                for (new, reply, way, reward) in steps {
                    if way == 0 {
                        context.clear();
                    }
                    context.extend(&new);
                    let mut step = step(&context, &reply);
                    step.logprobs = reply.iter().map(|&id| -0.4 - 0.3 * id as f32).collect();
                    step.reward = reward;
                    context.extend(&reply);
                    if way == 1 {
                        context.pop();
                    }
                    made.steps.push(step);
                }
                made
            })
            .collect()
    })
}

fn advantages_of(trajectories: &[Trajectory]) -> Vec<f64> {
    let returns: Vec<f64> = trajectories.iter().map(Trajectory::total_reward).collect();
    let groups: Vec<u64> = trajectories.iter().map(|trajectory| trajectory.group).collect();
    group_normalized(&returns, &groups, Deviation::Std, 1e-6)
}

fn rows_of(trajectories: &[Trajectory]) -> Vec<Row> {
    trajectories.iter().enumerate().flat_map(|(i, trajectory)| merge(trajectory, i).unwrap()).collect()
}

fn whole(rows: &[Row]) -> Vec<Vec<usize>> {
    vec![(0..rows.len()).collect()]
}

fn close(a: &(f64, Vec<f64>), b: &(f64, Vec<f64>)) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * (1.0 + a.abs());
    // A context that only the longer vocabulary has must have no gradient.
    let at = |list: &[f64], i: usize| list.get(i).copied().unwrap_or(0.0);
    near(a.0, b.0) && (0..a.1.len().max(b.1.len())).all(|i| near(at(&a.1, i), at(&b.1, i)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn micro_batches_add_up_to_the_whole_batch(all in trajectories(), tokens in 1..40_usize) {
        let (rows, advantages) = (rows_of(&all), advantages_of(&all));
        for objective in &objectives() {
            let mut vocabulary = Vec::new();
            let once = loss_and_gradient(&rows, &whole(&rows), &advantages, objective, &mut vocabulary);
            let split = micro_batches(&rows, tokens, 1);
            let parts = loss_and_gradient(&rows, &split, &advantages, objective, &mut vocabulary);
            prop_assert!(close(&once, &parts), "{objective:?} {once:?} {parts:?}");
        }
    }

    #[test]
    fn merged_rows_give_the_same_loss_as_separate_steps(all in trajectories()) {
        let (merged, advantages) = (rows_of(&all), advantages_of(&all));
        let separate: Vec<Row> = all.iter().enumerate().flat_map(|(i, whole)| {
            whole.steps.iter().enumerate().flat_map(move |(index, step)| {
                let alone = Trajectory { steps: vec![step.clone()], ..whole.clone() };
                let mut rows = merge(&alone, i).unwrap();
                for row in &mut rows {
                    row.steps.fill(index as u32);
                }
                rows
            })
        }).collect();
        prop_assert_eq!(Denominators::of(&merged), Denominators::of(&separate));
        prop_assert_eq!(Denominators::of_steps(&merged), Denominators::of_steps(&separate));
        for objective in &objectives() {
            let mut vocabulary = Vec::new();
            let a = loss_and_gradient(&merged, &whole(&merged), &advantages, objective, &mut vocabulary);
            let b = loss_and_gradient(&separate, &whole(&separate), &advantages, objective, &mut vocabulary);
            prop_assert!(close(&a, &b), "{objective:?} {a:?} {b:?}");
        }
    }

    #[test]
    fn the_order_of_trajectories_changes_nothing(
        (all, shuffled) in trajectories().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        for objective in &objectives() {
            let mut vocabulary = Vec::new();
            let [a, b] = [&all, &shuffled].map(|all| {
                let rows = rows_of(all);
                // clip_cov draws by position.
                if matches!(objective.name, "clip_cov" | "kl_cov") {
                    return (0.0, Vec::new());
                }
                // Both must use the same table, so the contexts of the first are looked up again.
                loss_and_gradient(&rows, &whole(&rows), &advantages_of(all), objective, &mut vocabulary)
            });
            prop_assert!(close(&a, &b), "{objective:?} {a:?} {b:?}");
        }
    }

    #[test]
    fn tokens_that_were_not_sampled_have_no_gradient(all in trajectories()) {
        let (mut rows, advantages) = (rows_of(&all), advantages_of(&all));
        for row in &mut rows {
            row.advantages = vec![advantages[row.trajectory] + 1.0; row.len()];
        }
        let batch = MicroBatch::new(&rows, &whole(&rows)[0], 1 << 20, Device::Cpu).unwrap();
        let all = Tensor::full([batch.ids.size()[0]], -0.5, (Kind::Double, Device::Cpu)).set_requires_grad(true);
        let logp = all.index_select(0, &(&batch.predict + 1));
        let (loss, _) = ppo_clip(&logp, &batch.logp_old, &batch.advantages, CLIP).unwrap();
        aggregate(&loss, &batch.sequence, LossAgg::SeqMeanTokenMean, &Denominators::of(&rows)).unwrap().backward();
        let gradient = Vec::<f64>::try_from(all.grad()).unwrap();
        let sampled: Vec<bool> = rows.iter().flat_map(|row| row.loss_mask.clone()).collect();
        for (gradient, sampled) in gradient.iter().zip(sampled) {
            prop_assert!(sampled || *gradient == 0.0);
        }
    }
}

#[test]
fn failures_have_no_advantage_and_nan_rewards_name_the_trajectory() {
    let mut all: Vec<Trajectory> = (0..3).map(|_| trajectory(vec![step(&[1], &[2])])).collect();
    all[0].steps[0].reward = 1.0;
    all[1].steps[0].reward = 100.0;
    all[1].status = crate::mdp::Status::EnvError;
    let estimate = |all: &[Trajectory]| {
        let rows: Vec<StepRow> = all.iter().enumerate().flat_map(|(i, one)| StepRow::of(one, i)).collect();
        Estimator::new("grpo", &serde_json::json!({ "normalize": "none" })).unwrap().estimate(&rows, false)
    };
    let actual = estimate(&all).unwrap();
    assert_eq!(actual.advantages, [vec![0.5], vec![0.0], vec![-0.5]]);
    assert_eq!(actual.counted, [true, false, true]);
    all[2].steps[0].reward = f64::NAN;
    let error = estimate(&all).unwrap_err();
    assert!(error.to_string().contains("trajectory 2 step 0"), "{error}");
}
