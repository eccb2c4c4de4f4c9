//! `training.*`: runs with a training loop in Lua, on the thread that owns the tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::config::Choice;
use crate::error::{Error, Kind, Result, Subject};
use crate::script::{Script, trajectory_table};
use crate::telemetry::Reporter;
use crate::train::{Manual, RunOptions};

/// The open runs.
#[derive(Default)]
pub(super) struct Trainings {
    open: BTreeMap<u64, Manual>,
    next: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    path: PathBuf,
    /// Settings of a recipe defined in the program at `path`, as JSON.
    #[serde(default)]
    recipe: Option<String>,
    /// Directory of the program, for paths that are not in the current directory.
    beside: PathBuf,
    #[serde(default)]
    overrides: Vec<String>,
    #[serde(default)]
    runs: Option<PathBuf>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    resume: Option<PathBuf>,
}

impl Trainings {
    pub(super) fn call(&mut self, function: &str, arguments: &Json) -> Result<Json> {
        if function == "training.open" {
            let open: Open = read(arguments)?;
            let beside = open.beside.join(&open.path);
            let script = if open.path.exists() || !beside.exists() { open.path } else { beside };
            if let Some(recipe) = &open.recipe {
                same(&script, recipe)?;
            }
            let options = RunOptions {
                script,
                overrides: open.overrides,
                runs_dir: open.runs.unwrap_or_else(|| "runs".into()),
                name: open.name,
                resume: open.resume,
                no_reload: true,
                ..RunOptions::default()
            };
            // Output is up to the program; only warnings are printed here.
            let run = Manual::open(&options, Reporter::new(true, false, false))?;
            let about = run.about();
            self.next += 1;
            self.open.insert(self.next, run);
            return Ok(json!({ "training": self.next, "about": about }));
        }
        let handle = arguments["training"].as_u64().unwrap_or(0);
        if function == "training.close" {
            self.open.remove(&handle);
            return Ok(Json::Null);
        }
        let run = self.open.get_mut(&handle).ok_or_else(|| Error::new(Kind::Internal, "the training is not open"))?;
        let result =
            answer(run, function, arguments).map_err(|error| match (error.subject.as_deref(), &error.place) {
                // The place of the error is the line of the program, which the caller adds.
                (Some(Subject::Trajectories { .. } | Subject::Example { .. }), Some(place)) => {
                    Error { message: format!("{place}: {}", error.message), place: None, ..error }
                }
                _ => error,
            })?;
        Ok(json!({ "result": result, "about": run.about() }))
    }
}

/// Refuses a recipe that differs when script workers load the program again.
fn same(script: &Path, recipe: &str) -> Result<()> {
    let (here, hint) = (script.display(), "put the recipe into a separate file and pass its path");
    if !script.is_file() {
        let message = "r1.training: a recipe as a table requires a program file, which script workers load again";
        return Err(Error::new(Kind::Usage, message).hint(hint));
    }
    let loaded = Script::load(script, &[]).map_err(|error| Error {
        message: format!("each script worker loads the file again, up to r1.training: {}", error.message),
        ..error
    })?;
    if serde_json::from_str::<Json>(recipe).ok().as_ref() == Some(loaded.recipe_settings()) {
        return Ok(());
    }
    let message = format!("r1.training: {here} returns another recipe when a script worker loads it again");
    Err(Error::new(Kind::Script, message)
        .hint("use one recipe per file that does not depend on arguments; pass what varies in the option `settings`"))
}

fn answer(run: &mut Manual, function: &str, arguments: &Json) -> Result<Json> {
    let options = &arguments["options"];
    let ids = || read::<Vec<String>>(&arguments["ids"]);
    Ok(match function {
        "training.rollout" => {
            let ids = arguments["with_ids"].as_bool().unwrap_or(false);
            let new = run.rollout(&read(options)?)?;
            new.iter().map(|trajectory| trajectory_table(trajectory, ids, false)).collect()
        }
        "training.advantages" => {
            let estimator = match &arguments["estimator"] {
                Json::Null => None,
                given => Some(read::<Choice>(given)?),
            };
            run.advantages(&ids()?, estimator)?
        }
        "training.update" => Json::Object(run.update(&ids()?, &read(options)?)?),
        "training.sft" => Json::Object(run.supervised(&read::<Vec<Json>>(&arguments["examples"])?, &read(options)?)?),
        "training.logprobs" => run.logprobs(&ids()?, arguments["model"] == "reference")?,
        "training.values" => run.values(&ids()?)?,
        "training.renew_reference" => {
            run.renew_reference()?;
            Json::Null
        }
        "training.evaluate" => json!(run.evaluate()?),
        "training.log" => {
            run.log(&read(&arguments["values"])?);
            Json::Null
        }
        "training.next_step" => Json::Object(run.next_step()?),
        "training.save" => json!(run.save(arguments["out"].as_str().map(Path::new))?),
        other => return Err(Error::new(Kind::Internal, format!("unknown service `{other}`"))),
    })
}

/// Deserialises arguments; an empty Lua table can be a list or an object.
fn read<T: DeserializeOwned>(value: &Json) -> Result<T> {
    let value = integral(value);
    let other = match &value {
        Json::Null => Some(json!({})),
        Json::Object(fields) if fields.is_empty() => Some(json!([])),
        Json::Array(items) if items.is_empty() => Some(json!({})),
        _ => None,
    };
    T::deserialize(&value)
        .or_else(|error| other.map_or(Err(error), |other| T::deserialize(&other)))
        .map_err(|error| Error::new(Kind::Script, error.to_string()))
}

/// Converts whole numbers to integers.
fn integral(value: &Json) -> Json {
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => json!(float as i64),
            _ => value.clone(),
        },
        Json::Array(items) => items.iter().map(integral).collect(),
        Json::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), integral(value))).collect(),
        other => other.clone(),
    }
}
