//! The order in which dataset rows are drawn: a fresh permutation every epoch, computed without storing it.

use sha2::{Digest, Sha256};

/// Row number `position` of the endless stream of epochs over `rows` rows. Within an epoch every row comes once; the
/// order depends on the seed and the epoch alone, so a resumed run draws what the first one would have.
pub(super) fn shuffled(position: u64, rows: u64, seed: u64) -> u64 {
    let rows = rows.max(1);
    let (epoch, mut index) = (position / rows, position % rows);
    let bits = (64 - (rows - 1).leading_zeros()).max(2).next_multiple_of(2);
    // A Feistel network permutes [0, 2^bits); walking its cycle until it lands inside permutes [0, rows).
    loop {
        index = feistel(index, bits / 2, seed, epoch);
        if index < rows {
            return index;
        }
    }
}

fn feistel(value: u64, half: u32, seed: u64, epoch: u64) -> u64 {
    let mask = (1_u64 << half) - 1;
    let (mut left, mut right) = (value >> half, value & mask);
    for round in 0..4_u64 {
        let mut hash = Sha256::new();
        for word in [seed, epoch, round, right] {
            hash.update(word.to_le_bytes());
        }
        let digest = hash.finalize();
        let mixed = u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ]);
        (left, right) = (right, (left ^ mixed) & mask);
    }
    (left << half) | right
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_epoch_draws_every_row_once() {
        for rows in [1, 2, 3, 7, 64, 1000] {
            let first: HashSet<u64> = (0..rows).map(|position| shuffled(position, rows, 5)).collect();
            let second: HashSet<u64> = (rows..2 * rows).map(|position| shuffled(position, rows, 5)).collect();
            assert_eq!(first.len() as u64, rows);
            assert_eq!(first, second);
            assert!(first.iter().all(|row| *row < rows));
        }
    }

    #[test]
    fn seeds_and_epochs_differ() {
        let order = |seed, epoch: u64| (0..100).map(|i| shuffled(epoch * 100 + i, 100, seed)).collect::<Vec<_>>();
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_eq!(order(1, 1), order(1, 1));
    }
}
