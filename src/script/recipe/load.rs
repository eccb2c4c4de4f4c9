//! Loads a script: the recipe's settings, its hash, its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::checks::{can_make_rows, check_row_functions, with_params};
use super::own_format::{self, Formats};
use crate::algorithms::{AlgorithmFile, FileLoss, Trace};
use crate::config::{Choice, EnvSettings, Learner, Limits, LossGraph, Settings, Source};
use crate::data::Dataset;
use crate::error::{Error, Kind, Result, nearest, readable, suggest};
use crate::script::api;
use crate::script::api::algorithm::OwnAlgorithm;
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::Recipe;
use crate::script::runtime::failure::describe;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::{Call, EntryPoint};
use crate::script::runtime::library;
use crate::script::runtime::log::{LogLine, LogSink};
use crate::script::runtime::passages::SearchPart;
use crate::script::runtime::resource::{Resource, ResourceSpec};
use crate::script::runtime::servers::Listings;
use crate::script::runtime::shared_calls::SharedCalls;
use crate::script::runtime::sources::{RequiredFile, Resources, SourceOrigin};
use crate::script::runtime::vm::Vm;
use crate::script::settings::{self, cold_start};
use crate::search::{NoModels, SearchModels};
use crate::store::FileVersion;
use crate::text::Style;

/// A loaded script with a valid recipe. Plain data: workers create virtual machines from it.
#[derive(Clone, Debug)]
pub struct Script {
    /// Path as given.
    pub path: PathBuf,
    /// SHA-256 (hex) over the main file, every file it required and every resource it read.
    pub hash: String,
    /// The main file.
    pub source: String,
    /// The recipe's settings with the command line's overrides.
    pub settings: Settings,
    /// The recipe's policy loss, if `trainer.loss` is its function.
    pub loss: Option<Arc<LossGraph>>,
    /// What the recipe's algorithm declares about its functions.
    pub declared: Option<Arc<AlgorithmFile>>,
    /// The options of the function `advantage`.
    pub advantage_options: Map<String, Json>,
    /// Whether the recipe has a function `privileged`.
    pub privileged: bool,
    /// Whether the recipe has a function `row_weight`.
    pub row_weight: bool,
    /// The name of the recipe's algorithm, such as `gspo`. [`crate::config::Trainer`] selects the
    /// training loop.
    pub algorithm: String,
    /// The part of the file's recipe.
    pub(crate) part: RecipePart,
    pub(crate) written: Arc<WrittenSettings>,
    pub(crate) modules: Arc<BTreeMap<String, RequiredFile>>,
    /// The tool-call formats that it defines.
    pub(crate) formats: Formats,
    /// The resources it reads, shared by all workers.
    pub(crate) resources: Arc<BTreeMap<ResourceSpec, Arc<Resource>>>,
    /// The search indexes and re-ranking models that it names.
    pub(crate) searches: Vec<SearchPart>,
    pub(crate) search_models: &'static dyn SearchModels,
    /// State of tool calls, shared by all workers.
    pub(crate) shared: Arc<SharedCalls>,
    /// The tools of its MCP servers, shared by all workers.
    pub(crate) listings: Arc<Listings>,
    /// The programs of its connections, as text.
    pub(crate) programs: Vec<String>,
    /// The datasets from files, by name, indexed once for all workers.
    pub(crate) datasets: Datasets,
    /// The commits of datasets on the Hub, by `train`, `eval` or `train.NAME`; other datasets are
    /// read at the named revision.
    pub(crate) pins: BTreeMap<String, String>,
    /// Lines that the file logged while it was loaded.
    pub logged: Vec<LogLine>,
    /// Receives the log lines of its workers.
    pub(crate) sink: LogSink,
}

/// Which recipe of a file is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecipePart {
    Whole,
    /// Its `cold_start`.
    ColdStart,
}

/// Settings as written, without defaults.
#[derive(Debug)]
pub(crate) struct WrittenSettings {
    pub(crate) recipe: Json,
    /// Settings of the recipe with the overrides.
    pub(crate) all: Json,
    /// The overrides as typed.
    pub(crate) typed: Vec<String>,
}

