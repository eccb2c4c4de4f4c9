//! The reference of settings, from the declarations in `config`: pages in the terminal,
//! docs/reference/settings.md, and the types at the end of lua/types/r1.d.luau.

use std::fmt::Write;

use super::page::{wrap, wrap_after};
use crate::config::{Settings, settings, unknown_hint};
use crate::error::nearest;
use crate::schema::{Field, Setting, Table};
use crate::tools::table::TableOptions;
use crate::tools::{PythonOptions, RhaiOptions};

/// Sections in the order of the reference, with a description.
const SECTIONS: [(&str, &str); 9] = [
    ("", "The run"),
    ("policy", "The model"),
    ("data", "Datasets of tasks (docs/guide/data.md)"),
    ("sampling", "Sampling of responses in training"),
    ("env", "The environment: fields of `r1.env` that are data"),
    ("rollout", "Rollouts"),
    ("eval", "Evaluation on `data.eval`"),
    ("checkpoint", "Checkpoints and the exported model"),
    ("limits", "Limits of the script (docs/guide/containment.md)"),
];

const TRAINER: &str = "Training (docs/guide/training.md)";

/// The settings that match a name: a setting, those of a section or table, or those with this last
/// part.
pub fn find_settings(name: &str) -> Vec<&'static Setting> {
    let name = name.trim().trim_end_matches('.');
    let below: Vec<&Setting> = settings().filter(|setting| setting.is_below(name)).collect();
    if !below.is_empty() {
        return below;
    }
    settings().filter(|setting| setting.path.rsplit('.').next() == Some(name)).collect()
}

/// The hint for a name that is not a setting; `None` for a name outside of the sections of
/// settings.
pub fn settings_hint(name: &str) -> Option<String> {
    let (section, _) = name.split_once('.')?;
    let sections = settings().map(Setting::section).filter(|section| !section.is_empty());
    if nearest(section, sections).is_empty() {
        return None;
    }
    let paths: Vec<&str> = settings().map(|setting| setting.path).collect();
    Some(unknown_hint(name, name, &paths))
}

/// Settings for a terminal: one in full, several as a list.
pub fn settings_page(settings: &[&Setting]) -> String {
    let name = |setting: &Setting| match setting.only {
        "" => setting.path.to_owned(),
        only => format!("{} ({only})", setting.path),
    };
    let mut page = String::new();
    let paths: std::collections::BTreeSet<&str> = settings.iter().map(|setting| setting.path).collect();
    if paths.len() == 1 {
        for setting in settings {
            let _ = writeln!(page, "{}\n", name(setting));
            wrap(&mut page, setting.doc);
            let rows = [
                ("type", setting.kind.as_str()),
                ("unit", setting.unit),
                ("range", setting.range),
                ("default", default_of(setting)),
                ("needs", &setting.needed()),
                ("changes", setting.reload.words()),
            ];
            page.push('\n');
            for (what, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
                let _ = writeln!(page, "  {what:<8} {value}");
            }
            page.push('\n');
        }
        page.truncate(page.trim_end().len());
        page.push('\n');
        return page;
    }
    let width = settings.iter().map(|setting| name(setting).chars().count()).max().unwrap_or(0);
    let defaults = settings.iter().map(|setting| default_of(setting).chars().count()).max().unwrap_or(0).min(12);
    for setting in settings {
        let default = default_of(setting);
        let _ = writeln!(page, "{:width$}  {default:defaults$}  {}", name(setting), setting.doc);
    }
    page
}

/// The default as text.
fn default_of(setting: &Setting) -> &str {
    match setting.default.as_str() {
        "null" => "none",
        default => default,
    }
}

/// docs/reference/settings.md.
pub fn settings_markdown() -> String {
    let mut out = "\
# Settings

Every setting of a recipe, with its type, unit, default and range. A recipe sets them as fields of
`r1.recipe { … }` (`trainer` by `r1.grpo { … }`, `env` by `r1.env { … }`), the command line as
`key=value` with the dotted name (`trainer.lr=2e-6`), which takes precedence. Unknown names are
refused with the nearest ones. A setting that needs another one is refused without it, because it
would have no effect. `r1 doc trainer.lr` shows one setting in the terminal, `r1 doc trainer` a
section. This page is made from the declarations in `src/config`.

Times and sizes take a number in the unit given here, or a text with a unit of its own: `\"250ms\"`,
`\"5s\"`, `\"2min\"`; `\"64KiB\"`, `\"512MiB\"`, `\"2GiB\"`.
"
    .to_owned();
    for (section, about) in SECTIONS {
        let heading = if section.is_empty() { "The run itself".to_owned() } else { format!("`{section}`") };
        let _ = writeln!(out, "\n## {heading}\n\n{about}.\n");
        table(&mut out, settings().filter(|setting| setting.section() == section));
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
    out.push_str(
        "| setting | type | default | unit, range | changes in a run | meaning |\n|---|---|---|---|---|---|\n",
    );
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
            setting.reload.words(),
            bar(setting.doc) + needs.concat().as_str()
        );
    }
}

/// The line above the types of settings.
const BEGIN: &str = "-- Settings: made from src/config by `just docs`; changes below are lost.\n";

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
pub fn with_settings(file: &str) -> String {
    let before = file.split(BEGIN).next().unwrap_or_default();
    let mut out = format!("{before}{BEGIN}");
    let tools = [PythonOptions::tables(), RhaiOptions::tables(), TableOptions::tables()].concat();
    for table in Settings::tables().iter().chain(&tools) {
        type_of(&mut out, table);
    }
    out
}

/// A table of settings; every field may be left out.
fn type_of(out: &mut String, table: &Table) {
    out.push('\n');
    wrap_after(out, "--- ", "--- ", &table.about);
    let _ = writeln!(out, "export type {} = {{", table.name);
    for setting in table.fields.iter().filter(|setting| !ELSEWHERE.contains(&(table.name, setting.name()))) {
        wrap_after(out, "  --- ", "  --- ", &setting.summary());
        let kind = if setting.lua.contains('|') { format!("({})", setting.lua) } else { setting.lua.clone() };
        let _ = writeln!(out, "  {}: {kind}?,", setting.name());
    }
    out.push_str("}\n");
}
