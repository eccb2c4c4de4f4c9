//! Shaping and normalisation of rewards, applied before the estimator.

use serde::{Deserialize, Serialize};

use super::advantages::{mean_std, per_group};
use super::kl::{KlKind, kl_value};
use super::rows::{Batch, Path, StepRow};
pub use crate::config::{Grouping, Method, OverlongPenalty, Shaping};
use crate::error::{Error, Kind, Result};

/// The factor of PRIME's normalisation (arXiv:2502.01456): `1 / (max |sum of the rewards from a
/// token on| + 1e-6)`, one number for the whole batch, so that no return is larger than 1.
/// `rewards` has a list of tokens per trajectory.
pub fn prime_factor(rewards: &[Vec<f64>]) -> f64 {
    let mut largest = 0.0_f64;
    for row in rewards {
        let mut to_go = 0.0;
        for reward in row.iter().rev() {
            to_go += reward;
            largest = largest.max(f64::abs(to_go));
        }
    }
    1.0 / (largest + 1e-6)
}

/// The running deviation of the forward-discounted return `R_t = gamma R_{t-1} + r_t`, by which
/// rewards are divided so that their scale is constant over a run (Engstrom et al.,
/// arXiv:2005.12729). Mean and variance by Welford's method in the form for batches of Chan et al.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReturnScale {
    pub gamma: f64,
    pub count: f64,
    pub mean: f64,
    pub variance: f64,
}

impl ReturnScale {
    /// No observations: variance 1 with a weight of 1e-4 observations.
    pub fn new(gamma: f64) -> Self {
        Self { gamma, count: 1e-4, mean: 0.0, variance: 1.0 }
    }

    /// Updates the statistics with the step rewards of whole trajectories, as one batch.
    pub fn update(&mut self, trajectories: &[Vec<f64>]) {
        let mut returns = Vec::new();
        for rewards in trajectories {
            let mut running = 0.0;
            for reward in rewards {
                running = self.gamma * running + reward;
                returns.push(running);
            }
        }
        if returns.is_empty() {
            return;
        }
        let n = returns.len() as f64;
        let mean = returns.iter().sum::<f64>() / n;
        let variance = returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n;
        let (delta, total) = (mean - self.mean, self.count + n);
        let squares = self.variance * self.count + variance * n + delta * delta * self.count * n / total;
        self.mean += delta * n / total;
        self.variance = squares / total;
        self.count = total;
    }

    /// The factor of a reward: `1 / sqrt(variance + 1e-8)`.
    pub fn factor(&self) -> f64 {
        1.0 / (self.variance + 1e-8).sqrt()
    }
}

/// Returns normalised as in RAGEN (arXiv:2504.20073); rewards with the same key are normalised
/// together. A single reward becomes 0, except with [`Method::Identity`].
pub fn normalize(returns: &[f64], keys: &[u64], method: Method) -> Vec<f64> {
    per_group(returns, keys, |members| match method {
        Method::Identity => members.to_vec(),
        _ if members.len() == 1 => vec![0.0],
        Method::Mean => {
            let (mean, _) = mean_std(members);
            members.iter().map(|s| s - mean).collect()
        }
        Method::MeanStd | Method::AsymClip => {
            let (mean, std) = mean_std(members);
            let clip = |a: f64| if method == Method::AsymClip { a.clamp(-1.0, 3.0) } else { a };
            members.iter().map(|s| if std > 1e-6 { clip((s - mean) / (std + 1e-6)) } else { 0.0 }).collect()
        }
    })
}

/// The penalty for long replies of DAPO (arXiv:2503.14476, eq. 13): 0 up to `longest - buffer`
/// tokens, then linear to `-factor` at `longest` and beyond.
pub fn overlong_penalty(tokens: usize, longest: usize, buffer: usize, factor: f64) -> f64 {
    let over = tokens as f64 - (longest as f64 - buffer as f64);
    (-over / buffer.max(1) as f64 * factor).min(0.0)
}

/// A KL penalty in the reward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlPenalty {
    pub coef: f64,
    pub kind: KlKind,
}

/// The changes to the rewards of a batch, in this order: the penalty for length on the outcome,
/// outcome rewards normalised, process rewards normalised, both added, divided by a running
/// deviation, the KL penalty subtracted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardShaping {
    /// `trainer.shaping`. The factor of a [`ReturnScale`] for `running` is given as `scale`.
    pub settings: Shaping,
    /// `coef * KL(logp_old || logp_ref)` is subtracted at every sampled token.
    pub kl: Option<KlPenalty>,
}

impl From<Shaping> for RewardShaping {
    fn from(settings: Shaping) -> Self {
        Self { settings, kl: None }
    }
}

