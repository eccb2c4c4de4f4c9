//! `r1 repl`: runs a script interactively: reply as the policy, inspect everything, undo, stop at
//! breakpoints.

mod answer;
mod branches;
mod commands;
mod halt;
mod outcome;
mod replaying;
mod sampler;
mod save;
mod session;
mod terminal;
mod view;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use super::args::{OutputArgs, ReplArgs};
use super::diff;
use super::infer::recipe::until_stopped;
use super::resume_arg::refuse_both;
use super::set_threads;
use crate::error::{Error, Kind, Result};
use crate::load::Loaded;
use crate::programs::{Executor, Programs};
use crate::script::{Console, LogStream, Split};
use crate::telemetry::{Interrupt, ctrl_c};
use crate::train::Agent;
use commands::{COMMANDS, help};
use replaying::{FoundTrajectory, run_of};
use session::{Opening, ReplSession};
use terminal::{Terminal, script_error};

pub(super) fn run(args: ReplArgs, output: OutputArgs) -> Result<ExitCode> {
    set_threads(args.threads);
    let interrupt = ctrl_c();
    interrupt.at_once(true);
    let terminal = Rc::new(Terminal::open(output)?);
    let reporter = output.reporter();
    let agent = agent(&args)?;
    // From the first prompt on, the sampling model's tokenizer is used.
    let model = args.model.as_ref().map(|model| model.display().to_string());
    refuse_both(&[("--model", model, &["policy.model"])], &args.overrides)?;
    let named = match &args.model {
        Some(model) => {
            let run = Agent::of_model(model, &args.runs_dir)?;
            Some(run.as_ref().and_then(Agent::model).unwrap_or(model).to_owned())
        }
        None => agent.as_ref().and_then(Agent::model).map(Path::to_owned),
    };
    let model = named.as_ref().filter(|_| args.model.is_some());
    let model = model.map(|model| format!("policy.model={}", model.display()));
    let typed: Vec<String> = args.overrides.iter().cloned().chain(model).collect();
    let mut in_effect = args.overrides.clone();
    let loaded = match (&agent, &args.replay) {
        (Some(agent), _) => {
            let opened = agent.open(&typed)?;
            agent.in_words(&opened).iter().for_each(|line| reporter.info(line));
            let is_kept = |setting: &String| args.overrides.contains(setting) || !setting.starts_with("policy.model=");
            in_effect = opened.overrides.into_iter().filter(is_kept).collect();
            Loaded::new(opened.script, &reporter)?
        }
        (None, None) => return bare(&terminal, interrupt, output),
        (None, Some(location)) => {
            let FoundTrajectory { mut recorded, trajectory, .. } =
                FoundTrajectory::new(location, &args.runs_dir, &args.overrides)?;
            let loaded = recorded.script_of(&trajectory, &reporter)?;
            Loaded::with(loaded.script.clone(), Arc::clone(&loaded.renderer), recorded.run.max_context())?
        }
    };
    let title = loaded.script.path.display().to_string();
    let stands_in = loaded.stands_in;
    let opening = Opening { agent, overrides: args.overrides, in_effect, model: named, runs_dir: args.runs_dir };
    let mut session = ReplSession::open(loaded, opening, &terminal, interrupt, reporter)?;
    terminal.note(&format!("{title}: :help lists the commands, Ctrl-D leaves"));
    if stands_in {
        terminal.note("its model is not on this machine: tokens are those of r1-nano until :sample fetches it");
    }
    terminal.begin(if args.replay.is_some() { "replay" } else { "reset" });
    let begun = match &args.replay {
        Some(location) => session.replay(location),
        None if session.loaded.worker.rows(Split::Train)?.is_some() => session.reset(None, None, None, None),
        None => {
            terminal.begin("");
            Ok(())
        }
    };
    terminal.finish()?;
    if let Err(error) = begun {
        terminal.fail(error)?;
    }
    talk(&terminal, interrupt, &mut |typed| take(&mut session, &terminal, typed))
}

