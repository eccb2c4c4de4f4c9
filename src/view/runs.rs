//! The runs that are shown, and what the list of them has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::Query;
use super::metrics::RunMetrics;
use super::table::TrajectoryTables;
use super::tokens::Vocabularies;
use crate::error::{Error, Kind, Result, suggest};
use crate::store::{CURATION, StoredRun, run_names};
use crate::telemetry::prometheus::exposition;

/// Files and folders whose changes are sent to the page.
const WATCHED: [&str; 6] = ["metrics.jsonl", "trajectories", "evaluations", "config.json", "report.json", CURATION];

/// Runs, and what has been read of them.
#[derive(Debug)]
pub struct View {
    /// The runs by the command line; all of `root` if there are none.
    named: Vec<PathBuf>,
    root: PathBuf,
    metrics: Mutex<BTreeMap<PathBuf, RunMetrics>>,
    pub(super) tables: TrajectoryTables,
    pub(super) vocabularies: Vocabularies,
}

impl View {
    /// Of these runs, or of all in `root`, also those that begin later.
    ///
    /// # Errors
    /// [`Kind::Store`] for a run that does not exist.
    pub fn new(named: &[PathBuf], root: &Path) -> Result<Self> {
        let open = |path: &PathBuf| Ok(StoredRun::open(path, root)?.path().to_owned());
        let named = named.iter().map(open).collect::<Result<Vec<PathBuf>>>()?;
        let (metrics, tables, vocabularies) = Default::default();
        Ok(Self { named, root: root.to_owned(), metrics, tables, vocabularies })
    }

    /// The directories of the runs by name. Runs with equal names have their paths.
    pub(super) fn paths(&self) -> BTreeMap<String, PathBuf> {
        if self.named.is_empty() {
            return run_names(&self.root).into_iter().map(|name| (name.clone(), self.root.join(name))).collect();
        }
        let short = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = |path: &PathBuf| {
            let repeats = self.named.iter().filter(|other| short(other) == short(path)).count() > 1;
            short(path).filter(|_| !repeats).unwrap_or_else(|| path.display().to_string())
        };
        self.named.iter().map(|path| (name(path), path.clone())).collect()
    }

    /// A run by its name in the list.
    pub(super) fn run(&self, name: &str) -> Result<StoredRun> {
        let paths = self.paths();
        let Some(path) = paths.get(name) else {
            let hint = suggest(name, paths.keys().map(String::as_str));
            return Err(Error::new(Kind::Usage, format!("there is no run `{name}`")).hint(hint));
        };
        StoredRun::open(path, &self.root)
    }

    /// The list of runs. A run that can't be read has its `error`.
    pub(super) fn list(&self) -> Value {
        let runs: Vec<Value> = self
            .paths()
            .iter()
            .map(|(name, path)| match self.entry(name, path) {
                Ok(entry) => entry,
                Err(error) => json!({ "name": name, "path": path, "error": error.to_string() }),
            })
            .collect();
        let now = seconds(SystemTime::now());
        json!({ "runs": runs, "now": now, "r1": env!("CARGO_PKG_VERSION") })
    }

    fn entry(&self, name: &str, path: &Path) -> Result<Value> {
        let run = StoredRun::open(path, &self.root)?;
        let current = run.configurations().next_back().cloned().unwrap_or_default();
        let versions = run.configurations().count();
        let metrics = self.with_metrics(path, RunMetrics::overview)?;
        let wanted = |name: &str| current.settings["trainer"][name].as_u64();
        Ok(json!({
            "name": name,
            "path": path,
            "evaluation": run.is_evaluation(),
            "algorithm": current.algorithm,
            "script": current.script.path,
            "seed": current.seed,
            "versions": versions,
            "total": wanted("steps"),
            "metrics": metrics,
            "updated": WATCHED.iter().filter_map(|part| changed(&path.join(part))).fold(0.0, f64::max),
            "model": current.origins.model.as_ref().map(|model| model.name.clone()),
            "overrides": current.overrides,
        }))
    }

    /// Values of metrics: of those in `names`, or all, from the step `from` on.
    pub(super) fn metrics(&self, query: Query<'_>) -> Result<Value> {
        let run = self.run(query.text("run")?)?;
        let names: Option<Vec<&str>> = query.get("names").map(|names| names.split(',').collect());
        let from = query.number("from")?.unwrap_or(0);
        self.with_metrics(run.path(), |metrics| metrics.values(names.as_deref(), from))
    }

    /// The last metrics of all runs for Prometheus. Runs that can't be read are left out.
    pub(super) fn exposition(&self) -> String {
        let last = |(name, path): (String, PathBuf)| Some((name, self.with_metrics(&path, RunMetrics::last).ok()?));
        let all: Vec<(String, Map<String, Value>)> = self.paths().into_iter().filter_map(last).collect();
        exposition(all.iter().map(|(name, values)| (name.as_str(), values)))
    }

