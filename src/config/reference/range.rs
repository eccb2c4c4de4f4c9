//! Validates settings against the ranges of the reference.

use serde_json::Value;

use super::settings;
use crate::config::{Settings, Trainer};
use crate::error::{Error, Kind, Result};

/// An interval of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    low: Option<Bound>,
    high: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    at: f64,
    /// Whether the bound itself is allowed.
    included: bool,
}

impl NumberRange {
    /// `≥ 1`, `> 0`, `0 to 1`, `0 ≤ x < 1`; `None` for a range as text, which is checked
    /// elsewhere.
    fn parse(text: &str) -> Option<Self> {
        let bound = |included| move |at: &str| Some(Bound { at: at.trim().parse().ok()?, included });
        let low = text.strip_prefix('≥').map(bound(true)).or_else(|| text.strip_prefix('>').map(bound(false)));
        if let Some(low) = low {
            return Some(Self { low: Some(low?), high: None });
        }
        if let Some((low, high)) = text.split_once(" to ") {
            return Some(Self { low: Some(bound(true)(low)?), high: Some(bound(true)(high)?) });
        }
        let parts: Vec<&str> = text.split(' ').collect();
        let [low, first @ ("<" | "≤"), _, second @ ("<" | "≤"), high] = parts[..] else { return None };
        Some(Self { low: Some(bound(first == "≤")(low)?), high: Some(bound(second == "≤")(high)?) })
    }

    fn contains(self, number: f64) -> bool {
        let above = |low: Bound| if low.included { number >= low.at } else { number > low.at };
        let below = |high: Bound| if high.included { number <= high.at } else { number < high.at };
        number.is_finite() && self.low.is_none_or(above) && self.high.is_none_or(below)
    }

    /// `above 0`, `at least 0 and at most 1`.
    fn words(self) -> String {
        let low = self.low.map(|low| format!("{} {}", if low.included { "at least" } else { "above" }, low.at));
        let high = self.high.map(|high| format!("{} {}", if high.included { "at most" } else { "below" }, high.at));
        low.into_iter().chain(high).collect::<Vec<String>>().join(" and ")
    }
}

/// Refuses numbers outside their ranges.
///
/// # Errors
/// `Kind::Script` with the first setting out of range as subject.
pub fn check_ranges(settings: &Settings) -> Result<()> {
    let all = serde_json::to_value(settings).unwrap_or(Value::Null);
    let only = if matches!(settings.trainer, Trainer::Sft(_)) { "sft" } else { "" };
    for setting in self::settings().filter(|setting| setting.only == only || !setting.path.starts_with("trainer.")) {
        let Some(range) = NumberRange::parse(setting.range) else { continue };
        for (path, value) in values(&all, setting.path) {
            // JSON has no NaN and infinity: they are null, as unset values are.
            let unset = value.is_null() && setting.default == "null";
            let inside = match value {
                Value::Array(items) => {
                    items.iter().all(|item| item.as_f64().is_none_or(|number| range.contains(number)))
                }
                Value::Number(number) => number.as_f64().is_some_and(|number| range.contains(number)),
                Value::Null => unset,
                _ => true,
            };
            if inside {
                continue;
            }
            let shown = if value.is_null() { "NaN or infinite".to_owned() } else { value.to_string() };
            return Err(Error::new(Kind::Script, format!("{path} is {shown}")).about_setting(path).hint(format!(
                "give a number that is {}; the default is {}",
                range.words(),
                setting.default
            )));
        }
    }
    Ok(())
}

/// Values of a setting with their dotted names; one per environment for settings of `env`.
fn values<'a>(all: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let find = |from: &'a Value, path: &str| path.split('.').try_fold(from, |value, name| value.get(name));
    let values = find(all, path).map(|value| (path.to_owned(), value));
    let envs = all.get("envs").and_then(Value::as_object);
    let Some((envs, rest)) = envs.filter(|envs| !envs.is_empty()).zip(path.strip_prefix("env.")) else {
        return values.into_iter().collect();
    };
    envs.iter().filter_map(|(name, env)| Some((format!("envs.{name}.{rest}"), find(env, rest)?))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::{EnvSettings, Learner};

    #[test]
    fn setting_ranges_are_parsed_and_described() {
        let cases = [
            ("≥ 1", "at least 1", vec![1.0, 7.0], vec![0.0, 0.5, f64::INFINITY, f64::NAN]),
            ("> 0", "above 0", vec![1e-9], vec![0.0, -1.0]),
            ("0 to 1", "at least 0 and at most 1", vec![0.0, 1.0], vec![-0.1, 1.1]),
            ("0 ≤ x < 1", "at least 0 and below 1", vec![0.0, 0.9], vec![1.0, -0.1]),
            ("0 < p ≤ 1", "above 0 and at most 1", vec![1.0, 0.1], vec![0.0, 1.1]),
        ];
        for (text, description, inside, outside) in cases {
            let range = NumberRange::parse(text).unwrap();
            assert_eq!(range.words(), description);
            assert!(inside.into_iter().all(|number| range.contains(number)), "{text}");
            assert!(!outside.into_iter().any(|number| range.contains(number)), "{text}");
        }
        for text in ["", "0 to group_size", "one of docs/reference/algorithms.md, or sft", "0 < low ≤ 1, high > 0"] {
            assert_eq!(NumberRange::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_default_is_in_its_range() {
        for setting in settings() {
            let default: Value = serde_json::from_str(&setting.default).unwrap();
            let Some((range, number)) = NumberRange::parse(setting.range).zip(default.as_f64()) else { continue };
            assert!(range.contains(number), "{}: {} is not {}", setting.path, setting.default, setting.range);
        }
    }

    #[track_caller]
    fn refused(settings: &Settings) -> String {
        check_ranges(settings).unwrap_err().to_string()
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let with = |learner| Settings { trainer: Trainer::Rl { learner, critic: false }, ..Settings::default() };
        assert!(check_ranges(&Settings::default()).is_ok());
        let lr = refused(&with(Learner { lr: -1.0, ..Learner::default() }));
        assert_eq!(lr, "trainer.lr is -1.0\n  hint: give a number that is at least 0; the default is 1e-6");
        assert!(
            refused(&with(Learner { lr: f64::NAN, ..Learner::default() })).contains("trainer.lr is NaN or infinite")
        );
        assert!(refused(&with(Learner { ema: 1.0, ..Learner::default() })).contains("trainer.ema is 1"));
        assert!(refused(&with(Learner { group_size: 0, ..Learner::default() })).contains("trainer.group_size is 0"));
        let env = EnvSettings { max_steps: 0, ..EnvSettings::default() };
        let envs = [("maths".to_owned(), env)].into();
        assert!(refused(&Settings { envs, ..Settings::default() }).contains("envs.maths.max_steps is 0"));
    }
}
