//! Reciprocal rank fusion: combines several rankings by their ranks.
//!
//! Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank
//! learning methods", SIGIR 2009. The score of a passage is the sum of `1 / (constant + rank)` over
//! the rankings that have it, with ranks from 1; the paper uses 60.

use std::collections::BTreeMap;

/// The constant of the paper.
pub const CONSTANT: f64 = 60.0;

/// Passages of all rankings (each best first, without repetitions) with their fused scores, best
/// first; equal scores in the order of the passages' numbers.
pub fn reciprocal_rank_fusion(rankings: &[&[u64]], constant: f64) -> Vec<(u64, f64)> {
    let mut scores: BTreeMap<u64, f64> = BTreeMap::new();
    for ranking in rankings {
        for (index, passage) in ranking.iter().enumerate() {
            *scores.entry(*passage).or_default() += 1.0 / (constant + (index + 1) as f64);
        }
    }
    let mut fused: Vec<(u64, f64)> = scores.into_iter().collect();
    fused.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocal_rank_fusion_sums_reciprocal_ranks() {
        let fused = reciprocal_rank_fusion(&[&[7, 3, 5], &[3, 9]], CONSTANT);
        let expected = [(3, 1.0 / 62.0 + 1.0 / 61.0), (7, 1.0 / 61.0), (9, 1.0 / 62.0), (5, 1.0 / 63.0)];
        assert_eq!(fused.iter().map(|hit| hit.0).collect::<Vec<_>>(), [3, 7, 9, 5]);
        for ((_, score), (_, wanted)) in fused.iter().zip(expected) {
            assert!((score - wanted).abs() < 1e-15, "{score} {wanted}");
        }
        // Equal scores: the passage that comes first in the corpus.
        assert_eq!(reciprocal_rank_fusion(&[&[9], &[2]], CONSTANT)[0].0, 2);
        assert!(reciprocal_rank_fusion(&[], CONSTANT).is_empty());
    }
}
