//! The reference of settings in the terminal, from the declarations in `config`.

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