/// Scripts with a name similar to `path`, next to it or in `scripts/`.
fn near_scripts(path: &Path) -> Vec<String> {
    let name = path.with_extension("").file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = directory(path);
    let files =
        [folder.clone(), folder.join("scripts")].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let files = files.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let stem = |path: &PathBuf| Some((path.file_stem()?.to_str()?.to_owned(), path.display().to_string()));
    let scripts: BTreeMap<String, String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .filter_map(|p| stem(&p))
        .collect();
    let near = nearest(&name, scripts.keys().map(String::as_str));
    near.into_iter()
        .filter_map(|name| scripts.get(name))
        .map(|path| format!("`{}`", path.trim_start_matches("./")))
        .collect()
}

/// The error of a script that can't be read, with scripts of similar names if there is none.
pub fn unreadable_script(path: &Path, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::InvalidData {
        return Error::new(Kind::Script, "the script is not valid UTF-8").at_path(path);
    }
    let read = Error::io(Kind::Script, "read the script", path, error);
    let near = if error.kind() == std::io::ErrorKind::NotFound { near_scripts(path) } else { Vec::new() };
    if near.is_empty() { read } else { read.hint(format!("did you mean {}?", near.join(" or "))) }
}

impl Script {
    /// Reads and runs `path`, which must return a recipe, and applies `overrides`
    /// (`trainer.lr=2e-6`).
    ///
    /// # Errors
    /// [`Kind::Script`] with file and line for an error of the script; [`Kind::Usage`] for an
    /// override with an unknown setting or a wrong value. Datasets and tools are not opened yet.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self> {
        Self::load_with_files(path, overrides, &mut BTreeSet::new())
    }

    /// [`Script::load`], which also collects every file that was searched for, found or not, even
    /// on failure.
    pub(crate) fn load_with_files(path: &Path, overrides: &[String], files: &mut BTreeSet<PathBuf>) -> Result<Self> {
        files.insert(path.to_owned());
        let source = readable(path).and_then(|()| std::fs::read_to_string(path));
        let source = source.map_err(|error| unreadable_script(path, &error))?;
        let vm = api::vm(Limits::default(), SourceOrigin::Disk(directory(path)), None)?;
        let script = Self::read(&vm, path, source, overrides);
        files.extend(vm.loader.borrow().searched_files.iter().cloned());
        script
    }

    /// A recipe of r1 itself, without files.
    ///
    /// # Errors
    /// [`Kind::Script`] for a mistake in it.
    pub fn embedded(name: &str, source: &str) -> Result<Self> {
        let vm = api::vm(Limits::default(), SourceOrigin::Disk(PathBuf::new()), None)?;
        Self::read(&vm, Path::new(name), source.to_owned(), &[])
    }

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
        let modules = Arc::new(modules.into_iter().map(module).collect());
        let sources = SourceOrigin::Kept(modules, Resources::Disk(folder.clone()));
        Self::read(&api::vm(Limits::default(), sources, None)?, path, source, overrides)
    }

    /// Reads the recipe of a loaded virtual machine.
    fn read(vm: &Vm, path: &Path, source: String, overrides: &[String]) -> Result<Self> {
        vm.host.params.borrow_mut().values = settings::params(overrides);
        let recipe = run(vm, path, &source)?;
        let replaced = overrides.iter().find(|argument| argument.starts_with("trainer.algorithm="));
        if let Some(argument) = replaced.filter(|_| recipe.algorithm.is_some()) {
            let message = "the recipe has an algorithm of its own, which trainer.algorithm does not replace";
            let hint = "set trainer.loss and trainer.estimator, or change `algorithm` in the recipe";
            return Err(Error::new(Kind::Usage, message).at(argument).hint(hint));
        }
        let (data, mut settings) = match overrides {
            [] => (recipe.settings.clone(), (*recipe.typed).clone()),
            _ => settings::overridden(&recipe.settings, overrides)?,
        };
        if settings.name.is_empty() {
            settings.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        }
        let (loss, advantage_options) = functions(vm, &recipe, &settings).map_err(|error| error.at_path(path))?;
        let datasets = unopened(&settings);
        let (modules, resources) = {
            let loader = vm.loader.borrow();
            (Arc::new(loader.modules()), Arc::new(loader.resources.clone()))
        };
        let hash = hash(&source, &modules, &resources);
        let formats = Formats::of(vm, || own_format::FormatSource {
            path: path.to_owned(),
            text: source.clone(),
            sources: SourceOrigin::Kept(Arc::clone(&modules), Resources::Read(Arc::clone(&resources))),
            limits: settings.limits.clone(),
            needs: settings.needs.clone(),
            params: settings.params.clone(),
            hash: hash.clone(),
        });
        let algorithm = data.get("trainer").and_then(|trainer| trainer.get("algorithm"));
        let algorithm = algorithm.and_then(Json::as_str).unwrap_or("grpo").to_owned();
        let script = Self {
            algorithm,
            path: path.to_owned(),
            hash,
            source,
            settings,
            loss,
            declared: recipe.algorithm.as_deref().cloned().map(Arc::new),
            advantage_options,
            formats,
            privileged: recipe.privileged.is_some(),
            row_weight: recipe.row_weight.is_some(),
            shared: Arc::default(),
            listings: Arc::default(),
            programs: vm.host.connections.borrow().iter().filter_map(|declaration| declaration.in_words()).collect(),
            written: Arc::new(WrittenSettings { recipe: recipe.settings, all: data, typed: overrides.to_vec() }),
            modules,
            resources,
            searches: vm.host.searches.borrow().clone(),
            search_models: &NoModels,
            datasets,
            pins: BTreeMap::new(),
            part: RecipePart::Whole,
            logged: vm.host.take_log(),
            sink: LogSink::default(),
        };
        for (at, env) in script.settings.environments() {
            script.formats.choose(&env.format).map_err(|error| {
                let key = format!("{at}.format");
                Error { message: format!("`{key}`: {}", error.message), ..error }.at(script.place_of(&key))
            })?;
        }
        Ok(script)
    }

    /// The prompt style of the recipe, used by environments without their own.
    ///
    /// # Errors
    /// `Kind::Script` for a format that the script no longer defines.
    pub fn style(&self) -> Result<Style> {
        self.style_of(&self.settings.env)
    }

    pub(crate) fn style_of(&self, env: &EnvSettings) -> Result<Style> {
        Ok(Style {
            format: self.formats.choose(&env.format).map_err(|error| error.at_path(&self.path))?,
            reply_prefix: env.reply_prefix.clone(),
            template_kwargs: self.settings.policy.template_kwargs.clone(),
            special_tokens_in_messages: env.special_tokens_in_messages,
            describe: env.describe_tools,
        })
    }

    /// The script without a receiver of its log lines.
    #[must_use]
    pub fn without_log_sink(&self) -> Self {
        Self { sink: LogSink::default(), ..self.clone() }
    }

    /// Sends the lines that workers of this script log to `sink` immediately. Without it each
    /// worker keeps its own ([`Worker::take_log`](crate::script::Worker::take_log)). Lines logged
    /// while the file is loaded are in `logged`, once, and are not sent by every worker.
    pub fn listen(&mut self, sink: LogSink) {
        self.sink = sink;
    }

    /// The script whose searches load their models with `models`. Without it they find passages by
    /// words alone.
    #[must_use]
    pub fn with_search_models(self, models: &'static dyn SearchModels) -> Self {
        Self { search_models: models, ..self }
    }

    /// This version with other settings, and the datasets and algorithm of `running`.
    pub(crate) fn with(self, settings: Settings, running: &Self) -> Self {
        let loss = self.loss.clone().or_else(|| running.loss.clone());
        let (algorithm, datasets) = (running.algorithm.clone(), Arc::clone(&running.datasets));
        let (sink, listings) = (running.sink.clone(), Arc::clone(&running.listings));
        let search_models = running.search_models;
        Self { settings, loss, algorithm, search_models, listings, datasets, sink, ..self }
    }

    /// The required files, by name.
    pub fn modules(&self) -> Vec<(&str, &str)> {
        self.modules.iter().map(|(name, module)| (name.as_str(), module.source.as_str())).collect()
    }

    /// The sources for a worker's virtual machine.
    pub(crate) fn sources(&self) -> SourceOrigin {
        SourceOrigin::Kept(Arc::clone(&self.modules), Resources::Read(Arc::clone(&self.resources)))
    }

    /// The resources that were read.
    pub fn resources(&self) -> Vec<FileVersion> {
        let file = |(path, resource): (PathBuf, &Resource)| FileVersion {
            path,
            bytes: resource.bytes,
            sha256: Some(resource.sha256.clone()),
        };
        self.resources_at().map(file).collect()
    }

    pub(crate) fn resources_at(&self) -> impl Iterator<Item = (PathBuf, &Resource)> {
        self.resources.iter().map(|(spec, resource)| (spec.path_in(&directory(&self.path)), &**resource))
    }

    /// Its files whose text differs from that in `other`, an earlier version.
    pub fn edited_since(&self, other: &Self) -> Vec<String> {
        let main = (self.source != other.source).then(|| self.path.display().to_string());
        let is_edited = |(name, module): &(&String, &RequiredFile)| {
            other.modules.get(*name).is_none_or(|before| before.source != module.source)
        };
        let modules = self.modules.iter().filter(is_edited).map(|(_, module)| module.path.clone());
        main.into_iter().chain(modules).collect()
    }

    /// All files of the script, for a watcher; the main one first.
    pub fn files(&self) -> Vec<PathBuf> {
        std::iter::once(self.path.clone()).chain(self.modules.values().map(|module| (&module.path).into())).collect()
    }
}

