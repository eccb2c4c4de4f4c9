//! `r1 infer`: talk to a model, with a recipe's tools if one is named.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use console::Style;
use serde_json::{Value, json};

use super::args::{InferArgs, OutputArgs};
use super::chat::{Answer, Chat, Piece, Recipe};
use super::failure::Voice;
use super::print;
use crate::config::PolicySettings;
use crate::engine::{Engine, EngineOptions, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::mdp::Sampling;
use crate::script::{Script, Worker};
use crate::telemetry::{Interrupt, Reporter, ctrl_c, duration};
use crate::train::Fetching;
use crate::{native, store, train};

/// Tokens of a reply where neither a flag nor a recipe says.
const MAX_NEW_TOKENS: usize = 512;
/// Temperature where neither a flag, nor a recipe, nor the model says.
const TEMPERATURE: f64 = 0.7;

pub(super) fn run(args: &InferArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    interrupt.at_once(true);
    if let Some(threads) = args.threads {
        native::set_threads(usize::from(threads));
    }
    let question = match &args.prompt {
        Some(text) => Some(text.clone()),
        None if !io::stdin().is_terminal() => Some(read_stdin()?),
        None => None,
    };
    if question.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(Error::new(Kind::Usage, "the question is empty").hint("ask with -p TEXT, or through a pipe"));
    }
    let mut chat = open(args, interrupt, &output.reporter())?;
    let screen = Screen::new(output);
    match question {
        Some(question) => {
            let answer = ask(&mut chat, question.trim(), interrupt, &screen)?;
            let stopped = answer.stopped;
            Ok(if stopped { ExitCode::from(Kind::Interrupted.exit_code()) } else { ExitCode::SUCCESS })
        }
        None => converse(&mut chat, interrupt, &screen, Voice::new(output.json, !output.no_color)),
    }
}

/// Loads the model, and the recipe if there is one.
fn open(args: &InferArgs, interrupt: Interrupt, reporter: &Reporter) -> Result<Chat> {
    let fetching = Fetching { reporter, interrupt: Some(interrupt) };
    let script = args.script.as_ref().map(|path| Script::load(path, &[])).transpose()?;
    let path = Path::new(&args.model);
    let model = if path.exists() { store::find_model(path)?.display().to_string() } else { args.model.clone() };
    let settings = script.as_ref().map(|script| script.settings.clone()).unwrap_or_default();
    let policy = PolicySettings { model, init: None, lora: None, ..settings.policy.clone() };
    let (model, renderer, dir) = train::load_policy(&policy, &settings.env.format, fetching)?;

    let mut sampling = settings.sampling.clone();
    if script.is_some() {
        sampling.temperature = settings.eval.temperature;
    } else {
        sampling = Sampling { max_new_tokens: MAX_NEW_TOKENS, ..model_sampling(&dir)? };
    }
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.max_new_tokens = args.max_new_tokens.map_or(sampling.max_new_tokens, |n| n as usize);
    for stop in renderer.stop_strings() {
        // Without tools nobody would go on after a call.
        if script.is_some() && !sampling.stop.contains(stop) {
            sampling.stop.push(stop.clone());
        }
    }

    let recipe = match &script {
        Some(script) => {
            let worker = Worker::new(script, Some(Arc::clone(&renderer)))?;
            Some(Recipe::new(worker, settings.env.max_steps)?)
        }
        None => None,
    };
    let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
    let options = EngineOptions::sized(&model.config, model.cache_kind(), 1, policy.max_context);
    let engine = Engine::new(model, vocabulary, options)?;
    Ok(Chat::new(engine, renderer, sampling, args.seed, args.system.clone(), recipe, interrupt))
}

