//! Messages to prompt ids, replies to calls: tokenizer, chat template and tool-call format. A
//! conversation that continues after a reply is extended in `extend.rs`.

use std::path::Path;
use std::sync::{Arc, Mutex};

use r1_vision::Images;
use serde_json::{Map, Value, json};

use super::describe::{self, ToolSupport};
use super::format::{CODE_TOOL, Format};
use super::formats::native::{Native, TemplateSupport};
use super::marks::Marks;
use super::pieces::Pieces;
use super::stream::ReplyStream;
use super::style::{FormatChoice, Style};
use super::tool_format::{Preceding, Reply, Turn};
use super::turns::{Between, Next};
use super::{Template, Tokenizer, image_marks};
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{DescribeTools, Message, Role};

/// Renders conversations for one policy. Every method is a pure function of its arguments.
pub struct Renderer {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Template,
    pub(super) format: Format,
    /// The tool that bare code calls.
    pub(super) code_tool: String,
    ability: TemplateSupport,
    pub(super) between: Option<Between>,
    /// The text that the template prints before an assistant's content; after it comes the first of
    /// `ends`.
    pub(super) before_reply: String,
    pub(super) marker: String,
    /// The generation prompt; it starts with the same text as `before_reply`.
    generation_prompt: String,
    /// All texts that may end an assistant's turn in a rendering, the end-of-turn token first.
    pub(super) ends: Vec<String>,
    /// The generation prompt opens a `<think>` block.
    pub(super) opens_thinking: bool,
    /// The message field of reasoning in the template: `reasoning_content` or `thinking`.
    reasoning_field: Option<&'static str>,
    pub(super) stop_ids: Arc<Vec<u32>>,
    stop_strings: Vec<String>,
    pub(super) reply_prefix: String,
    /// The same tokenizer and template in other styles, created on first use.
    pub(super) styled: Mutex<Vec<(Style, Arc<Self>)>>,
    /// Tokens that are disabled in messages.
    pub(super) marks: Marks,
    pub(super) special_tokens_in_messages: bool,
    pub(super) describe: DescribeTools,
    /// What the template prints of tools and system messages.
    pub(super) shown: ToolSupport,
}

/// Fields in which templates expect reasoning.
const REASONING_FIELDS: [&str; 2] = ["reasoning_content", "thinking"];

/// Marks a position in a rendering; a private-use character, so that no template strips it.
const HERE: &str = "\u{F8FF}here\u{F8FF}";

impl Renderer {
    /// Loads tokenizer and chat template of a model directory; `auto` is the format that fits it.
    ///
    /// # Errors
    /// `Kind::Script` if there is no such format; `Kind::Model` for files that can't be read.
    pub fn load(dir: &Path, format: &str) -> Result<Self> {
        Self::load_styled(dir, &Style::of_format(FormatChoice::named(format)?))
    }

