//! Optimal token baselines: for every token the baseline that minimises the variance of the policy
//! gradient.

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::result::Advantages;
use super::statistics::places_of;
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::at_least_zero;
use crate::rl::rows::Path;

/// Options of both optimal token baselines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TokenBaseline {
    /// No baseline for the tokens of a group's longest trajectory beyond the length of the second
    /// longest.
    pub zero_tail: bool,
    /// Added to the sum of weights.
    pub epsilon: f64,
}

impl Default for TokenBaseline {
    fn default() -> Self {
        Self { zero_tail: true, epsilon: 1e-8 }
    }
}

/// An optimal token baseline that compares tokens at the same place of the responses, or, if
/// `SAMPLED`, tokens with as many sampled tokens before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ByTime<const SAMPLED: bool>(TokenBaseline);

/// verl's `optimal_token_baseline`.
pub(super) type OptimalTokenBaseline = ByTime<false>;

/// verl's `tir_optimal_token_baseline`.
pub(super) type TirOptimalTokenBaseline = ByTime<true>;

impl<const SAMPLED: bool> AdvantageEstimator for ByTime<SAMPLED> {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups, Need::Logp, Need::Squares]
    }

    fn level(&self) -> Level {
        Level::Token
    }

    fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.0.epsilon)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let timeline = if SAMPLED { Timeline::Sampled } else { Timeline::Replies };
        optimal_token_baseline(given, self.0, timeline, found)
    }
}

/// The tokens of two trajectories that have the same position in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timeline {
    /// Those at the same place of the responses; the environment's tokens between them count.
    Replies,
    /// Those with as many sampled tokens before them.
    Sampled,
}

/// A trajectory's sampled tokens in order.
struct Track {
    /// Time of each.
    times: Vec<usize>,
    /// Sum of the rewards from each token on.
    to_go: Vec<f64>,
    /// `W_t`.
    energy: Vec<f64>,
}

/// The optimal token baseline of verl 0.9.1: `A_t = G_t - B_t` with the reward to go G and, over
/// the trajectories of a group that have a token at time t, `B_t = sum G_t W_t / (sum W_t +
/// epsilon)`. `W_t` is the squared norm of the score function summed up to t, approximated by the
/// part of the output layer, `sum_{j<=t} 1 - 2 pi_j + sum_v pi_j(v)^2`. A group of one has no
/// baseline. Needs `logp_old` and `sum_pi_squared` at every sampled token.
fn optimal_token_baseline(
    given: &ComparedTrajectories<'_>,
    options: TokenBaseline,
    timeline: Timeline,
    found: &mut Advantages,
) -> Result<()> {
    let tracks: Vec<Track> = given.paths.iter().map(|path| track(given, path, timeline)).collect::<Result<_>>()?;
    let groups = given.groups();
    let mut advantages: Vec<Vec<f64>> = tracks.iter().map(|own| own.to_go.clone()).collect();
    for members in places_of(&groups).values().filter(|members| members.len() > 1) {
        let end = members.iter().filter_map(|&i| tracks[i].times.last()).max().map_or(0, |last| last + 1);
        let (mut weighted, mut weights) = (vec![0.0; end], vec![0.0; end]);
        for &i in members {
            let Track { times, to_go, energy } = &tracks[i];
            for ((&time, g), w) in times.iter().zip(to_go).zip(energy) {
                weighted[time] += g * w;
                weights[time] += w;
            }
        }
        let tail = if options.zero_tail { tail(members, &tracks) } else { None };
        for &i in members {
            for (&time, advantage) in tracks[i].times.iter().zip(&mut advantages[i]) {
                if tail.is_none_or(|(longest, from)| longest != i || time < from) {
                    *advantage -= weighted[time] / (weights[time] + options.epsilon);
                }
            }
        }
    }
    found.put_tokens(given, &advantages);
    Ok(())
}

/// The longest trajectory of a group by sampled tokens, if there is only one, and the number of
/// tokens of the second longest.
fn tail(members: &[usize], tracks: &[Track]) -> Option<(usize, usize)> {
    let mut lengths: Vec<(usize, usize)> = members.iter().map(|&i| (tracks[i].times.len(), i)).collect();
    lengths.sort_unstable();
    match lengths[..] {
        [.., (second, _), (most, longest)] if most > second => Some((longest, second)),
        _ => None,
    }
}

