//! RAPO: rank-aware GRPO (TableMind, arXiv:2509.06278).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::grpo::group_normalized;
use super::result::Advantages;
use super::statistics::{Deviation, EPSILON, places_of};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::at_least_zero;
use crate::rl::rows::Path;

/// RAPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rapo {
    pub normalize: Deviation,
    pub epsilon: f64,
    pub threshold: f64,
    pub margin: f64,
    pub bonus: f64,
}

impl Default for Rapo {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON, threshold: 1.0, margin: 0.5, bonus: 0.1 }
    }
}

impl AdvantageEstimator for Rapo {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups, Need::Logp]
    }

    fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.epsilon)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let (returns, groups) = (given.returns(), given.groups());
        let Self { normalize, epsilon, threshold, margin, bonus } = *self;
        let advantages = group_normalized(&returns, &groups, normalize, epsilon);
        let logp = given.paths.iter().map(|path| mean_logp(given, path)).collect::<Result<Vec<f64>>>()?;
        let ranking = Ranking { threshold, margin, bonus };
        found.put_trajectories(given, &rapo(&advantages, &returns, &groups, &logp, ranking));
        Ok(())
    }
}

/// The pairs that RAPO strengthens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranking {
    /// A trajectory with a larger return is a winner, any other a loser.
    pub threshold: f64,
    /// A pair is strengthened when the winner's mean log-probability leads the loser's by less than
    /// this.
    pub margin: f64,
    /// By this much.
    pub bonus: f64,
}

/// Rank-aware GRPO (RAPO of TableMind, arXiv:2509.06278): `advantages` times a factor. In a group,
/// a pair of a winner and a loser has the factor `1 + bonus` when the policy does not yet prefer
/// the winner by `margin`, else 1; a winner's factor is the mean over the losers and a loser's the
/// mean over the winners. Needs whole groups.
///
/// `logp` is the mean log-probability of a trajectory's sampled tokens.
pub fn rapo(advantages: &[f64], returns: &[f64], groups: &[u64], logp: &[f64], ranking: Ranking) -> Vec<f64> {
    let mut weighted = advantages.to_vec();
    for places in places_of(groups).values() {
        let (winners, losers): (Vec<usize>, Vec<usize>) = places.iter().partition(|&&i| returns[i] > ranking.threshold);
        if winners.is_empty() || losers.is_empty() {
            continue;
        }
        let pair = |w: usize, l: usize| if logp[w] - logp[l] < ranking.margin { 1.0 + ranking.bonus } else { 1.0 };
        for &w in &winners {
            weighted[w] *= losers.iter().map(|&l| pair(w, l)).sum::<f64>() / losers.len() as f64;
        }
        for &l in &losers {
            weighted[l] *= winners.iter().map(|&w| pair(w, l)).sum::<f64>() / winners.len() as f64;
        }
    }
    weighted
}

/// The mean log-probability of a trajectory's sampled tokens, under the current policy if it is
/// known.
fn mean_logp(given: &ComparedTrajectories<'_>, path: &Path) -> Result<f64> {
    let mut sum = 0.0;
    for row in given.batch.steps(path) {
        let logp = if row.logp.is_empty() { &row.logp_old } else { &row.logp };
        if logp.len() != row.mask.len() {
            return Err(given.missing(path, "a step has neither `logp` nor `logp_old`"));
        }
        sum += logp.iter().zip(&row.mask).filter(|(_, m)| **m).map(|(logp, _)| logp).sum::<f64>();
    }
    Ok(sum / path.tokens.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rapo_strengthens_pairs_that_are_ranked_wrongly() {
        let ranking = Ranking { threshold: 1.0, margin: 0.5, bonus: 0.1 };
        // Winners 0 and 1, losers 2 and 3; only winner 0 leads only loser 3 by the margin. The
        // other group has no loser.
        let logp = [-1.0, -2.0, -1.2, -3.0, -9.0];
        let got = rapo(&[1.0, 1.0, -1.0, -1.0, 1.0], &[2.0, 2.0, 0.0, 1.0, 3.0], &[0, 0, 0, 0, 5], &logp, ranking);
        let want = [1.05, 1.05, -1.1, -1.0, 1.0];
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
    }
}