/// The datasets of a recipe by split and name.
pub(crate) type Datasets = Arc<[BTreeMap<String, OnceLock<Result<Dataset>>>; 2]>;

/// The datasets of a recipe, not yet opened.
pub(crate) fn unopened(settings: &Settings) -> Datasets {
    Arc::new([&settings.data.train, &settings.data.eval].map(|source| {
        let parts = source.iter().flat_map(Source::parts);
        parts.map(|(name, _)| (name.to_owned(), OnceLock::new())).collect()
    }))
}

/// Runs the main file and returns its recipe.
pub(crate) fn run(vm: &Vm, path: &Path, source: &str) -> Result<Recipe> {
    if let Grants::Loading { directory: base } = &mut *vm.host.grants.borrow_mut() {
        *base = directory(path);
    }
    let loaded = vm.load(path, source);
    // The recipe of a program is the one passed to `r1.training`.
    let recipe = if let Some(recipe) = vm.host.recipe.take() {
        Ok(recipe)
    } else {
        let value = loaded?;
        let returned = value.as_userdata().and_then(|data| data.borrow::<Recipe>().ok()).map(|recipe| recipe.clone());
        returned.ok_or(value)
    };
    let value = match recipe {
        Ok(recipe) => return with_params(recipe, vm).map_err(|error| error.at_path(path)),
        Err(value) => value,
    };
    if value.as_userdata().is_some_and(mlua::AnyUserData::is::<OwnAlgorithm>) {
        let module = path.file_stem().unwrap_or_default().to_string_lossy();
        let error = Error::new(Kind::Script, "the file is an algorithm, and not a recipe").at_path(path);
        let hint = format!("train with it in a recipe: trainer = r1.trainer {{ algorithm = require(\"{module}\") }}");
        return Err(error.hint(hint));
    }
    let got = if value.is_nil() { "nothing".to_owned() } else { kind(&value) };
    Err(Error::new(Kind::Script, format!("the script returns {got}; it must return r1.recipe {{ … }}")).at_path(path))
}

