//! `r1 traj stats`: counts and distributions of columns.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::args::OutputArgs;
use super::super::traj_args::TrajStatsArgs;
use super::super::{print_json, print_report};
use super::selected::{Selected, harmless};
use crate::error::Result;
use crate::telemetry::ReportStyle;

/// The columns whose distribution is printed; those without a number are left out.
const NUMBERS: [&str; 6] = ["reward", "advantage", "steps", "tokens", "tool_calls", "seconds"];
/// Columns that are computed from a number of every token, so that reading them takes longer.
const NUMBERS_OF_TOKENS: [&str; 4] = ["mismatch", "entropy", "value", "clipped"];
/// The columns whose values are counted.
const COUNTED: [&str; 3] = ["status", "finish_reason", "dropped"];

pub(super) fn run(args: &TrajStatsArgs, output: OutputArgs) -> Result<()> {
    let selected = Selected::open(&args.selection, args.condition.as_deref(), output)?;
    let of_tokens = NUMBERS_OF_TOKENS.iter().filter(|_| args.all);
    let names: Vec<&'static str> = NUMBERS.iter().chain(of_tokens).copied().collect();
    let mut numbers: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    let mut counts = [const { BTreeMap::<String, u64>::new() }; COUNTED.len()];
    let mut parts: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let (mut total, mut matching) = (0, 0);
    let columns: Vec<&'static str> = names.iter().copied().chain(COUNTED).chain(["reward_parts"]).collect();
    selected.each(&columns, |_, _, scanned| {
        (total, matching) = (total + scanned.total, matching + scanned.rows.len());
        for (name, numbers) in names.iter().zip(&mut numbers) {
            let values = scanned.numbers(name);
            numbers.extend(scanned.rows.iter().map(|row| values[*row]).filter(|value| !value.is_nan()));
        }
        for (name, counts) in COUNTED.iter().zip(&mut counts) {
            for text in scanned.rows.iter().filter_map(|row| scanned.texts(name)[*row].as_deref()) {
                match counts.get_mut(text) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(text.to_owned(), 1)),
                }
            }
        }
        for text in scanned.rows.iter().filter_map(|row| scanned.texts("reward_parts")[*row].as_deref()) {
            let of_one: BTreeMap<String, Option<f64>> = serde_json::from_str(text).unwrap_or_default();
            for (name, value) in of_one {
                parts.entry(name).or_default().extend(value);
            }
        }
        Ok(())
    })?;
    let tokens: f64 = numbers.iter().zip(&names).filter(|(_, name)| **name == "tokens").flat_map(|(all, _)| all).sum();
    let distributions = |names: Vec<(String, Vec<f64>)>| -> Map<String, Value> {
        names.into_iter().filter_map(|(name, values)| Some((name, distribution(values)?))).collect()
    };
    let numbers = distributions(names.iter().map(|name| (*name).to_owned()).zip(numbers).collect());
    let counts: Map<String, Value> =
        COUNTED.iter().zip(counts).map(|(name, counts)| ((*name).to_owned(), json!(counts))).collect();
    let (first, last) = (&selected.files[0], &selected.files[selected.files.len() - 1]);
    let mut result = json!({
        "event": "stats", "run": selected.run.name(), "steps": [first.step, last.step], "files": selected.files.len(),
        "trajectories": matching, "total": total, "tokens": tokens, "numbers": numbers, "counts": counts,
        "reward_parts": distributions(parts.into_iter().collect()),
    });
    if output.json {
        return print_json(result);
    }
    result["order"] = json!(names);
    harmless(&mut result);
    print_report(include_str!("../../../lua/reports/traj_stats.lua"), &result, ReportStyle::of(&selected.reporter))
}

/// Mean, standard deviation and quantiles; `None` without values.
fn distribution(mut values: Vec<f64>) -> Option<Value> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
    // The smallest value that at least this share of the values does not exceed.
    let quantile = |share: f64| values[((share * count as f64).ceil() as usize).clamp(1, count) - 1];
    Some(json!({
        "count": count, "mean": mean, "std": deviation, "lowest": values[0], "p10": quantile(0.1),
        "p50": quantile(0.5), "p90": quantile(0.9), "highest": values[count - 1],
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_distribution_has_quantiles_that_are_values() {
        let of = distribution((1..=10).rev().map(f64::from).collect()).unwrap();
        assert_eq!((&of["p10"], &of["p50"], &of["p90"]), (&json!(1.0), &json!(5.0), &json!(9.0)));
        assert_eq!((&of["lowest"], &of["highest"], &of["mean"]), (&json!(1.0), &json!(10.0), &json!(5.5)));
        assert!((of["std"].as_f64().unwrap() - 8.25_f64.sqrt()).abs() < 1e-12);
        assert_eq!(distribution(Vec::new()), None);
    }
}
