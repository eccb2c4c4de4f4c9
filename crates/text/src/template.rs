//! Chat templates rendered as in transformers: Jinja2 with `trim_blocks`, `lstrip_blocks`, loop
//! controls, Python's methods and formatting, `tojson`, `raise_exception`, `strftime_now`; `{%
//! generation %}` tags are accepted.
//!
//! A template is read from `chat_template.jinja`, or `chat_template` in tokenizer_config.json (a
//! string, or a list with names). With tools, the template `tool_use` is rendered, if the list or
//! the folder `additional_chat_templates` has one, as in transformers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use chrono::format::{Item, StrftimeItems};
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value as Jinja, context};
use r1_vision::TILE_TOKEN;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::mark_text::{restored, to_parts};
use super::time_limit::TimeLimit;
use super::tokenizer::{TEMPLATES, Tokenizer};
use super::{filters, jinja, train_tokenizer};
use r1_base::error::{Error, Kind, Result, suggest};

/// Maximum instructions per rendering: a few seconds. The longest real conversations need a
/// hundredth of it.
const FUEL: u64 = 50_000_000;

/// Maximum CPU time of one rendering, in case single instructions take long.
const TIME: Duration = Duration::from_secs(20);

/// Maximum bytes of a rendering: millions of tokens, which are encoded in some ten seconds.
const LONGEST: usize = 1 << 25;

/// The same limits for probes: short conversations, but several hundred of them.
const PROBE_FUEL: u64 = FUEL / 50;
const PROBE_LONGEST: usize = 1 << 20;
const PROBE_TIME: Duration = Duration::from_secs(5);

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "chat_template (tool_use)";

/// A compiled chat template, with the tokens it may print.
#[derive(Clone)]
pub struct Template {
    environment: Environment<'static>,
    /// The source of the template: `models/x/chat_template.jinja`.
    origin: String,
    /// The text of the template, followed by the template for tools.
    source: String,
    /// Tokens by name: `bos_token`, `pad_token` …
    tokens: BTreeMap<String, String>,
    has_tool_use: bool,
    is_default: bool,
    /// Variables set in every rendering (`enable_thinking`).
    switches: Map<String, Value>,
    /// Maximum bytes of a rendering.
    longest: usize,
    /// Whether contents are lists of parts, as in the templates of Idefics3 and SmolVLM.
    takes_parts: bool,
    /// For probes: a rendering exceeded a limit, so no other is tried.
    spent: Option<Arc<AtomicBool>>,
}

