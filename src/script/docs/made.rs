//! The files that are made from the declarations: docs/reference/settings.md, the reference in
//! docs/reference/lua.md, and the types of settings at the end of lua/types/r1.d.luau. A test
//! writes them.

use std::fmt::Write;

use serde_json::json;

use super::markdown;
use super::reference::{setting_types, written};
use crate::config::settings;
use crate::schema::{Setting, Table};

/// Sections in the order of the reference, with a description.
const SECTIONS: [(&str, &str); 10] = [
    ("", "The run"),
    ("policy", "The model"),
    ("data", "Datasets of tasks (docs/guide/data.md)"),
    ("sampling", "Sampling of responses in training"),
    ("env", "The environment: fields of `r1.env` that are data"),
    ("rollout", "Rollouts"),
    ("eval", "Evaluation on `data.eval`"),
    ("search", "The models of searches (docs/guide/search.md)"),
    ("checkpoint", "Checkpoints and the exported model"),
    ("limits", "Limits of the script (docs/guide/containment.md)"),
];

const TRAINER: &str = "Training (docs/guide/training.md)";

/// Markers around the reference in docs/reference/lua.md.
const REFERENCE: &str = "<!-- reference: made by `r1 doc --format markdown`; changes below are lost -->\n";

/// A document with its reference regenerated; the text outside the markers is kept.
pub(crate) fn with_reference(document: &str) -> String {
    let before = document.split(REFERENCE).next().unwrap_or_default();
    format!("{before}{REFERENCE}\n{}", markdown())
}

/// docs/reference/settings.md.
pub(crate) fn settings_markdown() -> String {
    let mut out = "\
# Settings

Every setting of a recipe, with its type, unit, default and range. A recipe sets them as fields of
`r1.recipe { … }` (`trainer` by `r1.grpo { … }`, `env` by `r1.env { … }`), the command line as
`key=value` with the dotted name (`trainer.lr=2e-6`), which takes precedence. Unknown names are
refused with the nearest ones. A setting that needs another one is refused without it, because it
would have no effect. `r1 doc trainer.lr` shows one setting in the terminal, `r1 doc trainer` a
section. This page is made from the declarations in `src/config`.

*Changes* says when an edit during a run applies ([reload.md](../guide/reload.md)). Times and sizes
take a number in the unit given here, or a text with another unit: `\"250ms\"`, `\"5s\"`,
`\"2min\"`; `\"64KiB\"`, `\"512MiB\"`, `\"2GiB\"`.
"
    .to_owned();
    for (section, about) in SECTIONS {
        let heading = if section.is_empty() { "The run itself".to_owned() } else { format!("`{section}`") };
        let _ = writeln!(out, "\n## {heading}\n\n{about}.\n");
        // A dataset of `data.eval` has the fields of one of `data.train`.
        let is_listed = |setting: &&Setting| !setting.path.starts_with("data.eval.");
        table(&mut out, settings().filter(|setting| setting.section() == section).filter(is_listed));
    }
    let _ = writeln!(out, "\n## `trainer`\n\n{TRAINER}.\n");
    table(&mut out, settings().filter(|setting| setting.section() == "trainer" && setting.only.is_empty()));
    out.push_str("\n## `trainer` of `r1.sft`\n\nSupervised fine-tuning has these instead.\n\n");
    table(&mut out, settings().filter(|setting| setting.section() == "trainer" && setting.only == "sft"));
    out
}

/// Text in a cell of a table; what is between backticks stays as it is.
fn bar(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace('|', "\\|").replace('*', "\\*").replace('<', "\\<"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn table<'a>(out: &mut String, settings: impl Iterator<Item = &'a Setting>) {
    out.push_str("| setting | type | default | unit, range | changes | meaning |\n|---|---|---|---|---|---|\n");
    for setting in settings {
        let default = match setting.default.as_str() {
            "null" => "–".to_owned(),
            default => format!("`{default}`"),
        };
        let bounds: Vec<String> =
            [setting.unit, setting.range].iter().filter(|text| !text.is_empty()).map(|text| bar(text)).collect();
        let needs: Vec<String> = setting.needs.iter().map(|need| format!(" Needs `{}`.", need.words())).collect();
        let _ = writeln!(
            out,
            "| `{}` | {} | {default} | {} | {} | {} |",
            setting.path,
            bar(&setting.kind),
            bounds.join(", "),
            setting.reload.words().replace(" after a ", ": ").replace("after a ", ""),
            bar(setting.doc) + needs.concat().as_str()
        );
    }
}

/// The line above the types of settings.
const TYPES: &str = "-- Settings: made from src/config by `just docs`; changes below are lost.\n";

/// Fields that a function declares itself, because their values are not plain data or have another
/// name or unit there.
const ELSEWHERE: [(&str, &str); 10] = [
    ("Settings", "env"),
    ("Settings", "envs"),
    ("Settings", "cold_start"),
    ("EnvSettings", "format"),
    ("PythonOptions", "timeout"),
    ("PythonOptions", "memory_mb"),
    ("PythonOptions", "disk_mb"),
    ("RhaiOptions", "timeout"),
    ("TableOptions", "timeout"),
    ("TableOptions", "memory_mb"),
];

/// lua/types/r1.d.luau with the types of settings made again; what is above them is kept.
pub(crate) fn with_settings(file: &str) -> String {
    let before = file.split(TYPES).next().unwrap_or_default();
    let field = |setting: &Setting| json!({ "name": setting.name(), "doc": setting.summary(), "type": setting.lua });
    let table = |table: Table| {
        let listed = table.fields.iter().filter(|setting| !ELSEWHERE.contains(&(table.name, setting.name())));
        json!({ "name": table.name, "doc": table.about, "fields": listed.map(field).collect::<Vec<_>>() })
    };
    format!("{before}{TYPES}{}", written("types", &setting_types().into_iter().map(table).collect()))
}
