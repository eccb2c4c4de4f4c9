//! The argument `--resume [RUN]`.

use std::path::{Path, PathBuf};

/// The argument as typed: absent, without a value, or with one.
#[allow(clippy::option_option)]
pub(super) type Resume = Option<Option<PathBuf>>;

/// The argument without a setting: `--resume trainer.steps=9` is `--resume` followed by a setting,
/// which is moved to `overrides`.
pub(super) fn without_setting(resume: Resume, overrides: &mut Vec<String>) -> Resume {
    match resume {
        Some(Some(path)) if path.to_string_lossy().contains('=') && !path.exists() => {
            overrides.insert(0, path.to_string_lossy().into_owned());
            Some(None)
        }
        other => other,
    }
}

/// The directory of a run: `run` itself, or the run of this name in the directory of runs.
pub(super) fn directory(run: PathBuf, runs_dir: &Path) -> PathBuf {
    let below = runs_dir.join(&run);
    if !run.exists() && below.is_dir() { below } else { run }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_after_resume_is_not_its_value() {
        let mut overrides = vec!["seed=1".to_owned()];
        let given = |text: &str| Some(Some(PathBuf::from(text)));
        assert_eq!(without_setting(given("trainer.steps=9"), &mut overrides), Some(None));
        assert_eq!(overrides, ["trainer.steps=9", "seed=1"]);
        assert_eq!(without_setting(given("runs/a"), &mut overrides), given("runs/a"));
        assert_eq!(without_setting(None, &mut overrides), None);
        assert_eq!(overrides.len(), 2);
    }
}
