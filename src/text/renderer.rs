//! From messages to prompt ids and from replies to calls: a tokenizer, a chat template and a format together.
//!
//! Token in, token out: a conversation that goes on keeps every id it has; [`Renderer::extend`] gives only the ids
//! behind a reply. Three ways, cheapest first: a result inside the policy's own turn is text of the format alone; a
//! template whose messages depend on their neighbours only (see `turns`) is continued from what was learnt of it; any
//! other is rendered with and without the new messages, and the rendering must begin with what was shown before.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};

use super::format::{Behind, CODE_TOOL, Format, Reply, Turn};
use super::formats::native::{Ability, Native};
use super::pieces::{Pieces, tools_without_special};
use super::stream::{Stream, find};
use super::style::{FormatChoice, Style};
use super::turns::{Between, Next};
use super::{Template, Tokenizer};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Role};

/// How a conversation goes on behind a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Prompt, reply and these ids are the next prompt.
    Appends(Vec<u32>),
    /// The next prompt is not the last one with its reply and more: it must be made anew.
    Rewrites,
}

/// Renders conversations for one policy. `Send` and `Sync`; every method is a pure function of its arguments.
pub struct Renderer {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Template,
    pub(super) format: Format,
    /// What bare code is a call of.
    pub(super) code_tool: String,
    ability: Ability,
    between: Option<Between>,
    /// What the template prints before an assistant's content, and what ends its turn (`<|im_end|>`).
    pub(super) before_reply: String,
    pub(super) marker: String,
    /// What it prints to ask for a reply; it begins as `before_reply` does.
    asks: String,
    /// All that may end an assistant's turn in a rendering, the marker first.
    ends: Vec<String>,
    /// The template's prompt for a reply opens a `<think>` block.
    opens_thinking: bool,
    /// The field of a message whose thinking the template prints itself: `reasoning_content` or `thinking`.
    reasoning_field: Option<&'static str>,
    stop_ids: Arc<Vec<u32>>,
    stop_strings: Vec<String>,
    /// Text that every reply begins with.
    pub(super) reply_prefix: String,
    /// The same tokenizer and template in other styles, made when first asked for.
    pub(super) styled: Mutex<Vec<(Style, Arc<Self>)>>,
    /// The tokenizer's special tokens, which tools may not write.
    special: Vec<String>,
}

/// Where templates look for thinking.
const REASONING_FIELDS: [&str; 2] = ["reasoning_content", "thinking"];

/// Marks a place in a rendering; a private-use letter, so that no template strips it.
const HERE: &str = "\u{F8FF}here\u{F8FF}";

