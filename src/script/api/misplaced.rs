//! Hints for misplaced fields: functions where plain data is expected, fields of another table.

use crate::config::{Learner, unknown_hint};
use crate::error::{Error, Kind};
use crate::schema::Section;
use crate::script::docs;

const TRAINERS: [&str; 4] = ["r1.grpo", "r1.ppo", "r1.trainer", "r1.sft"];

/// The error for a function at `path` of the argument of `function`, with a hint if another field
/// fits.
pub(crate) fn misplaced_function(function: &str, path: &str) -> Error {
    let trainer = TRAINERS.contains(&function);
    let field = if trainer { format!("trainer.{path}") } else { path.to_owned() };
    let (wanted, hint) = match path.split(['.', '[']).next().unwrap_or_default() {
        "estimator" if trainer => (
            "an estimator's name",
            "the recipe's own function goes next to the trainer: r1.recipe { advantage = function(group) … end, trainer = \
             r1.grpo { … } } (docs/guide/your-own-algorithm.md)",
        ),
        "loss" if trainer => (
            "a loss's name",
            "the recipe's own function goes next to the trainer: r1.recipe { loss = function(b) … end, trainer = r1.grpo { \
             … } } (docs/guide/your-own-algorithm.md)",
        ),
        "lr" | "warmup" | "decay" | "final_lr" if trainer => (
            "plain data",
            "the schedule of the learning rate is set by lr = 1e-6, warmup = 10, decay = \"cosine\", final_lr = 0.1",
        ),
        "shaping" if trainer => (
            "plain data",
            "shape rewards in the reward function: r1.recipe { reward = function(state, outcome) … end }",
        ),
        "format" if ["r1.env", "r1.text.template"].contains(&function) => (
            "a format name, or a result of r1.format",
            "such as format = \"hermes\", or format = r1.format { parse = function(reply) … end } (docs/reference/lua.md)",
        ),
        "eval" if path == "eval.accuracy" => (
            "the name of a part of the reward",
            "eval = { accuracy = \"correct\" }, where `reward` returns { correct = … }",
        ),
        "train" | "eval" if function == "r1.recipe: data" => (
            "a path or a dataset of r1.data",
            "generate rows: r1.data.generate { count = 1000, row = function(index) … end }",
        ),
        _ => ("plain data: text, numbers, booleans and tables", ""),
    };
    let error = Error::new(Kind::Script, format!("`{field}` is a function; it takes {wanted}"));
    let error = error.about_setting(field);
    if hint.is_empty() { error } else { error.hint(hint) }
}

/// The hint for an unknown field of `function`, whose fields are `known`: the table that has the
/// field, or the nearest name.
pub(crate) fn unknown_field(function: &str, name: &str, names: &[&str]) -> Option<String> {
    let of_trainer = || Learner::FIELDS.contains(&name);
    let trainer = TRAINERS.contains(&function);
    if trainer && name == "algorithm" {
        return Some("another algorithm is r1.trainer { algorithm = \"NAME\", … }".to_owned());
    }
    if (trainer || function == "r1.env") && declared("r1.recipe", name) {
        let section = if trainer { "trainer" } else { "env" };
        return Some(format!("`{name}` is a field of r1.recipe {{ … }}, next to `{section}`"));
    }
    if function == "r1.recipe" && declared("r1.env", name) {
        return Some(format!("`{name}` is a field of the env: env = r1.env {{ {name} = …, … }}"));
    }
    if function == "r1.recipe" && of_trainer() {
        return Some(format!("`{name}` is a field of the trainer: trainer = r1.grpo {{ {name} = …, … }}"));
    }
    let key = match function {
        _ if trainer => format!("trainer.{name}"),
        "r1.env" => format!("env.{name}"),
        "r1.recipe" => name.to_owned(),
        _ => return None,
    };
    Some(unknown_hint(&key, name, names))
}

/// Whether a function has the field.
fn declared(function: &str, field: &str) -> bool {
    docs::find(function).is_some_and(|entry| entry.field_names().contains(&field))
}
