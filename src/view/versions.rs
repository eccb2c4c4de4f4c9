//! The versions of a run's script and settings, with what changed between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use crate::store::{Configuration, Sources, StoredRun};

/// Lines of context around a change.
const AROUND: usize = 3;
/// Longest time for the diff of a file; later changes are then shown as a whole.
const TIME: Duration = Duration::from_millis(500);

/// The configurations of the run, oldest first, each with the changes since the one before.
pub(super) fn versions(run: &StoredRun) -> Value {
    let mut versions: Vec<Value> = Vec::new();
    let mut before: Option<(&Configuration, Option<Sources>)> = None;
    for now in run.configurations() {
        // A copy of a run may lack the folder of a version.
        let sources = run.sources(&now.script.hash).ok();
        let (mut settings, mut files) = (Vec::new(), Vec::new());
        if let Some((was, was_sources)) = &before {
            changed_settings(&was.settings, &now.settings, "", &mut settings);
            if let (Some(was), Some(is)) = (was_sources, &sources) {
                files = changed_files(was, is);
            }
        }
        versions.push(json!({
            "from_step": now.from_step,
            "hash": now.script.hash.chars().take(12).collect::<String>(),
            "script": now.script.path,
            "overrides": now.overrides,
            "r1": now.r1,
            "settings": settings,
            "files": files,
            "source": sources.as_ref().map(|sources| sources.source.as_str()),
        }));
        before = Some((now, sources));
    }
    let current = run.configurations().next_back().map(|one| &one.settings);
    json!({ "versions": versions, "settings": current })
}

/// Settings with different values: name, before, after.
fn changed_settings(was: &Value, is: &Value, name: &str, changed: &mut Vec<Value>) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => {
            for key in was.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
                let of = |fields: &serde_json::Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
                changed_settings(&of(was), &of(is), &below(key), changed);
            }
        }
        _ if was != is => changed.push(json!({ "name": name, "was": was, "is": is })),
        _ => {}
    }
}

/// Files with different texts, with the lines of their diff: `[sign, text]`.
fn changed_files(was: &Sources, is: &Sources) -> Vec<Value> {
    let texts = |sources: &Sources| -> BTreeMap<String, String> {
        let main = sources.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sources.modules.clone().into_iter().chain([(main, sources.source.clone())]).collect()
    };
    let (was, is) = (texts(was), texts(is));
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let of = |texts: &BTreeMap<String, String>, name: &String| texts.get(name).cloned().unwrap_or_default();
    names
        .into_iter()
        .filter(|name| was.get(*name) != is.get(*name))
        .map(|name| json!({ "name": name, "lines": diff(&of(&was, name), &of(&is, name)) }))
        .collect()
}

fn diff(was: &str, is: &str) -> Vec<(char, String)> {
    let diff = TextDiff::configure().timeout(TIME).diff_lines(was, is);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        if let Some(first) = group.first() {
            lines.push(('@', format!("line {}", first.new_range().start + 1)));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            lines.push((sign, change.value().trim_end_matches('\n').to_owned()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::{RunDir, ScriptVersion};

    #[test]
    fn versions_have_the_changes_of_scripts_and_settings() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let write = |hash: &str, step: u64, lr: f64, source: &str, module: &str| {
            let script = ScriptVersion { path: "a.lua".into(), hash: hash.to_owned(), ..ScriptVersion::default() };
            let settings = json!({ "trainer": { "lr": lr, "steps": 5 } });
            let now = Configuration { from_step: step, script, settings, ..Configuration::default() };
            run.write_recipe(now, source, &[("lib/b", module)]).unwrap();
        };
        write("aaaaaaaaaaaaaaaa", 0, 0.5, "one\ntwo\n", "same");
        write("bbbbbbbbbbbbbbbb", 3, 0.25, "one\n2\n", "same");
        let path = run.path().to_owned();
        drop(run);
        let all = versions(&StoredRun::open(&path, root.path()).unwrap());
        let second = &all["versions"][1];
        assert_eq!((&second["from_step"], &second["hash"]), (&json!(3), &json!("bbbbbbbbbbbb")));
        assert_eq!(second["settings"], json!([{ "name": "trainer.lr", "was": 0.5, "is": 0.25 }]));
        let lines = json!([["@", "line 1"], [" ", "one"], ["-", "two"], ["+", "2"]]);
        assert_eq!(second["files"], json!([{ "name": "a.lua", "lines": lines }]));
        assert_eq!((&all["versions"][0]["files"], &all["settings"]["trainer"]["steps"]), (&json!([]), &json!(5)));
        // Without the folder of a version there is no diff.
        std::fs::remove_dir_all(path.join("scripts/aaaaaaaaaaaa")).unwrap();
        let all = versions(&StoredRun::open(&path, root.path()).unwrap());
        assert_eq!(all["versions"][1]["files"], json!([]));
    }
}