impl Shaping {
    /// Refuses options that contradict each other, and numbers out of range.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the option.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::new(Kind::Usage, message));
        if let Some(scale) = self.scale.filter(|scale| !(*scale > 0.0 && scale.is_finite())) {
            return refuse(format!("`scale` is {scale}; rewards are multiplied by a number above 0"));
        }
        if let Some(gamma) = self.running.filter(|gamma| !(0.0..=1.0).contains(gamma)) {
            return refuse(format!("`running` is {gamma}; it is a discount from 0 to 1"));
        }
        if self.scale.is_some() && self.running.is_some() {
            return refuse("`scale` and `running` exclude each other: give one".to_owned());
        }
        if let Some(OverlongPenalty { longest, buffer, factor }) = self.overlong
            && !(buffer > 0 && buffer <= longest && factor >= 0.0 && factor.is_finite())
        {
            return refuse(format!(
                "`overlong` needs 0 < buffer <= longest and a factor from 0 up, not {buffer}, {longest} and {factor}"
            ));
        }
        Ok(())
    }

    /// Whether process rewards are treated separately.
    pub fn has_parts(&self) -> bool {
        self.prime || self.normalize.is_some()
    }
}

/// `rows` with shaped rewards: one number per token, process rewards included.
///
/// # Errors
/// Errors of [`Batch::new`]; [`Kind::Usage`] if the KL penalty lacks `logp_old` or `logp_ref`.
pub fn shape(rows: &[StepRow], shaping: &RewardShaping, include_failures: bool) -> Result<Vec<StepRow>> {
    let RewardShaping { settings: shaping, kl } = shaping;
    let batch = Batch::new(rows, include_failures)?;
    let mut shaped = rows.to_vec();
    // A step without sampled tokens keeps its reward in a single slot.
    let spread = |row: &StepRow, slots: Vec<f64>| {
        if row.sampled() == 0 {
            return slots;
        }
        let mut sampled = slots.into_iter();
        row.mask.iter().map(|&m| if m { sampled.next().unwrap_or(0.0) } else { 0.0 }).collect::<Vec<f64>>()
    };
    let process: Vec<Vec<f64>> = rows.iter().map(|row| slots(&row.process, row)).collect();
    let of_paths: Vec<Vec<f64>> =
        batch.counted().map(|path| path.rows.iter().flat_map(|&i| process[i].iter().copied()).collect()).collect();
    let prime = if shaping.prime { prime_factor(&of_paths) } else { 1.0 };
    let mut outcome: Vec<Vec<f64>> = rows.iter().map(|row| slots(&row.rewards, row)).collect();
    if let Some(OverlongPenalty { longest, buffer, factor }) = shaping.overlong {
        for path in &batch.paths {
            if let Some(last) = last_token(rows, &mut outcome, path) {
                *last += overlong_penalty(path.tokens, longest, buffer, factor);
            }
        }
    }
    if let Some((grouping, method)) = shaping.normalize {
        let paths: Vec<_> = batch.counted().collect();
        let keys: Vec<u64> = paths
            .iter()
            .map(|path| match grouping {
                Grouping::State => path.group,
                Grouping::Batch => 0,
                Grouping::Inductive => rows[path.rows[0]].tag,
            })
            .collect();
        let totals: Vec<f64> = paths.iter().map(|path| path.rows.iter().flat_map(|&i| &outcome[i]).sum()).collect();
        for (path, total) in paths.iter().zip(normalize(&totals, &keys, method)) {
            for &i in &path.rows {
                outcome[i].fill(0.0);
            }
            if let Some(last) = last_token(rows, &mut outcome, path) {
                *last = total;
            }
        }
    }
    for (i, row) in shaped.iter_mut().enumerate() {
        let scale = shaping.scale.unwrap_or(1.0);
        let mut rewards: Vec<f64> =
            outcome[i].iter().zip(&process[i]).map(|(outcome, process)| (outcome + prime * process) * scale).collect();
        if let Some(KlPenalty { coef, kind }) = *kl {
            let tokens = row.mask.len();
            if row.logp_old.len() != tokens || row.logp_ref.len() != tokens {
                return Err(Error::new(Kind::Usage, "a KL penalty needs `logp_old` and `logp_ref` for every token")
                    .in_step(row.trajectory, row.step));
            }
            let places = (0..tokens).filter(|&k| row.mask[k]);
            for (reward, k) in rewards.iter_mut().zip(places) {
                *reward -= coef * kl_value(row.logp_old[k] - row.logp_ref[k], kind);
            }
        }
        row.rewards = spread(row, rewards);
        row.process = Vec::new();
    }
    Ok(shaped)
}

/// A step's rewards: one for each sampled token, or their sum if none was sampled.
fn slots(rewards: &[f64], row: &StepRow) -> Vec<f64> {
    if row.sampled() == 0 { vec![rewards.iter().sum()] } else { row.on_sampled(rewards) }
}