    pub(super) fn with_template(tokenizer: Arc<Tokenizer>, template: Template, format: Format) -> Result<Self> {
        let probed = template.for_probes();
        // What is printed before a message can depend on an image in it.
        let between = if template.takes_parts() { None } else { Between::from_template(&probed) };
        let render = |messages: Value, prompt: bool| probed.render(&messages, None, prompt);
        let user = json!({"role": "user", "content": "u"});
        let question = render(json!([user]), false).unwrap_or_default();
        let rendered = render(json!([user]), true).unwrap_or_default();
        let prompt = rendered.strip_prefix(&question).unwrap_or_default();
        let complete = render(json!([user, {"role": "assistant", "content": HERE}]), false).unwrap_or_default();
        let reply = complete.strip_prefix(&question).unwrap_or_default();
        // The common start of all replies; some positions also have a `<think>`.
        let same = reply.chars().zip(prompt.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let before_reply = prompt[..same].split("<think>").next().unwrap_or_default();
        let after = reply.split_once(HERE).map_or("", |(_, after)| after);
        let first = tokenizer.encode(after)?.first().and_then(|&id| Some((id, tokenizer.added_token(id)?)));
        let marker = first.as_ref().map(|(_, text)| text.clone()).filter(|text| after.starts_with(text.as_str()));
        let marker = marker.unwrap_or_default();
        let thinks = |field: &&str| {
            let mut message = json!({"role": "assistant", "content": "c"});
            message[*field] = HERE.into();
            render(json!([user, message]), false).is_ok_and(|text| text.contains(HERE))
        };
        let result = json!({"role": "tool", "content": HERE, "name": "f", "tool_call_id": "call00001"});
        let answered = render(json!([user, {"role": "assistant", "content": "c"}, result]), false);
        let tool_format = format.rules();
        let ability = TemplateSupport {
            native: if tool_format.is_native { Native::from_template(&probed, &format) } else { None },
            results: tool_format.uses_tool_role && answered.is_ok_and(|text| text.contains(HERE)),
        };
        let mut stops: Vec<u32> = first.map(|(id, _)| id).filter(|_| !marker.is_empty()).into_iter().collect();
        stops.extend(tool_format.end_tokens.iter().filter_map(|token| tokenizer.id_of(token)));
        let stop_ids = stop_ids(&tokenizer, &stops)?;
        let ends =
            [marker.as_str()].into_iter().chain(tool_format.end_tokens.iter().copied()).chain(tool_format.later_end);
        let ends = ends.filter(|end| !end.is_empty()).map(str::to_owned).collect();
        let later = render(json!([user, {"role": "assistant", "content": HERE}, user]), false).unwrap_or_default();
        let later = later.split_once(HERE).map_or("", |(_, later)| later);
        let marks = Marks::new(&tokenizer, &format!("{before_reply}{marker}{later}"), tool_format)?;
        Ok(Self {
            before_reply: before_reply.to_owned(),
            generation_prompt: prompt.to_owned(),
            opens_thinking: prompt.trim_end().ends_with("<think>"),
            reasoning_field: REASONING_FIELDS.into_iter().find(|field| thinks(field)),
            ability,
            ends,
            stop_ids: Arc::new(stop_ids),
            stop_strings: format.stop_strings().into_iter().map(str::to_owned).collect(),
            code_tool: CODE_TOOL.to_owned(),
            reply_prefix: String::new(),
            styled: Mutex::default(),
            marks,
            special_tokens_in_messages: false,
            describe: DescribeTools::default(),
            shown: ToolSupport::of(&probed),
            marker,
            between,
            tokenizer,
            template,
            format,
        })
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The images that messages can have; `None` for a policy that reads text only.
    pub fn images(&self) -> Option<&Arc<Images>> {
        self.tokenizer.images()
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Whether conversations are extended by their new text alone, without rendering them again.
    #[cfg(test)]
    pub(super) fn probed(&self) -> bool {
        self.between.is_some()
    }

    /// Ids that end a reply, including the template's end-of-turn token.
    pub fn stop_ids(&self) -> Arc<Vec<u32>> {
        Arc::clone(&self.stop_ids)
    }

    /// Strings that end a reply.
    pub fn stop_strings(&self) -> &[String] {
        &self.stop_strings
    }

    /// The prompt ids: the conversation and the generation prompt, or, if the last message is a
    /// result inside the policy's turn (Retool), that turn up to the result.
    pub fn prompt(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        Ok(self.prompt_pieces(messages, tools)?.encode(&self.tokenizer)?.0)
    }

    pub fn prompt_pieces(&self, messages: &[Message], tools: &[Value]) -> Result<Pieces> {
        let mut pieces = self.pieces(messages, tools, Next::Prompt)?;
        if self.prefixes(messages, tools)? {
            pieces.push(&self.reply_prefix, false);
        }
        Ok(pieces)
    }

    /// The number of ids of a prompt.
    pub fn count(&self, messages: &[Message], tools: &[Value]) -> Result<usize> {
        Ok(self.prompt(messages, tools)?.len())
    }

    /// Refuses images that the policy does not read, or that are not stored.
    ///
    /// # Errors
    /// [`Kind::Model`], and [`Kind::Env`] for an unknown hash.
    pub fn check_images(&self, messages: &[Message]) -> Result<()> {
        image_marks::check(messages, self.tokenizer.images().map(|images| &**images))
    }

    /// Parses a reply with the format. `tools`: the tools in the prompt.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn parse(&self, text: &str, tools: &[Value]) -> Result<Reply> {
        self.format.read(text, self.opens_thinking, &self.code_tool, tools)
    }

    /// Returns a streaming parser for a reply.
    pub fn stream<'a>(&'a self, tools: &'a [Value]) -> ReplyStream<'a> {
        self.format.stream(self.opens_thinking, &self.code_tool, tools)
    }

    /// A conversation in pieces, from its first character. If the template's text can't be divided
    /// (it mixes messages), all of it is one piece that was not sampled.
    pub(super) fn pieces(&self, messages: &[Message], tools: &[Value], end: Next) -> Result<Pieces> {
        self.check_images(messages)?;
        let turns = self.turns(messages, &Preceding::default(), tools)?;
        let text = self.render(&turns, tools, end)?;
        image_marks::check_printed(&text, messages)?;
        Ok(self.divide(&text, &turns, end).unwrap_or_else(|| {
            let mut pieces = Pieces::default();
            pieces.push(&text, false);
            pieces
        }))
    }

    /// Divides a rendering into text of the policy and other text.
    pub(super) fn divide(&self, text: &str, turns: &[Turn], end: Next) -> Option<Pieces> {
        let turns = match turns {
            [first, rest @ ..] if first.role == Role::System => rest,
            all => all,
        };
        let composed = self.between.as_ref().and_then(|between| between.compose(turns, end, &self.marker));
        let composed = composed.and_then(|tail| Some((text.strip_suffix(&tail.text())?, tail)));
        let Some((head, tail)) = composed else { return self.scan(text, turns) };
        let mut pieces = Pieces::default();
        pieces.push(head, false);
        pieces.append(tail);
        Some(pieces)
    }

    /// Divides a rendering at the template's texts around an assistant's content.
    fn scan(&self, text: &str, turns: &[Turn]) -> Option<Pieces> {
        if self.before_reply.is_empty() || self.marker.is_empty() {
            return None;
        }
        let mut pieces = Pieces::default();
        let mut rest = text;
        for turn in turns.iter().filter(|turn| turn.role == Role::Assistant) {
            let start = rest.find(&self.before_reply)? + self.before_reply.len();
            pieces.push(&rest[..start], false);
            rest = &rest[start..];
            for (part, sampled) in &turn.parts {
                if *sampled {
                    continue;
                }
                let at = rest.find(part.trim_end())?;
                let length = if rest[at..].starts_with(part.as_str()) { part.len() } else { part.trim_end().len() };
                pieces.push(&rest[..at], true);
                pieces.push(&rest[at..at + length], false);
                rest = &rest[at + length..];
            }
            if let Some(end) = rest.find(&self.marker) {
                pieces.push(&rest[..end], true);
                pieces.push(&self.marker, turn.ended);
                rest = &rest[end + self.marker.len()..];
            } else if !turn.is_answered() {
                return None;
            }
        }
        // Too many matches: a message contains the template's own tokens.
        let more = rest.matches(&self.before_reply).count();
        if more > 1 || (more == 1 && !rest.ends_with(&self.before_reply) && !rest.ends_with(&self.generation_prompt)) {
            return None;
        }
        pieces.push(rest, false);
        Some(pieces)
    }

    /// The turns of a conversation. Reasoning that the template does not print is put into the
    /// content once.
    pub(super) fn turns(&self, messages: &[Message], preceding: &Preceding<'_>, tools: &[Value]) -> Result<Vec<Turn>> {
        let messages: &[Message] =
            if self.special_tokens_in_messages { messages } else { &self.marks.disabled(messages) };
        if let Some(images) = self.images().filter(|_| image_marks::count(messages) > 0) {
            return self.turns_as_given(&image_marks::marked(messages, images), preceding, tools);
        }
        self.turns_as_given(messages, preceding, tools)
    }

    /// The same, without disabling special tokens.
    pub(super) fn turns_as_given(
        &self,
        messages: &[Message],
        preceding: &Preceding<'_>,
        tools: &[Value],
    ) -> Result<Vec<Turn>> {
        let mut turns = self.format.turns(messages, preceding, self.ability, self.opens_thinking, tools)?;
        for turn in turns.iter_mut().filter(|turn| turn.reasoning.is_some()) {
            let Some((text, _)) = turn.parts.first_mut() else { continue };
            if text.trim_start().starts_with("<think>") {
                turn.reasoning = None;
            } else if let Some(reasoning) = turn.reasoning.take_if(|_| self.reasoning_field.is_none()) {
                *text = format!("<think>\n{reasoning}\n</think>\n\n{text}");
            }
        }
        Ok(turns)
    }

    /// Renders turns with the chat template.
    pub(super) fn render(&self, turns: &[Turn], tools: &[Value], end: Next) -> Result<String> {
        let tools: &[Value] =
            if self.special_tokens_in_messages { tools } else { &self.marks.disabled_in_tools(tools) };
        let answered = end == Next::Prompt && turns.last().is_some_and(Turn::is_answered);
        let last = turns.len().saturating_sub(1);
        let mut messages: Vec<Value> = turns
            .iter()
            .enumerate()
            .map(|(index, turn)| self.template_message(turn, if answered && index == last { HERE } else { "" }))
            .collect();
        if let Some(text) = self.description(tools)? {
            describe::put(&mut messages, &text, self.shown.takes_system);
        }
        let tools = Some(tools).filter(|tools| !tools.is_empty() && self.format.rules().shows_tools);
        let text = self.template.render(&messages, tools, end == Next::Prompt && !answered)?;
        if !answered {
            return Ok(text);
        }
        let open = text.split_once(HERE).map(|(open, _)| open.to_owned());
        open.ok_or_else(|| {
            Error::new(Kind::Model, "the chat template drops the end of the policy's turn")
                .hint("results inside the policy's turn need a template that prints an assistant's content as it is")
        })
    }

    /// A turn as transformers passes it to a template.
    fn template_message(&self, turn: &Turn, suffix: &str) -> Value {
        let mut message = Map::new();
        let mut content = turn.content();
        message.insert("role".to_owned(), turn.role.name().into());
        content.push_str(suffix);
        let native = self.ability.native.filter(|_| !turn.calls.is_empty());
        message
            .insert("content".to_owned(), native.map_or_else(|| content.as_str().into(), |way| way.content(&content)));
        for (key, value) in [
            (self.reasoning_field.unwrap_or(REASONING_FIELDS[0]), turn.reasoning.clone()),
            ("name", turn.name.clone()),
            ("tool_call_id", turn.tool_call_id.clone()),
        ] {
            if let Some(value) = value {
                message.insert(key.to_owned(), value.into());
            }
        }
        if let Some(way) = native {
            message.insert("tool_calls".to_owned(), way.calls(&turn.calls));
        }
        message.into()
    }
}

/// End-of-reply ids: from generation_config.json, else `eos_token` of tokenizer_config.json; and
/// the ids of the template and of the format.
fn stop_ids(tokenizer: &Tokenizer, format_ids: &[u32]) -> Result<Vec<u32>> {
    let config = tokenizer.json("generation_config.json")?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let mut ids: Vec<u32> = match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    };
    if ids.is_empty() {
        ids.extend(tokenizer.named_token("eos_token")?.and_then(|token| tokenizer.id_of(&token)));
    }
    for id in format_ids {
        if !ids.contains(id) {
            ids.push(*id);
        }
    }
    if ids.is_empty() {
        return Err(Error::new(Kind::Model, "no file defines the token that ends a reply")
            .at(tokenizer.origin())
            .hint("set eos_token_id in generation_config.json or eos_token in tokenizer_config.json"));
    }
    Ok(ids)
}
