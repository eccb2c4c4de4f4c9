//! A script from stored texts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::load::{Script, directory};
use crate::config::Limits;
use crate::error::Result;
use crate::script::api;
use crate::script::runtime::library;
use crate::script::runtime::sources::{RequiredFile, Resources, SourceOrigin};

impl Script {
    /// A script from stored texts, such as a run's: `modules` are the files it requires, by
    /// name. `path` is its name in messages; no file is read.
    ///
    /// # Errors
    /// As [`Script::load`].
    pub fn kept(path: &Path, source: String, modules: BTreeMap<String, String>, overrides: &[String]) -> Result<Self> {
        let folder = directory(path);
        let module = |(name, source): (String, String)| {
            let path = library::shown_path(&name, &folder);
            (name, RequiredFile { path, source })
        };
        let kept: BTreeMap<String, RequiredFile> = modules.into_iter().map(module).collect();
        let sources = SourceOrigin::Kept(Arc::new(kept), Resources::Disk(folder.clone()));
        let vm = api::vm(Limits::default(), sources, None)?;
        Self::read(&vm, path, source, overrides)
    }
}