    fn with_metrics<T>(&self, run: &Path, read: impl FnOnce(&RunMetrics) -> T) -> Result<T> {
        let mut all = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = all.entry(run.to_owned()).or_default();
        metrics.update(run)?;
        Ok(read(metrics))
    }

    /// What tells whether the files of the runs have changed, by run.
    pub(super) fn signatures(&self) -> Value {
        let signature = |path: &PathBuf| -> Vec<Value> {
            let of = |part: &&str| {
                let metadata = fs::metadata(path.join(part)).ok()?;
                let time = metadata.modified().ok().map(seconds);
                Some(json!([time, if metadata.is_file() { metadata.len() } else { 0 }]))
            };
            WATCHED.iter().map(|part| of(part).unwrap_or_default()).collect()
        };
        json!(self.paths().iter().map(|(name, path)| (name.clone(), signature(path))).collect::<BTreeMap<_, _>>())
    }
}

/// When a file was changed, seconds since 1970.
fn changed(path: &Path) -> Option<f64> {
    fs::metadata(path).ok()?.modified().ok().map(seconds)
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::view::shown::tests::written;

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
    }

    #[test]
    fn runs_are_listed_by_name_and_their_metrics_read_on() {
        let root = tempfile::tempdir().unwrap();
        let path = written(root.path(), "demo");
        fs::create_dir(root.path().join("model")).unwrap();
        let line = |step: u64, reward: f64| format!("{{\"step\":{step},\"time\":{step}.5,\"reward/mean\":{reward}}}\n");
        fs::write(path.join("metrics.jsonl"), [line(1, 0.25), line(2, 0.5), "{\"step\":3,\"rew".to_owned()].concat())
            .unwrap();
        let view = View::new(&[], root.path()).unwrap();
        let list = view.list();
        assert_eq!((list["runs"].as_array().unwrap().len(), &list["runs"][0]["name"]), (1, &json!("demo")));
        assert_eq!(list["runs"][0]["metrics"]["step"], 2);
        let query = [("run".to_owned(), "demo".to_owned()), ("from".to_owned(), "2".to_owned())];
        let values = view.metrics(Query(&query[..1])).unwrap();
        assert_eq!(numbers(&values["steps"]), [1.0, 2.0]);
        assert_eq!(numbers(&values["series"]["reward/mean"]), [0.25, 0.5]);
        assert!(view.exposition().contains("r1_reward_mean{run=\"demo\"} 0.5\n"), "{}", view.exposition());
        let before = view.signatures();
        // The incomplete line is completed, and a step is repeated after a resume.
        let mut file = fs::File::options().append(true).open(path.join("metrics.jsonl")).unwrap();
        std::io::Write::write_all(&mut file, b"ard/mean\":1.0}\n").unwrap();
        assert_ne!(view.signatures(), before);
        let values = view.metrics(Query(&query)).unwrap();
        assert_eq!((numbers(&values["steps"]), values["epoch"].as_u64()), (vec![2.0, 3.0], Some(0)));
        std::io::Write::write_all(&mut file, line(2, 0.75).as_bytes()).unwrap();
        let values = view.metrics(Query(&query)).unwrap();
        assert_eq!((numbers(&values["series"]["reward/mean"]), values["epoch"].as_u64()), (vec![0.75, 1.0], Some(1)));
        fs::write(path.join("metrics.jsonl"), line(9, 0.0)).unwrap();
        let values = view.metrics(Query(&query)).unwrap();
        assert_eq!((numbers(&values["steps"]), values["epoch"].as_u64()), (vec![9.0], Some(2)));
        // A longer file in its place, as a resumed run writes it.
        let new = path.join("new");
        fs::write(&new, format!("{}{}", line(9, 0.5), line(10, 0.25))).unwrap();
        fs::rename(&new, path.join("metrics.jsonl")).unwrap();
        let values = view.metrics(Query(&query)).unwrap();
        assert_eq!((numbers(&values["series"]["reward/mean"]), values["epoch"].as_u64()), (vec![0.5, 0.25], Some(3)));
        let error = view.run("demos").unwrap_err();
        assert!(error.hint.unwrap().contains("demo"));
    }

    #[test]
    fn named_runs_with_equal_names_have_their_paths() {
        let root = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|folder| {
            fs::create_dir(root.path().join(folder)).unwrap();
            written(&root.path().join(folder), "same")
        });
        let view = View::new(&paths, root.path()).unwrap();
        assert_eq!(view.paths().into_keys().collect::<Vec<_>>(), paths.map(|path| path.display().to_string()));
        assert_eq!(View::new(&["none".into()], root.path()).unwrap_err().kind, Kind::Store);
    }
}
