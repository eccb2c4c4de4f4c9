//! Arguments that name a run, or a setting: `--resume [RUN]`, `--seed N` beside `seed=N`.

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::store::no_run;

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
///
/// # Errors
/// [`Kind::Store`] for a run that does not exist, with the nearest names.
pub(super) fn directory(run: PathBuf, runs_dir: &Path) -> Result<PathBuf> {
    let below = runs_dir.join(&run);
    // A folder or a script in the working directory may have the name of a run.
    if !run.join("config.json").is_file() && below.is_dir() {
        return Ok(below);
    }
    if run.exists() { Ok(run) } else { Err(no_run(&run, runs_dir)) }
}

/// The run and the step of `--fork RUN@STEP`; the whole text is the run if no number follows an @.
pub(super) fn fork(typed: &str) -> (&str, Option<u64>) {
    let parts = typed.rsplit_once('@').and_then(|(run, step)| Some((run, Some(step.parse().ok()?))));
    parts.unwrap_or((typed, None))
}

/// A flag, what it is set to, and the settings that it stands for.
pub(super) type Flag<'a> = (&'a str, Option<String>, &'a [&'a str]);

/// Refuses flags beside settings with other values: one of the two would have no effect.
///
/// # Errors
/// [`Kind::Usage`] with both.
pub(super) fn refuse_both(flags: &[Flag<'_>], overrides: &[String]) -> Result<()> {
    let is_same = |a: &str, b: &str| a == b || a.parse::<f64>().is_ok_and(|a| b.parse() == Ok(a));
    for (flag, flag_value, keys) in flags {
        let Some(flag_value) = flag_value else { continue };
        for typed in overrides {
            if let Some((key, value)) = typed.split_once('=')
                && keys.contains(&key)
                && !is_same(flag_value, value.trim_matches('"'))
            {
                let message = format!("{flag} {flag_value} and {typed} differ, and stand for the same");
                return Err(Error::new(Kind::Usage, message).hint("leave out one of them"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn flags_and_settings_with_other_values_are_refused() {
        let flags: [Flag<'_>; 2] = [("--seed", Some("1".to_owned()), &["seed"]), ("--name", None, &["name"])];
        let refuse = |typed: &str| refuse_both(&flags, &["trainer.lr=1".to_owned(), typed.to_owned()]);
        for same in ["seed=1", "seed=1.0", "name=a", "sampling.seed=2"] {
            assert!(refuse(same).is_ok(), "{same}");
        }
        let error = refuse("seed=2").unwrap_err();
        assert_eq!(error.message, "--seed 1 and seed=2 differ, and stand for the same");
        assert_eq!(error.kind, Kind::Usage);
    }

    #[test]
    fn a_folder_that_is_no_run_does_not_hide_the_run_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let runs = root.path().join("runs");
        // Tests run in the folder of the package, which has a folder `src` that is no run.
        let name = PathBuf::from("src");
        assert!(name.is_dir());
        assert_eq!(directory(name.clone(), &runs).unwrap(), name);
        std::fs::create_dir_all(runs.join("src")).unwrap();
        assert_eq!(directory(name, &runs).unwrap(), runs.join("src"));
        assert!(directory(PathBuf::from("r1-no-such-run"), &runs).is_err());

        let path = root.path().join("a");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), "{}").unwrap();
        assert_eq!(directory(path.clone(), &runs).unwrap(), path);
    }

    #[test]
    fn a_fork_names_a_run_and_a_step() {
        assert_eq!(fork("runs/a@40"), ("runs/a", Some(40)));
        assert_eq!(fork("a"), ("a", None));
        assert_eq!(fork("a@b"), ("a@b", None));
        assert_eq!(fork("a@b@2"), ("a@b", Some(2)));
    }

    #[test]
    fn a_setting_after_resume_is_not_its_value() {
        let mut overrides = vec!["seed=1".to_owned()];
        let argument = |text: &str| Some(Some(PathBuf::from(text)));
        assert_eq!(without_setting(argument("trainer.steps=9"), &mut overrides), Some(None));
        assert_eq!(overrides, ["trainer.steps=9", "seed=1"]);
        assert_eq!(without_setting(argument("runs/a"), &mut overrides), argument("runs/a"));
        assert_eq!(without_setting(None, &mut overrides), None);
        assert_eq!(overrides.len(), 2);
    }
}