/// The loss of a recipe, and the options of its function `advantage`.
type LossAndOptions = (Option<Arc<LossGraph>>, Map<String, Json>);

/// Checks the functions of a recipe.
fn functions(vm: &Vm, recipe: &Recipe, settings: &Settings) -> Result<LossAndOptions> {
    can_make_rows(settings, recipe, "")?;
    check_row_functions(settings, recipe)?;
    if let (Some(phase), Some(recipe)) = (&settings.cold_start, &recipe.cold_start) {
        can_make_rows(phase, recipe, cold_start::PREFIX)?;
    }
    let learner = settings.trainer.learner();
    let loss = learner.filter(|learner| learner.loss.is_of_recipe());
    let loss = loss.map(|learner| traced(vm, recipe, learner).map(Arc::new)).transpose()?;
    let declared = recipe.algorithm.as_deref().filter(|algorithm| algorithm.advantage);
    let estimator = learner.map(|learner| &learner.estimator).filter(|estimator| estimator.is_of_recipe());
    let options = estimator.map(|estimator| take_options(declared, "estimator", estimator)).transpose()?;
    used_functions(recipe)?;
    Ok((loss, options.unwrap_or_default()))
}

/// Refuses a function `advantage` or `loss` that the recipe does not use. The command line may
/// compare it with an estimator or a loss of r1.
fn used_functions(recipe: &Recipe) -> Result<()> {
    let learner = recipe.typed.trainer.learner();
    let estimator = ("advantage", "estimator", &recipe.advantage, learner.map(|learner| &learner.estimator));
    let loss = ("loss", "loss", &recipe.loss, learner.map(|learner| &learner.loss));
    for (field, setting, function, choice) in [estimator, loss] {
        let why = match choice {
            _ if function.is_none() => continue,
            Some(choice) if choice.is_of_recipe() => continue,
            Some(choice) => format!("trainer.{setting} is \"{}\"", choice.shown()),
            None => "the trainer is r1.sft".to_owned(),
        };
        let message = format!("`{field}` is not used: {why}");
        let error = Error::new(Kind::Script, message).about_setting(format!("trainer.{setting}"));
        return Err(error.hint(format!("leave trainer.{setting} or `{field}` out")));
    }
    Ok(())
}

