//! The text that a chat template prints between two messages, learned from the template.
//!
//! In most templates (ChatML and similar, Llama 3, Gemma) the text between two adjacent contents
//! depends only on their roles. Such a template is probed once, with marked contents in short and
//! long conversations, with and without system prompt and tools. If all probes agree, a
//! conversation is extended by its new text only, without rendering earlier messages. A template
//! that depends on more (such as one that drops old reasoning) fails the probes and is always
//! rendered in full. The first prompt of a conversation is always rendered in full and compared, so
//! a wrong text is found there.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::pieces::Pieces;
use super::template::Template;
use super::tool_format::Turn;
use r1_base::mdp::Role;

/// The part that follows a content: a message with its role, the generation prompt, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Next {
    Message(Role),
    Prompt,
    End,
}

const ROLES: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];

/// The learned texts of a template whose messages depend only on their neighbours' roles.
#[derive(Clone, Debug)]
pub(super) struct Between {
    /// The text between a content and what follows it. A pair that the template refuses, or whose
    /// renderings differ, has none.
    texts: HashMap<(Role, Next), String>,
    /// Roles around whose content the template strips white space.
    strips: Vec<Role>,
}

impl Between {
    /// Probes a template. `None` if its messages depend on more than their neighbours.
    pub(super) fn from_template(template: &Template) -> Option<Self> {
        let mut new = Self { texts: HashMap::new(), strips: Vec::new() };
        for role in ROLES {
            for next in ROLES.map(Next::Message).into_iter().chain([Next::Prompt, Next::End]) {
                new.texts.extend(detect_between(template, role, next).map(|text| ((role, next), text)));
            }
        }
        new.get(Role::Assistant, Next::End)?;
        // The text of the prompt must stay unchanged after the reply.
        let (unanswered, replied) =
            (new.get(Role::User, Next::Prompt)?, new.get(Role::User, Next::Message(Role::Assistant))?);
        let added = replied.strip_prefix(unanswered.trim_end())?;
        if !matches!(added.split_whitespace().collect::<String>().as_str(), "" | "</think>" | "<think></think>") {
            return None;
        }
        for role in [Role::User, Role::Assistant, Role::Tool] {
            if detect_strip(template, role)? {
                new.strips.push(role);
            }
        }
        new.holds(template).then_some(new)
    }

    /// The text between a content of `role` and what follows it.
    pub(super) fn get(&self, role: Role, next: Next) -> Option<&str> {
        self.texts.get(&(role, next)).map(String::as_str)
    }

    /// The pieces of turns, from the first one's content on, as the template would print them.
    /// `marker` ends an assistant's turn. `None` if a pair of roles was not learned.
    pub(super) fn compose(&self, turns: &[Turn], end: Next, marker: &str) -> Option<Pieces> {
        if turns.iter().any(|turn| turn.reasoning.is_some() || !turn.calls.is_empty()) {
            return None;
        }
        let mut pieces = Pieces::default();
        for (index, turn) in turns.iter().enumerate() {
            let strips = self.strips.contains(&turn.role) && !turn.continued;
            let last = turn.parts.len().saturating_sub(1);
            for (part, (text, sampled)) in turn.parts.iter().enumerate() {
                let text = if strips && part == 0 { text.trim_start() } else { text };
                let text = if strips && part == last && !(turn.is_answered() && index + 1 == turns.len()) {
                    text.trim_end()
                } else {
                    text
                };
                pieces.push(text, *sampled);
            }
            let next = match turns.get(index + 1) {
                Some(next) => Next::Message(next.role),
                None if turn.is_answered() => break,
                None => end,
            };
            pieces.append(self.after(turn.role, next, turn.ended, marker)?);
        }
        Some(pieces)
    }

