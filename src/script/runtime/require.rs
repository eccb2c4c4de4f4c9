//! `require("lib/x")`: loads modules from the script's own directory only; and the resources read
//! at load time. A Python file (`require("reward.py")`) is a module whose value is its text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use mlua::{Lua, Value};

use super::bind::bind;
use super::host::{misuse, place};
use super::library;
use super::resource::{KeptParts, Resource, ResourceSpec};
use super::sources::{RequiredFile, Resources, SourceOrigin, file_of, is_python};
use crate::algorithms::raise;
use crate::error::{Error, Kind, Result, Subject, suggest};

/// Finds, reads and caches modules. It is open only while the script loads, so that the hash of a
/// script covers all code that it can run.
pub(crate) struct Loader {
    sources: SourceOrigin,
    loaded: BTreeMap<String, LoadedModule>,
    pub(crate) resources: BTreeMap<ResourceSpec, Arc<Resource>>,
    /// Files that were searched for, found or not.
    pub(crate) searched_files: BTreeSet<PathBuf>,
    open: bool,
}

struct LoadedModule {
    module: RequiredFile,
    /// `None` while the module runs: a second `require` of it is a cycle.
    value: Option<Value>,
}

impl Loader {
    pub(crate) fn new(sources: SourceOrigin) -> Self {
        let (loaded, resources, searched_files) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { sources, loaded, resources, searched_files, open: true }
    }

    pub(crate) fn close(&mut self) {
        self.open = false;
    }

    pub(crate) fn modules(&self) -> BTreeMap<String, RequiredFile> {
        self.loaded.iter().map(|(name, loaded)| (name.clone(), loaded.module.clone())).collect()
    }

    /// A resource, read once.
    ///
    /// # Errors
    /// As [`Resource::open`]; [`Kind::Script`] after loading, and for a resource that was missing
    /// when the script was first loaded.
    pub(crate) fn resource(&mut self, spec: &ResourceSpec) -> Result<Arc<Resource>> {
        if let Some(read) = self.resources.get(spec) {
            return Ok(Arc::clone(read));
        }
        let shown = spec.path.display();
        if !self.open {
            let message = match spec.keep {
                KeptParts::Rows => format!("r1.resource(\"{shown}\") after loading"),
                KeptParts::Bytes | KeptParts::Nothing => format!("`{shown}` is read after loading"),
            };
            return Err(Error::new(Kind::Script, message).hint("read resources at the top of the script"));
        }
        let read = match &self.sources {
            SourceOrigin::Kept(_, Resources::Read(read)) => read.get(spec).cloned().ok_or_else(|| {
                Error::new(Kind::Script, format!("r1.resource: `{shown}` was not there when the script was loaded"))
            })?,
            SourceOrigin::Disk(root) | SourceOrigin::Kept(_, Resources::Disk(root)) => {
                self.searched_files.insert(spec.path_in(root));
                Resource::open(spec, root)?
            }
        };
        self.resources.insert(spec.clone(), Arc::clone(&read));
        Ok(read)
    }

    fn find(&mut self, name: &str) -> Result<RequiredFile> {
        match &self.sources {
            SourceOrigin::Kept(modules, _) => modules
                .get(name)
                .cloned()
                .ok_or_else(|| refused(format!("`{name}` was not there when the script was loaded"))),
            // A stored version of a script has the modules of the library that it was run with.
            SourceOrigin::Disk(root) if library::has_prefix(name) && !root.join(file_of(name)).exists() => {
                library::module(name).ok_or_else(|| {
                    let names = library::names();
                    refused(format!("r1 has no module `{name}`")).hint(suggest(name, names.iter().map(String::as_str)))
                })
            }
            SourceOrigin::Disk(root) => {
                self.searched_files.insert(root.join(file_of(name)));
                let module = read(root, name)?;
                let path = if library::has_prefix(name) { library::shown_path(name, root) } else { module.path };
                Ok(RequiredFile { path, ..module })
            }
        }
    }
}

