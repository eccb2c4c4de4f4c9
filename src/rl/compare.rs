//! Agreement of two reward functions on the same trajectories.

use std::collections::BTreeMap;

/// Spearman's rank correlation, ties at the mean of their ranks; `None` if one side is constant or
/// has fewer than two values.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = f64::midpoint(a.len() as f64, 1.0);
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (dot(&a, &a) * dot(&b, &b)).sqrt();
    (scale > 0.0).then(|| dot(&a, &b) / scale)
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.0; values.len()];
    for same in order.chunk_by(|&i, &j| values[i].total_cmp(&values[j]).is_eq()) {
        let before = order.iter().position(|i| *i == same[0]).unwrap_or(0);
        for &i in same {
            ranks[i] = before as f64 + f64::midpoint(same.len() as f64, 1.0);
        }
    }
    ranks
}

/// Rewards minus the mean of their group: the basis of group-relative estimators, with the sign of
/// their advantages.
pub fn against_group(rewards: &[f64], groups: &[u64]) -> Vec<f64> {
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (reward, group) in rewards.iter().zip(groups) {
        let (sum, count) = sums.entry(*group).or_default();
        (*sum, *count) = (*sum + reward, *count + 1.0);
    }
    let mean = |group: &u64| sums.get(group).map_or(0.0, |(sum, count)| sum / count);
    rewards.iter().zip(groups).map(|(reward, group)| reward - mean(group)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rank_correlation_is_one_minus_one_or_undefined() {
        assert!((spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 1e9]).unwrap() - 1.0).abs() < 1e-12);
        assert!((spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]).unwrap() + 1.0).abs() < 1e-12);
        // By hand: ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4.
        let tied = spearman(&[0.0, 1.0, 1.0, 2.0], &[0.0, 2.0, 1.0, 3.0]).unwrap();
        assert!((tied - 4.5 / (4.5_f64 * 5.0).sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(spearman(&[], &[]), None);
    }

    #[test]
    fn rewards_are_measured_within_their_group() {
        let rewards = against_group(&[1.0, 0.0, 5.0, 5.0], &[3, 3, 7, 7]);
        assert_eq!(rewards, [0.5, -0.5, 0.0, 0.0]);
    }
}
