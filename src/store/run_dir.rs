//! The directory of a run: creation, lock against a second writer, configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::checkpoint::KeepRule;
use super::configuration::{ConfigFile, Configuration};
use super::files::{self, failed, step_of};
use super::run_lock::{RunLock, is_lock};
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;

/// A run directory, open for writing. Other processes can read it; a second writer is refused.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Held for the lifetime of this value.
    _lock: RunLock,
}

impl RunDir {
    /// Creates `root/name`, or `root/name-2`, `root/name-3`… if that exists. An empty directory is
    /// used, and so is the directory of a run that was killed before its `config.json` was written.
    pub fn create(root: &Path, name: &str) -> Result<Self> {
        if name.is_empty() || name.starts_with('.') || name.contains(|c: char| "/\\".contains(c) || c.is_control()) {
            return Err(Error::new(Kind::Usage, format!("`{name}` can't be the name of a run")).hint(
                "a run's name is the name of its directory: no slashes, no control characters, no dot at the start",
            ));
        }
        files::make_dirs(root)?;
        for number in 1_u64.. {
            let path = if number == 1 { root.join(name) } else { root.join(format!("{name}-{number}")) };
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if !is_unstarted(&path)? {
                        continue;
                    }
                }
                Err(e) => return Err(failed("make the directory", &path, &e)),
            }
            // Two runs may find the same directory; the lock decides.
            let Ok(lock) = RunLock::take(&path)? else { continue };
            // Without locks, a run that begins now can't be told from one that was killed.
            if !is_unstarted(&path)? || !lock.is_held() && !files::list(&path)?.iter().all(|entry| is_lock(entry)) {
                continue;
            }
            files::check_parts(&path, true)?;
            let run = Self { path, _lock: lock };
            run.make_parts()?;
            run.restore()?;
            return Ok(run);
        }
        Err(Error::new(Kind::Store, "no free name for the run").at_path(root))
    }

    /// Whether [`create`](Self::create) uses this path: it does not exist, or no run has begun in
    /// it.
    pub fn is_free(path: &Path) -> Result<bool> {
        Ok(!path.exists() || is_unstarted(path)?)
    }

    /// Opens an existing run for writing and removes incomplete files.
    pub fn open(path: &Path) -> Result<Self> {
        files::check_parts(path, true)?;
        if ConfigFile::read(path)?.is_none() {
            if path.is_dir() && path.join(TRAJECTORIES).is_dir() && is_unstarted(path)? {
                return Err(Error::new(Kind::Store, "the run was stopped before it began: it has no config.json yet")
                    .at_path(path)
                    .hint("start it again with its first command line, without --resume; it uses this directory"));
            }
            return Err(Error::new(Kind::Store, "not a run directory: it has no config.json")
                .at_path(path)
                .hint("name a directory that `r1 run` or `r1 sft` made, such as runs/NAME"));
        }
        let lock = match RunLock::take(path)? {
            Ok(lock) => lock,
            Err(holder) => return Err(holder.refusal(path)),
        };
        let run = Self { path: path.to_owned(), _lock: lock };
        run.make_parts()?;
        run.restore()?;
        Ok(run)
    }

    /// Completes or removes what a killed process left incomplete.
    fn restore(&self) -> Result<()> {
        for part in
            [self.path.clone(), self.trajectories(), self.evaluations(), self.checkpoints(), self.path.join("scripts")]
        {
            files::restore_replaced(&part)?;
            files::remove_unfinished(&part)?;
        }
        Ok(())
    }

    /// Prepares a run that resumes from a checkpoint and its step, or from the beginning: removes
    /// the checkpoints and trajectories of later steps, which are repeated, and completes what a
    /// killed process left of [`checkpoint`](Self::checkpoint). Checkpoints that are `damaged` are
    /// not removed, but renamed.
    pub fn repeats_after(&self, checkpoint: Option<(u64, &Path)>, keep: KeepRule, damaged: &[PathBuf]) -> Result<()> {
        // The newest first, and before the trajectories: if the process is killed here, the newest
        // checkpoint still has the trajectories of all its steps.
        self.drop_checkpoints_after(checkpoint.map_or(0, |(step, _)| step), damaged)?;
        for folder in [self.trajectories(), self.evaluations()] {
            for path in files::list(&folder)? {
                if step_of(&path, ".parquet").is_some_and(|step| checkpoint.is_none_or(|(last, _)| step > last)) {
                    files::remove(&path)?;
                }
            }
        }
        checkpoint.map_or(Ok(()), |(_, path)| self.settle(keep, path))
    }

    fn make_parts(&self) -> Result<()> {
        files::make_dir(&self.trajectories())?;
        files::make_dir(&self.checkpoints())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn trajectories(&self) -> PathBuf {
        folder(&self.path, Split::Train)
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    pub(super) fn evaluations(&self) -> PathBuf {
        folder(&self.path, Split::Eval)
    }

    /// Path of the trajectories of a training step, or of the evaluation after it.
    pub fn trajectories_path(&self, split: Split, step: u64) -> PathBuf {
        file_of(&self.path, split, step)
    }

    /// Configuration in effect.
    ///
    /// # Errors
    /// [`Kind::Store`] for a damaged or missing file.
    pub fn configuration(&self) -> Result<Configuration> {
        let missing = || Error::new(Kind::Store, "the run has no config.json").at_path(&self.path);
        ConfigFile::read(&self.path)?.map(|file| file.current).ok_or_else(missing)
    }

    /// Writes `recipe.lua` with the text of the script, `config.json`, and the whole script
    /// ([`ScriptsDir::write`]). If the configuration differs from the last one, the last one is
    /// moved to the history in `config.json`; earlier scripts stay in `scripts/`.
    pub fn write_recipe(&self, mut now: Configuration, source: &str, modules: &[(&str, &str)]) -> Result<()> {
        self.scripts().write(&now.script.hash, &now.script.path, source, modules)?;
        now.script.directory = directory_of(&now.script.path);
        now.settings["trainer"]["algorithm"] = now.algorithm.as_str().into();
        let path = self.path.join("recipe.lua");
        if !fs::read(&path).is_ok_and(|bytes| bytes == source.as_bytes()) {
            files::write_bytes(&path, source.as_bytes())?;
        }
        ConfigFile::update(&self.path, now)
    }

    /// The folder of script versions, for use on another thread.
    pub fn scripts(&self) -> ScriptsDir {
        ScriptsDir::of(&self.path)
    }
}

/// Absolute path of a script's directory; empty if the current directory is unknown.
fn directory_of(script: &Path) -> PathBuf {
    let absolute = std::path::absolute(script).unwrap_or_default();
    absolute.parent().map(Path::to_owned).unwrap_or_default()
}

/// Folder of the script versions of a run.
#[derive(Clone, Debug)]
pub struct ScriptsDir(PathBuf);

impl ScriptsDir {
    /// The folder of a run.
    pub(super) fn of(run: &Path) -> Self {
        Self(run.join("scripts"))
    }

    /// Writes a version of the script and its modules to `scripts/HASH/`, so that its trajectories
    /// can be replayed after changes of the files. Trajectories refer to it by its hash.
    pub fn write(&self, hash: &str, script: &Path, source: &str, modules: &[(&str, &str)]) -> Result<()> {
        let Self(parent) = self;
        let folder = parent.join(short(hash));
        if folder.exists() {
            return Ok(());
        }
        files::make_dir(parent)?;
        let build = |builder: &tempfile::Builder<'_, '_>| builder.tempdir_in(parent);
        let part = files::unfinished("script", 0o777, build).map_err(|e| failed("make the directory", parent, &e))?;
        let main = PathBuf::from(script.file_name().unwrap_or_default());
        // The name of a Python file has its extension.
        let file = |name: &str| if name.ends_with(".py") { name.to_owned() } else { format!("{name}.lua") };
        let modules = modules.iter().map(|(name, text)| (PathBuf::from(file(name)), *text));
        for (name, text) in modules.chain([(main, source)]) {
            let path = part.path().join(name);
            files::make_dirs(path.parent().unwrap_or(part.path()))?;
            files::write_bytes(&path, text.as_bytes())?;
        }
        files::sync_tree(part.path())?;
        let part = part.keep();
        match fs::rename(&part, &folder) {
            Ok(()) => files::sync_dir(parent),
            // Another thread wrote the same version.
            Err(_) if folder.exists() => {
                fs::remove_dir_all(&part).map_err(|e| failed("clear away the directory", &part, &e))
            }
            Err(e) => Err(failed("write the script to", &folder, &e)),
        }
    }

    /// Writes the lists of tools of the scripts' MCP servers, by the servers' definitions. Lists
    /// that are stored already stay. Null writes nothing.
    pub fn write_tool_lists(&self, lists: &Value) -> Result<()> {
        let Some(lists) = lists.as_object() else { return Ok(()) };
        let path = tool_lists(&self.0);
        let mut all = read_tool_lists(&path)?;
        if lists.iter().all(|(key, list)| all.get(key) == Some(list)) {
            return Ok(());
        }
        all.extend(lists.clone());
        files::make_dir(&self.0)?;
        files::write_bytes(&path, Value::Object(all).to_string().as_bytes())
    }

    /// The stored lists of tools; null if there are none.
    pub fn tool_lists(&self) -> Result<Value> {
        let all = read_tool_lists(&tool_lists(&self.0))?;
        Ok(if all.is_empty() { Value::Null } else { Value::Object(all) })
    }
}

fn tool_lists(scripts: &Path) -> PathBuf {
    scripts.join("mcp.json")
}

fn read_tool_lists(path: &Path) -> Result<Map<String, Value>> {
    if path.is_file() { files::read_json(path) } else { Ok(Map::new()) }
}

/// Folder of the trajectories of training; the first thing in a new run directory.
const TRAJECTORIES: &str = "trajectories";

/// Whether a directory is empty or has only what a run writes before its `config.json`.
fn is_unstarted(path: &Path) -> Result<bool> {
    if !path.is_dir() {
        return Ok(false);
    }
    let entries: Vec<PathBuf> = files::list(path)?.into_iter().filter(|entry| !is_lock(entry)).collect();
    let early = |entry: &PathBuf| -> Result<bool> {
        Ok(match entry.file_name().unwrap_or_default().to_string_lossy().as_ref() {
            TRAJECTORIES | "checkpoints" => entry.is_dir() && files::list(entry)?.is_empty(),
            "scripts" | "init" => entry.is_dir(),
            "recipe.lua" | "evaluation.json" => true,
            name => files::is_unfinished(name),
        })
    };
    // Another directory may have a folder `scripts`.
    Ok((entries.is_empty() || path.join(TRAJECTORIES).is_dir())
        && entries.iter().map(early).collect::<Result<Vec<_>>>()?.into_iter().all(|early| early))
}

/// Folder of a run with the trajectories of a split.
pub(super) fn folder(run: &Path, split: Split) -> PathBuf {
    run.join(match split {
        Split::Train => TRAJECTORIES,
        Split::Eval => "evaluations",
    })
}

/// File of a step in that folder.
pub(super) fn file_of(run: &Path, split: Split, step: u64) -> PathBuf {
    folder(run, split).join(format!("step-{step:06}.parquet"))
}

/// Short form of a hash, for file names.
pub(super) fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Newest started run with the name `name` in `root` (`name`, `name-2`, …).
pub fn newest_run(root: &Path, name: &str) -> Result<Option<PathBuf>> {
    let number = |path: &Path| -> Option<u64> {
        match path.file_name()?.to_str()?.strip_prefix(name)? {
            "" => Some(1),
            rest => rest.strip_prefix('-')?.parse().ok().filter(|number| *number > 1),
        }
    };
    let runs = files::list(root)?.into_iter().filter(|path| path.join("config.json").is_file());
    Ok(runs.filter_map(|path| Some((number(&path)?, path))).max().map(|(_, path)| path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ScriptVersion, StoredRun};
    use super::*;

    /// The configuration of a version of the script.
    fn version(hash: &str) -> Configuration {
        Configuration {
            algorithm: "gspo".to_owned(),
            script: ScriptVersion { path: "a.lua".into(), hash: hash.to_owned(), ..ScriptVersion::default() },
            ..Configuration::default()
        }
    }

    #[test]
    fn existing_run_directories_are_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let first = RunDir::create(root.path(), "demo").unwrap();
        let second = RunDir::create(root.path(), "demo").unwrap();
        assert_eq!(first.path(), root.path().join("demo"));
        assert_eq!(second.path(), root.path().join("demo-2"));
        // An existing empty directory is used.
        fs::create_dir(root.path().join("mine")).unwrap();
        assert_eq!(RunDir::create(root.path(), "mine").unwrap().path(), root.path().join("mine"));
        // So is one of a run that was killed before its configuration was written.
        let killed = RunDir::create(root.path(), "killed").unwrap().path().to_owned();
        ScriptsDir::of(&killed).write("abc", Path::new("a.lua"), "return 1", &[]).unwrap();
        fs::write(killed.join("recipe.lua"), "return 1").unwrap();
        fs::write(killed.join(".config.json-x.part"), "{").unwrap();
        assert!(RunDir::open(&killed).unwrap_err().message.contains("stopped before it began"));
        assert_eq!(RunDir::create(root.path(), "killed").unwrap().path(), killed);
        assert!(!killed.join(".config.json-x.part").exists());
        // One with anything else is not.
        fs::write(killed.join("notes.txt"), "mine").unwrap();
        assert_eq!(RunDir::create(root.path(), "killed").unwrap().path(), root.path().join("killed-2"));
        fs::create_dir_all(root.path().join("own/scripts")).unwrap();
        assert_eq!(RunDir::create(root.path(), "own").unwrap().path(), root.path().join("own-2"));
        // An existing file is not.
        fs::write(root.path().join("x"), "").unwrap();
        assert_eq!(RunDir::create(root.path(), "x").unwrap().path(), root.path().join("x-2"));
    }

    #[test]
    fn run_names_with_paths_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for name in ["", "..", "a/b", ".hidden"] {
            assert_eq!(RunDir::create(root.path(), name).unwrap_err().kind, Kind::Usage);
        }
    }

    #[test]
    fn run_directory_refuses_a_second_writer_and_removes_incomplete_files() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let path = run.path().to_owned();
        assert!(RunDir::open(root.path()).unwrap_err().message.starts_with("not a run directory"));
        fs::write(path.join("config.json"), r#"{"model_type": "qwen2"}"#).unwrap();
        assert!(RunDir::open(&path).unwrap_err().message.starts_with("not a run directory"));
        fs::remove_file(path.join("config.json")).unwrap();
        run.write_recipe(version("aa"), "return 1", &[]).unwrap();
        let refused = RunDir::open(&path).unwrap_err();
        let pid = std::process::id();
        assert!(refused.message.contains(&format!("is writing to this run: process {pid} on ")), "{refused:?}");
        assert!(refused.hint.unwrap().contains(&format!("kill {pid}")));
        drop(run);
        // What a killed process left of the lock file locks nothing.
        assert!(path.join(".lock").is_file());
        fs::write(path.join("trajectories/.step-000001.parquet-x.part"), "half").unwrap();
        let run = RunDir::open(&path).unwrap();
        assert!(files::list(&run.trajectories()).unwrap().is_empty());
    }

    #[test]
    #[cfg(unix)]
    fn parts_that_are_links_or_no_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        run.write_recipe(version("aa"), "return 1", &[]).unwrap();
        let path = run.path().to_owned();
        drop(run);
        let opened = || (RunDir::open(&path).map(drop), StoredRun::open(&path, root.path()).map(drop));
        std::os::unix::fs::symlink("demo", root.path().join("latest")).unwrap();
        std::os::unix::fs::symlink("elsewhere", path.join("notes")).unwrap();
        RunDir::open(&root.path().join("latest")).unwrap();
        for part in ["trajectories", "scripts", "checkpoints/step-000001", "metrics.jsonl"] {
            let moved = root.path().join("moved");
            let part = path.join(part);
            if part.is_dir() {
                fs::rename(&part, &moved).unwrap();
            } else {
                fs::write(&moved, "").unwrap();
            }
            std::os::unix::fs::symlink(&moved, &part).unwrap();
            let (written, read) = opened();
            assert_eq!(written.unwrap_err().message, "a part of the run is a link");
            read.unwrap();
            fs::remove_file(&part).unwrap();
            if moved.is_dir() {
                fs::rename(&moved, &part).unwrap();
            }
        }
        for part in ["metrics.jsonl", "trajectories/step-000001.parquet"] {
            let part = path.join(part);
            let made = std::process::Command::new("mkfifo").arg(&part).status().unwrap();
            assert!(made.success());
            let (written, read) = opened();
            for error in [written.unwrap_err(), read.unwrap_err()] {
                assert_eq!(error.message, "can't read a part of the run: it is not a regular file");
            }
            fs::remove_file(&part).unwrap();
        }
    }

    #[test]
    fn newest_run_of_a_name_is_found() {
        let root = tempfile::tempdir().unwrap();
        let newest = |name| newest_run(root.path(), name).unwrap();
        assert_eq!(newest("demo"), None);
        for name in ["demo", "demo-2", "demo-10", "demo-x", "demo-extra"] {
            let run = RunDir::create(root.path(), name).unwrap();
            run.write_recipe(version("aa"), "return 1", &[]).unwrap();
        }
        // Killed before it started.
        fs::create_dir(root.path().join("demo-11")).unwrap();
        assert_eq!(newest("demo"), Some(root.path().join("demo-10")));
        assert_eq!(newest("other"), None);
        assert_eq!(newest_run(&root.path().join("none"), "demo").unwrap(), None);
    }

    #[test]
    fn run_config_keeps_its_history_by_step() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let first = Configuration { seed: 7, ..version("aaaaaaaaaaaaaaaa") };
        run.write_recipe(first.clone(), "return 1", &[]).unwrap();
        let config = run.configuration().unwrap();
        assert_eq!((config.seed, config.algorithm.as_str(), config.from_step), (7, "gspo", 0));
        assert_eq!(config.settings["trainer"]["algorithm"], "gspo");
        let before = fs::read(run.path().join("config.json")).unwrap();
        // An equal configuration from a later step on is not a new one.
        run.write_recipe(Configuration { from_step: 2, ..first.clone() }, "return 1", &[]).unwrap();
        assert_eq!(fs::read(run.path().join("config.json")).unwrap(), before);
        // Another configuration, twice, with the same script.
        let overrides = vec!["trainer.lr=1".to_owned()];
        run.write_recipe(Configuration { from_step: 3, overrides, ..first }, "return 1", &[]).unwrap();
        run.write_recipe(Configuration { from_step: 5, ..version("bbbb") }, "return 2", &[]).unwrap();
        let file = ConfigFile::read(run.path()).unwrap().unwrap();
        let history: Vec<(u64, &str, usize)> =
            file.all().map(|one| (one.from_step, one.script.hash.as_str(), one.overrides.len())).collect();
        assert_eq!(history, [(0, "aaaaaaaaaaaaaaaa", 0), (3, "aaaaaaaaaaaaaaaa", 1), (5, "bbbb", 0)]);
        assert_eq!(fs::read_to_string(run.path().join("recipe.lua")).unwrap(), "return 2");
        assert_eq!(fs::read_to_string(run.path().join("scripts/aaaaaaaaaaaa/a.lua")).unwrap(), "return 1");
    }

    /// The format of the first versions of r1.
    #[test]
    fn run_config_without_history_is_read() {
        let root = tempfile::tempdir().unwrap();
        let text = r#"{"r1": "0.1.0", "libtorch": "2.11.0", "script": {"path": "a.lua", "hash": "aa"}, "overrides": ["seed=3"],
            "seed": 3, "max_context": 9, "settings": {}}"#;
        fs::write(root.path().join("config.json"), text).unwrap();
        let config = RunDir::open(root.path()).unwrap().configuration().unwrap();
        assert_eq!((config.seed, config.overrides.as_slice()), (3, &["seed=3".to_owned()][..]));
    }
}
