//! The files of a script: read from disk, or kept from the first load.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::resource::{Resource, ResourceSpec};

#[derive(Clone, Debug)]
pub(crate) enum SourceOrigin {
    /// From the directory of the script; what is read is kept.
    Disk(PathBuf),
    /// The files that were read when the script was first loaded, so that every worker runs the
    /// same text.
    Kept(Arc<BTreeMap<String, RequiredFile>>, Resources),
}

/// The origin of the resources of a script that was read before.
#[derive(Clone, Debug)]
pub(crate) enum Resources {
    /// From the directory of the script.
    Disk(PathBuf),
    /// The files that were read when the script was first loaded.
    Read(Arc<BTreeMap<ResourceSpec, Arc<Resource>>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequiredFile {
    /// As shown in messages.
    pub(crate) path: String,
    pub(crate) source: String,
}

/// Whether a module is a Python file, whose name has its extension.
pub(crate) fn is_python(name: &str) -> bool {
    name.ends_with(".py")
}

/// The file of a module.
pub(super) fn file_of(name: &str) -> PathBuf {
    PathBuf::from(if is_python(name) { name.to_owned() } else { format!("{name}.lua") })
}