impl Renderer {
    /// Reads tokenizer and chat template of a model directory, with a built-in format; `auto` is the one that fits the
    /// template.
    ///
    /// # Errors
    /// `Kind::Script` if there is no such format; `Kind::Model` for files that can't be read.
    pub fn load(dir: &Path, format: &str) -> Result<Self> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = Template::of(&tokenizer)?;
        let format = FormatChoice::named(format)?.of(&template);
        Self::with_template(Arc::new(tokenizer), template, format)
    }

    pub(super) fn with_template(tokenizer: Arc<Tokenizer>, template: Template, format: Format) -> Result<Self> {
        let learnt = template.to_learn_from();
        let between = Between::learn(&learnt);
        let render = |messages: Value, prompt: bool| learnt.render(&messages, None, prompt, &Map::new());
        let user = json!({"role": "user", "content": "u"});
        let question = render(json!([user]), false).unwrap_or_default();
        let asked = render(json!([user]), true).unwrap_or_default();
        let prompt = asked.strip_prefix(&question).unwrap_or_default();
        let complete = render(json!([user, {"role": "assistant", "content": HERE}]), false).unwrap_or_default();
        let reply = complete.strip_prefix(&question).unwrap_or_default();
        // What all replies have in front; a `<think>` stands there in some places only.
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
        let own = format.inner();
        let ability = Ability {
            native: if own.is_native() { Native::learn(&learnt, own) } else { None },
            results: own.uses_tool_role() && answered.is_ok_and(|text| text.contains(HERE)),
        };
        let mut stops: Vec<u32> = first.map(|(id, _)| id).filter(|_| !marker.is_empty()).into_iter().collect();
        stops.extend(own.end_tokens().iter().filter_map(|token| tokenizer.id_of(token)));
        let stop_ids = stop_ids(&tokenizer, &stops)?;
        let ends = [marker.as_str()].into_iter().chain(own.end_tokens().iter().copied()).chain(own.later_end());
        let ends = ends.filter(|end| !end.is_empty()).map(str::to_owned).collect();
        Ok(Self {
            before_reply: before_reply.to_owned(),
            asks: prompt.to_owned(),
            opens_thinking: prompt.trim_end().ends_with("<think>"),
            reasoning_field: REASONING_FIELDS.into_iter().find(|field| thinks(field)),
            ability,
            ends,
            stop_ids: Arc::new(stop_ids),
            stop_strings: own.stop_strings().into_iter().map(str::to_owned).collect(),
            code_tool: CODE_TOOL.to_owned(),
            reply_prefix: String::new(),
            styled: Mutex::default(),
            special: tokenizer.special_tokens(),
            marker,
            between,
            tokenizer,
            template,
            format,
        })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn template(&self) -> &Template {
        &self.template
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Whether conversations grow by their new text alone, without being rendered again.
    #[cfg(test)]
    pub(super) fn learnt(&self) -> bool {
        self.between.is_some()
    }

    /// Ids that end a reply, the template's end of turn among them.
    pub fn stop_ids(&self) -> Arc<Vec<u32>> {
        Arc::clone(&self.stop_ids)
    }

    /// Strings that end a reply.
    pub fn stop_strings(&self) -> &[String] {
        &self.stop_strings
    }

    /// The ids that ask for a reply: the conversation and the template's prompt for an assistant, or, where the last
    /// message is a result inside the policy's turn (Retool), that turn up to the result.
    pub fn prompt(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        let mut pieces = self.pieces(messages, tools, Next::Prompt)?;
        if self.prefixes(messages, tools)? {
            pieces.push(&self.reply_prefix, false);
        }
        Ok(pieces.encode(&self.tokenizer)?.0)
    }

    /// How many ids a prompt has.
    pub fn count(&self, messages: &[Message], tools: &[Value]) -> Result<usize> {
        Ok(self.prompt(messages, tools)?.len())
    }

    /// Reads a reply with the format. `tools`: what the policy was shown.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn parse(&self, text: &str, tools: &[Value]) -> Result<Reply> {
        self.format.read(text, self.opens_thinking, &self.code_tool, tools)
    }

    /// Reads a reply while it is sampled.
    pub fn stream<'a>(&'a self, tools: &'a [Value]) -> Stream<'a> {
        self.format.stream(self.opens_thinking, &self.code_tool, tools)
    }

    /// The ids behind a prompt for `shown` and the reply `response_ids` that make the prompt for `now`.
    ///
    /// `now` must be `shown`, an assistant message that says what the reply says, and more. What was sampled is never
    /// encoded again: where the environment's message spells the reply differently (parsed calls, stripped space),
    /// the sampled ids stand.
    pub fn extend(
        &self,
        shown: &[Message],
        response_ids: &[u32],
        reply_text: &str,
        now: &[Message],
        tools: &[Value],
    ) -> Result<Extension> {
        refuse_images(now)?;
        let Some((reply, rest)) = now.get(shown.len()..).and_then(<[Message]>::split_first) else {
            return Ok(Extension::Rewrites);
        };
        if now[..shown.len()] != *shown || !self.says(reply, reply_text, tools)? {
            return Ok(Extension::Rewrites);
        }
        let ended = response_ids.last().is_some_and(|id| self.stop_ids.contains(id));
        let open = !ended && self.format.leaves_open(reply_text);
        // Results of calls that the template writes belong to those calls: they can't be rendered without them.
        let shown_turn = self.turns(std::slice::from_ref(reply), &Behind::default(), tools)?;
        let native =
            self.format.inner().hides_headers() || shown_turn.first().is_some_and(|turn| !turn.calls.is_empty());
        let turns = self.turns(rest, &Behind { open, reply: reply_text }, tools)?;
        let mut pieces = Pieces::default();
        match turns.split_first() {
            // A result inside the policy's own turn, and nothing else: no template is needed.
            Some((turn, [])) if turn.continued && turn.is_answered() => {
                for (text, sampled) in &turn.parts {
                    pieces.push(text, *sampled);
                }
            }
            _ => match self.append(&turns, ended).filter(|_| !native) {
                Some(appended) => pieces.append(appended),
                None => match self.compare(shown, reply_text, now, tools, ended)? {
                    Some(text) => pieces.push(&text, false),
                    None => return Ok(Extension::Rewrites),
                },
            },
        }
        if !turns.last().is_some_and(Turn::is_answered) {
            pieces.push(&self.reply_prefix, false);
        }
        Ok(Extension::Appends(pieces.encode(&self.tokenizer)?.0))
    }

    /// What follows a reply, from what was learnt of the template.
    fn append(&self, turns: &[Turn], ended: bool) -> Option<Pieces> {
        let between = self.between.as_ref()?;
        let mut pieces = Pieces::default();
        if turns.first().is_none_or(|turn| !turn.continued) {
            let next = turns.first().map_or(Next::Prompt, |turn| Next::Message(turn.role));
            let text = between.get(Role::Assistant, next)?;
            pieces.push(if ended { text.strip_prefix(self.marker.as_str()).unwrap_or(text) } else { text }, false);
        }
        pieces.append(between.compose(turns, Next::Prompt, &self.marker)?);
        Some(pieces)
    }

    /// What follows a reply, from two renderings; `None` if the template changes what was shown before.
    fn compare(
        &self,
        shown: &[Message],
        reply_text: &str,
        now: &[Message],
        tools: &[Value],
        ended: bool,
    ) -> Result<Option<String>> {
        let render = |messages| self.render(&self.turns(messages, &Behind::default(), tools)?, tools, Next::Prompt);
        let (before, after) = (render(shown)?, render(now)?);
        let Some(grown) = after.strip_prefix(&before) else { return Ok(None) };
        if self.ends.is_empty() {
            return Ok(grown.strip_prefix(reply_text).map(str::to_owned));
        }
        let sampled = self.parse(reply_text, tools)?;
        let mut found = None;
        for (end, length) in self.ends_in(grown).take(ENDS_TRIED) {
            let printed = &grown[..end];
            // A result inside the turn stands between the reply and the end of the turn.
            if printed.starts_with(reply_text) {
                found = Some((reply_text.len(), end, length));
            } else if self.parse(printed, tools)?.says(&sampled) {
                found = Some((end, end, length));
            }
            if found.is_some() {
                break;
            }
        }
        let Some((reply_end, end, length)) = found else { return Ok(None) };
        let (inside, rest) = (&grown[reply_end..end], &grown[end..]);
        let closing = if ended && inside.trim().is_empty() { &rest[length..] } else { rest };
        let inside = if inside.trim().is_empty() { "" } else { inside };
        Ok(Some(format!("{inside}{closing}")))
    }

    /// Where an assistant's turn may end in a rendering, and how long what ends it is.
    fn ends_in<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize)> + 't {
        let tags: Vec<&str> = self.ends.iter().map(String::as_str).collect();
        let mut from = 0;
        std::iter::from_fn(move || {
            let (at, tag) = find(&text[from..], &tags)?;
            let end = from + at;
            from = end + tag.len();
            Some((end, tag.len()))
        })
    }

    /// Whether an assistant message says what a reply says.
    fn says(&self, message: &Message, reply: &str, tools: &[Value]) -> Result<bool> {
        if message.role != Role::Assistant {
            return Ok(false);
        }
        let bare = message.reasoning_content.is_none();
        if bare && matches!(&message.content, crate::mdp::Content::Text(text) if text == reply) {
            return Ok(true);
        }
        let turns = self.turns(std::slice::from_ref(message), &Behind::default(), tools)?;
        let Some(turn) = turns.first() else { return Ok(false) };
        // Thinking kept apart is no longer in the content, even where the prompt began it.
        let apart = turn.reasoning.is_some() || !turn.calls.is_empty() || self.format.inner().hides_headers();
        let begun = self.opens_thinking && !apart;
        let mut written = self.format.read(&turn.content(), begun, &self.code_tool, tools)?;
        if let Some(reasoning) = &turn.reasoning {
            written.reasoning = Some(reasoning.trim().to_owned());
        }
        written.tool_calls.extend(turn.calls.iter().cloned());
        Ok(written.says(&self.parse(reply, tools)?))
    }

    /// A conversation in pieces, from its first letter on. Where the template's text can't be divided (it mixes
    /// messages), all of it is one piece that nobody sampled.
    pub(super) fn pieces(&self, messages: &[Message], tools: &[Value], end: Next) -> Result<Pieces> {
        refuse_images(messages)?;
        let turns = self.turns(messages, &Behind::default(), tools)?;
        let text = self.render(&turns, tools, end)?;
        Ok(self.divide(&text, &turns, end).unwrap_or_else(|| {
            let mut pieces = Pieces::default();
            pieces.push(&text, false);
            pieces
        }))
    }

    /// Divides a rendering into what the policy wrote and the rest.
    pub(super) fn divide(&self, text: &str, turns: &[Turn], end: Next) -> Option<Pieces> {
        let turns = match turns {
            [first, rest @ ..] if first.role == Role::System => rest,
            all => all,
        };
        let learnt = self.between.as_ref().and_then(|between| between.compose(turns, end, &self.marker));
        let learnt = learnt.and_then(|tail| Some((text.strip_suffix(&tail.text())?, tail)));
        let Some((head, tail)) = learnt else { return self.scan(text, turns) };
        let mut pieces = Pieces::default();
        pieces.push(head, false);
        pieces.append(tail);
        Some(pieces)
    }

    /// Divides by looking for the template's own marks around an assistant's content.
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
        // A mark too many: some message writes the template's own tokens.
        let more = rest.matches(&self.before_reply).count();
        if more > 1 || (more == 1 && !rest.ends_with(&self.before_reply) && !rest.ends_with(&self.asks)) {
            return None;
        }
        pieces.push(rest, false);
        Some(pieces)
    }

    /// A conversation's turns. Thinking that the template would not print is put into the content, once.
    pub(super) fn turns(&self, messages: &[Message], behind: &Behind<'_>, tools: &[Value]) -> Result<Vec<Turn>> {
        let messages = tools_without_special(messages, &self.special);
        let mut turns = self.format.turns(&messages, behind, self.ability, self.opens_thinking, tools)?;
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
        let answered = end == Next::Prompt && turns.last().is_some_and(Turn::is_answered);
        let last = turns.len().saturating_sub(1);
        let mut messages: Vec<Value> = turns
            .iter()
            .enumerate()
            .map(|(index, turn)| self.template_message(turn, if answered && index == last { HERE } else { "" }))
            .collect();
        if !tools.is_empty()
            && let Some(text) = self.format.inner().describe(tools)?
        {
            put_into_system(&mut messages, &text);
        }
        let tools = Some(tools).filter(|tools| !tools.is_empty() && self.format.inner().shows_tools());
        let text = self.template.render(&messages, tools, end == Next::Prompt && !answered, &Map::new())?;
        if !answered {
            return Ok(text);
        }
        let open = text.split_once(HERE).map(|(open, _)| open.to_owned());
        open.ok_or_else(|| {
            Error::new(Kind::Model, "the chat template drops the end of the policy's turn")
                .hint("results inside the policy's turn need a template that prints an assistant's content as it is")
        })
    }

    /// A turn as transformers hands it to a template.
    fn template_message(&self, turn: &Turn, behind: &str) -> Value {
        let mut message = Map::new();
        let mut content = turn.content();
        message.insert("role".to_owned(), turn.role.name().into());
        content.push_str(behind);
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

/// Adds a text to the system message, or makes one of it.
fn put_into_system(messages: &mut Vec<Value>, text: &str) {
    match messages.first_mut().filter(|message| message["role"] == Role::System.name()) {
        Some(system) => {
            let said = system["content"].as_str().unwrap_or_default();
            system["content"] = format!("{said}\n\n{text}").into();
        }
        None => messages.insert(0, json!({ "role": Role::System.name(), "content": text })),
    }
}

/// How many places are tried for the end of a reply that the template spells in its own way.
const ENDS_TRIED: usize = 64;

/// End-of-reply ids: generation_config.json's, else tokenizer_config.json's `eos_token`; and the template's and the
/// format's own.
fn stop_ids(tokenizer: &Tokenizer, own: &[u32]) -> Result<Vec<u32>> {
    let config = tokenizer.json("generation_config.json")?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let mut ids: Vec<u32> = match &config["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    };
    if ids.is_empty() {
        ids.extend(tokenizer.named_token("eos_token")?.and_then(|token| tokenizer.id_of(&token)));
    }
    for id in own {
        if !ids.contains(id) {
            ids.push(*id);
        }
    }
    if ids.is_empty() {
        return Err(Error::new(Kind::Model, "nothing says which token ends a reply")
            .at(tokenizer.origin())
            .hint("set eos_token_id in generation_config.json or eos_token in tokenizer_config.json"));
    }
    Ok(ids)
}

pub(super) fn refuse_images(messages: &[Message]) -> Result<()> {
    match messages.iter().find_map(|message| message.content.first_image()) {
        None => Ok(()),
        Some(hash) => Err(Error::new(Kind::Model, format!("this policy can't see image {hash}"))
            .hint("leave images out of the messages, or use a vision model")),
    }
}
