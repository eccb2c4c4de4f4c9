//! `r1 infer`: chat with a model in this process or behind a server, optionally with a recipe's
//! tools.

mod chat;
mod converse;
mod local;
pub(super) mod recipe;
mod remote;
mod screen;

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::args::{InferArgs, OutputArgs};
use super::failure::ErrorFormat;
use crate::config::{PolicySettings, Settings};
use crate::engine::{Engine, EngineOptions, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::script::{Script, Worker};
use crate::telemetry::{Interrupt, Reporter, ctrl_c};
use crate::text::{Format, FormatChoice, Renderer, Style};
use crate::train::Fetching;
use crate::{native, store, train};
use chat::{Answer, Backend, Chat};
use local::Local;
use recipe::Recipe;
use remote::Remote;
use screen::Screen;

/// Default maximum tokens of a reply if neither a flag, the recipe nor the model sets it.
const MAX_NEW_TOKENS: usize = 512;

pub(super) fn run(args: &InferArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    interrupt.at_once(true);
    if let Some(image) = &args.image {
        return Err(Error::new(Kind::Usage, "images are not supported: all models are text-only")
            .at_path(image)
            .hint("leave out --image and describe the image in the question"));
    }
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
            if answer.undone {
                screen.note("stopped");
            }
            Ok(if stopped { ExitCode::from(Kind::Interrupted.exit_code()) } else { ExitCode::SUCCESS })
        }
        None => converse::converse(&mut chat, interrupt, &screen, ErrorFormat::new(output.json, !output.no_color)),
    }
}

/// Opens the model or the server, and the recipe if there is one.
fn open(args: &InferArgs, interrupt: Interrupt, reporter: &Reporter) -> Result<Chat> {
    let script = args.script.as_ref().map(|path| load(args, path)).transpose()?;
    let mut settings = script.as_ref().map(|script| script.settings.clone()).unwrap_or_default();
    if script.is_none() {
        settings.env.reply_prefix = args.reply_prefix.clone().unwrap_or_default();
        settings.policy.template_kwargs = args.template_arg.iter().cloned().collect();
    }
    // The parser requires --model with --api-base.
    let (backend, renderer) = if let (Some(base), Some(model)) = (&args.api_base, &args.model) {
        let recipe = script.is_some().then_some(&settings);
        if settings.environments().iter().any(|(_, env)| !env.reply_prefix.is_empty()) {
            return Err(Error::new(
                Kind::Usage,
                "env.reply_prefix needs a model in this process: servers do not accept the start of \
                                                a reply",
            )
            .hint("leave out --api-base, or set env.reply_prefix to \"\""));
        }
        let format = script.as_ref().map(|script| remote::format(script.style()?.format)).transpose()?;
        let mut sampling_fields = server_sampling(args, recipe, format.as_ref());
        if !settings.policy.template_kwargs.is_empty() {
            let kwargs = settings.policy.template_kwargs.clone();
            sampling_fields.insert("chat_template_kwargs".to_owned(), Value::Object(kwargs));
        }
        let remote = Remote::new(base, model, sampling_fields, format, settings.policy.max_context)?;
        (Backend::Remote(Box::new(remote)), None)
    } else {
        let (local, renderer) = open_local(args, script.as_ref(), &settings, interrupt, reporter)?;
        (Backend::Local(Box::new(local)), Some(renderer))
    };
    let recipe = match &script {
        Some(script) => Some(Recipe::new(Worker::new(script, renderer)?)?),
        None => None,
    };
    Ok(Chat::new(backend, args.seed.unwrap_or(0), args.system.clone(), recipe, interrupt))
}

/// Loads the recipe with the prompt settings of the flags.
fn load(args: &InferArgs, path: &Path) -> Result<Script> {
    let script = Script::load(path, &[])?;
    let mut overrides = Vec::new();
    if let Some(prefix) = &args.reply_prefix {
        let of = |(at, _): &(String, _)| format!("{at}.reply_prefix={}", Value::from(prefix.as_str()));
        overrides.extend(script.settings.environments().iter().map(of));
    }
    overrides.extend(args.template_arg.iter().map(|(name, value)| format!("policy.template_kwargs.{name}={value}")));
    if overrides.is_empty() { Ok(script) } else { Script::load(path, &overrides) }
}

