//! How prompts are written: the format of calls, variables of the chat template, the text that replies begin with.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};

use super::format::{Behind, Format, Turn};
use super::renderer::Renderer;
use super::turns::Next;
use super::{Template, Tokenizer};
use crate::error::Result;
use crate::mdp::Message;

/// How prompts are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    /// The name of the format of calls; `auto` is what the chat template asks for.
    pub format: String,
    /// Text that every reply begins with. It ends the prompt.
    pub reply_prefix: String,
    /// Variables of the chat template (`enable_thinking`).
    pub template_kwargs: Map<String, Value>,
}

impl Style {
    /// A format, and nothing else.
    pub fn of_format(format: &str) -> Self {
        Self { format: format.to_owned(), reply_prefix: String::new(), template_kwargs: Map::new() }
    }
}

impl Renderer {
    /// A renderer over the same tokenizer and template for another format, by name.
    ///
    /// # Errors
    /// `Kind::Script` if there is no such format.
    pub fn with_format(&self, name: &str) -> Result<Self> {
        let format = Format::named(name, &self.template)?;
        Self::with_template(Arc::clone(&self.tokenizer), self.template.clone(), format)
    }

    /// Names the tool that bare code calls; `python` unless told otherwise.
    #[must_use]
    pub fn with_code_tool(mut self, name: impl Into<String>) -> Self {
        self.code_tool = name.into();
        self
    }

    /// Reads tokenizer and chat template of a model directory, with a format by name; `auto` is the one that the template asks for.
    pub fn load_named(dir: &Path, format: &str) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = Template::of(&tokenizer)?;
        let format = Format::named(format, &template)?;
        Self::with_template(Arc::new(tokenizer), template, format)
    }

    /// The same with switches of the template set (`enable_thinking`), which may change all that was learnt of it.
    pub fn with_switches(&self, switches: Map<String, Value>) -> Result<Self> {
        let template = self.template.with_switches(switches);
        let renderer = Self::with_template(Arc::clone(&self.tokenizer), template, self.format)?;
        Ok(renderer.with_code_tool(&self.code_tool).with_reply_prefix(&self.reply_prefix))
    }

    /// The same in a style.
    ///
    /// # Errors
    /// Also `Kind::Script` for a variable that the chat template does not read.
    pub fn load_styled(dir: &Path, style: &Style) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = Template::of(&tokenizer)?.with_kwargs(&style.template_kwargs)?;
        let format = Format::named(&style.format, &template)?;
        Ok(Self::with_template(Arc::new(tokenizer), template, format)?.with_reply_prefix(&style.reply_prefix))
    }

    /// The same tokenizer and template in another style.
    ///
    /// # Errors
    /// `Kind::Script` for an unknown format.
    pub fn styled(&self, style: &Style) -> Result<Arc<Self>> {
        let mut made = self.styled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, renderer)) = made.iter().find(|(known, _)| known == style) {
            return Ok(Arc::clone(renderer));
        }
        let format = Format::named(&style.format, &self.template)?;
        let template = self.template.with_switches(style.template_kwargs.clone());
        let renderer = Self::with_template(Arc::clone(&self.tokenizer), template, format)?;
        let renderer = renderer.with_code_tool(&self.code_tool).with_reply_prefix(&style.reply_prefix);
        let renderer = Arc::new(renderer);
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
    pub fn prefixes(&self, messages: &[Message], tools: &[Value]) -> bool {
        let turns = || self.turns(messages, &Behind::default(), tools);
        !self.reply_prefix.is_empty() && !turns().last().is_some_and(Turn::is_answered)
    }

    /// [`Renderer::prompt`] without the reply prefix.
    pub fn prompt_without_prefix(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        Ok(self.pieces(messages, tools, Next::Prompt)?.encode(&self.tokenizer)?.0)
    }
}
