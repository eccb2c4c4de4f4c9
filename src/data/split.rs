//! Splits rows into parts: by a seed, in the shares of a column, or without dividing groups.

use std::collections::HashMap;

use super::texts::mixed;
use crate::error::{Error, Kind, Result};

/// The size of a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amount {
    Rows(u64),
    /// Between 0 and 1.
    Share(f64),
}

impl Amount {
    /// A number of rows (`200`), a percentage (`10%`) or a share (`0.1`); `None` for other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(rows) = text.parse() {
            return Some(Self::Rows(rows));
        }
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse::<f64>(),
        };
        share.ok().filter(|share| (0.0..=1.0).contains(share)).map(Self::Share)
    }

    fn of(self, rows: u64) -> u64 {
        match self {
            Self::Rows(rows) => rows,
            Self::Share(share) => (share * rows as f64).round() as u64,
        }
    }
}

/// How rows are divided, by a value for each row.
pub(crate) enum Division<'a> {
    /// At random.
    Rows,
    /// Every part has the values in the shares that they have in all rows.
    Stratified(&'a [String]),
    /// All rows of a value are in one part.
    Grouped(&'a [String]),
}

/// The rows of each part, in their order, and then the rows of no part.
///
/// # Errors
/// [`Kind::Usage`] if the parts have more rows than there are.
pub(crate) fn split(count: u64, parts: &[Amount], division: &Division<'_>, seed: u64) -> Result<Vec<Vec<u64>>> {
    let sizes: Vec<u64> = parts.iter().map(|part| part.of(count)).collect();
    let wanted = sizes.iter().fold(0, |all: u64, size| all.saturating_add(*size));
    if wanted > count {
        return Err(Error::new(Kind::Usage, format!("the parts have {wanted} rows, and the data has {count}"))
            .at("--part")
            .hint("what no part takes is the rest; lower an amount"));
    }
    let mut order: Vec<u64> = (0..count).collect();
    // Ties of the hash are broken by the row.
    order.sort_by_key(|row| (mixed(mixed(seed) ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15)), *row));
    let mut divided = match division {
        Division::Rows => segments(&order, &sizes),
        Division::Stratified(values) => segments(&stratified(order, values), &sizes),
        Division::Grouped(values) => grouped(&order, values, &sizes),
    };
    for rows in &mut divided {
        rows.sort_unstable();
    }
    Ok(divided)
}

fn segments(order: &[u64], sizes: &[u64]) -> Vec<Vec<u64>> {
    let mut rest = order;
    let mut divided = Vec::with_capacity(sizes.len() + 1);
    for size in sizes {
        let (part, after) = rest.split_at(usize::try_from(*size).unwrap_or(usize::MAX).min(rest.len()));
        divided.push(part.to_vec());
        rest = after;
    }
    divided.push(rest.to_vec());
    divided
}

fn value(values: &[String], row: u64) -> &str {
    usize::try_from(row).ok().and_then(|row| values.get(row)).map_or("", String::as_str)
}

/// An order in which the rows of each value are spread evenly, so that every segment has the shares
/// of the whole.
fn stratified(order: Vec<u64>, values: &[String]) -> Vec<u64> {
    let mut sizes: HashMap<&str, u64> = HashMap::new();
    for row in &order {
        *sizes.entry(value(values, *row)).or_default() += 1;
    }
    let mut seen: HashMap<&str, u64> = HashMap::new();
    let mut placed: Vec<(f64, u64)> = order
        .into_iter()
        .map(|row| {
            let stratum = value(values, row);
            let count = seen.entry(stratum).or_default();
            *count += 1;
            let size = sizes.get(stratum).copied().unwrap_or(1);
            ((*count as f64 - 0.5) / size as f64, row)
        })
        .collect();
    // A stable sort: equal places keep the random order.
    placed.sort_by(|one, two| one.0.total_cmp(&two.0));
    placed.into_iter().map(|(_, row)| row).collect()
}

/// Groups in random order, each given to the first part that still has room for it.
fn grouped(order: &[u64], values: &[String], sizes: &[u64]) -> Vec<Vec<u64>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut groups: Vec<Vec<u64>> = Vec::new();
    for row in order {
        let index = *places.entry(value(values, *row)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[index].push(*row);
    }
    let mut divided = vec![Vec::new(); sizes.len() + 1];
    for group in groups {
        let fits = |part: &usize| (divided[*part].len() + group.len()) as u64 <= sizes[*part];
        let part = (0..sizes.len()).find(fits).unwrap_or(sizes.len());
        divided[part].extend(group);
    }
    divided
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_rows_or_shares() {
        assert_eq!(Amount::parse("200"), Some(Amount::Rows(200)));
        assert_eq!(Amount::parse("10%"), Some(Amount::Share(0.1)));
        assert_eq!(Amount::parse("0.25"), Some(Amount::Share(0.25)));
        for wrong in ["-1", "1.5", "110%", "x", ""] {
            assert_eq!(Amount::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_have_their_sizes_and_depend_on_the_seed() {
        let parts = [Amount::Rows(10), Amount::Share(0.2)];
        let one = split(100, &parts, &Division::Rows, 1).unwrap();
        assert_eq!(one.iter().map(Vec::len).collect::<Vec<_>>(), [10, 20, 70]);
        let mut all = one.concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u64>>());
        assert_eq!(one, split(100, &parts, &Division::Rows, 1).unwrap());
        assert_ne!(one, split(100, &parts, &Division::Rows, 2).unwrap());
        let error = split(25, &parts, &Division::Rows, 1).map(|_| ());
        assert!(error.is_ok());
        let error = split(11, &parts, &Division::Rows, 1).unwrap_err();
        assert_eq!(error.message, "the parts have 12 rows, and the data has 11");
    }

    #[test]
    fn strata_keep_their_shares() {
        let values: Vec<String> = (0..200).map(|row| if row % 4 == 0 { "rare" } else { "common" }.to_owned()).collect();
        let divided = split(200, &[Amount::Rows(40)], &Division::Stratified(&values), 3).unwrap();
        let rare = divided[0].iter().filter(|row| *row % 4 == 0).count();
        assert_eq!((divided[0].len(), rare), (40, 10));
    }

    proptest! {
        #[test]
        fn groups_are_never_divided(
            groups in prop::collection::vec(0..8_u8, 1..60), share in 0.0..1.0_f64, seed in any::<u64>(),
        ) {
            let values: Vec<String> = groups.iter().map(ToString::to_string).collect();
            let count = values.len() as u64;
            let divided = split(count, &[Amount::Share(share)], &Division::Grouped(&values), seed).unwrap();
            prop_assert_eq!(divided.iter().map(Vec::len).sum::<usize>() as u64, count);
            let of = |rows: &[u64]| rows.iter().map(|row| groups[*row as usize]).collect::<std::collections::HashSet<_>>();
            prop_assert!(of(&divided[0]).is_disjoint(&of(&divided[1])));
            prop_assert!(divided[0].len() as u64 <= (share * count as f64).round() as u64);
        }
    }
}
