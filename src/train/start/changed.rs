//! What a resumed run does differently from before: the changes of its script and settings, what
//! they mean, and a prompt for confirmation.

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::script::Change;
use crate::telemetry::Reporter;

/// What a change of a setting means for a run that goes on after `step`, by the start of its key.
const MEANINGS: [(&str, &str); 7] = [
    ("data.", "the order of the tasks changes: rows of this epoch may come twice or not at all"),
    ("eval.", "later evaluations can't be compared with earlier ones"),
    ("checkpoint.", "applies to the next checkpoint"),
    ("policy.", "the weights stay those of the checkpoint"),
    ("trainer.steps", "the run ends earlier or later; a schedule of the learning rate changes with it"),
    ("trainer.", "applies to the next update; the optimiser keeps its state"),
    ("", "applies to the next trajectories"),
];

/// A change and what it means.
pub(super) fn explained(change: &Change) -> String {
    let meaning = MEANINGS.iter().find(|(start, _)| change.key.starts_with(start)).map_or("", |(_, meaning)| meaning);
    format!("{change} ({meaning})")
}

/// Prompts for confirmation of changes that are not in the command that resumes the run.
///
/// # Errors
/// `Kind::Interrupted` if the answer is no, `Kind::Usage` without a terminal.
pub(super) fn confirm(reporter: &Reporter, run: &Path, script: Option<&Path>, keys: &[&str]) -> Result<()> {
    let what = match (script, keys) {
        (None, []) => return Ok(()),
        (Some(_), []) => "the script has changed since the run used it".to_owned(),
        (None, keys) => format!("settings have changed since the run used them: {}", keys.join(", ")),
        (Some(_), keys) => format!("the script has changed since the run used it, and so have {}", keys.join(", ")),
    };
    match reporter.confirm(&format!("{what}. Continue with the current version?")) {
        Some(true) => Ok(()),
        Some(false) => Err(Error::new(Kind::Interrupted, "not resumed; the run is unchanged").at_path(run)),
        None => Err(Error::new(Kind::Usage, what).at_path(script.unwrap_or(run)).hint(format!(
            "--yes continues the run with the current version; the earlier one is in {}",
            run.join("scripts").display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_have_a_meaning() {
        let change = |key: &str| Change { key: key.to_owned(), old: json!(1), new: json!(2) };
        assert!(explained(&change("trainer.lr")).ends_with("the optimiser keeps its state)"));
        assert!(explained(&change("trainer.steps")).contains("ends earlier or later"));
        assert!(explained(&change("sampling.top_p")).contains("next trajectories"));
    }

    #[test]
    fn without_a_terminal_changes_are_refused() {
        let (reporter, run) = (Reporter::silent(), Path::new("runs/a"));
        confirm(&reporter, run, None, &[]).unwrap();
        let error = confirm(&reporter, run, Some(Path::new("a.lua")), &["trainer.lr"]).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.ends_with("and so have trainer.lr"), "{error:?}");
        assert!(error.hint.unwrap().contains("--yes"));
    }
}
