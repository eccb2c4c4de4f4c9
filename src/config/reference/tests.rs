//! Tests that the reference is complete.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use serde_json::Value;

use super::settings;
use crate::config::{
    DataFile, DataSettings, Generated, HubData, InitModel, LoraSettings, PolicySettings, Settings, Sft, Source,
    Trainer, VisionInit, algorithm_names,
};
use crate::schema::Is;

/// Every setting of these settings, by its path.
fn paths(at: &str, value: &Value, out: &mut Vec<String>) {
    let open = settings().any(|setting| setting.path == at && setting.open);
    match value {
        Value::Object(fields) if !open && !fields.is_empty() => {
            for (name, value) in fields {
                paths(&crate::schema::join(at, name), value, out);
            }
        }
        _ => out.push(at.to_owned()),
    }
}

#[test]
fn every_field_of_every_settings_struct_is_in_the_reference() {
    let policy = PolicySettings {
        init: Some(InitModel { vision: Some(VisionInit::default()), ..InitModel::default() }),
        lora: Some(LoraSettings::default()),
        ..PolicySettings::default()
    };
    let sft = Settings { policy, trainer: Trainer::Sft(Sft::default()), ..Settings::default() };
    let sources =
        [Source::File(DataFile::default()), Source::Hub(HubData::default()), Source::Generated(Generated::default())];
    let data = sources.map(|source| {
        let data = DataSettings { train: Some(source.clone()), eval: Some(source), ..DataSettings::default() };
        Settings { data, ..Settings::default() }
    });
    for all in data.into_iter().chain([Settings::default(), sft]) {
        let mut fields = Vec::new();
        paths("", &serde_json::to_value(all).unwrap(), &mut fields);
        assert!(fields.contains(&"trainer.lr".to_owned()));
        for path in fields {
            assert!(settings().any(|setting| setting.path == path), "no setting `{path}`");
        }
    }
}

#[test]
fn entries_are_whole() {
    let mut names = BTreeSet::new();
    for setting in settings() {
        assert!(names.insert((setting.path, setting.only)), "{} twice", setting.path);
        assert!(setting.doc.ends_with('.') && !setting.kind.is_empty(), "{}", setting.path);
        serde_json::from_str::<Value>(&setting.default).unwrap();
    }
    assert_eq!(settings().filter(|setting| setting.path == "trainer.lr").count(), 2);
    assert!(settings().any(|setting| setting.is_below("trainer.kl") && setting.path == "trainer.kl.coef"));
    assert!(!settings().any(|setting| setting.is_below("trainer.k")));
}

#[test]
fn conditions_of_settings_match_the_type_of_the_named_setting() {
    for setting in settings() {
        for need in &setting.needs {
            let other = settings().find(|other| other.path == need.setting);
            let kind = other.map(|other| other.kind.as_str()).unwrap_or_default();
            let fits = match need.is {
                Is::Positive => matches!(kind, "number" | "integer"),
                Is::True => kind == "boolean",
                Is::Set => !kind.is_empty(),
                Is::OneOf(names) if need.setting == "trainer.algorithm" => {
                    names.iter().all(|name| algorithm_names().contains(name))
                }
                Is::OneOf(names) => names.iter().all(|name| kind.contains(&format!("\"{name}\""))),
            };
            assert!(fits, "{} needs {}, a setting of type {kind:?}", setting.path, need.words());
        }
    }
    assert!(settings().any(|setting| setting.path == "trainer.critic.lr" && !setting.needs.is_empty()));
}

#[test]
fn the_example_of_contributing_is_a_declaration() {
    let page = include_str!("../../../CONTRIBUTING.md");
    let setting = page.split("- **a setting**").nth(1).unwrap();
    let example = setting.split("```rust").nth(1).unwrap().split("```").next().unwrap();
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain(include_str!("../learner.rs")).contains(&plain(example)), "{example}");
}
