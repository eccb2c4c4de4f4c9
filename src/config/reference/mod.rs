//! The reference of settings, as data: path, type, unit, default, range and meaning of every setting of every section.
//!
//! `r1 doc trainer.lr`, `r1 doc trainer` and docs/settings.md are made from it. A test walks the serialised defaults of
//! [`Settings`](super::Settings) in all their forms and fails where a setting is missing here or has another default.

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
    /// The trainer that has it, where two have a setting of this name: `sft`, or empty.
    pub only: &'static str,
    /// `number`, `integer`, `boolean`, `string`, `list`, `table`, or the values there are: `"auto" | "cpu"`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `seconds`, `MiB`, `tokens`, `steps` …; empty for plain numbers and text.
    pub unit: &'static str,
    /// As JSON; `null` where leaving it out means something of its own.
    pub default: &'static str,
    /// The values that are allowed, where the type allows more; empty for all.
    pub range: &'static str,
    pub doc: &'static str,
}

/// A setting: path, type, unit, default, range, meaning.
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

    /// Whether this is the setting `path`, or one of the section or table `path`.
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

    /// Tables whose fields are other modules' (`rl`), or the recipe's own names.
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

    /// Fails for a setting that the table lacks, or whose default it has wrong.
    fn compare(settings: &Settings, only: &str, seen: &mut BTreeSet<(&'static str, &'static str)>) {
        for (path, default) in flat(settings) {
            // How the variant is called, not a setting with a default of its own.
            if path == "trainer.algorithm" {
                continue;
            }
            let found = super::settings().find(|setting| {
                setting.path == path
                    && (setting.only == only || !path.starts_with("trainer.") && setting.only.is_empty())
            });
            let setting = found.unwrap_or_else(|| panic!("src/config/reference has no `{path}` ({only}): add it"));
            let mut told: Value = serde_json::from_str(setting.default).unwrap_or_else(|_| panic!("{path}"));
            // A choice is written by its name.
            if let (Value::String(name), Value::Object(fields)) = (&told, &default)
                && fields.contains_key("name")
            {
                told = json!({ "name": name });
            }
            let number = |value: &Value| value.as_f64();
            let same = told == default || (number(&told).is_some() && number(&told) == number(&default));
            let unset = default == json!({}) && told.is_null();
            assert!(same || unset, "`{path}`: the reference says {told}, the default is {default}");
            seen.insert((setting.path, setting.only));
        }
    }

    #[test]
    fn every_setting_is_in_the_reference_with_its_default() {
        let mut seen = BTreeSet::new();
        compare(&with(Trainer::Grpo(Learner::default())), "", &mut seen);
        compare(&with(Trainer::Ppo(Learner::default())), "", &mut seen);
        compare(&with(Trainer::Sft(Sft::default())), "sft", &mut seen);
        // Those that are left out of JSON while nothing sets them.
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
        // And nothing is in the reference that is no setting, but for what stands for tables of options.
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
    fn entries_are_whole() {
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
