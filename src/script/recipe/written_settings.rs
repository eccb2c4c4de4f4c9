//! Settings as written in a script and on its command line, with their places.

use serde_json::Value as Json;

use super::load::{RecipePart, Script};
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::script::runtime::source_map::{Location, SourceMap};
use crate::script::runtime::sources::is_python;
use crate::script::settings::{self, cold_start};

impl Script {
    /// Settings written in the recipe, without defaults and overrides.
    pub fn recipe_settings(&self) -> &Json {
        &self.written.recipe
    }

    /// The settings of the recipe without overrides.
    pub(crate) fn without_overrides(&self) -> Result<Settings> {
        settings::read(&self.written.recipe)
    }

    /// An integer setting, if it was written.
    pub(crate) fn written_number(&self, key: &str) -> Option<usize> {
        let value = key.split('.').try_fold(&self.written.all, |value, name| value.get(name));
        value.and_then(Json::as_u64).and_then(|number| usize::try_from(number).ok())
    }

    /// The command-line argument that sets `key`.
    pub(crate) fn typed(&self, key: &str) -> Option<&str> {
        let sets = |typed: &&String| {
            let name = typed.split('=').next().unwrap_or_default().trim();
            let local = if self.part == RecipePart::ColdStart { cold_start::own_name(name) } else { Some(name) };
            let Some(name) = local else { return false };
            key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.written.typed.iter().rfind(sets).map(String::as_str)
    }

    /// `path:line` where the recipe sets `key`, or its deepest known part; else the path.
    pub(crate) fn place_of(&self, key: &str) -> String {
        self.location_of(key).place
    }

    /// The key of a setting as a user writes it: that of a cold start begins with `cold_start.`.
    pub(crate) fn full_key(&self, key: &str) -> String {
        let prefix = if self.part == RecipePart::ColdStart { cold_start::PREFIX } else { "" };
        format!("{prefix}{key}")
    }

    /// [`Script::place_of`], and whether the setting itself is there.
    fn location_of(&self, key: &str) -> Location {
        let key = self.full_key(key);
        let main = self.path.display().to_string();
        let lua = self.modules.iter().filter(|(name, _)| !is_python(name));
        let modules = lua.map(|(_, module)| (module.path.as_str(), module.source.as_str()));
        let names = self.modules.iter().map(|(name, module)| (name.clone(), module.path.clone())).collect();
        let map = SourceMap::new(std::iter::once((main.as_str(), self.source.as_str())).chain(modules), names);
        map.setting(&main, &key).unwrap_or(Location { place: main, is_exact: false })
    }

    /// An error about a setting, with its place: an argument of the command line, or a line.
    pub(crate) fn placed(&self, error: Error) -> Error {
        let Some(key) = error.setting().map(str::to_owned) else { return error.at_path(&self.path) };
        if let Some(typed) = self.typed(&key) {
            return Error { kind: Kind::Usage, ..error }.at(typed);
        }
        let written = key.split('.').try_fold(&self.written.recipe, |value, name| value.get(name));
        let location = self.location_of(&key);
        // A default has no line.
        let is_exact = location.is_exact || written.is_none();
        Location { is_exact, ..location }.of(error, &key)
    }
}
