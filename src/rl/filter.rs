//! Filters of groups before training.
//!
//! `returns` and `groups` have one entry per trajectory. A filter returns the numbers of the groups
//! it keeps, in order; the caller decides whether the others are sampled again.

use std::collections::BTreeMap;

use super::advantages::mean_std;
use crate::error::{Error, Kind, Result};

/// Dynamic sampling of DAPO (arXiv:2503.14476, section 3.2): groups whose returns differ. A group
/// of one is kept.
pub fn dynamic_sampling(returns: &[f64], groups: &[u64]) -> Vec<u64> {
    let differ = |group_returns: &Vec<f64>| {
        group_returns.len() == 1 || group_returns.iter().any(|s| (s - group_returns[0]).abs() > 0.0)
    };
    by_group(returns, groups)
        .into_iter()
        .filter(|(_, group_returns)| differ(group_returns))
        .map(|(group, _)| group)
        .collect()
}

/// The end of the ranking that StarPO-S keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The groups whose returns vary most.
    Largest,
    Smallest,
}

/// The filter of StarPO-S (RAGEN, arXiv:2504.20073): the `fraction` of groups (rounded down, at
/// least one) with the largest unbiased standard deviation of returns; a group of one has 0. Ties
/// go to the smaller number.
///
/// # Errors
/// [`Kind::Usage`] for a fraction that is not above 0 and at most 1.
pub fn starpo_s(returns: &[f64], groups: &[u64], fraction: f64, keep: Keep) -> Result<Vec<u64>> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        let message = format!("the fraction of groups that is kept is above 0 and at most 1, not {fraction}");
        return Err(Error::new(Kind::Usage, message));
    }
    let spread = |group_returns: &[f64]| if group_returns.len() > 1 { mean_std(group_returns).1 } else { 0.0 };
    let mut ranked: Vec<(u64, f64)> =
        by_group(returns, groups).into_iter().map(|(group, group_returns)| (group, spread(&group_returns))).collect();
    ranked.sort_by(|a, b| match keep {
        Keep::Largest => b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)),
        Keep::Smallest => a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)),
    });
    // A fraction such as 0.29 of 100 must be 29, not 28.
    let count = (fraction * ranked.len() as f64 + 1e-9) as usize;
    ranked.truncate(count.max(1));
    let mut kept: Vec<u64> = ranked.into_iter().map(|(group, _)| group).collect();
    kept.sort_unstable();
    Ok(kept)
}

fn by_group(returns: &[f64], groups: &[u64]) -> BTreeMap<u64, Vec<f64>> {
    let mut all: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (value, group) in returns.iter().zip(groups) {
        all.entry(*group).or_default().push(*value);
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const RETURNS: [f64; 8] = [1.0, 1.0, 0.0, 1.0, 0.0, 4.0, 2.0, 2.0];
    const GROUPS: [u64; 8] = [7, 7, 3, 3, 5, 5, 9, 1];

    #[test]
    fn dynamic_sampling_drops_groups_without_variance() {
        assert_eq!(dynamic_sampling(&RETURNS, &GROUPS), [1, 3, 5, 9]);
    }

    #[test]
    fn starpo_s_keeps_one_end_of_the_ranking() {
        let kept = |fraction, keep| starpo_s(&RETURNS, &GROUPS, fraction, keep).unwrap();
        assert_eq!(kept(0.25, Keep::Largest), [5]);
        assert_eq!(kept(0.5, Keep::Largest), [3, 5]);
        assert_eq!(kept(0.01, Keep::Largest), [5]);
        assert_eq!(kept(0.6, Keep::Smallest), [1, 7, 9]);
        assert_eq!(kept(1.0, Keep::Largest), [1, 3, 5, 7, 9]);
        assert!(starpo_s(&RETURNS, &GROUPS, 0.0, Keep::Largest).is_err());
        assert!(starpo_s(&[], &[], 0.5, Keep::Largest).unwrap().is_empty());
    }
}