/// How the model itself wants to be sampled: `generation_config.json`.
fn model_sampling(dir: &Path) -> Result<Sampling> {
    let path = dir.join("generation_config.json");
    let wanted: Value = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|e| Error::new(Kind::Model, format!("damaged file: {e}")).at_path(&path))?,
        Err(_) => Value::Null,
    };
    let greedy = wanted["do_sample"] == false;
    let temperature = if greedy { 0.0 } else { wanted["temperature"].as_f64().unwrap_or(TEMPERATURE) };
    Ok(Sampling {
        temperature,
        top_p: wanted["top_p"].as_f64().unwrap_or(1.0),
        top_k: wanted["top_k"].as_u64().unwrap_or(0) as usize,
        ..Sampling::default()
    })
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|e| Error::io(Kind::Data, "read the question", "stdin", &e))?;
    Ok(text)
}

/// Questions from the terminal until Ctrl-D.
fn converse(chat: &mut Chat, interrupt: Interrupt, screen: &Screen, voice: Voice) -> Result<ExitCode> {
    screen.note("Ctrl-C stops a reply, Ctrl-D leaves, /clear starts anew");
    let mut line = String::new();
    loop {
        screen.ask();
        line.clear();
        interrupt.at_once(true);
        let read = io::stdin().lock().read_line(&mut line);
        if read.map_err(|e| Error::io(Kind::Data, "read the question", "stdin", &e))? == 0 {
            screen.note("");
            return Ok(ExitCode::SUCCESS);
        }
        match line.trim() {
            "" => {}
            "/clear" => chat.clear(),
            "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
            question => match ask(chat, question, interrupt, screen) {
                // What went wrong in one answer does not end the conversation.
                Err(e) if matches!(e.kind, Kind::Env | Kind::Script | Kind::Numeric | Kind::Interrupted) => {
                    voice.fail(&e);
                }
                asked => drop(asked?),
            },
        }
    }
}

fn ask(chat: &mut Chat, question: &str, interrupt: Interrupt, screen: &Screen) -> Result<Answer> {
    interrupt.at_once(false);
    let mut printed = Ok(());
    let answer = chat.ask(question, &mut |piece| {
        if printed.is_ok() {
            printed = screen.piece(&piece);
        }
    })?;
    printed?;
    screen.done(&answer)?;
    Ok(answer)
}

/// Where replies go to (stdout), and everything around them (stderr).
struct Screen {
    output: OutputArgs,
    /// A person is there to read.
    person: bool,
    dim: Style,
}

impl Screen {
    fn new(output: OutputArgs) -> Self {
        let colour = !output.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let person = io::stderr().is_terminal();
        Self { output, person, dim: Style::new().dim().force_styling(colour && person) }
    }

    fn piece(&self, piece: &Piece<'_>) -> Result<()> {
        match piece {
            _ if self.output.json => Ok(()),
            Piece::Reply(text) => print(text),
            Piece::End => print("\n"),
            Piece::Tool(text) => {
                text.lines().for_each(|line| self.note(&format!("  | {line}")));
                Ok(())
            }
        }
    }

    fn done(&self, answer: &Answer) -> Result<()> {
        if self.output.json {
            let reply = json!({
                "event": "reply", "text": answer.text, "tool_calls": answer.tool_calls, "tokens": answer.tokens,
                "seconds": answer.seconds, "stopped": answer.stopped,
            });
            return print(&format!("{reply}\n"));
        }
        if self.person {
            let rate = answer.tokens as f64 / answer.seconds.max(1e-9);
            let stopped = if answer.stopped { ", stopped" } else { "" };
            self.note(&format!("{} tokens, {}, {rate:.0} tokens/s{stopped}", answer.tokens, duration(answer.seconds)));
        }
        Ok(())
    }

    /// A line beside the replies.
    fn note(&self, text: &str) {
        if !self.output.quiet && !self.output.json {
            // Nobody reads stderr: the replies still go to stdout.
            let _ = writeln!(io::stderr(), "{}", self.dim.apply_to(text));
        }
    }

    fn ask(&self) {
        if !self.output.json {
            let _ = write!(io::stderr(), "\n> ");
        }
    }
}