/// The script, with the settings of the run that `--model` or `--replay` names, or the run.
fn agent(args: &ReplArgs) -> Result<Option<Agent>> {
    let run = match (&args.model, &args.replay) {
        (Some(model), _) => Agent::of_model(model, &args.runs_dir)?,
        (None, Some(location)) if args.script.is_some() => Agent::of_model(&run_of(location)?, &args.runs_dir)?,
        _ => None,
    };
    let Some(script) = &args.script else { return Ok(run.filter(|_| args.replay.is_none())) };
    let named = Agent::find(script, &args.runs_dir)?;
    Ok(Some(match run {
        Some(run) if named.is_file() => run.with_script(script),
        _ => named,
    }))
}

/// Reads and executes inputs until the end or `:quit`.
fn talk(terminal: &Terminal, interrupt: Interrupt, take: &mut dyn FnMut(&str) -> Result<bool>) -> Result<ExitCode> {
    loop {
        interrupt.clear();
        interrupt.at_once(true);
        let Some(typed) = terminal.next("> ")? else { return Ok(ExitCode::SUCCESS) };
        if typed.trim().is_empty() {
            continue;
        }
        interrupt.at_once(false);
        let taken = take(&typed);
        terminal.finish()?;
        if terminal.leaving.get() {
            return Ok(ExitCode::SUCCESS);
        }
        if terminal.aborted.take() {
            terminal.note("aborted");
            continue;
        }
        match taken {
            Ok(true) => {}
            Ok(false) => return Ok(ExitCode::SUCCESS),
            Err(error) => terminal.fail(terminal.broken.take().unwrap_or(error))?,
        }
    }
}

/// Without a script: only Lua code.
fn bare(terminal: &Rc<Terminal>, interrupt: Interrupt, output: OutputArgs) -> Result<ExitCode> {
    let out = Rc::clone(terminal);
    let echo = Box::new(move |line: &crate::script::LogLine, stream| match stream {
        LogStream::Out if !out.is_json() => drop(super::print(&line.text)),
        LogStream::Out => drop(out.item("printed", "", || line.text.as_str().into())),
        LogStream::Log => drop(out.log(&line.place, &line.text)),
    });
    let console = Console::bare(Rc::new(Programs::new(output.reporter())), echo)?;
    let executor = Executor::new()?;
    terminal.complete_with(console.clone());
    terminal.note("Lua with everything of r1; r1 repl SCRIPT works on a recipe. Ctrl-D leaves");
    talk(terminal, interrupt, &mut |typed| {
        if typed.starts_with(':') {
            let (command, rest) = commands::parse(typed, COMMANDS)?;
            terminal.begin(command.name);
            return match command.name {
                "quit" => Ok(false),
                "help" => {
                    let help = help(COMMANDS, rest)?;
                    terminal.result("help", &help, || help.as_str().into()).map(|()| true)
                }
                name => Err(Error::new(Kind::Usage, format!("`:{name}` needs a script")).hint("r1 repl SCRIPT")),
            };
        }
        terminal.begin("eval");
        let values = executor.block_on(until_stopped(interrupt, console.eval(typed)))?;
        let values = values.map_err(|failure| script_error(&failure, None))?;
        terminal.values(&values)?;
        Ok(true)
    })
}

