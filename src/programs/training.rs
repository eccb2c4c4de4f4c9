//! `r1.training`: training loops for programs. The object is in `lua/training.lua`; this file runs
//! its calls.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlua::{Function, Lua, Table, Value};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::ProgramProcesses;
use super::call::{Held, call, directory, overrides, read, to_lua};
use crate::algorithms;
use crate::config::Choice;
use crate::error::{Error, Kind, Result, Subject};
use crate::script::api::recipe;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::host::place;
use crate::script::{Script, trajectory_table};
use crate::telemetry::{Reporter, ctrl_c};
use crate::train::{RolloutOptions, RunOptions, Training, UpdateOptions};

const NAME: &str = "r1.training";

struct OpenRun(RefCell<Training>);

static OPEN_RUNS: AtomicUsize = AtomicUsize::new(0);

impl OpenRun {
    /// From now on Ctrl-C ends the step of the run, not the program at once.
    fn new(run: Training) -> Self {
        OPEN_RUNS.fetch_add(1, Ordering::Relaxed);
        ctrl_c().at_once(false);
        Self(RefCell::new(run))
    }
}

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.0.get_mut().sum_up_failures();
        if OPEN_RUNS.fetch_sub(1, Ordering::Relaxed) == 1 {
            ctrl_c().at_once(true);
        }
    }
}

/// A run, ids of trajectories, options, a loss and its options.
type UpdateArguments = (Held<OpenRun>, Vec<String>, Value, Option<Function>, Value);

/// Options of `r1.training` besides `settings`; `lua/training.lua` has checked them.
#[derive(Deserialize)]
struct OpenOptions {
    runs: Option<PathBuf>,
    name: Option<String>,
    resume: Option<PathBuf>,
    /// Whether changes of the recipe are applied (default).
    reload: Option<bool>,
    /// Whether the first step is profiled.
    #[serde(default)]
    profile: bool,
}

pub(super) fn install(lua: &Lua, r1: &Table, processes: &ProgramProcesses) -> mlua::Result<()> {
    let calls = lua.create_table()?;
    lua.set_app_data(processes.clone());
    bind_async(lua, &calls, "open", async |lua, (script, options): (Value, Table)| {
        let processes = lua.app_data_ref::<ProgramProcesses>().map(|all| all.clone()).unwrap_or_default();
        let base = directory(&lua);
        // A recipe inside the program: script workers run the file up to here to load it.
        let (path, recipe) = match &script {
            Value::String(path) => (PathBuf::from(path.to_string_lossy()), None),
            value => {
                let recipe = recipe::of(&lua, value)?;
                let line = place(&lua).unwrap_or_default();
                (line.rsplit_once(':').map_or(line.as_str(), |(path, _)| path).into(), Some(recipe.settings))
            }
        };
        let overrides = overrides(&lua, NAME, &options.get("settings")?)?;
        let options: OpenOptions = read(&lua, NAME, "", &Value::Table(options))?;
        let run = call(&lua, async move {
            let in_directory = base.join(&path);
            let script = if path.exists() || !in_directory.exists() { path } else { in_directory };
            recipe.map_or(Ok(()), |recipe| same(&script, &recipe))?;
            let is_first = processes.runs_dir.is_none();
            let options = RunOptions {
                script,
                overrides,
                runs_dir: processes.runs_dir.or(options.runs).unwrap_or_else(|| "runs".into()),
                name: options.name,
                resume: options.resume,
                no_reload: options.reload == Some(false),
                profile: options.profile && is_first,
                interrupt: Some(ctrl_c()),
                ranks: processes.ranks,
                ..RunOptions::default()
            };
            // Output is up to the program; only warnings are printed here.
            let reporter = if is_first { Reporter::new(true, false, false) } else { Reporter::silent() };
            Training::for_program(&options, &reporter)
        });
        let run = run.await?;
        let about = to_lua(&lua, &run.about())?;
        Ok((lua.create_userdata(Held(Rc::new(OpenRun::new(run))))?, about))
    })?;
    bind_async(lua, &calls, "rollout", async |lua, (run, options, with_ids): (Held<OpenRun>, Value, bool)| {
        let options: RolloutOptions = read(&lua, NAME, "options", &options)?;
        let arguments = format!("{options:?}");
        let rollout = move |run: &mut Training| {
            let ids = run.rollout(&options)?;
            let all = run.trajectories(&ids)?;
            Ok(all.iter().map(|trajectory| trajectory_table(trajectory, with_ids, false)).collect::<Json>())
        };
        on_run(lua, run, ("t:rollout", arguments), rollout).await
    })?;
    bind_async(lua, &calls, "advantages", async |lua, (run, ids, estimator): (Held<OpenRun>, Vec<String>, Value)| {
        let estimator: Option<Choice> = read(&lua, NAME, "estimator", &estimator)?;
        let arguments = format!("{ids:?} {estimator:?}");
        on_run(lua, run, ("t:advantages", arguments), move |run| run.advantages(&ids, estimator)).await
    })?;
    bind_async(lua, &calls, "update", async |lua, arguments: UpdateArguments| {
        let (run, ids, options, loss, loss_options) = arguments;
        let mut options: UpdateOptions = read(&lua, NAME, "options", &options)?;
        if let Some(loss) = loss {
            options.graph = Some(algorithms::trace(&lua, &loss, &read(&lua, NAME, "", &loss_options)?)?);
        }
        let arguments = format!("{ids:?} {options:?}");
        on_run(lua, run, ("t:update", arguments), move |run| run.update(&ids, &options)).await
    })?;
    bind_async(lua, &calls, "sft", async |lua, (run, examples, lr): (Held<OpenRun>, Value, Value)| {
        let (examples, lr): (Vec<Json>, Option<f64>) =
            (read(&lua, NAME, "examples", &examples)?, read(&lua, NAME, "options.lr", &lr)?);
        let arguments = format!("{examples:?} {lr:?}");
        on_run(lua, run, ("t:sft", arguments), move |run| run.supervised(&examples, lr)).await
    })?;
    bind_async(lua, &calls, "logprobs", async |lua, (run, ids, reference): (Held<OpenRun>, Vec<String>, bool)| {
        let arguments = format!("{ids:?} {reference}");
        on_run(lua, run, ("t:logprobs", arguments), move |run| run.logprobs(&ids, reference)).await
    })?;
    bind_async(lua, &calls, "values", async |lua, (run, ids): (Held<OpenRun>, Vec<String>)| {
        on_run(lua, run, ("t:values", format!("{ids:?}")), move |run| run.values(&ids)).await
    })?;
    bind_async(lua, &calls, "log", async |lua, (run, values): (Held<OpenRun>, Value)| {
        let values = read(&lua, NAME, "values", &values)?;
        on_run(lua, run, ("t:log", String::new()), move |run| {
            run.log(&values);
            Ok(())
        })
        .await
    })?;
    bind_async(lua, &calls, "save", async |lua, (run, out): (Held<OpenRun>, Option<String>)| {
        let save = move |run: &mut Training| run.save_between_steps(out.as_deref().map(Path::new));
        on_run(lua, run, ("t:save", String::new()), save).await
    })?;
    calls.raw_set("renew_reference", method(lua, "t:renew_reference", Training::renew_reference)?)?;
    calls.raw_set("evaluate", method(lua, "t:evaluate", |run| run.evaluate("held out", false))?)?;
    calls.raw_set("next_step", method(lua, "t:next_step", Training::next_step)?)?;
    let source = include_str!("../../lua/training.lua");
    let (training, methods): (Function, Table) = lua.load(source).set_name("=[r1]").call(calls)?;
    methods.set_readonly(true);
    r1.raw_set("training", training)
}

