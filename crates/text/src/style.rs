//! The style of prompts: tool-call format, variables of the chat template, reply prefix.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};

use super::describe;
use super::format::{AUTO, Format};
use super::marks::without_separators;
use super::pieces::Pieces;
use super::renderer::Renderer;
use super::tool_format::Preceding;
use super::tool_format::Turn;
use super::turns::Next;
use super::{Template, Tokenizer};
use r1_base::error::Result;
use r1_base::mdp::{DescribeTools, Message};

/// The selected tool-call format.
#[derive(Clone, Debug, PartialEq)]
pub enum FormatChoice {
    /// The built-in format that fits the chat template.
    Auto,
    Is(Format),
}

impl FormatChoice {
    /// `auto` or a built-in format.
    ///
    /// # Errors
    /// `Kind::Script` with the nearest names.
    pub fn named(name: &str) -> Result<Self> {
        if name == AUTO { Ok(Self::Auto) } else { Ok(Self::Is(Format::from_name(name)?)) }
    }

    pub(super) fn of(&self, template: &Template) -> Format {
        match self {
            Self::Auto => Format::of(template),
            Self::Is(format) => format.clone(),
        }
    }
}

/// Maximum number of styles that a renderer caches.
const STYLES: usize = 64;

/// The style of prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    /// The tool-call format.
    pub format: FormatChoice,
    /// Text at the start of every reply. It ends the prompt.
    pub reply_prefix: String,
    /// Variables of the chat template (`enable_thinking`).
    pub template_kwargs: Map<String, Value>,
    /// Texts in messages that spell special tokens become these tokens, as in transformers.
    pub special_tokens_in_messages: bool,
    /// Whether the host describes the tools in the system prompt.
    pub describe: DescribeTools,
}

impl Style {
    /// The default style with a format.
    pub fn of_format(format: FormatChoice) -> Self {
        Self {
            format,
            reply_prefix: String::new(),
            template_kwargs: Map::new(),
            special_tokens_in_messages: false,
            describe: DescribeTools::default(),
        }
    }
}

impl Renderer {
    /// A renderer with the same tokenizer and template for another format.
    ///
    /// # Errors
    /// `Kind::Model` if the template can't be used.
    pub fn with_format(&self, format: &FormatChoice) -> Result<Self> {
        let mut renderer = self.with(self.template.clone(), format)?;
        renderer.describe = self.describe;
        Ok(renderer)
    }

    /// Sets the tool that bare code calls; the default is `python`.
    #[must_use]
    pub fn with_code_tool(mut self, name: impl Into<String>) -> Self {
        self.code_tool = name.into();
        self
    }

    fn with(&self, template: Template, format: &FormatChoice) -> Result<Self> {
        let format = format.of(&template);
        Self::with_template(Arc::clone(&self.tokenizer), template, format)
    }

    fn in_style(mut self, style: &Style) -> Self {
        self.describe = style.describe;
        self.reply_prefix.clone_from(&style.reply_prefix);
        self.special_tokens_in_messages = style.special_tokens_in_messages;
        self
    }

    /// The same with variables of the template (`enable_thinking`); the template's texts are
    /// learned again.
    pub fn with_switches(&self, switches: Map<String, Value>) -> Result<Self> {
        let renderer = self.with(self.template.with_switches(switches), &FormatChoice::Is(self.format.clone()))?;
        let mut renderer = renderer.with_code_tool(&self.code_tool);
        renderer.describe = self.describe;
        renderer.reply_prefix.clone_from(&self.reply_prefix);
        renderer.special_tokens_in_messages = self.special_tokens_in_messages;
        Ok(renderer)
    }

