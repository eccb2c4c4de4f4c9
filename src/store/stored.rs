//! Read access to a stored run: its trajectories by step, and their script versions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checkpoint::find_model;
use super::configuration::{ConfigFile, Configuration, FileVersion, ForkOrigin};
use super::files::{self, failed, step_of};
use super::read_trajectories;
use super::run_dir::{ScriptsDir, file_of, folder, short};
use super::scan::TrajectoryFile;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Split, Trajectory};

/// A run directory, open for reading. It is not locked, so the run can be active.
#[derive(Clone, Debug)]
pub struct StoredRun {
    path: PathBuf,
    config: ConfigFile,
}

/// The error for a run that is not in `root`, with the nearest names.
pub fn no_run(path: &Path, root: &Path) -> Error {
    let error = Error::new(Kind::Store, format!("there is no run `{}`", path.display()));
    let names = run_names(root);
    if names.is_empty() {
        return error.hint(format!("{} has no runs; `r1 run SCRIPT` creates one", root.display()));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    error.hint(suggest(&name, names.iter().map(String::as_str)))
}

/// The names of the runs in a directory, in order; none if it can't be read.
pub fn run_names(root: &Path) -> Vec<String> {
    // Models have a config.json too.
    let runs = files::list(root).unwrap_or_default().into_iter().filter(|path| path.join("recipe.lua").is_file());
    runs.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

/// A version of a run's script, with its overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Original path of the script, for messages.
    pub path: PathBuf,
    pub source: String,
    /// Modules of the script, by name.
    pub modules: BTreeMap<String, String>,
    /// Resources that the script read.
    pub resources: Vec<FileVersion>,
    /// `key=value` as typed.
    pub overrides: Vec<String>,
}

impl StoredRun {
    /// Opens a run: a directory, a model in it, or the name of a run in `root`.
    pub fn open(named: &Path, root: &Path) -> Result<Self> {
        let below = root.join(named);
        let path = if named.join("config.json").is_file() || !below.is_dir() { named.to_owned() } else { below };
        if let Some(run) = Self::containing(&path)? {
            return Ok(run);
        }
        if let Some(config) = ConfigFile::read(&path)? {
            return Ok(Self { path, config });
        }
        Err(no_run(named, root))
    }

    /// The run that a path is in: the directory of a run, or a model in it, such as a checkpoint.
    /// `None` if it is in no run.
    ///
    /// # Errors
    /// [`Kind::Store`] for a damaged `config.json`.
    pub fn containing(path: &Path) -> Result<Option<Self>> {
        // RUN, RUN/best, RUN/checkpoints/step-000012
        const DEPTH: usize = 3;
        let real = path.canonicalize().unwrap_or_default();
        let above = path.ancestors().take(DEPTH).chain(real.ancestors().take(DEPTH));
        for folder in above.filter(|folder| !folder.as_os_str().is_empty()) {
            if let Some(config) = ConfigFile::read_of_run(folder)? {
                files::check_parts(folder, false)?;
                return Ok(Some(Self { path: folder.to_owned(), config }));
            }
        }
        Ok(None)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `r1 eval` made it.
    pub fn is_evaluation(&self) -> bool {
        self.path.join("evaluation.json").is_file()
    }

    /// The configuration that a model of the run was trained with: in effect before the step of a
    /// checkpoint, otherwise the current one.
    pub fn configuration_of(&self, model: &Path) -> &Configuration {
        let step = find_model(model).ok().and_then(|path| step_of(&path, ""));
        let Some(step) = step else { return &self.config.current };
        let before = self.config.all().rfind(|one| one.from_step < step);
        before.or_else(|| self.config.all().next()).unwrap_or(&self.config.current)
    }

    /// The configuration in effect.
    pub fn configuration(&self) -> &Configuration {
        &self.config.current
    }

    /// The run and the step that this one was forked from.
    pub fn fork(&self) -> Option<&ForkOrigin> {
        self.config.current.origins.fork.as_ref()
    }

    /// Name of the run.
    pub fn name(&self) -> String {
        self.path
            .file_name()
            .map_or_else(|| self.path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// The configurations of the run, the current one last.
    pub fn configurations(&self) -> impl DoubleEndedIterator<Item = &Configuration> {
        self.config.all()
    }

    /// Path and hash of the script in the current configuration.
    pub fn script(&self) -> (PathBuf, &str) {
        let script = &self.config.current.script;
        (script.located(), &script.hash)
    }

    /// Maximum length of prompt plus response in its rollouts, tokens.
    pub fn max_context(&self) -> usize {
        self.config.current.max_context
    }

    /// Training steps with trajectories of this split, in order.
    pub fn steps(&self, split: Split) -> Result<Vec<u64>> {
        let files = files::list(&folder(&self.path, split))?;
        Ok(files.iter().filter_map(|path| step_of(path, ".parquet")).collect())
    }

    /// Files with trajectories of this split, by step.
    pub fn files(&self, split: Split) -> Result<Vec<TrajectoryFile>> {
        let file = |step| TrajectoryFile { split, step, path: file_of(&self.path, split, step) };
        Ok(self.steps(split)?.into_iter().map(file).collect())
    }

    /// Trajectories of a step, or of the evaluation after it.
    pub fn trajectories(&self, split: Split, step: u64) -> Result<Vec<Trajectory>> {
        read_trajectories(&file_of(&self.path, split, step))
    }

    /// The lists of tools of the scripts' MCP servers; null if there are none.
    pub fn tool_lists(&self) -> Result<Value> {
        ScriptsDir::of(&self.path).tool_lists()
    }

    /// Script version of a trajectory, by its hash.
    pub fn sources(&self, hash: &str) -> Result<Sources> {
        let folder = self.path.join("scripts").join(short(hash));
        // The script's file may have been renamed before the run was resumed.
        let named = |one: &Configuration| {
            let path = one.script.located();
            let main = PathBuf::from(path.file_name()?);
            folder.join(&main).is_file().then_some((path, main))
        };
        let matching = self.config.all().rev().filter(|one| one.script.hash == hash);
        let Some((path, main)) = matching.chain(self.config.all().rev()).find_map(named) else {
            return Err(Error::new(Kind::Store, format!("the run has no script with the hash {}", short(hash)))
                .at_path(&folder)
                .hint(
                    "the run stores each version of its script there: copy the folder from another copy of the run",
                ));
        };
        let mut modules = BTreeMap::new();
        collect(&folder, &folder, &mut modules)?;
        let name = main.with_extension("").display().to_string();
        let source = modules.remove(&name).unwrap_or_default();
        let version = self.config.all().rfind(|one| one.script.hash == hash);
        let resources = version.map(|version| version.script.resources.clone()).unwrap_or_default();
        Ok(Sources { path, source, modules, resources, overrides: self.overrides(hash)? })
    }

    /// Overrides of the run that loaded this version of the script; the last ones if there are
    /// several.
    fn overrides(&self, hash: &str) -> Result<Vec<String>> {
        if let Some(entry) = self.config.all().rfind(|one| one.script.hash == hash) {
            return Ok(entry.overrides.clone());
        }
        // The first versions of r1 stored earlier configurations in separate files.
        let kept = self.path.join(format!("config-{}.json", short(hash)));
        if !kept.is_file() {
            return Ok(self.config.current.overrides.clone());
        }
        let config: Value = files::read_json(&kept)?;
        let list = config["overrides"].as_array().cloned().unwrap_or_default();
        Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }
}

/// Lua files in `folder`, by path without extension, and Python files, by path.
fn collect(root: &Path, folder: &Path, texts: &mut BTreeMap<String, String>) -> Result<()> {
    for path in files::list(folder)? {
        if path.is_dir() {
            collect(root, &path, texts)?;
            continue;
        }
        let Ok(name) = path.strip_prefix(root) else { continue };
        let name = match path.extension().and_then(|extension| extension.to_str()) {
            Some("lua") => name.with_extension(""),
            Some("py") => name.to_owned(),
            _ => continue,
        };
        let text = fs::read_to_string(&path).map_err(|e| failed("read the file", &path, &e))?;
        texts.insert(name.display().to_string(), text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::{RunDir, ScriptVersion};

    #[test]
    fn stored_scripts_have_their_modules_and_overrides() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let version = |path: &str, hash: &str| Configuration {
            script: ScriptVersion { path: path.into(), hash: hash.to_owned(), ..ScriptVersion::default() },
            max_context: 512,
            ..Configuration::default()
        };
        let typed = |configuration| Configuration { overrides: vec!["seed=1".to_owned()], ..configuration };
        let first = typed(version("scripts/a.lua", "aaaaaaaaaaaaaaaa"));
        run.write_recipe(first, "return 1", &[("lib/x", "return 2"), ("y", "return 3")]).unwrap();
        // Resumed with other settings, then reloaded.
        run.write_recipe(version("scripts/a.lua", "bbbb"), "return 4", &[]).unwrap();
        run.scripts().write("cccc", Path::new("scripts/a.lua"), "return 5", &[]).unwrap();
        // Resumed with a script of another name.
        run.write_recipe(typed(version("b.lua", "eeee")), "return 6", &[("lib/x", "return 2")]).unwrap();
        run.write_trajectories::<Trajectory>(7, 0, None, &[]).unwrap();
        run.write_evaluation(4, 0, &[]).unwrap();

        let stored = StoredRun::open(Path::new("demo"), root.path()).unwrap();
        assert_eq!((stored.name().as_str(), stored.max_context()), ("demo", 512));
        assert_eq!(stored.steps(Split::Train).unwrap(), [7]);
        assert_eq!(stored.steps(Split::Eval).unwrap(), [4]);
        let first = stored.sources("aaaaaaaaaaaaaaaa").unwrap();
        assert_eq!((first.source.as_str(), first.path.to_str().unwrap()), ("return 1", "scripts/a.lua"));
        let modules: Vec<(&str, &str)> = first.modules.iter().map(|(name, text)| (&**name, &**text)).collect();
        assert_eq!(modules, [("lib/x", "return 2"), ("y", "return 3")]);
        assert_eq!(first.overrides, ["seed=1"]);
        assert!(stored.sources("bbbb").unwrap().overrides.is_empty());
        assert_eq!(stored.sources("cccc").unwrap().source, "return 5");
        let renamed = stored.sources("eeee").unwrap();
        assert_eq!((renamed.source.as_str(), renamed.path.to_str().unwrap()), ("return 6", "b.lua"));
        assert!(stored.sources("dddd").unwrap_err().message.contains("no script with the hash dddd"));

        let error = StoredRun::open(Path::new("dmeo"), root.path()).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean `demo`?"));
        assert_eq!(StoredRun::open(&root.path().join("demo"), Path::new("none")).unwrap().path(), run.path());
    }
}