/// The slot of a trajectory's last sampled token; the last slot of one without any.
fn last_token<'a>(rows: &[StepRow], slots: &'a mut [Vec<f64>], path: &Path) -> Option<&'a mut f64> {
    let sampled = path.rows.iter().rev().copied().find(|&i| rows[i].sampled() > 0);
    slots[sampled.or(path.rows.last().copied())?].last_mut()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;

    #[test]
    fn prime_divides_by_the_largest_return_to_go() {
        assert_eq!(prime_factor(&[vec![1.0, -3.0, 1.0], vec![0.5]]), 1.0 / 2.000_001);
        assert_eq!(prime_factor(&[]), 1e6);
    }

    #[test]
    fn the_running_deviation_is_that_of_all_returns() {
        let mut scale = ReturnScale::new(0.5);
        scale.update(&[vec![1.0, 2.0], vec![4.0]]);
        scale.update(&[]);
        scale.update(&[vec![-1.0]]);
        let all = [1.0, 2.5, 4.0, -1.0];
        let mean = all.iter().sum::<f64>() / 4.0;
        let variance = all.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 4.0;
        // The initial 1e-4 observations are not data.
        assert!((scale.mean - mean).abs() < 1e-3 && (scale.variance - variance).abs() < 1e-3);
        assert!((scale.factor() - 1.0 / variance.sqrt()).abs() < 1e-3);
    }

    #[test]
    fn ragens_methods() {
        let (returns, keys) = ([0.0, 0.0, 0.0, 9.0, 5.0, 5.0, 7.0], [0, 0, 0, 0, 1, 1, 2]);
        assert_eq!(normalize(&returns, &keys, Method::Identity), returns);
        assert_eq!(normalize(&returns, &keys, Method::Mean), [-2.25, -2.25, -2.25, 6.75, 0.0, 0.0, 0.0]);
        let got = normalize(&returns, &keys, Method::MeanStd);
        assert!((got[3] - 1.5).abs() < 1e-6 && got[4..] == [0.0; 3]);
        let skewed: Vec<f64> = (0..20).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
        assert_eq!(normalize(&skewed, &[0; 20], Method::AsymClip)[0], 3.0);
    }

    #[test]
    fn the_length_penalty_is_linear() {
        let penalty = |tokens| overlong_penalty(tokens, 20, 4, 0.5);
        assert_eq!([penalty(3), penalty(16), penalty(18), penalty(20)], [0.0, 0.0, -0.25, -0.5]);
    }

    #[test]
    fn a_step_without_sampled_tokens_keeps_its_reward() {
        let silent = |mask: Vec<bool>| StepRow { mask, process: vec![0.5], ..StepRow::new(0, 0, 1, 0, 3.0) };
        for mask in [vec![], vec![false, false]] {
            let rows = [StepRow::new(0, 0, 0, 2, 1.0), silent(mask)];
            let shaped = shape(&rows, &Shaping { scale: Some(2.0), ..Shaping::default() }.into(), false).unwrap();
            assert_eq!((shaped[0].reward(), shaped[1].reward()), (2.0, 7.0));
            let normal = Shaping { normalize: Some((Grouping::Batch, Method::Identity)), ..Shaping::default() };
            let shaped = shape(&rows, &normal.into(), false).unwrap();
            assert_eq!((shaped[0].rewards.clone(), shaped[1].reward()), (vec![0.0, 4.0], 0.5));
        }
    }

    #[test]
    fn outcome_and_process_rewards_are_normalised_separately() {
        let rows = [(0, 4.0), (1, 0.0)].map(|(trajectory, reward)| StepRow {
            process: vec![0.0, 2.0],
            logp_old: vec![-1.0, -1.0],
            logp_ref: vec![-1.5, -1.0],
            ..StepRow::new(0, trajectory, 0, 2, reward)
        });
        let normalize = Some((Grouping::State, Method::Mean));
        let shaping = RewardShaping {
            settings: Shaping { prime: true, normalize, scale: Some(0.5), ..Shaping::default() },
            kl: Some(KlPenalty { coef: 0.1, kind: KlKind::K1 }),
        };
        let shaped = shape(&rows, &shaping, false).unwrap();
        let process = 2.0 / 2.000_001;
        for (row, outcome) in shaped.iter().zip([2.0, -2.0]) {
            assert!((row.rewards[0] + 0.05).abs() < 1e-15 && row.process.is_empty());
            assert!((row.rewards[1] - (outcome + process) * 0.5).abs() < 1e-15);
        }
        let plain = shape(&rows, &RewardShaping::default(), false).unwrap();
        assert_eq!(plain[0].rewards, [0.0, 6.0]);
        let bare = [StepRow::new(0, 0, 0, 1, 1.0)];
        assert!(shape(&bare, &shaping, false).unwrap_err().to_string().contains("`logp_old` and `logp_ref`"));
    }
}