fn open_local(
    args: &InferArgs,
    script: Option<&Script>,
    settings: &Settings,
    interrupt: Interrupt,
    reporter: &Reporter,
) -> Result<(Local, Arc<Renderer>)> {
    let fetching = Fetching { reporter, interrupt: Some(interrupt) };
    let (name, model) = match (&args.hf, &args.model) {
        (Some(id), _) => (id.clone(), train::from_hub(id, fetching)?.display().to_string()),
        (None, Some(name)) if Path::new(name).exists() => {
            (name.clone(), store::find_model(Path::new(name))?.display().to_string())
        }
        (None, Some(name)) => (name.clone(), name.clone()),
        (None, None) => (settings.policy.model.clone(), settings.policy.model.clone()),
    };
    let style = match script {
        Some(script) => script.style()?,
        None => Style {
            format: FormatChoice::Auto,
            reply_prefix: settings.env.reply_prefix.clone(),
            template_kwargs: settings.policy.template_kwargs.clone(),
        },
    };
    let scripted = script.is_some();
    // The recipe's base belongs to the recipe's own model.
    let own = || settings.policy.base.clone();
    let base = args.base.clone().or_else(|| (args.model.is_none() && args.hf.is_none()).then(own)).unwrap_or_default();
    let policy = PolicySettings { model, base, init: None, lora: None, ..settings.policy.clone() };
    let (model, renderer, dir) = train::load_policy(&policy, &style, fetching)?;

    let mut sampling = settings.sampling.clone();
    if scripted {
        sampling = settings.eval.sampling(&sampling);
    } else {
        sampling = train::model_sampling(&dir, MAX_NEW_TOKENS, reporter)?;
    }
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.top_k = args.top_k.map_or(sampling.top_k, |k| k as usize);
    sampling.min_p = args.min_p.unwrap_or(sampling.min_p);
    sampling.repetition_penalty = args.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    sampling.max_new_tokens = args.max_new_tokens.map_or(sampling.max_new_tokens, |n| n as usize);
    for stop in renderer.stop_strings() {
        // Without tools no result continues the turn after a call.
        if scripted && !sampling.stop.contains(stop) {
            sampling.stop.push(stop.clone());
        }
    }
    let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
    let options = EngineOptions::for_chat(&model, policy.max_context);
    let engine = Engine::new(model, vocabulary, options)?;
    Ok((Local::new(name, engine, Arc::clone(&renderer), sampling), renderer))
}

/// The server's sampling parameters: from flags and recipe; others keep the server's defaults.
fn server_sampling(args: &InferArgs, recipe: Option<&Settings>, format: Option<&Format>) -> Map<String, Value> {
    let own = recipe.map(|settings| &settings.sampling);
    let ends = format.map(Format::stop_strings).unwrap_or_default();
    let mut stop: Vec<&str> =
        ends.iter().copied().chain(own.iter().flat_map(|own| &own.stop).map(String::as_str)).collect();
    stop.dedup();
    let temperature = args.temperature.or(recipe.map(|settings| settings.eval.temperature.unwrap_or(0.0)));
    let fields = [
        ("temperature", temperature.map(Value::from)),
        ("top_p", args.top_p.or(own.map(|own| own.top_p).filter(|&p| p < 1.0)).map(Value::from)),
        ("top_k", args.top_k.or(own.map(|own| own.top_k as u32).filter(|&k| k > 0)).map(Value::from)),
        ("min_p", args.min_p.or(own.map(|own| own.min_p).filter(|&p| p > 0.0)).map(Value::from)),
        (
            "repetition_penalty",
            args.repetition_penalty
                .or(own.filter(|own| own.penalises()).map(|own| own.repetition_penalty))
                .map(Value::from),
        ),
        ("max_tokens", args.max_new_tokens.or(own.map(|own| own.max_new_tokens as u32)).map(Value::from)),
        ("seed", args.seed.map(Value::from)),
        ("stop", Some(stop).filter(|stop| !stop.is_empty()).map(Value::from)),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|e| Error::io(Kind::Data, "read the question", "stdin", &e))?;
    Ok(text)
}

fn ask(chat: &mut Chat, question: &str, interrupt: Interrupt, screen: &Screen) -> Result<Answer> {
    interrupt.at_once(false);
    let mut printed = Ok(());
    let answer = chat.ask(question, &mut |piece| {
        if printed.is_ok() {
            printed = screen.piece(&piece);
        }
    });
    if answer.is_err() {
        // The error message starts on a new line.
        screen.piece(&chat::Piece::End)?;
    }
    let answer = answer?;
    printed?;
    screen.done(&answer)?;
    Ok(answer)
}
