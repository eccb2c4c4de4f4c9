//! Estimators and losses as rows of the reference, made from their declarations.

use serde_json::{Map, Value};

/// An estimator or a loss, for readers.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceRow {
    pub name: &'static str,
    /// Its paper, or the system that defines it.
    pub paper: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Its options with their defaults.
    pub options: Map<String, Value>,
    /// The part of a recipe that it needs, as text.
    pub needs: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::config::algorithms;
    use crate::reference_data::parts_up_to_date;
    use crate::rl::advantages::Estimator;
    use crate::rl::objective::PolicyLoss;

    /// Estimators or losses as a table in Markdown: a loss has its own options and the terms in
    /// which it differs from `ppo`.
    fn table(kind: &str, rows: impl Iterator<Item = ReferenceRow>) -> String {
        let mut out = format!("| {kind} | what it computes | options | paper |\n|---|---|---|---|\n");
        for ReferenceRow { name, paper, about, options, needs } in rows {
            let options: Vec<String> =
                options.iter().map(|(name, value)| format!("`{name} = {}`", lua(value))).collect();
            let needs = if needs.is_empty() { String::new() } else { format!("; needs {}", needs.join(", ")) };
            let _ = writeln!(out, "| `{name}` | {about}{needs} | {} | {paper} |", options.join(", "));
        }
        out
    }

    /// A value as a script writes it.
    fn lua(value: &Value) -> String {
        match value {
            Value::Null => "nil".to_owned(),
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() && float != 0.0 && float.abs() < 1e-3 => format!("{float:e}"),
                Some(float) if number.is_f64() => format!("{float}"),
                _ => number.to_string(),
            },
            other => other.to_string(),
        }
    }

    /// The tables of algorithms, estimators and losses. `just docs` updates the page.
    #[test]
    fn files_made_from_the_declarations_of_algorithms() {
        let parts = [
            ("algorithms", algorithms::table()),
            ("estimators", table("estimator", Estimator::reference())),
            ("losses", table("loss", PolicyLoss::reference())),
        ];
        parts_up_to_date("docs/reference/algorithms.md", &parts);
    }
}