/// The options of a function of the recipe, from `chosen` (the setting `trainer.FIELD`) and the
/// declared defaults.
fn take_options(declared: Option<&AlgorithmFile>, field: &str, chosen: &Choice) -> Result<Map<String, Json>> {
    let (setting, mut rest) = (format!("trainer.{field}"), chosen.options.clone());
    let options = match declared {
        Some(algorithm) => algorithm.take_options(&setting, &mut rest)?,
        None => Map::new(),
    };
    let Some(name) = rest.keys().next() else { return Ok(options) };
    let (message, hint) = match declared {
        Some(_) => (
            format!("the algorithm declares no option `{name}` of its {field}"),
            suggest(name, options.keys().map(String::as_str)),
        ),
        None => (
            format!("{setting} is the recipe's function `advantage`, and has no option `{name}`"),
            "write the options in the function".to_owned(),
        ),
    };
    Err(Error::new(Kind::Usage, message).about_setting(format!("{setting}.{name}")).hint(hint))
}

/// The recipe's own loss as a graph.
fn traced(vm: &Vm, recipe: &Recipe, learner: &Learner) -> Result<LossGraph> {
    let Some(function) = &recipe.loss else {
        return Err(Error::new(Kind::Script, "trainer.loss is the recipe's function, and the recipe has no `loss`")
            .hint("add one: loss = function(b) … end (docs/guide/your-own-algorithm.md)"));
    };
    let trace = match recipe.algorithm.as_deref().filter(|algorithm| algorithm.loss == Some(FileLoss::Own)) {
        Some(algorithm) => {
            let mut chosen = learner.loss.clone();
            // trainer.clip sets the clip range that the algorithm declares.
            if let Some((low, high)) = learner.clip.filter(|_| algorithm.has_clip()) {
                chosen.options.insert("clip_low".to_owned(), low.into());
                chosen.options.insert("clip_high".to_owned(), high.into());
            }
            let options = take_options(Some(algorithm), "loss", &chosen)?;
            Trace::of_declared(&vm.lua, &options).map(|trace| trace.must_read(algorithm.changed(&options)))
        }
        None => Trace::new(&vm.lua, &Json::Object(learner.loss.options.clone())),
    };
    let trace = trace.map_err(|error| describe(&error).error)?;
    let call = Call::new(EntryPoint::Loss, (0, 0), &vm.limits);
    let returned = vm.call_now(&call, function, trace.arguments.clone()).map_err(|failure| failure.error)?;
    trace.finish(function, &returned)
}

pub(crate) fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn hash(
    source: &str,
    modules: &BTreeMap<String, RequiredFile>,
    resources: &BTreeMap<ResourceSpec, Arc<Resource>>,
) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        // The length separates the files.
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    part(source);
    for (name, module) in modules {
        part(name);
        part(&module.source);
    }
    for (spec, resource) in resources {
        part(&spec.path.to_string_lossy());
        part(&resource.sha256);
    }
    format!("{:x}", hash.finalize())
}
