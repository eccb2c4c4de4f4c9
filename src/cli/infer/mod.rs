//! `r1 infer`: chat with a model in this process or behind a server, optionally with a recipe's
//! tools.

mod answer;
mod backend;
mod batch;
mod chat;
mod converse;
mod images;
mod local;
pub(super) mod recipe;
mod remote;
mod screen;

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::args::OutputArgs;
use super::failure::ErrorFormat;
use super::infer_args::{InferArgs, MAX_NEW_TOKENS};
use super::resume_arg::refuse_both;
use super::set_threads;
use crate::config::{PolicySettings, Settings, Trainer, refuse_reply_prefix};
use crate::engine::{Engine, EngineOptions, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load;
use crate::mdp::{Sampling, Split, StreamSeed};
use crate::remote::ServerSampling;
use crate::rollout::Spec;
use crate::script::{Script, Worker};
use crate::telemetry::{Interrupt, Reporter, ctrl_c};
use crate::text::{Format, FormatChoice, Renderer, Style};
use crate::train::Agent;
use crate::{store, train};
use chat::{Backend, Chat, ChatScript, QuestionAnswer};
use local::Local;
use remote::RemoteModel;
use screen::Screen;

pub(super) fn run(args: &InferArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    interrupt.at_once(true);
    set_threads(args.threads);
    if let Some(word) = args.overrides.iter().find(|word| !word.contains('=')) {
        return Err(Error::new(Kind::Usage, format!("`{word}` is not a setting"))
            .at(word)
            .hint("settings are written as KEY=VALUE; a question is given by -p TEXT"));
    }
    if let (Some(input), Some(file)) = (&args.input, &args.output) {
        let rows = batch::RowReplies::open(input, file, args)?;
        let mut chat = open(args, interrupt, &output.reporter())?;
        interrupt.at_once(false);
        return batch::run(&mut chat, &rows, args, interrupt, &output.reporter());
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
    args.image.iter().try_for_each(|path| chat.show_image(path, false))?;
    args.video.iter().try_for_each(|path| chat.show_image(path, true))?;
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

/// The recipe of a conversation, and the run that it is from.
struct OpenRecipe {
    /// `None`: the model alone.
    script: Option<Script>,
    /// Of the run, in a chat with its model alone.
    style: Option<Style>,
    agent: Option<Agent>,
    /// The run or checkpoint that `--model` names.
    model: Option<PathBuf>,
}

/// Refuses flags beside settings with other values.
fn refuse_differing(args: &InferArgs) -> Result<()> {
    fn text<T: ToString>(value: Option<&T>) -> Option<String> {
        value.map(T::to_string)
    }
    refuse_both(
        &[
            ("--model", args.model.clone(), &["policy.model"]),
            ("--hf", args.hf.clone(), &["policy.model"]),
            ("--api-base", args.api_base.clone(), &["policy.api_base"]),
            ("--temperature", text(args.temperature.as_ref()), &["sampling.temperature", "eval.temperature"]),
            ("--top-p", text(args.top_p.as_ref()), &["sampling.top_p"]),
            ("--top-k", text(args.top_k.as_ref()), &["sampling.top_k"]),
            ("--min-p", text(args.min_p.as_ref()), &["sampling.min_p"]),
            ("--repetition-penalty", text(args.repetition_penalty.as_ref()), &["sampling.repetition_penalty"]),
            ("--max-new-tokens", text(args.max_new_tokens.as_ref()), &["sampling.max_new_tokens"]),
            ("--reply-prefix", args.reply_prefix.clone(), &["env.reply_prefix"]),
            ("--seed", text(args.seed.as_ref()), &["seed"]),
        ],
        &args.overrides,
    )
}

/// Loads the recipe: the script of `--script`, of the model's run, or both.
fn recipe(args: &InferArgs, reporter: &Reporter) -> Result<OpenRecipe> {
    refuse_differing(args)?;
    let model = args.model.as_ref().filter(|_| args.api_base.is_none()).map(Path::new);
    let run = model.map(|model| Agent::of_model(model, &args.runs_dir)).transpose()?.flatten();
    let model = run.as_ref().and_then(Agent::model).map(Path::to_owned);
    let agent = match (&args.script, run) {
        (None, run) => run,
        (Some(path), run) => {
            let named = Agent::find(path, &args.runs_dir)?;
            Some(match run {
                Some(run) if named.is_file() => run.with_script(path),
                _ => named,
            })
        }
    };
    let Some(agent) = agent.filter(|_| !args.plain) else {
        if let Some(setting) = args.overrides.first() {
            let error = Error::new(Kind::Usage, format!("there is no recipe that has the setting `{setting}`"));
            return Err(error.at(setting).hint("settings belong to a recipe: --script SCRIPT, or --model RUN"));
        }
        return Ok(OpenRecipe { script: None, style: None, agent: None, model });
    };
    if args.model.is_none() && args.hf.is_none() && args.api_base.is_none() {
        agent.refuse_untrained(&args.overrides)?;
    }
    let mut typed = args.overrides.clone();
    let mut opened = agent.open(&typed)?;
    if let Some(prefix) = &args.reply_prefix {
        let of = |(at, _): &(String, _)| format!("{at}.reply_prefix={}", Value::from(prefix.as_str()));
        typed.extend(opened.script.settings.environments().iter().map(of));
    }
    typed.extend(args.template_arg.iter().map(|(name, value)| format!("policy.template_kwargs.{name}={value}")));
    if typed.len() > args.overrides.len() {
        opened = agent.open(&typed)?;
    }
    agent.in_words(&opened).iter().for_each(|line| reporter.info(line));
    let script = opened.script;
    // Supervised training has no environment: the run's format and prefix are used.
    if args.script.is_none() && matches!(script.settings.trainer, Trainer::Sft(_)) {
        return Ok(OpenRecipe { style: Some(script.style()?), script: None, agent: Some(agent), model });
    }
    Ok(OpenRecipe { script: Some(script), style: None, agent: Some(agent), model })
}

/// Opens the model or the server, and the recipe if there is one.
fn open(args: &InferArgs, interrupt: Interrupt, reporter: &Reporter) -> Result<Chat> {
    let OpenRecipe { script, style, agent, model: run } = recipe(args, reporter)?;
    let mut settings = script.as_ref().map(|script| script.settings.clone()).unwrap_or_default();
    if script.is_none() {
        settings.env.reply_prefix = args.reply_prefix.clone().unwrap_or_default();
        settings.policy.template_kwargs = args.template_arg.iter().cloned().collect();
    }
    let base = args.api_base.clone().unwrap_or_else(|| settings.policy.api_base.clone());
    let is_local = args.api_base.is_none() && (args.hf.is_some() || args.base.is_some());
    let seed = args.seed.unwrap_or(0);
    let mut spec = Spec::new(Split::Eval, 0, &settings);
    (spec.env_seed, spec.seed) = (seed, StreamSeed { seed, ..StreamSeed::default() });
    let is_recipe = script.is_some();
    let script = script.map_or_else(|| Script::embedded("chat", include_str!("../../../lua/chat.lua")), Ok)?;
    let fetching = Fetching { reporter, interrupt: Some(interrupt) };
    let (backend, renderer) = if !base.is_empty() && !is_local {
        refuse_reply_prefix(&settings)?;
        // The parser requires --model with --api-base.
        let model = args.model.clone().unwrap_or_else(|| settings.policy.model.clone());
        // A recipe's context policy counts tokens.
        let renderer = train::counting_renderer(&script, fetching)?;
        let format = is_recipe.then(|| renderer.format().clone());
        let mut of_recipe = settings.eval.sampling(&settings.sampling);
        with_flags(&mut of_recipe, args);
        let sampling = server_sampling(args, is_recipe.then_some(&of_recipe), &settings, format.as_ref());
        let options = remote::options(&base, args.api.unwrap_or(settings.policy.api), &model);
        spec.sampling = Arc::new(of_recipe);
        (spec.served, spec.max_context) = (true, settings.policy.max_context);
        (Backend::Remote(Box::new(RemoteModel::new(options, sampling, format)?)), renderer)
    } else {
        let recipe = is_recipe.then_some(&script);
        let (local, renderer, sampling) = open_local(args, recipe, style, run, &settings, fetching)?;
        (spec.sampling, spec.max_context) = (Arc::new(sampling), local.engine.capacity());
        (Backend::Local(Box::new(local)), renderer)
    };
    let recorded = agent.as_ref().and_then(Agent::recorded_task);
    let worker = Worker::new(&script, Some(Arc::clone(&renderer)))?;
    let script = ChatScript { worker, renderer, is_recipe, recorded };
    Chat::new(backend, script, spec, args.system.clone(), interrupt)
}

/// Opens a model in this process. `style` is the one of its run, in a chat with the model alone;
/// `run` is the run or checkpoint that `--model` names.
fn open_local(
    args: &InferArgs,
    script: Option<&Script>,
    style: Option<Style>,
    run: Option<PathBuf>,
    settings: &Settings,
    fetching: Fetching<'_>,
) -> Result<(Local, Arc<Renderer>, Sampling)> {
    let (name, model) = match (&args.hf, &args.model) {
        (Some(id), _) => (id.clone(), load::from_hub(id, fetching)?.display().to_string()),
        (None, Some(name)) => {
            let run_path = run.unwrap_or_else(|| PathBuf::from(name));
            (name.clone(), store::find_model(&run_path)?.display().to_string())
        }
        (None, None) => (settings.policy.model.clone(), settings.policy.model.clone()),
    };
    let style = match (script, style) {
        (Some(script), _) => script.style()?,
        (None, Some(style)) => Style { reply_prefix: args.reply_prefix.clone().unwrap_or(style.reply_prefix), ..style },
        (None, None) => Style {
            format: FormatChoice::Auto,
            reply_prefix: settings.env.reply_prefix.clone(),
            template_kwargs: settings.policy.template_kwargs.clone(),
            special_tokens_in_messages: settings.env.special_tokens_in_messages,
            describe: settings.env.describe_tools,
        },
    };
    let scripted = script.is_some();
    // The recipe's base belongs to the recipe's own model.
    let recipe_base = || settings.policy.base.clone();
    let base =
        args.base.clone().or_else(|| (args.model.is_none() && args.hf.is_none()).then(recipe_base)).unwrap_or_default();
    let policy = PolicySettings { model, base, init: None, lora: None, ..settings.policy.clone() };
    let (model, renderer, dir) = load::load_policy(&policy, &style, fetching)?;

    let mut sampling = settings.sampling.clone();
    if scripted {
        sampling = settings.eval.sampling(&sampling);
    } else {
        sampling = train::model_sampling(&dir, MAX_NEW_TOKENS, fetching.reporter)?;
        let flags = args.top_p.is_some() || args.top_k.is_some() || args.min_p.is_some();
        if !flags && !train::sets_sampling(&dir) {
            // As in transformers, whose default is greedy.
            sampling.temperature = 0.0;
        }
    }
    with_flags(&mut sampling, args);
    for stop in renderer.stop_strings() {
        // Without tools no result continues the turn after a call.
        if scripted && !sampling.stop.contains(stop) {
            sampling.stop.push(stop.clone());
        }
    }
    let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
    let options = EngineOptions::for_chat(&model, policy.max_context);
    let engine = Engine::new(model, vocabulary, options)?;
    Ok((Local { name, engine }, renderer, sampling))
}

/// Sampling settings of flags.
fn with_flags(sampling: &mut Sampling, args: &InferArgs) {
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.top_k = args.top_k.map_or(sampling.top_k, |k| k as usize);
    sampling.min_p = args.min_p.unwrap_or(sampling.min_p);
    sampling.repetition_penalty = args.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    sampling.max_new_tokens = args.max_new_tokens.map_or(sampling.max_new_tokens, |n| n as usize);
}

/// The sampling parameters of requests to a server: flags, then settings of the recipe. The server
/// has defaults for the others.
fn server_sampling(
    args: &InferArgs,
    recipe: Option<&Sampling>,
    settings: &Settings,
    format: Option<&Format>,
) -> ServerSampling {
    // A flag is sent also if it is the default of r1.
    let of_recipe = recipe.map(|sampling| ServerSampling::of(sampling, &Map::new())).unwrap_or_default();
    let sampling = ServerSampling {
        temperature: args.temperature.or(of_recipe.temperature),
        top_p: args.top_p.or(of_recipe.top_p),
        top_k: args.top_k.map(|k| k as usize).or(of_recipe.top_k),
        min_p: args.min_p.or(of_recipe.min_p),
        repetition_penalty: args.repetition_penalty.or(of_recipe.repetition_penalty),
        max_tokens: args.max_new_tokens.map(|n| n as usize).or(of_recipe.max_tokens),
        ..of_recipe
    };
    let ends = format.map(Format::stop_strings).unwrap_or_default();
    let mut stop: Vec<String> = ends.into_iter().map(str::to_owned).chain(sampling.stop).collect();
    stop.dedup();
    let template_kwargs = settings.policy.template_kwargs.clone();
    ServerSampling { seed: args.seed, stop, template_kwargs, ..sampling }
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|e| Error::io(Kind::Data, "read the question", "stdin", &e))?;
    Ok(text)
}

fn ask(chat: &mut Chat, question: &str, interrupt: Interrupt, screen: &Screen) -> Result<QuestionAnswer> {
    interrupt.at_once(false);
    let mut printed = Ok(());
    let answer = chat.ask(question, &mut |piece| {
        if printed.is_ok() {
            printed = screen.piece(&piece);
        }
    });
    if answer.is_err() {
        // The error message starts on a new line.
        screen.piece(&chat::AnswerEvent::End)?;
    }
    let answer = answer?;
    printed?;
    screen.done(&answer)?;
    Ok(answer)
}
