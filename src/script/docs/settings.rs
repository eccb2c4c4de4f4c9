//! The reference of settings in the terminal, from the declarations in `config`.

use std::fmt::Write;

use super::page::wrap;
use crate::config::{settings, unknown_hint};
use crate::error::nearest;
use crate::schema::Setting;

/// The settings that match a name: a setting, all of a section or table, or all with this last
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
