//! Settings reference as data: path, type, unit, default, range and description of every setting.
//!
//! `r1 doc trainer.lr`, `r1 doc trainer` and docs/settings.md are generated from it. A test
//! compares it with the serialised defaults of [`Settings`](super::Settings) and fails if a setting
//! is missing or has another default.

mod range;
mod run;
mod trainer;

use serde::Serialize;

pub use range::{Range, check_ranges};

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Dotted name, as on the command line: `trainer.lr`.
    pub path: &'static str,
    /// `sft` for settings of supervised fine-tuning, otherwise empty.
    pub only: &'static str,
    /// `number`, `integer`, `boolean`, `string`, `list`, `table`, or the allowed values: `"auto" |
    /// "cpu"`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `seconds`, `MiB`, `tokens`, `steps` …; empty for plain numbers and text.
    pub unit: &'static str,
    /// JSON; `null` if the setting is unset by default.
    pub default: &'static str,
    /// Allowed values within the type; empty for all.
    pub range: &'static str,
    pub doc: &'static str,
}

/// A setting: path, type, unit, default, range, description.
const fn s(
    path: &'static str,
    kind: &'static str,
    unit: &'static str,
    default: &'static str,
    range: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { path, only: "", kind, unit, default, range, doc }
}

/// A setting of supervised fine-tuning.
const fn sft(
    path: &'static str,
    kind: &'static str,
    unit: &'static str,
    default: &'static str,
    range: &'static str,
    doc: &'static str,
) -> Setting {
    Setting { path, only: "sft", kind, unit, default, range, doc }
}

/// All settings, section by section.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    let tables: [&'static [Setting]; 3] = [run::SETTINGS, trainer::SETTINGS, trainer::SFT];
    tables.into_iter().flatten()
}

impl Setting {
    /// `trainer`; empty for `name`, `seed` and `needs`.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Whether this is the setting `path`, or belongs to the section or table `path`.
    pub fn is_below(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Value, json};

    use crate::config::{
        DataFile, DataSettings, HubData, InitModel, Learner, LoraSettings, PolicySettings, Settings, Sft, Source,
        Trainer,
    };

    /// Tables whose fields are defined in `rl` or by the recipe.
    const OPEN: [&str; 7] = [
        "trainer.estimator",
        "trainer.loss",
        "trainer.shaping",
        "trainer.importance",
        "trainer.rejection",
        "data.train.columns",
        "data.eval.columns",
    ];

    /// Path -> default of every setting of these settings.
    fn flat(settings: &Settings) -> BTreeMap<String, Value> {
        fn walk(at: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
            match value {
                Value::Object(fields) if !OPEN.contains(&at) && !fields.is_empty() => {
                    for (name, value) in fields {
                        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                        walk(&path, value, found);
                    }
                }
                value => _ = found.insert(at.to_owned(), value.clone()),
            }
        }
        let mut found = BTreeMap::new();
        walk("", &serde_json::to_value(settings).unwrap(), &mut found);
        found
    }

    fn with(trainer: Trainer) -> Settings {
        Settings { trainer, ..Settings::default() }
    }

    /// Fails for a setting that is missing in the table or has another default there.
    fn compare(settings: &Settings, only: &str, seen: &mut BTreeSet<(&'static str, &'static str)>) {
        for (path, default) in flat(settings) {
            // The tag of the variant has no default.
            if path == "trainer.algorithm" {
                continue;
            }
            let found = super::settings().find(|setting| {
                setting.path == path
                    && (setting.only == only || !path.starts_with("trainer.") && setting.only.is_empty())
            });
            let setting = found.unwrap_or_else(|| panic!("src/config/reference has no `{path}` ({only}): add it"));
            let mut documented: Value = serde_json::from_str(setting.default).unwrap_or_else(|_| panic!("{path}"));
            // A choice is written by its name.
            if let (Value::String(name), Value::Object(fields)) = (&documented, &default)
                && fields.contains_key("name")
            {
                documented = json!({ "name": name });
            }
            let number = |value: &Value| value.as_f64();
            let same =
                documented == default || (number(&documented).is_some() && number(&documented) == number(&default));
            let unset = default == json!({}) && documented.is_null();
            assert!(same || unset, "`{path}`: the reference says {documented}, the default is {default}");
            seen.insert((setting.path, setting.only));
        }
    }

    #[test]
    fn every_setting_is_in_the_reference_with_its_default() {
        let mut seen = BTreeSet::new();
        compare(&with(Trainer::Grpo(Learner::default())), "", &mut seen);
        compare(&with(Trainer::Ppo(Learner::default())), "", &mut seen);
        compare(&with(Trainer::Sft(Sft::default())), "sft", &mut seen);
        // Fields that are skipped in JSON when unset.
        let policy = PolicySettings {
            init: Some(InitModel::default()),
            lora: Some(LoraSettings::default()),
            ..PolicySettings::default()
        };
        compare(&Settings { policy, needs: Vec::new(), ..Settings::default() }, "", &mut seen);
        let sources = [
            Source::File(DataFile { format: None, ..DataFile::default() }),
            Source::Hub(HubData::default()),
            Source::Generated { count: 0, seed: 0 },
        ];
        for source in sources {
            let (train, eval) = (Some(source.clone()), Some(source));
            compare(
                &Settings { data: DataSettings { train, eval, ..DataSettings::default() }, ..Settings::default() },
                "",
                &mut seen,
            );
        }
        // Every entry of the reference must be a setting, except for tables of options.
        let known = [
            "envs",
            "needs",
            "cold_start",
            "trainer.algorithm",
            "policy.init",
            "policy.lora",
            "data.train.format",
            "data.eval.format",
        ];
        let is_option = |path: &str| OPEN.iter().any(|table| path.starts_with(&format!("{table}.")));
        for setting in super::settings() {
            let there = seen.contains(&(setting.path, setting.only));
            assert!(there || known.contains(&setting.path) || is_option(setting.path), "no setting `{}`", setting.path);
        }
    }

    #[test]
    fn settings_reference_entries_are_complete() {
        let mut names = BTreeSet::new();
        for setting in super::settings() {
            assert!(names.insert((setting.path, setting.only)), "{} twice", setting.path);
            assert!(setting.doc.ends_with('.') && !setting.kind.is_empty(), "{}", setting.path);
            serde_json::from_str::<Value>(setting.default).unwrap();
        }
        assert_eq!(super::settings().filter(|setting| setting.path == "trainer.lr").count(), 2);
        assert!(super::settings().any(|setting| setting.is_below("trainer.kl") && setting.path == "trainer.kl.coef"));
        assert!(!super::settings().any(|setting| setting.is_below("trainer.k")));
    }
}