fn track(given: &ComparedTrajectories<'_>, path: &Path, timeline: Timeline) -> Result<Track> {
    let (mut times, mut energy) = (Vec::with_capacity(path.tokens), Vec::with_capacity(path.tokens));
    let (mut place, mut sum) = (0, 0.0);
    for row in given.batch.steps(path) {
        let tokens = row.mask.len();
        if row.logp_old.len() != tokens || row.sum_pi_squared.len() != tokens {
            return Err(given.missing(path, "a step has no `logp_old` or no `sum_pi_squared`, one for every token"));
        }
        for (k, _) in row.mask.iter().enumerate().filter(|(_, sampled)| **sampled) {
            sum += 1.0 - 2.0 * row.logp_old[k].exp() + row.sum_pi_squared[k];
            energy.push(sum);
            times.push(if timeline == Timeline::Sampled { times.len() } else { place + k });
        }
        place += tokens;
    }
    let mut to_go = given.batch.token_rewards(path);
    for t in (0..to_go.len().saturating_sub(1)).rev() {
        to_go[t] += to_go[t + 1];
    }
    Ok(Track { times, to_go, energy })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use crate::rl::advantages::Estimator;
    use crate::rl::rows::StepRow;

    fn row(trajectory: u64, mask: &[bool], rewards: &[f64], squares: f64) -> StepRow {
        StepRow {
            mask: mask.to_vec(),
            rewards: rewards.to_vec(),
            // Probability 1/2 at every token: the weight of one is `squares`.
            logp_old: vec![0.5_f64.ln(); mask.len()],
            sum_pi_squared: vec![squares; mask.len()],
            ..StepRow::new(0, trajectory, 0, 0, 0.0)
        }
    }

    #[test]
    fn the_closed_form() {
        let (yes, no) = (true, false);
        let rows = [row(0, &[yes, no, yes], &[1.0, 0.0, 2.0], 0.5), row(1, &[yes], &[5.0], 1.0)];
        let of = |name: &str, zero_tail: bool| -> Vec<f64> {
            let estimator = Estimator::new(name, &json!({ "epsilon": 0.0, "zero_tail": zero_tail })).unwrap();
            estimator.estimate(&rows, false).unwrap().advantages.concat()
        };
        // First tokens: to go 3 and 5, weights 0.5 and 1: the baseline is 13/3. The last token is
        // alone at its time.
        let first = 13.0 / 3.0;
        for name in ["optimal_token_baseline", "tir_optimal_token_baseline"] {
            let close = |found: &[f64], want: [f64; 4]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14);
            assert!(close(&of(name, true), [3.0 - first, 0.0, 2.0, 5.0 - first]), "{name}");
            assert!(close(&of(name, false), [3.0 - first, 0.0, 0.0, 5.0 - first]), "{name}");
        }
        // By position, the second sampled token of one is aligned with the third token of the
        // other.
        let rows = [row(0, &[yes, no, yes], &[0.0, 0.0, 2.0], 0.5), row(1, &[yes, yes, no], &[0.0, 4.0, 0.0], 0.5)];
        let of = |name: &str| {
            let estimator = Estimator::new(name, &json!({ "epsilon": 0.0 })).unwrap();
            estimator.estimate(&rows, false).unwrap().advantages.concat()
        };
        assert_eq!(of("optimal_token_baseline"), [-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(of("tir_optimal_token_baseline"), [-1.0, 0.0, -1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_missing_input_of_token_baselines_is_named() {
        let bare = [StepRow::new(0, 4, 0, 1, 1.0), StepRow::new(0, 5, 0, 1, 0.0)];
        let estimator = Estimator::new("optimal_token_baseline", &json!({})).unwrap();
        let error = estimator.estimate(&bare, false).unwrap_err().to_string();
        assert!(error.contains("`sum_pi_squared`") && error.contains("--> trajectory 4"), "{error}");
    }
}
