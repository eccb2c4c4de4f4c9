//! Hints for misplaced fields: functions where plain data is expected, fields of another table.

use crate::config::{Learner, unknown_hint};
use crate::error::{Error, Kind};
use crate::schema::Section;
use crate::script::docs;

const TRAINERS: [&str; 4] = ["r1.grpo", "r1.ppo", "r1.trainer", "r1.sft"];

/// Where functions are written by mistake, a line each: the function of r1 (or `trainer`; empty for
/// any), the field or its first part, what it takes, and the hint.
const FUNCTIONS: &str = include_str!("misplaced.tsv");

/// The error for a function at `path` of the argument of `function`, with a hint if another field
/// fits.
pub(crate) fn misplaced_function(function: &str, path: &str) -> Error {
    let trainer = TRAINERS.contains(&function);
    let field = if trainer { format!("trainer.{path}") } else { path.to_owned() };
    let (caller, first) =
        (if trainer { "trainer" } else { function }, path.split(['.', '[']).next().unwrap_or_default());
    let fitting = FUNCTIONS.lines().find_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [of, name, wanted, hint] if (of.is_empty() || of == caller) && (name == first || name == path) => {
            Some((wanted, hint))
        }
        _ => None,
    });
    let (wanted, hint) = fitting.unwrap_or(("plain data: text, numbers, booleans and tables", ""));
    let error = Error::new(Kind::Script, format!("`{field}` is a function; it takes {wanted}"));
    let error = error.about_setting(field);
    if hint.is_empty() { error } else { error.hint(hint) }
}

/// The hint for an unknown field of `function`, whose fields are `names`: the table that has the
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
