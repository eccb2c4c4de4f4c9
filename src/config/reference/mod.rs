//! The reference of settings: all declarations of [`Settings`] in one list.
//!
//! `r1 doc trainer.lr`, `r1 doc trainer`, docs/settings.md, completion and editor types are made
//! from it.

mod options;
mod range;

use std::sync::LazyLock;

pub use range::{Range, check_ranges};

use super::Settings;
use crate::schema::{Section, Setting};

/// All settings, section by section.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    static ALL: LazyLock<Vec<Setting>> = LazyLock::new(|| {
        let mut options = options::options();
        let mut all = Vec::new();
        for setting in Settings::listed() {
            let table = setting.path;
            all.push(setting);
            all.extend(options.extract_if(.., |option| option.path.rsplit_once('.').is_some_and(|at| at.0 == table)));
        }
        all
    });
    ALL.iter()
}

#[cfg(test)]
mod tests;