    /// Loads the tokenizer and chat template of a model directory, in a style.
    ///
    /// # Errors
    /// Also `Kind::Script` for a variable that the chat template does not read.
    pub fn load_styled(dir: &Path, style: &Style) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = Template::of(&tokenizer)?.with_kwargs(&style.template_kwargs)?;
        let format = style.format.of(&template);
        Ok(Self::with_template(Arc::new(tokenizer), template, format)?.in_style(style))
    }

    /// The same tokenizer and template in another style.
    ///
    /// # Errors
    /// `Kind::Model` if the template can't be used.
    pub fn styled(&self, style: &Style) -> Result<Arc<Self>> {
        let mut made = self.styled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, renderer)) = made.iter().find(|(made_style, _)| made_style == style) {
            return Ok(Arc::clone(renderer));
        }
        let renderer = self.with(self.template.with_switches(style.template_kwargs.clone()), &style.format)?;
        let renderer = Arc::new(renderer.in_style(style).with_code_tool(&self.code_tool));
        // Every version of a script with its own formats adds styles.
        if made.len() == STYLES {
            made.remove(0);
        }
        made.push((style.clone(), Arc::clone(&renderer)));
        Ok(renderer)
    }

    /// The messages with their special tokens disabled, whatever the style is: for requests of a
    /// script (`r1.generate`) that show a model a text of others.
    pub fn without_special_tokens(&self, messages: &[Message]) -> Vec<Message> {
        self.marks.disabled(messages)
    }

    /// The ids of a conversation that a model judges, without a generation prompt. No message has
    /// special tokens, also no assistant's.
    pub fn judged(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.check_images(messages)?;
        let messages = self.marks.disabled_in_all(messages);
        let turns = self.turns(&messages, &Preceding::default(), &[])?;
        let mut pieces = Pieces::default();
        pieces.push(&self.render(&turns, &[], Next::End)?, false);
        Ok(pieces.encode(&self.tokenizer)?.0)
    }

    /// The text at the start of every reply; it ends the prompt ([`Renderer::prefixes`]).
    pub fn reply_prefix(&self) -> &str {
        &self.reply_prefix
    }

    /// Whether the prompt for these messages ends with the reply prefix. It does not if the policy
    /// continues its own turn.
    pub fn prefixes(&self, messages: &[Message], tools: &[Value]) -> Result<bool> {
        if self.reply_prefix.is_empty() {
            return Ok(false);
        }
        let turns = self.turns(messages, &Preceding::default(), tools)?;
        Ok(!turns.last().is_some_and(Turn::is_answered))
    }

    /// The text of a conversation, and with `prompt` the generation prompt.
    pub fn text(&self, messages: &[Message], tools: &[Value], prompt: bool) -> Result<String> {
        self.check_images(messages)?;
        let end = if prompt { Next::Prompt } else { Next::End };
        let text = self.render(&self.turns(messages, &Preceding::default(), tools)?, tools, end)?;
        Ok(without_separators(&text).into_owned())
    }

    /// The text of [`Renderer::prompt`].
    pub fn prompt_text(&self, messages: &[Message], tools: &[Value]) -> Result<String> {
        let mut text = self.text(messages, tools, true)?;
        if self.prefixes(messages, tools)? {
            text.push_str(&self.reply_prefix);
        }
        Ok(text)
    }

    /// The text that describes tools in the system prompt: of the recipe's own format, or of the
    /// host for a template that prints no tools (`env.describe_tools`).
    ///
    /// # Errors
    /// `Kind::Script` if a function of the recipe's format fails.
    pub fn description(&self, tools: &[Value]) -> Result<Option<String>> {
        if tools.is_empty() {
            return Ok(None);
        }
        match self.format.recipe_format().map_or(Ok(None), |recipe_format| recipe_format.describe(tools))? {
            Some(text) => Ok(Some(text)),
            None if describe::is_wanted(self.describe, &self.format, self.shown) => {
                describe::text(&self.format, tools, &self.code_tool)
            }
            None => Ok(None),
        }
    }

    /// The warning about tools that are in no prompt: the format leaves them to the chat template,
    /// and the template renders the same text without them. `None` if the policy sees the tools, or
    /// if the template refuses the conversation that is tried.
    pub fn hidden_tools(&self, tools: &[Value]) -> Option<String> {
        if tools.is_empty() || !self.format.rules().shows_tools || self.description(tools).ok()?.is_some() {
            return None;
        }
        let question = [Message::user("?")];
        if self.text(&question, tools, true).ok()? != self.text(&question, &[], true).ok()? {
            return None;
        }
        let names: Vec<String> =
            tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        Some(format!("the model's chat template does not print tools: the policy does not see {names}"))
    }

    /// [`Renderer::prompt`] without the reply prefix.
    pub fn prompt_without_prefix(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        Ok(self.pieces(messages, tools, Next::Prompt)?.encode(&self.tokenizer)?.0)
    }
}
