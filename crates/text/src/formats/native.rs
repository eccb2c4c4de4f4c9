//! Calls rendered by the chat template from the `tool_calls` of a message, as in the model's own
//! training.
//!
//! Messages keep a reply as the sampled text; for the template it is split into content, reasoning
//! and calls. How a template expects them (arguments as an object or as text, no content or empty
//! content) is found by rendering probes. If a template renders no calls, they are written into the
//! content.

use serde_json::{Value, json};

use crate::tool_format::Turn;
use crate::{CODE_TOOL, Format, Template};
use r1_base::error::Result;
use r1_base::mdp::{Message, Role, ToolCall};

/// The form in which a template expects calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    /// Arguments are JSON text instead of an object.
    pub text_arguments: bool,
    /// A message without content has `null` instead of an empty string.
    pub null_content: bool,
    /// Several calls in one message.
    pub many: bool,
}

impl Native {
    /// Probes a template. `None` if it renders no calls that the format can parse.
    pub(crate) fn from_template(template: &Template, format: &Format) -> Option<Self> {
        let made = |count: usize| -> Vec<ToolCall> {
            let arguments = json!({"key": "value"});
            let call =
                |at: usize| ToolCall { id: Some(id(at)), name: "probe".to_owned(), arguments: arguments.clone() };
            (0..count).map(call).collect()
        };
        let printed = |native: Self, count: usize| {
            let calls = made(count);
            let mut message = json!({"role": "assistant", "content": native.content("")});
            message["tool_calls"] = native.calls(&calls);
            let messages = json!([{"role": "user", "content": "u"}, message]);
            let text = template.render(&messages, None, false).ok()?;
            let reply = format.read(&text, false, CODE_TOOL, &[]).ok()?;
            let same = reply.tool_calls.len() == count
                && reply.tool_calls.iter().zip(&calls).all(|(a, b)| a.name == b.name && a.arguments == b.arguments);
            same.then_some(text.len())
        };
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        let ways = ways.map(|(text_arguments, null_content)| Self { text_arguments, null_content, many: true });
        // The shortest rendering repeats nothing.
        let (_, best) =
            ways.into_iter().filter_map(|way| Some((printed(way, 1)?, way))).min_by_key(|(length, _)| *length)?;
        Some(Self { many: printed(best, 2).is_some(), ..best })
    }

    /// The `content` of a message with calls.
    pub(crate) fn content(self, text: &str) -> Value {
        if text.is_empty() && self.null_content { Value::Null } else { text.into() }
    }

    /// The `tool_calls` of a message.
    pub(crate) fn calls(self, calls: &[ToolCall]) -> Value {
        let call = |call: &ToolCall| {
            let arguments = if self.text_arguments {
                Value::String(crate::python::dumps(&call.arguments))
            } else {
                call.arguments.clone()
            };
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        };
        calls.iter().map(call).collect()
    }
}

/// An id for a call without one; nine characters, as Mistral's templates require.
fn id(number: usize) -> String {
    format!("call{:05}", (number + 1) % 100_000)
}

/// The features that the template of a renderer supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateSupport {
    /// It renders calls.
    pub native: Option<Native>,
    /// It renders results (role `tool`).
    pub results: bool,
}

/// Content, reasoning and calls of an assistant's message for the template. If the template can't
/// render calls, or a call could not be parsed, there are no calls and the text stays as written.
pub(crate) fn assistant_parts(
    format: &Format,
    message: &Message,
    ability: TemplateSupport,
    begun: bool,
    tools: &[Value],
) -> Result<Turn> {
    let text = message.content.text();
    let reasoning = message.reasoning_content.clone().filter(|reasoning| !reasoning.is_empty());
    let mut turn = Turn { reasoning, ..Turn::new(Role::Assistant, text.clone()) };
    turn.name.clone_from(&message.name);
    let fits =
        |calls: &[ToolCall]| !calls.is_empty() && ability.native.is_some_and(|native| native.many || calls.len() == 1);
    if !message.tool_calls.is_empty() && !format.holds_call(&text)? {
        if fits(&message.tool_calls) {
            turn.calls.clone_from(&message.tool_calls);
        } else {
            turn.parts = vec![(format.write(text, &message.tool_calls)?, true)];
        }
        return Ok(turn);
    }
    if !format.rules().is_native {
        return Ok(turn);
    }
    let reply = format.read(&text, begun && turn.reasoning.is_none(), CODE_TOOL, tools)?;
    let shown = fits(&reply.tool_calls) && reply.errors.is_empty();
    if shown || format.rules().hides_headers {
        turn.parts = vec![(reply.content, true)];
        turn.reasoning = turn.reasoning.or(reply.reasoning);
    }
    if shown {
        turn.calls = reply.tool_calls;
    }
    Ok(turn)
}

/// The turns of a conversation, one per message. Results belong to the preceding calls in order;
/// results without a call (it could not be parsed, or the template does not render results) are
/// user messages.
pub(crate) fn turns(
    format: &Format,
    messages: &[Message],
    ability: TemplateSupport,
    begun: bool,
    tools: &[Value],
) -> Result<Vec<Turn>> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut seen = 0;
    // Ids of calls without a result; whether the last turn holds results without a call.
    let mut waiting = std::collections::VecDeque::new();
    let mut stray = false;
    let mut rest = messages;
    while let Some(message) = rest.first() {
        let results = &rest[..rest.iter().take_while(|next| next.role == Role::Tool).count()];
        if let Some(text) = if results.is_empty() { None } else { format.own_results(results)? } {
            turns.push(Turn::new(Role::User, text));
            rest = &rest[results.len()..];
            continue;
        }
        rest = &rest[1..];
        if message.role != Role::Tool {
            waiting.clear();
            stray = false;
        }
        match message.role {
            Role::Assistant => {
                let mut turn = assistant_parts(format, message, ability, begun, tools)?;
                for call in &mut turn.calls {
                    let id = call.id.get_or_insert_with(|| id(seen));
                    waiting.push_back((id.clone(), call.name.clone()));
                    seen += 1;
                }
                turns.push(turn);
            }
            Role::Tool if ability.results && !format.rules().is_native => turns.push(plain(message)),
            Role::Tool => {
                let text = message.content.text();
                let last = turns.last_mut().filter(|turn| stray || (waiting.is_empty() && turn.role == Role::Tool));
                match (waiting.pop_front(), last) {
                    (Some((id, name)), _) => {
                        let (id, name) =
                            (message.tool_call_id.clone().unwrap_or(id), message.name.clone().unwrap_or(name));
                        turns.push(Turn { tool_call_id: Some(id), name: Some(name), ..Turn::new(Role::Tool, text) });
                    }
                    (None, Some(turn)) => turn.parts.push((format!("\n\n{text}"), false)),
                    (None, None) => {
                        turns.push(Turn::new(Role::User, text));
                        stray = true;
                    }
                }
            }
            Role::System | Role::User => turns.push(plain(message)),
        }
    }
    Ok(turns)
}

fn plain(message: &Message) -> Turn {
    Turn {
        name: message.name.clone(),
        tool_call_id: message.tool_call_id.clone(),
        ..Turn::new(message.role, message.content.text())
    }
}
