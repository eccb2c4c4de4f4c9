//! The reference of settings: all declarations of [`Settings`] in one list.
//!
//! `r1 doc trainer.lr`, `r1 doc trainer`, docs/reference/settings.md, completion and editor types
//! are made from it.

mod needs;
mod range;

use std::sync::LazyLock;

pub use needs::{Lacking, lacking, value_of};
pub use range::{NumberRange, check_ranges};

use super::Settings;
use crate::schema::{Section, Setting};

/// All settings, section by section.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    static ALL: LazyLock<Vec<Setting>> = LazyLock::new(Settings::listed);
    ALL.iter()
}

#[cfg(test)]
mod tests;
