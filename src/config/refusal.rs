//! The error of an invalid value, with a hint: the nearest names, or the r1 name of a setting of
//! verl or TRL.

use super::counterparts::{self, last_part, similarity};
use super::settings;
use crate::error::{Error, suggest};
use crate::schema::{Misfit, MisfitReason, Setting};

/// Maximum number of names that a message lists beside a hint.
const LISTED: usize = 12;

/// The error of an invalid value of a setting.
pub fn refused(misfit: Misfit) -> Error {
    let (hint, short) = match &misfit.why {
        MisfitReason::Unknown { name, names } => (Some(unknown_hint(&misfit.key, name, names)), None),
        MisfitReason::NotOneOf { got, names } => {
            // The list would hide the hint.
            let short = || format!("`{}` is \"{got}\", which does not exist", misfit.key);
            (counterparts::value_hint(&misfit.key, got), (names.len() > LISTED).then(short))
        }
        _ => (None, None),
    };
    let error = Error::from(misfit);
    let hint = hint.or(error.hint);
    let message = short.filter(|_| hint.is_some()).unwrap_or(error.message);
    Error { message, hint, ..error }
}

/// Minimum similarity of a name to the name that it is a misspelling of; 1 is equality.
const MISSPELT: f64 = 0.75;

/// The hint for an unknown setting with the dotted name `key`, which is `name` among `names`: its
/// r1 name if it is a name of another system, the section that has it, or the nearest names.
/// Misspellings of names of other systems count.
pub fn unknown_hint(key: &str, name: &str, names: &[&str]) -> String {
    if let Some(hint) = counterparts::hint(key) {
        return hint;
    }
    if settings().any(|setting| setting.path == key && setting.only == "sft") {
        return format!("`{key}` is a setting of r1.sft");
    }
    if settings().any(|setting| setting.section() == key) {
        return format!("`{key}` is a section of settings, which `r1 doc {key}` lists");
    }
    let last = last_part(key);
    let in_section = names.iter().map(|other| similarity(last, last_part(other))).fold(0.0, f64::max);
    let elsewhere = settings().map(|setting| similarity(last, setting.name())).fold(0.0, f64::max);
    if let Some((similar, hint)) = counterparts::misspelt(key)
        && similar >= MISSPELT
        && similar > in_section.max(elsewhere)
    {
        return hint;
    }
    // A setting that is not one of this recipe: `data.train.columns` of rows that are generated.
    let is_setting = settings().any(|setting| setting.path == key);
    if !is_setting && elsewhere >= MISSPELT && elsewhere > in_section {
        let same = |setting: &&Setting| similarity(last, setting.name()) >= elsewhere;
        let mut paths: Vec<String> = settings().filter(same).map(|setting| format!("`{}`", setting.path)).collect();
        paths.dedup();
        paths.truncate(3);
        return format!("did you mean {}?", paths.join(" or "));
    }
    suggest(name, names.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_names_does_not_hide_the_nearest() {
        let names: Vec<&'static str> = crate::config::algorithm_names();
        let error = refused(Misfit::not_one_of("trainer.algorithm", "gsop", &names));
        assert_eq!(error.message, "`trainer.algorithm` is \"gsop\", which does not exist");
        assert!(error.hint.is_some_and(|hint| hint.starts_with("did you mean `gspo`")));
        let error = refused(Misfit::not_one_of("trainer.algorithm", "xyzzy", &names));
        assert!(error.message.contains("it is one of `grpo`"), "{error}");
    }

    #[test]
    fn an_unknown_setting_is_refused_with_the_nearest_name() {
        let all: Vec<&str> = settings().filter(|setting| setting.only.is_empty()).map(|setting| setting.path).collect();
        for (typed, hint) in [
            ("trainer.group_sizee", "did you mean `trainer.group_size`"),
            ("policy.max_tokns", "did you mean `env.max_tokens`"),
            ("polcy.model", "did you mean `policy.model`"),
            ("data.trian", "did you mean `data.train`"),
            ("trainer.leraning_rate", "`learning_rate` of TRL is `trainer.lr` in r1"),
            ("trainer.learningrate", "`learning_rate` of TRL is `trainer.lr` in r1"),
            ("trainer.critic.learning_rate", "`learning_rate` of TRL is `trainer.critic.lr` in r1"),
            ("trainer.num_generation", "`num_generations` of TRL is `trainer.group_size` in r1"),
            ("trainer.wd", "`wd` is `trainer.weight_decay` in r1"),
            ("trainer.clip_grad_nrm", "`clip_grad_norm` is `trainer.max_grad_norm` in r1"),
            ("sampling.max_tokens", "`max_tokens` is `sampling.max_new_tokens` in r1"),
            ("trainer.batch_size", "`batch_size` is `trainer.groups_per_step` in r1"),
            ("trainer", "`trainer` is a section of settings"),
            ("trainer.overlong", "`trainer.overlong` is a setting of r1.sft"),
        ] {
            let text = unknown_hint(typed, typed, &all);
            assert!(text.starts_with(hint), "{typed}: {text}");
        }
        // Among the fields of a table, as in a script.
        let hint = unknown_hint("policy.max_tokns", "max_tokns", &["model", "dtype"]);
        assert_eq!(hint, "did you mean `env.max_tokens`?");
        assert_eq!(unknown_hint("policy.modle", "modle", &["model", "dtype"]), "did you mean `model`?");
        assert_eq!(unknown_hint("policy.xyzzy", "xyzzy", &["model", "dtype"]), "known: `dtype`, `model`");
    }
}
