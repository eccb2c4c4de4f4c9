//! The environments of a recipe in one virtual machine, and the environment of a task.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlua::Function;
use serde_json::{Map, Value as Json};

use super::columns::{EnvColumns, FLOWS};
use super::load::Script;
use super::rows::Split;
use crate::config::EnvSettings;
use crate::error::{Error, Kind, Result, suggest};
use crate::script::runtime::definitions::{Env, EvalEnv, Recipe};
use crate::script::runtime::grants::Grants;
use crate::script::runtime::servers;
use crate::script::runtime::task_env::{LoadedEnv, MeasuredFunction, TaskEnv};
use crate::script::runtime::tool::Tool;
use crate::script::runtime::vm::Vm;
use crate::script::settings::section;
use crate::text::FormatChoice;

impl MeasuredFunction {
    fn new(vm: &Vm, name: &str, function: Function) -> Result<Self> {
        Ok(Self { measured: vm.measured(name, &function)?, function })
    }
}

impl LoadedEnv {
    fn new(
        vm: &Vm,
        recipe: &Recipe,
        (name, env): (&str, &Env),
        (settings, script): (EnvSettings, &Script),
    ) -> Result<Self> {
        let (reset, step) = vm
            .defaults(&settings.system)
            .map_err(|error| Error::new(Kind::Internal, format!("lua/env.lua: {error}")))?;
        let Env { reset: own_reset, step: own_step, flow, .. } = env.clone();
        let context = env.context.as_ref().or(recipe.context.as_ref()).cloned();
        // A flow passes its observation to policy:generate.
        let context = context.filter(|_| flow.is_none());
        let renderer = match &vm.host.renderer {
            Some(renderer) => {
                let (recipe_style, env_style) = (script.style()?, script.style_of(&settings)?);
                // A later version of the script may have changed its format functions.
                let replaced = matches!(&env_style.format, FormatChoice::Is(format) if format.is_own() && format != renderer.format());
                (env_style != recipe_style || replaced).then(|| renderer.styled(&env_style)).transpose()?
            }
            None => None,
        };
        Ok(Self {
            name: name.to_owned(),
            own_reset: own_reset.is_some() || flow.is_some(),
            reset: MeasuredFunction::new(vm, "reset", own_reset.unwrap_or(reset))?,
            step: MeasuredFunction::new(vm, "step", own_step.unwrap_or(step))?,
            flow,
            context: context.map(|function| MeasuredFunction::new(vm, "context", function)).transpose()?,
            reward: env.reward.as_ref().or(recipe.reward.as_ref()).cloned(),
            close: env.close.clone(),
            tools: servers::expand(&env.tools, &script.listings, &script.grants())?,
            settings,
            renderer,
        })
    }
}

/// The tools that the policy sees.
pub(super) fn shown(tools: &[Rc<Tool>]) -> impl Iterator<Item = &Rc<Tool>> {
    tools.iter().filter(|tool| !tool.hidden)
}

impl TaskEnv {
    fn of(env: &Rc<LoadedEnv>, tools: Vec<Rc<Tool>>) -> Self {
        Self {
            schemas: shown(&tools).map(|tool| tool.schema()).collect(),
            tools,
            kwargs: Map::new(),
            tool_kwargs: Map::new(),
            tables: BTreeMap::new(),
            max_steps: env.settings.max_steps,
            columns: Json::Null,
            eval: false,
            env: env.clone(),
        }
    }

    /// Adds the tables of a task, to the descriptions of their tools too, and checks its files.
    fn add_tables(&mut self, task: &Json) -> Result<()> {
        for tool in &self.tools {
            if let Some(tables) = tool.host_tool().read_task(&tool.name, task)? {
                self.tables.insert(tool.name.clone(), tables);
            }
        }
        let schema = |tool: &Rc<Tool>| tool.schema_with(self.tables.get(&tool.name).map(|tables| &**tables));
        self.schemas = shown(&self.tools).map(schema).collect();
        Ok(())
    }

    /// The columns of the task that its tools need.
    fn tool_columns(&self) -> BTreeSet<&str> {
        self.tools.iter().flat_map(|tool| tool.host_tool().task_columns()).collect()
    }