/// The global `require`.
pub(crate) fn require(lua: &Lua, loader: &std::cell::RefCell<Loader>, name: &Value) -> mlua::Result<Value> {
    let fail = |message: String| raise(misuse(lua, message));
    let Value::String(name) = name else {
        return Err(fail(format!("require takes the name of a module, got {}", super::convert::kind(name))));
    };
    let name = name.to_string_lossy();
    let name = name.strip_suffix(".lua").unwrap_or(&name).trim_start_matches("./").to_owned();
    let module = {
        let mut loader = loader.borrow_mut();
        if let Some(loaded) = loader.loaded.get(&name) {
            return loaded.value.clone().ok_or_else(|| fail(format!("require: `{name}` requires itself")));
        }
        if !loader.open {
            return Err(fail(format!("require(\"{name}\") after loading: require modules at the top of the script")));
        }
        loader.find(&name).map_err(|error| raise(Error { place: error.place.or_else(|| place(lua)), ..error }))?
    };
    if is_python(&name) {
        let text = Value::String(lua.create_string(&module.source)?);
        loader.borrow_mut().loaded.insert(name, LoadedModule { module, value: Some(text.clone()) });
        return Ok(text);
    }
    let chunk =
        lua.load(module.source.as_str()).set_name(format!("@{}", module.path)).set_mode(mlua::chunk::ChunkMode::Text);
    loader.borrow_mut().loaded.insert(name.clone(), LoadedModule { module: module.clone(), value: None });
    let chunk = chunk.into_function()?;
    if let Some(mut texts) = lua.app_data_mut::<crate::script::runtime::texts::Texts>() {
        texts.texts.insert(module.path.clone(), module.source.clone());
        texts.modules.insert(name.clone(), module.path.clone());
        texts.chunks.push((module.path.clone(), chunk.clone()));
    }
    let value: Value = chunk.call(())?;
    if value.is_nil() {
        return Err(fail(format!("require: module `{name}` returns nothing")));
    }
    if let Value::Table(table) = &value
        && library::has_prefix(&name)
    {
        refuse_unknown(lua, &name, table)?;
    }
    if let Some(loaded) = loader.borrow_mut().loaded.get_mut(&name) {
        loaded.value = Some(value.clone());
    }
    Ok(value)
}

/// Access to a name that a module of the library does not have is an error with the nearest names,
/// and not a call of nil.
fn refuse_unknown(lua: &Lua, module: &str, table: &mlua::Table) -> mlua::Result<()> {
    if table.metatable().is_some() || table.is_readonly() {
        return Ok(());
    }
    let module = module.to_owned();
    let meta = lua.create_table()?;
    bind(lua, &meta, "__index", move |lua, (table, key): (mlua::Table, Value)| -> mlua::Result<Value> {
        let key = key.to_string()?;
        let mut names = Vec::new();
        table.for_each(|name: Value, _: Value| {
            names.extend(name.as_string().map(mlua::LuaString::to_string_lossy));
            Ok(())
        })?;
        let error = misuse(lua, format!("`{module}` has no `{key}`"));
        Err(raise(error.hint(suggest(&key, names.iter().map(String::as_str)))))
    })?;
    table.set_metatable(Some(meta))
}

/// An error of `require`, without a place.
fn refused(message: impl std::fmt::Display) -> Error {
    Error::new(Kind::Script, format!("require: {message}"))
}

fn read(root: &Path, name: &str) -> Result<RequiredFile> {
    let relative = file_of(name);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !plain {
        return Err(refused(format!("`{name}` is not inside the script's directory")));
    }
    let path = root.join(&relative);
    let about = |message: String| refused(message).about(Subject::File(path.clone()));
    let missing = |_| about(format!("no file {}", path.display()));
    let real = path.canonicalize().map_err(missing)?;
    let real_root = root.canonicalize().map_err(missing)?;
    if !real.starts_with(&real_root) {
        return Err(about(format!("{} leads outside the script's directory", path.display())));
    }
    let source = crate::error::readable(&real).and_then(|()| std::fs::read_to_string(&real));
    let source = source.map_err(|error| about(format!("can't read {}: {error}", path.display())))?;
    Ok(RequiredFile { path: path.display().to_string(), source })
}