/// A method without arguments.
fn method<T: Serialize + 'static>(
    lua: &Lua,
    name: &'static str,
    call: fn(&mut Training) -> Result<T>,
) -> mlua::Result<Function> {
    lua.create_async_function(move |lua, run: Held<OpenRun>| on_run(lua, run, (name, String::new()), call))
}

/// Calls an open run: the result, and the completed steps and the steps of the run after it. The
/// name and the arguments are those of the call in the program.
async fn on_run<T: Serialize + 'static>(
    lua: Lua,
    run: Held<OpenRun>,
    (name, arguments): (&'static str, String),
    work: impl FnOnce(&mut Training) -> Result<T> + 'static,
) -> mlua::Result<(Value, u64, usize)> {
    let done = call(&lua, async move {
        let mut run = run.0.0.borrow_mut();
        run.require_same_call(name, &arguments)?;
        let result = work(&mut run).map_err(|error| match error.kind {
            Kind::Interrupted => run.stopped(error),
            _ => with_place(error),
        })?;
        Ok((result, run.progress()))
    });
    let (result, (step, steps)) = done.await?;
    Ok((to_lua(&lua, &result)?, step, steps))
}

/// Moves the place of an error into its message: its place is the line of the program, which the
/// caller adds.
fn with_place(error: Error) -> Error {
    match (error.subject.as_deref(), &error.place) {
        (Some(Subject::Trajectories { .. } | Subject::Example { .. }), Some(location)) => {
            Error { message: format!("{location}: {}", error.message), place: None, ..error }
        }
        _ => error,
    }
}

/// Refuses a recipe that differs when script workers load the program again.
fn same(script: &Path, recipe: &Json) -> Result<()> {
    let (here, hint) = (script.display(), "put the recipe into a separate file and pass its path");
    if !script.is_file() {
        let message = "r1.training: a recipe as a table requires a program file, which script workers load again";
        return Err(Error::new(Kind::Usage, message).hint(hint));
    }
    let loaded = Script::load(script, &[]).map_err(|error| Error {
        message: format!("each script worker loads the file again, up to r1.training: {}", error.message),
        ..error
    })?;
    if recipe == loaded.recipe_settings() {
        return Ok(());
    }
    let message = format!("r1.training: {here} returns another recipe when a script worker loads it again");
    Err(Error::new(Kind::Script, message)
        .hint("use one recipe per file that does not depend on arguments; pass what varies in the option `settings`"))
}
