//! Estimators and losses as rows of the reference, made from their declarations.

use std::fmt::Write;

use serde_json::{Map, Value};

/// An estimator or a loss, for readers.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
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

/// Estimators or losses as a table in Markdown: a loss has its own options and the terms in which
/// it differs from `ppo`.
pub fn table(kind: &str, rows: impl Iterator<Item = Reference>) -> String {
    let mut out = format!("| {kind} | what it computes | options | paper |\n|---|---|---|---|\n");
    for Reference { name, paper, about, options, needs } in rows {
        let options: Vec<String> = options.iter().map(|(name, value)| format!("`{name} = {}`", lua(value))).collect();
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