    /// The columns from which [`Set::of`] makes the same environment.
    fn columns_of(&self, task: &Json) -> Json {
        let mut columns = EnvColumns::of(task);
        for name in self.tool_columns() {
            if let Some(value) = task.get(name) {
                if columns.is_null() {
                    columns = Json::Object(Map::new());
                }
                columns[name] = value.clone();
            }
        }
        columns
    }
}

/// The environments of a split.
struct Set {
    /// Each with the defaults of a task without environment columns.
    all: Vec<Rc<TaskEnv>>,
    /// Whether rows select one by name.
    named: bool,
}

/// All environments of a recipe.
pub(crate) struct Envs {
    train: Set,
    /// Environments that belong to evaluation.
    eval: Option<Set>,
}

impl Envs {
    pub(crate) fn new(vm: &Vm, recipe: &Recipe, script: &Script) -> Result<Self> {
        let settings = &script.settings;
        let (default_env, eval) = (&settings.env, &recipe.eval);
        let load = |name: &str, env: &Env, env_settings: EnvSettings| {
            let env = Rc::new(LoadedEnv::new(vm, recipe, (name, env), (env_settings, script))?);
            Ok::<_, Error>(Rc::new(TaskEnv::of(&env, env.tools.clone())))
        };
        let env_settings = |name: &str| settings.envs.get(name).unwrap_or(default_env).clone();
        let all = |eval_env: &EvalEnv, keep: &dyn Fn(&str) -> bool| -> Result<Vec<Rc<TaskEnv>>> {
            if recipe.envs.is_empty() {
                return Ok(vec![load("", &eval_env.changed(&Env::default()), default_env.clone())?]);
            }
            let kept = recipe.envs.iter().filter(|(name, _)| keep(name));
            kept.map(|(name, env)| load(name, &eval_env.changed(env), env_settings(name))).collect()
        };
        let named = !settings.envs.is_empty();
        let train = Set { all: all(&EvalEnv::default(), &|_| true)?, named };
        let eval = if let Some(env) = &eval.env {
            let env_settings = section::<EnvSettings>("eval.env", &env.settings)?;
            Some(Set { all: vec![load("", &eval.changed(env), env_settings)?], named: false })
        } else if !settings.eval.env.is_empty() {
            Some(Set { all: all(eval, &|name| name == settings.eval.env)?, named: false })
        } else if eval.has_functions() {
            Some(Set { all: all(eval, &|_| true)?, named })
        } else {
            None
        };
        Ok(Self { train, eval })
    }

    fn of_split(&self, split: Split) -> &Set {
        match &self.eval {
            Some(eval) if split == Split::Eval => eval,
            _ => &self.train,
        }
    }

    /// Whether evaluation has its own environment or context.
    pub(crate) fn has_eval(&self) -> bool {
        self.eval.is_some()
    }

    /// All environments, first those for training.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Rc<TaskEnv>> {
        self.train.all.iter().chain(self.eval.iter().flat_map(|eval| &eval.all))
    }

    /// Whether rows select one of several environments by name.
    pub(crate) fn named(&self, split: Split) -> bool {
        self.of_split(split).named
    }

    /// Number of environments.
    pub(crate) fn count(&self, split: Split) -> usize {
        self.of_split(split).all.len()
    }

    /// The first environment, if rows select one by name.
    pub(crate) fn first_named(&self, split: Split) -> Option<&str> {
        let set = self.of_split(split);
        set.all.first().map(|loaded| loaded.env.name.as_str()).filter(|_| set.named)
    }

    /// Refuses tools with undeclared needs, in any environment.
    ///
    /// # Errors
    /// Errors of the tools: a program or a server that the recipe does not declare.
    pub(crate) fn check_tools(&self, grants: &Grants) -> Result<()> {
        self.all().flat_map(|loaded| &loaded.tools).try_for_each(|tool| tool.host_tool().check(tool, grants))
    }

    /// The environment of a task.
    ///
    /// # Errors
    /// [`Kind::Data`] for columns that cannot be parsed, or that name an unknown environment or
    /// tool.
    pub(crate) fn of(&self, split: Split, task: &Json) -> Result<Rc<TaskEnv>> {
        let eval = split == Split::Eval && self.eval.is_some();
        self.of_split(split).of(task, eval)
    }

    /// A warning about a column that is not used.
    pub(crate) fn notice(&self, split: Split, task: &Json) -> Option<String> {
        let name = task.get("agent_name")?.as_str().filter(|name| !name.is_empty() && !FLOWS.contains(name))?;
        let exists = self.of_split(split).all.iter().any(|loaded| loaded.env.name == name);
        (!exists).then(|| {
            format!("the column `agent_name` is \"{name}\", which is not an environment of the recipe; it is ignored")
        })
    }

    /// The tools of all environments, without duplicates.
    pub(crate) fn tools(&self) -> Vec<Rc<Tool>> {
        let mut tools: Vec<Rc<Tool>> = Vec::new();
        for tool in self.all().flat_map(|listed| &listed.tools) {
            if !tools.iter().any(|listed| listed.name == tool.name) {
                tools.push(tool.clone());
            }
        }
        tools
    }
}

