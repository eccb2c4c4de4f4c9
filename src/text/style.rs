//! How prompts are written: the format of calls, variables of the chat template, the text that replies begin with.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};

use super::format::{AUTO, Behind, Format, Turn};
use super::pieces::said;
use super::renderer::{Renderer, refuse_images};
use super::turns::Next;
use super::{Template, Tokenizer};
use crate::error::Result;
use crate::mdp::Message;

/// Which format of calls.
#[derive(Clone, Debug, PartialEq)]
pub enum FormatChoice {
    /// The built-in one that fits the chat template.
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

/// Styles that a renderer keeps.
const STYLES: usize = 64;

/// How prompts are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    /// The format of calls.
    pub format: FormatChoice,
    /// Text that every reply begins with. It ends the prompt.
    pub reply_prefix: String,
    /// Variables of the chat template (`enable_thinking`).
    pub template_kwargs: Map<String, Value>,
}

impl Style {
    /// A format, and nothing else.
    pub fn of_format(format: FormatChoice) -> Self {
        Self { format, reply_prefix: String::new(), template_kwargs: Map::new() }
    }
}

impl Renderer {
    /// A renderer over the same tokenizer and template for another format.
    ///
    /// # Errors
    /// `Kind::Model` if the template can't be used.
    pub fn with_format(&self, format: &FormatChoice) -> Result<Self> {
        let format = format.of(&self.template);
        Self::with_template(Arc::clone(&self.tokenizer), self.template.clone(), format)
    }

    /// Names the tool that bare code calls; `python` unless told otherwise.
    #[must_use]
    pub fn with_code_tool(mut self, name: impl Into<String>) -> Self {
        self.code_tool = name.into();
        self
    }

    /// The same with switches of the template set (`enable_thinking`), which may change all that was learnt of it.
    pub fn with_switches(&self, switches: Map<String, Value>) -> Result<Self> {
        let template = self.template.with_switches(switches);
        let renderer = Self::with_template(Arc::clone(&self.tokenizer), template, self.format.clone())?;
        Ok(renderer.with_code_tool(&self.code_tool).with_reply_prefix(&self.reply_prefix))
    }

    /// Reads tokenizer and chat template of a model directory, in a style.
    ///
    /// # Errors
    /// Also `Kind::Script` for a variable that the chat template does not read.
    pub fn load_styled(dir: &Path, style: &Style) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = Template::of(&tokenizer)?.with_kwargs(&style.template_kwargs)?;
        let format = style.format.of(&template);
        Ok(Self::with_template(Arc::new(tokenizer), template, format)?.with_reply_prefix(&style.reply_prefix))
    }

    /// The same tokenizer and template in another style.
    ///
    /// # Errors
    /// `Kind::Model` if the template can't be used.
    pub fn styled(&self, style: &Style) -> Result<Arc<Self>> {
        let mut made = self.styled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, renderer)) = made.iter().find(|(known, _)| known == style) {
            return Ok(Arc::clone(renderer));
        }
        let format = style.format.of(&self.template);
        let template = self.template.with_switches(style.template_kwargs.clone());
        let renderer = Self::with_template(Arc::clone(&self.tokenizer), template, format)?;
        let renderer = renderer.with_code_tool(&self.code_tool).with_reply_prefix(&style.reply_prefix);
        let renderer = Arc::new(renderer);
        // Every version of a script with formats of its own has styles of its own.
        if made.len() == STYLES {
            made.remove(0);
        }
        made.push((style.clone(), Arc::clone(&renderer)));
        Ok(renderer)
    }

    /// Sets the text that every reply begins with.
    #[must_use]
    pub(super) fn with_reply_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.reply_prefix);
        self
    }

    /// Text that every reply begins with; it is the end of the prompt ([`Renderer::prefixes`]).
    pub fn reply_prefix(&self) -> &str {
        &self.reply_prefix
    }

    /// Whether the prompt for these messages ends with the reply prefix. Where the policy goes on inside its own turn, it
    /// does not.
    pub fn prefixes(&self, messages: &[Message], tools: &[Value]) -> Result<bool> {
        if self.reply_prefix.is_empty() {
            return Ok(false);
        }
        let turns = self.turns(messages, &Behind::default(), tools)?;
        Ok(!turns.last().is_some_and(Turn::is_answered))
    }

    /// The text of [`Renderer::marked`](Self::marked): a conversation, and with `prompt` the beginning of a reply.
    pub fn text(&self, messages: &[Message], tools: &[Value], prompt: bool) -> Result<String> {
        refuse_images(messages)?;
        let end = if prompt { Next::Prompt } else { Next::End };
        let text = self.render(&self.turns(messages, &Behind::default(), tools)?, tools, end)?;
        Ok(said(&text).into_owned())
    }

    /// The text of [`Renderer::prompt`].
    pub fn prompt_text(&self, messages: &[Message], tools: &[Value]) -> Result<String> {
        let mut text = self.text(messages, tools, true)?;
        if self.prefixes(messages, tools)? {
            text.push_str(&self.reply_prefix);
        }
        Ok(text)
    }

    /// [`Renderer::prompt`] without the reply prefix.
    pub fn prompt_without_prefix(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        Ok(self.pieces(messages, tools, Next::Prompt)?.encode(&self.tokenizer)?.0)
    }
}