impl Template {
    /// The chat template of a tokenizer's directory; plain ChatML if there is none (see
    /// [`Template::is_default`]).
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let config = tokenizer.json("tokenizer_config.json")?;
        let new = Self::of_files(tokenizer, &config)?;
        Ok(Self { tokens: tokenizer.named_tokens()?, ..new })
    }

    fn of_files(tokenizer: &Tokenizer, config: &Value) -> Result<Self> {
        let tool_use = tokenizer.file(&format!("{TEMPLATES}/tool_use.jinja"));
        let tool_use = tool_use.as_deref();
        if let Some(source) = tokenizer.file("chat_template.jinja") {
            return Self::new(&source, tool_use, &format!("{}/chat_template.jinja", tokenizer.origin()), "", "");
        }
        let origin = format!("{}/tokenizer_config.json: chat_template", tokenizer.origin());
        match config.get("chat_template") {
            None | Some(Value::Null) => {
                let new = Self::new(train_tokenizer::TEMPLATE, tool_use, "the built-in ChatML template", "", "")?;
                Ok(Self { is_default: true, ..new })
            }
            Some(Value::String(source)) => Self::new(source, tool_use, &origin, "", ""),
            Some(Value::Array(named)) => {
                let find = |name: &str| {
                    let entry = named.iter().find(|entry| entry["name"] == name)?;
                    entry["template"].as_str()
                };
                let first = named.first().and_then(|entry| entry["template"].as_str());
                let default = find("default").or(first).ok_or_else(|| {
                    Error::new(Kind::Model, "the list of chat templates has no `default`").at(&origin)
                })?;
                Self::new(default, tool_use.or(find("tool_use")), &origin, "", "")
            }
            Some(_) => Err(Error::new(Kind::Model, "chat_template is neither a string nor a list").at(&origin)),
        }
    }

    /// Compiles a template; `tool_use` is rendered instead if there are tools. A token that is
    /// empty is undefined in the template.
    pub fn new(source: &str, tool_use: Option<&str>, origin: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        // Read once, so that a conversation's prompt does not change at midnight during a run.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        Self::at_time(source, tool_use, origin, (bos_token, eos_token), now)
    }

    pub(super) fn at_time(
        source: &str,
        tool_use: Option<&str>,
        origin: &str,
        (bos_token, eos_token): (&str, &str),
        now: u64,
    ) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        jinja::register(&mut environment);
        filters::register(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, RAISED).with_source(Raised(message)))
        });
        environment.add_function("strftime_now", move |format: String, _rest: Kwargs| strftime(&format, now));
        let mut new = Self {
            environment,
            origin: origin.to_owned(),
            source: format!("{source}\n{}", tool_use.unwrap_or_default()),
            tokens: [("bos_token", bos_token), ("eos_token", eos_token)]
                .into_iter()
                .filter(|(_, token)| !token.is_empty())
                .map(|(name, token)| (name.to_owned(), token.to_owned()))
                .collect(),
            has_tool_use: tool_use.is_some(),
            is_default: false,
            switches: Map::new(),
            longest: LONGEST,
            takes_parts: false,
            spent: None,
        };
        for (name, source) in [(DEFAULT, Some(source)), (TOOL_USE, tool_use)] {
            let Some(source) = source else { continue };
            let translated = jinja::translate(&source.replace("\r\n", "\n")).map_err(|line| {
                Error::new(Kind::Model, "the chat template can't be read: a tag has more than 2,000 words")
                    .at(format!("{}:{line}", new.origin))
            })?;
            let added = new.environment.add_template_owned(name, translated.text);
            added.map_err(|error| new.explain(&error, Kind::Model, "the chat template can't be read"))?;
            if let Some((line, expression)) = translated.unread {
                let message = format!("the chat template can't be read: `{expression}` is not supported");
                return Err(Error::new(Kind::Model, message).at(format!("{}:{line}", new.origin)));
            }
        }
        let parts = json!([{ "type": "image" }, { "type": "text", "text": "probe" }]);
        let printed = new.for_probes().render(&json!([{ "role": "user", "content": parts }]), None, false);
        new.takes_parts = printed.is_ok_and(|text| text.contains(TILE_TOKEN) && text.contains("probe"));
        Ok(new)
    }

    /// Whether contents are lists of parts, for which the template prints `<image>` itself.
    pub(super) fn takes_parts(&self) -> bool {
        self.takes_parts
    }

    /// The template with variables set for every rendering.
    #[must_use]
    pub fn with_switches(&self, switches: Map<String, Value>) -> Self {
        Self { switches, ..self.clone() }
    }

    /// The same, for variables set by a user.
    ///
    /// # Errors
    /// [`Kind::Script`] for a variable that the template does not read.
    pub fn with_kwargs(&self, kwargs: &Map<String, Value>) -> Result<Self> {
        /// Variables that every rendering sets.
        const OWN: [&str; 6] = ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];
        for name in kwargs.keys() {
            if OWN.contains(&name.as_str()) {
                let message = format!("`policy.template_kwargs.{name}` is what every prompt sets itself");
                return Err(Error::new(Kind::Script, message));
            }
            if !self.reads(name) {
                let message = format!("the chat template does not read `{name}` (policy.template_kwargs)");
                let mut variables: Vec<String> = [DEFAULT, TOOL_USE]
                    .iter()
                    .filter_map(|part| self.environment.get_template(part).ok())
                    .flat_map(|template| template.undeclared_variables(false))
                    .filter(|variable| {
                        !OWN.contains(&variable.as_str())
                            && !self.tokens.contains_key(variable)
                            && self.environment.globals().all(|(global, _)| global != variable)
                    })
                    .collect();
                variables.sort_unstable();
                variables.dedup();
                let hint = if variables.is_empty() {
                    "it has no variables of its own".to_owned()
                } else {
                    suggest(name, variables.iter().map(String::as_str))
                };
                return Err(Error::new(Kind::Script, message).at(&self.origin).hint(hint));
            }
        }
        Ok(self.with_switches(kwargs.clone()))
    }

    /// Whether the template contains a name as a word.
    fn reads(&self, name: &str) -> bool {
        let word = |letter: char| letter.is_alphanumeric() || letter == '_';
        !name.is_empty()
            && self
                .source
                .match_indices(name)
                .any(|(at, _)| !self.source[..at].ends_with(word) && !self.source[at + name.len()..].starts_with(word))
    }

    /// A copy for probes. Its limits are low, and after the first rendering that exceeds them no
    /// other is tried, so that loading ends soon for any template.
    #[must_use]
    pub(super) fn for_probes(&self) -> Self {
        let mut probe = Self { longest: PROBE_LONGEST, spent: Some(Arc::default()), ..self.clone() };
        probe.environment.set_fuel(Some(PROBE_FUEL));
        probe
    }

    /// Renders a conversation. `messages` is any value that serialises to a list of messages as in
    /// transformers; `tools` is `None` if there are none.
    pub fn render(
        &self,
        messages: &impl Serialize,
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let (mut messages, mut marks) = (Jinja::from_serialize(messages), Vec::new());
        if self.takes_parts {
            let mut values = serde_json::to_value(&messages).unwrap_or_default();
            marks = to_parts(&mut values);
            messages = Jinja::from_serialize(&values);
        }
        let text = self.render_values(&messages, tools, add_generation_prompt)?;
        Ok(if marks.is_empty() { text } else { restored(&text, &marks) })
    }

    fn render_values(&self, messages: &Jinja, tools: Option<&[Value]>, add_generation_prompt: bool) -> Result<String> {
        let name = if tools.is_some() && self.has_tool_use { TOOL_USE } else { DEFAULT };
        let context = context! {
            messages,
            tools => Jinja::from_serialize(tools),
            documents => (),
            add_generation_prompt,
            ..Jinja::from_serialize(&self.tokens),
        };
        if self.switches.is_empty() {
            return self.render_with(name, context);
        }
        self.render_with(name, context! { ..Jinja::from_serialize(&self.switches), ..context })
    }

    fn render_with(&self, name: &str, context: Jinja) -> Result<String> {
        let what = "the chat template can't render this conversation";
        if self.spent.as_ref().is_some_and(|spent| spent.load(Relaxed)) {
            return Err(Error::new(Kind::Script, format!("{what}: others took too much")).at(&self.origin));
        }
        let _limit = TimeLimit::new(if self.spent.is_some() { PROBE_TIME } else { TIME });
        let mut out = BoundedText { text: Vec::new(), limit: self.longest };
        let template = self.environment.get_template(name);
        template.and_then(|template| template.render_captured_to(context, &mut out).map(drop)).map_err(|error| {
            if let Some(spent) = self.spent.as_ref().filter(|_| over_limit(&error)) {
                spent.store(true, Relaxed);
            }
            self.explain(&error, Kind::Script, what)
        })?;
        // Templates and values are valid UTF-8.
        Ok(String::from_utf8_lossy(&out.text).into_owned())
    }

    /// Whether the template's source contains a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// Whether plain ChatML replaces a missing template. Callers warn about it.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// The error of a failed rendering, with the template's line.
    fn explain(&self, error: &minijinja::Error, kind: Kind, what: &str) -> Error {
        let line = error.line().map_or_else(|| self.origin.clone(), |line| format!("{}:{line}", self.origin));
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = source {
            if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
                let message: String = message.chars().take(RAISED_CHARACTERS).collect();
                return Error::new(Kind::Script, format!("the chat template refuses this conversation: {message}"))
                    .at(line);
            }
            source = inner.source();
        }
        if error.kind() == ErrorKind::OutOfFuel {
            let steps = format!("it takes more than {FUEL} steps");
            let why = error.detail().filter(|detail| detail.starts_with("it ")).unwrap_or(&steps);
            return Error::new(kind, format!("{what}: {why}"))
                .at(line)
                .hint("look for a loop that never ends in the chat template");
        }
        if error.kind() == ErrorKind::WriteFailure {
            return Error::new(kind, format!("{what}: the text would have more than {} bytes", self.longest))
                .at(line)
                .hint("look for a loop that never ends in the chat template, or shorten the messages");
        }
        let detail =
            error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
        Error::new(kind, format!("{what}: {detail}")).at(line)
    }
}

/// Whether a rendering exceeded a limit of instructions, memory or time.
fn over_limit(error: &minijinja::Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure)
}

/// The output of a rendering, at most `limit` bytes.
struct BoundedText {
    text: Vec<u8>,
    limit: usize,
}

impl std::io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(std::io::Error::other(format!("a prompt of more than {} bytes", self.limit)));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const RAISED: &str = "raise_exception";

/// Characters of its message that an error shows.
const RAISED_CHARACTERS: usize = 1000;

/// The message of `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// `datetime.now().strftime(format)`, in UTC so that it does not depend on the machine.
fn strftime(format: &str, now: u64) -> Result<String, minijinja::Error> {
    let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
    let time = i64::try_from(now).ok().and_then(|now| DateTime::from_timestamp(now, 0)).unwrap_or_default();
    if items.contains(&Item::Error) {
        let message = format!("strftime_now: unknown code in `{format}`");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(time.format_with_items(items.into_iter()).to_string())
}

#[cfg(test)]
mod jinja2;
#[cfg(test)]
mod tests;