impl Set {
    fn of(&self, task: &Json, eval: bool) -> Result<Rc<TaskEnv>> {
        let columns = EnvColumns::read(task)?;
        let chosen = self.choose(&columns)?;
        // A column `tools` belongs to the script if the environment has no tools.
        let wanted = columns.tools.as_ref().filter(|_| shown(&chosen.env.tools).next().is_some());
        let needs_columns = chosen.tools.iter().any(|tool| !tool.host_tool().task_columns().is_empty());
        if !needs_columns
            && wanted.is_none()
            && columns.kwargs.is_empty()
            && columns.tool_kwargs.is_empty()
            && !columns.single_step
        {
            if !self.named && !eval {
                return Ok(chosen.clone());
            }
            // The columns select it.
            let whole = TaskEnv::of(&chosen.env, chosen.tools.clone());
            return Ok(Rc::new(TaskEnv { columns: EnvColumns::of(task), eval, ..whole }));
        }
        let shown_names = || shown(&chosen.env.tools).map(|tool| tool.name.as_str());
        let mut tools = chosen.tools.clone();
        if let Some(wanted) = wanted {
            if let Some(name) = wanted.iter().find(|name| !shown_names().any(|shown| shown == *name)) {
                let message = format!("the column `tools` names `{name}`, which is not a tool of the environment");
                return Err(Error::new(Kind::Data, message).hint(suggest(name, shown_names().collect::<Vec<_>>())));
            }
            // In the order of the environment, so that the same tools give the same prompt.
            tools.retain(|tool| tool.hidden || wanted.contains(&tool.name));
        }
        let mut task_env = TaskEnv::of(&chosen.env, tools);
        if columns.single_step {
            task_env.max_steps = task_env.max_steps.min(1);
        }
        task_env.add_tables(task)?;
        (task_env.columns, task_env.eval) = (task_env.columns_of(task), eval);
        (task_env.kwargs, task_env.tool_kwargs) = (columns.kwargs, columns.tool_kwargs);
        Ok(Rc::new(task_env))
    }

    fn choose(&self, columns: &EnvColumns) -> Result<&Rc<TaskEnv>> {
        if !self.named
            && let Some(only) = self.all.first()
        {
            return Ok(only);
        }
        let named = |name: &str| self.all.iter().find(|loaded| loaded.env.name == name);
        if let Some(chosen) = columns.names.iter().find_map(|(_, name)| named(name)) {
            return Ok(chosen);
        }
        let env_names: Vec<&str> = self.all.iter().map(|loaded| loaded.env.name.as_str()).collect();
        let named_by = columns.names.iter().find(|(_, name)| !FLOWS.contains(&name.as_str()));
        Err(if let Some((column, name)) = named_by {
            let message = format!("the column `{column}` is \"{name}\", and the recipe has no such environment");
            Error::new(Kind::Data, message).hint(suggest(name, env_names))
        } else {
            let message = "the row does not name one of the recipe's environments";
            Error::new(Kind::Data, message).hint(format!("add the column `env`: one of `{}`", env_names.join("`, `")))
        })
    }
}