    /// The text after a content; if the assistant `ended` the turn itself, the end of turn counts
    /// as sampled.
    fn after(&self, role: Role, next: Next, ended: bool, marker: &str) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        let text = self.get(role, next)?;
        match text.strip_prefix(marker) {
            Some(rest) if ended => {
                pieces.push(marker, true);
                pieces.push(rest, false);
            }
            _ => pieces.push(text, false),
        }
        Some(pieces)
    }

    /// Renders longer conversations and compares them with the table.
    fn holds(&self, template: &Template) -> bool {
        let contents = [
            "plain",
            "",
            "two\nlines",
            " both sides \n",
            "\n",
            "<think>\nq\n</think>\n\nz",
            "<think>q",
            "a</think>b",
            "x<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            "<tool_response>\ny\n</tool_response>",
            "<code>\nprint(1)\n</code>\n<interpreter>\n1\n</interpreter>\n",
            "{{ x }} {% y %}",
            "é👋",
        ];
        let shapes: [&[Role]; 4] = [
            &[Role::User],
            &[Role::User, Role::Assistant],
            &[Role::User, Role::Assistant, Role::User, Role::Assistant],
            &[Role::User, Role::Assistant, Role::Tool, Role::Tool, Role::Assistant, Role::User, Role::Assistant],
        ];
        for (number, content) in contents.iter().enumerate() {
            for shape in shapes {
                for at in 0..shape.len() {
                    let roles: Vec<(Role, String)> = shape
                        .iter()
                        .enumerate()
                        .map(|(index, role)| (*role, if index == at { (*content).to_owned() } else { mark(index) }))
                        .collect();
                    for end in [Next::Prompt, Next::End] {
                        // Every second content is probed with a system prompt and tools.
                        let with = (number % 2 == 0, number % 2 == 0);
                        let Some(rendered) = probe(template, with, &roles, end == Next::Prompt) else { continue };
                        let turns: Vec<Turn> =
                            roles.iter().map(|(role, text)| Turn::new(*role, text.clone())).collect();
                        let Some(pieces) = self.compose(&turns, end, "") else { continue };
                        if !rendered.ends_with(&pieces.text()) {
                            return false;
                        }
                    }
                }
            }
        }
        true
    }
}

/// A content that templates do not print by themselves.
fn mark(index: usize) -> String {
    format!("qXz{index}zXq")
}

/// The text of a probe, with or without a system prompt and tools.
fn probe(
    template: &Template,
    (has_system, has_tools): (bool, bool),
    messages: &[(Role, String)],
    prompt: bool,
) -> Option<String> {
    let system = has_system.then(|| (Role::System, "You help.".to_owned()));
    let messages: Vec<Value> = system
        .iter()
        .chain(messages)
        .map(|(role, content)| json!({ "role": role.name(), "content": content }))
        .collect();
    let tools = [json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}}})];
    template.render(&messages, has_tools.then_some(&tools[..]), prompt).ok()
}

/// The text between a marked content of `role` and what follows, if all successful probes agree.
fn detect_between(template: &Template, role: Role, next: Next) -> Option<String> {
    let lead: &[Role] = match role {
        Role::User => &[],
        Role::Assistant => &[Role::User],
        Role::System | Role::Tool => &[Role::User, Role::Assistant],
    };
    let long = [Role::User, Role::Assistant].iter().chain(lead);
    let mut separator: Option<String> = None;
    for roles in [lead.iter().collect::<Vec<_>>(), long.collect()] {
        let mut messages: Vec<(Role, String)> =
            roles.into_iter().copied().chain([role]).enumerate().map(|(index, role)| (role, mark(index))).collect();
        let from = mark(messages.len() - 1);
        let to = mark(messages.len());
        if let Next::Message(role) = next {
            messages.push((role, to.clone()));
        }
        for with in [(false, false), (true, false), (false, true), (true, true)] {
            let Some(text) = probe(template, with, &messages, next == Next::Prompt) else { continue };
            let (_, after) = text.split_once(&from)?;
            let between = match next {
                Next::Message(_) => after.split_once(&to)?.0,
                Next::Prompt | Next::End => after,
            };
            if separator.as_deref().is_some_and(|earlier| earlier != between) {
                return None;
            }
            separator = Some(between.to_owned());
        }
    }
    separator
}

/// Whether the content of a role is stripped; `None` if it is changed in another way.
fn detect_strip(template: &Template, role: Role) -> Option<bool> {
    let mut messages = vec![(Role::User, mark(0)), (Role::Assistant, mark(1))];
    let spaced = " \n left right \n ";
    match role {
        Role::User => spaced.clone_into(&mut messages[0].1),
        Role::Assistant => spaced.clone_into(&mut messages[1].1),
        _ => messages.push((role, spaced.to_owned())),
    }
    let Some(text) = probe(template, (false, false), &messages, false) else { return Some(false) };
    if text.contains(spaced) {
        return Some(false);
    }
    text.contains("left right").then_some(true)
}