/// Executes one input; returns whether to continue.
fn take(session: &mut ReplSession, terminal: &Terminal, typed: &str) -> Result<bool> {
    if !typed.starts_with(':') {
        terminal.begin("eval");
        return session.eval(typed).map(|()| true);
    }
    let (command, rest) = commands::parse(typed, COMMANDS)?;
    terminal.begin(command.name);
    match command.name {
        "quit" => return Ok(false),
        "reset" => reset(session, rest)?,
        "step" if rest.is_empty() => session.recorded_step()?,
        "step" => session.step(rest)?,
        "tool" => {
            let end = rest.find(|c: char| c.is_whitespace() || c == '{').unwrap_or(rest.len());
            let (name, arguments) = (&rest[..end], rest[end..].trim());
            let arguments = if arguments.is_empty() { json!({}) } else { session.arguments(arguments)? };
            session.call(name, arguments)?;
        }
        "sample" => session.sample(number(rest)?.unwrap_or(1))?,
        "obs" => {
            let shown = session.observation()?;
            terminal.result("observation", &view::observation(terminal, &shown, true), || json!(shown))?;
            session.print_log()?;
        }
        "tokens" => {
            let (ids, new_row) = session.tokens()?;
            let loaded = Rc::clone(&session.loaded);
            let prompt = view::PromptView::new(&loaded.renderer, session.attempt()?, &ids, new_row);
            terminal.result("tokens", &prompt.text(terminal.colour)?, || prompt.to_json())?;
        }
        "state" => {
            session.attempt()?;
            let field =
                if rest.is_empty() || rest.starts_with('[') { format!("state{rest}") } else { format!("state.{rest}") };
            session.eval(&field)?;
        }
        "diff" => {
            let (was, is) = session.states()?;
            let text = diff::lines(&was, &is, terminal.colour);
            terminal.result("diff", if text.is_empty() { "nothing changed" } else { &text }, || json!(text))?;
        }
        "reward" => {
            let reward = session.reward()?;
            terminal.result("reward", &reward.text(), || reward.to_json())?;
        }
        "undo" => {
            let done = session.undo(number(rest)?.unwrap_or(1))?;
            let steps = session.attempt()?.trajectory().steps.len();
            let left = if steps == 1 { "1 step is".to_owned() } else { format!("{steps} steps are") };
            terminal.remark("steps", &format!("{done} undone; {left} left"), || json!(steps))?;
        }
        "fork" => {
            let name = session.fork(rest)?;
            terminal.remark("branch", &format!("on {name}"), || json!(name))?;
        }
        "branches" => terminal.result("branches", &session.list(), || session.branches_json())?,
        "branch" => {
            session.switch(rest)?;
            terminal.remark("branch", &format!("on {rest}"), || json!(rest))?;
        }
        "replay" => session.replay(rest)?,
        "break" if rest.is_empty() => {
            let list = session.console.breakpoints();
            let line =
                |stop: &crate::script::Breakpoint| format!("{stop}{}", if stop.trace { "  (trace)" } else { "" });
            let text = list.iter().map(line).collect::<Vec<_>>().join("\n");
            let all = || list.iter().map(breakpoint).collect();
            terminal.result("breakpoints", if text.is_empty() { "no breakpoints" } else { &text }, all)?;
        }
        "break" | "trace" => {
            let set = session.console.set_breakpoint(rest, command.name == "trace")?;
            let first = &set[0];
            let more = if set.len() > 1 { format!(" and {} more lines", set.len() - 1) } else { String::new() };
            let text = format!("{} at {first}{more}", if first.trace { "traces" } else { "stops" });
            terminal.result("breakpoints", &text, || set.iter().map(breakpoint).collect())?;
        }
        "clear" => {
            let gone = session.console.clear_breakpoints(Some(rest).filter(|rest| !rest.is_empty()))?;
            terminal.remark("removed", &format!("{gone} removed"), || json!(gone))?;
        }
        "reload" => session.reload()?,
        "save" => {
            session.save(rest.as_ref())?;
            terminal.result("file", &format!("{rest} written; r1 test {rest} runs it"), || json!(rest))?;
        }
        _ => {
            let help = help(COMMANDS, rest)?;
            terminal.result("help", &help, || json!(help))?;
        }
    }
    Ok(true)
}

fn breakpoint(stop: &crate::script::Breakpoint) -> Value {
    json!({ "path": stop.path, "line": stop.line, "trace": stop.trace })
}

/// `[eval] [ROW] [seed=N]`, or a task as a table.
fn reset(session: &mut ReplSession, rest: &str) -> Result<()> {
    if rest.starts_with('{') {
        let task = session.table(rest)?;
        return session.reset(None, None, None, Some(task));
    }
    let (mut split, mut row, mut seed) = (None, None, None);
    for word in rest.split_whitespace() {
        match (word, word.strip_prefix("seed=")) {
            ("eval", _) => split = Some(Split::Eval),
            ("train", _) => split = Some(Split::Train),
            (_, Some(number)) => seed = number.parse().ok(),
            (word, None) => row = word.parse().ok(),
        }
        let understood = split.is_some() || row.is_some() || seed.is_some();
        if !understood || (word.starts_with("seed=") && seed.is_none()) {
            return Err(Error::new(Kind::Usage, format!("`{word}` is not a row"))
                .hint("as in :reset 5, :reset eval 3, :reset seed=7, :reset { prompt = \"…\" }"));
        }
    }
    session.reset(split, row, seed, None)
}

fn number(text: &str) -> Result<Option<usize>> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| Error::new(Kind::Usage, format!("`{text}` is not a number")))
}
