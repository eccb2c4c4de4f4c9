//! Named types of the declarations, and the notation they are written in.

use serde::Serialize;
use serde_json::Value as Json;

use crate::config::{
    CheckpointSettings, EnvSettings, EvalSettings, Learner, Limits, PolicySettings, RolloutSettings, Sft,
};
use crate::mdp::Sampling;

/// A type with a name: a table with fields, or something that only the host looks into.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: &'static str,
    pub doc: &'static str,
    /// Name (a `?` at the end: may be missing), type, what it is.
    pub fields: Vec<(String, String, &'static str)>,
}

type Fields = &'static [(&'static str, &'static str, &'static str)];

/// Tables that scripts see.
const TABLES: &[(&str, &str, Fields)] = &[
    (
        "GroupMember",
        "A trajectory of a group that did not fail, as the recipe's `advantage` sees it",
        &[
            ("total", "number", "Sum of `rewards`"),
            ("rewards", "{number}", "Of each step, shaped as `trainer.shaping` says"),
            ("tokens", "{number}", "Sampled tokens of each step"),
            ("status", "string", "terminated or truncated"),
            ("parts", "{[string]: number}", "Named parts of the reward, unweighted"),
            ("task", "any", "The dataset row"),
            ("terminated", "boolean", ""),
            ("truncated", "boolean", ""),
            (
                "fork?",
                "{parent: number?, step: number}",
                "In a tree: the place of the parent in the group, steps shared",
            ),
            ("values?", "{number}", "The critic's value before each step"),
            ("next_value?", "number", "The critic's value of what would have come after a cut"),
        ],
    ),
    (
        "Message",
        "A message in the shape of the OpenAI chat API",
        &[
            ("role", "string", "system, user, assistant or tool"),
            ("content", "string | {Part}", ""),
            ("reasoning_content?", "string", "What a thinking model wrote before its answer"),
            ("tool_calls?", "{ToolCall}", ""),
            ("name?", "string", "The tool that answered"),
            ("tool_call_id?", "string", ""),
        ],
    ),
    (
        "Part",
        "A part of a message's content",
        &[("type", "string", "text or image"), ("text?", "string", ""), ("hash?", "string", "Of an image")],
    ),
    (
        "ToolCall",
        "A call as the policy wrote it; one that could not be read has only `error`",
        &[
            ("name?", "string", ""),
            ("arguments?", "{[string]: any}", ""),
            ("id?", "string", ""),
            ("error?", "string", ""),
        ],
    ),
    (
        "ToolResult",
        "What a call came to",
        &[
            ("name", "string", ""),
            ("content", "string", "What the policy is shown"),
            ("ok", "boolean", ""),
            ("reward", "number", "Process reward"),
            ("call_id?", "string", ""),
        ],
    ),
    (
        "Action",
        "The policy's whole reply at a step",
        &[
            ("text", "string", ""),
            ("token_ids", "{number}", ""),
            ("tool_calls", "{ToolCall}", ""),
            ("finish_reason", "string", "stop, stop_string, length or deadline"),
        ],
    ),
    (
        "StepResult",
        "What an env makes of an action",
        &[
            ("reward?", "number", ""),
            ("done?", "boolean", "The env ends the task; final, also after a reply that was cut"),
            ("truncated?", "boolean", "A limit of the env's own ends it, or the reply was cut before it was whole"),
            ("parts?", "{[string]: number}", "Named parts for the logs"),
        ],
    ),
    (
        "Outcome",
        "How a trajectory ended",
        &[
            ("text", "string", "The last reply"),
            ("steps", "number", ""),
            ("terminated", "boolean", "The env ended it"),
            ("truncated", "boolean", "A limit ended it"),
            ("truncated_by?", "string", "Which: max_steps, max_tokens, context_overflow, length, deadline or env"),
        ],
    ),
    (
        "LossBatch",
        "The sampled tokens of a mini-batch, as a loss sees them: tensors with a number for each",
        &[
            ("logp", "any", "Log-probabilities under the current weights; the gradient flows into them"),
            ("logp_old", "any", "Under the behaviour policy"),
            ("logp_ref", "any", "Under the reference policy, which is loaded where a loss reads it"),
            ("advantages", "any", ""),
            ("entropy", "any", "Of the distribution each was drawn from; with gradient"),
            ("weights", "any", "Of trainer.importance and trainer.rejection; 1 without them"),
            ("rewards", "any", "The total reward of the token's trajectory"),
        ],
    ),
    ("Budget", "What a context may have", &[("tokens", "number", "Longest prompt")]),
    (
        "Match",
        "A match of a regular expression, with its groups by number and name",
        &[("text", "string", ""), ("first", "number", ""), ("last", "number", "")],
    ),
    (
        "HttpAnswer",
        "An answer over HTTP",
        &[
            ("status", "number", ""),
            ("headers", "{[string]: string}", "Names in small letters"),
            ("body", "string", ""),
            ("url", "string", "Where redirects led"),
        ],
    ),
    (
        "ProcessResult",
        "What became of a program",
        &[
            ("code", "number", "128 and the signal's number if one ended it"),
            ("out", "string", ""),
            ("err", "string", ""),
            ("timed_out", "boolean", ""),
            ("seconds", "number", ""),
        ],
    ),
    (
        "ToolUse",
        "A call of a tool as it is stored",
        &[
            ("name", "string", ""),
            ("arguments", "any", ""),
            ("kind?", "string", "bad_arguments, unknown or malformed, for a call that did not run"),
            ("output", "string", "What the policy was shown"),
            ("ok", "boolean", ""),
            ("reward", "number", "Process reward"),
            ("seconds", "number", ""),
        ],
    ),
    (
        "Script",
        "Another script, opened",
        &[("path", "string", ""), ("tools", "{{[string]: any}}", "Schemas"), ("format", "string", "Of calls")],
    ),
    (
        "Training",
        "A run whose loop a program writes",
        &[
            ("step", "number", "Steps done"),
            ("steps", "number", "trainer.steps"),
            ("rows", "number", "Of the training data"),
            ("run_dir", "string", ""),
            ("settings", "{[string]: any}", "All settings of the recipe"),
        ],
    ),
    (
        "Step",
        "A step of a trajectory; ids and log-probabilities are there after a rollout, and with `ids = true` from r1.store",
        &[
            ("text", "string", "The reply"),
            ("reward", "number", "With process rewards; the last step has the outcome reward too"),
            ("finish_reason", "string", "stop, stop_string, length or deadline"),
            ("terminated", "boolean", ""),
            ("truncated", "boolean", ""),
            ("new_row", "boolean", "Its prompt does not extend the step before"),
            ("tools", "{ToolUse}", ""),
            ("prompt_tokens", "number", ""),
            ("response_tokens", "number", ""),
            ("prompt_ids?", "{number}", ""),
            ("response_ids?", "{number}", ""),
            ("logprobs?", "{number}", "Of the response ids, under the policy that sampled them"),
            ("support?", "{[string]: any}", "What they were drawn from, where sampling cut the distribution"),
        ],
    ),
    (
        "Trajectory",
        "A trajectory: stored, or of r1.rollout and Attempt:finish",
        &[
            ("id", "string", ""),
            ("group", "number", ""),
            ("sample", "number", ""),
            ("fork?", "{parent: string, step: number}", "What it was forked from, and the steps they share"),
            ("seed", "number | string", "Its digits as text where it is above 2^53"),
            ("task_index", "number", ""),
            ("task", "Task", ""),
            ("status", "string", ""),
            ("truncated_by?", "string", "The limit that cut it"),
            ("retries", "number", "How often it was sampled again after a failure"),
            ("error?", "string", ""),
            ("script_hash", "string", ""),
            ("reward", "number", ""),
            ("outcome_reward", "number", ""),
            ("parts", "{[string]: number}", "Named parts of the reward, added up over the trajectory"),
            ("messages", "{Message}", ""),
            ("steps", "{Step}", ""),
            ("record?", "{{[string]: any}}", ""),
            ("branch?", "number", "Which continuation it is, of r1.rollout"),
        ],
    ),
];

/// What only the host looks into, and objects with methods.
const OPAQUE: [(&str, &str); 14] = [
    ("Recipe", "What a script returns"),
    ("Env", "An environment"),
    ("Tool", "What a policy can call"),
    ("Trainer", "How to train"),
    ("Dataset", "Where tasks come from"),
    ("Context", "A view of a conversation"),
    ("LossTensor", "A number, or a truth, for each sampled token; + - * / ^ go token by token"),
    ("Secret", "The value of an environment variable, which scripts do not see"),
    ("Tokenizer", "The tokenizer of a model"),
    ("Template", "A chat template"),
    ("Model", "An open model"),
    ("Attempt", "A trajectory that is played by hand"),
    ("Expectation", "A value that a test looks at"),
    ("Task", "A row of a dataset, with all its columns"),
];

/// All named types; those of settings are made from their defaults, so that no field is forgotten.
pub fn named_types() -> Vec<Named> {
    let plain = |&(name, kind, doc): &(&str, &str, &'static str)| (name.to_owned(), kind.to_owned(), doc);
    let tables =
        TABLES.iter().map(|(name, doc, fields)| Named { name, doc, fields: fields.iter().map(plain).collect() });
    let opaque = OPAQUE.iter().map(|(name, doc)| Named { name, doc, fields: Vec::new() });
    let json = |value: Result<Json, serde_json::Error>| value.unwrap_or_default();
    let mut policy = json(serde_json::to_value(PolicySettings::default()));
    // Left out of its JSON while there is none.
    for name in ["init", "lora"] {
        policy[name] = Json::Object(serde_json::Map::new());
    }
    let settings = [
        ("EnvSettings", "Settings of r1.env", json(serde_json::to_value(EnvSettings::default()))),
        ("PolicySettings", "Which model", policy),
        ("Sampling", "How to sample", json(serde_json::to_value(Sampling::default()))),
        ("RolloutSettings", "How trajectories are run", json(serde_json::to_value(RolloutSettings::default()))),
        ("LearnerSettings", "How to learn: docs/training.md", json(serde_json::to_value(Learner::default()))),
        ("SftSettings", "Supervised fine-tuning", json(serde_json::to_value(Sft::default()))),
        ("EvalSettings", "Evaluation", json(serde_json::to_value(EvalSettings::default()))),
        ("CheckpointSettings", "Checkpoints", json(serde_json::to_value(CheckpointSettings::default()))),
        ("Limits", "Of calls of the script", json(serde_json::to_value(Limits::default()))),
    ];
    let settings = settings.into_iter().map(|(name, doc, defaults)| {
        let fields = defaults.as_object().into_iter().flatten();
        Named { name, doc, fields: fields.map(|(name, value)| (format!("{name}?"), kind_of(value), "")).collect() }
    });
    tables.chain(opaque).chain(settings).collect()
}

/// What a setting may be, from its default. A choice by name may be a table too.
fn kind_of(default: &Json) -> String {
    match default {
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "{any}",
        Json::Object(fields) if fields.contains_key("name") => "string | {[string]: any}",
        Json::Object(_) => "{[string]: any}",
        Json::Null => "any",
    }
    .to_owned()
}

/// A type, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Type<'a> {
    Name(&'a str),
    List(Box<Type<'a>>),
    Map(Box<Type<'a>>, Box<Type<'a>>),
    Table(Vec<(&'a str, Type<'a>)>),
    Function(Vec<(&'a str, Type<'a>)>, Vec<Type<'a>>),
    Optional(Box<Type<'a>>),
    Either(Vec<Type<'a>>),
    Many(Box<Type<'a>>),
}

/// Reads the notation of the declarations: Luau's, and `T…` for any number. `None` for what is none.
pub(super) fn read(text: &str) -> Option<Type<'_>> {
    let mut reader = Reader { rest: text };
    let read = reader.union()?;
    reader.rest.trim().is_empty().then_some(read)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.rest = &rest[length..];
        (length > 0).then(|| &rest[..length])
    }

    fn union(&mut self) -> Option<Type<'a>> {
        let mut all = vec![self.postfix()?];
        while self.eat("|") {
            all.push(self.postfix()?);
        }
        if all.len() == 1 { all.pop() } else { Some(Type::Either(all)) }
    }

    fn postfix(&mut self) -> Option<Type<'a>> {
        let mut read = self.primary()?;
        loop {
            if self.eat("?") {
                read = Type::Optional(Box::new(read));
            } else if self.eat("…") {
                read = Type::Many(Box::new(read));
            } else {
                return Some(read);
            }
        }
    }

    fn primary(&mut self) -> Option<Type<'a>> {
        if self.rest.trim_start().starts_with('"') {
            let rest = self.rest.trim_start();
            let end = rest[1..].find('"')? + 2;
            self.rest = &rest[end..];
            return Some(Type::Name(&rest[..end]));
        }
        if self.eat("{") {
            return self.table();
        }
        if self.eat("(") {
            return self.function();
        }
        self.name().map(Type::Name)
    }

    /// `{T}`, `{[K]: V}`, `{a: T, b: U}`, `{a: T, [K]: V}` (the rest is left open).
    fn table(&mut self) -> Option<Type<'a>> {
        if self.eat("[") {
            let key = self.union()?;
            let value = (self.eat("]") && self.eat(":")).then(|| self.union()).flatten()?;
            return self.eat("}").then(|| Type::Map(Box::new(key), Box::new(value)));
        }
        let before = self.rest;
        if self.name().is_none() || !self.eat(":") {
            self.rest = before;
            let item = self.union()?;
            return self.eat("}").then(|| Type::List(Box::new(item)));
        }
        self.rest = before;
        let mut fields = Vec::new();
        while !self.eat("}") {
            if self.eat("[") {
                self.union()?;
                (self.eat("]") && self.eat(":")).then(|| self.union()).flatten()?;
                fields.push(("", Type::Name("any")));
            } else {
                let name = self.name()?;
                fields.push((name, self.eat(":").then(|| self.union()).flatten()?));
            }
            self.eat(",");
        }
        Some(Type::Table(fields))
    }

    /// `(a: T) -> U`, `() -> (T, U)`, or a type in brackets.
    fn function(&mut self) -> Option<Type<'a>> {
        let mut params = Vec::new();
        while !self.eat(")") {
            let before = self.rest;
            let name = self.name().filter(|_| self.eat(":"));
            if name.is_none() {
                self.rest = before;
            }
            params.push((name.unwrap_or(""), self.union()?));
            self.eat(",");
        }
        if !self.eat("->") {
            let only = params.pop().filter(|(name, _)| name.is_empty() && params.is_empty());
            return only.map(|(_, kind)| kind);
        }
        let mut returns = Vec::new();
        if self.eat("(") {
            while !self.eat(")") {
                returns.push(self.union()?);
                self.eat(",");
            }
        } else {
            returns.push(self.union()?);
        }
        Some(Type::Function(params, returns))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Param, all};
    use super::*;

    fn walk<'a>(kind: &'a Type<'a>, found: &mut Vec<&'a str>) {
        match kind {
            Type::Name(name) => found.push(name),
            Type::List(item) | Type::Optional(item) | Type::Many(item) => walk(item, found),
            Type::Map(key, value) => {
                walk(key, found);
                walk(value, found);
            }
            Type::Table(fields) => {
                for (_, kind) in fields {
                    walk(kind, found);
                }
            }
            Type::Function(params, returns) => {
                for (_, kind) in params {
                    walk(kind, found);
                }
                for kind in returns {
                    walk(kind, found);
                }
            }
            Type::Either(all) => {
                for kind in all {
                    walk(kind, found);
                }
            }
        }
    }
    fn params<'a>(list: &'a [Param], found: &mut Vec<&'a str>) {
        for param in list {
            found.push(param.kind);
            params(param.fields, found);
        }
    }

    #[test]
    fn every_type_that_is_written_can_be_read_and_every_name_is_known() {
        let names: Vec<&str> = named_types().iter().map(|named| named.name).collect();
        let known = |name: &str| {
            let basic = ["any", "string", "number", "integer", "boolean", "nil", "table", "true", "false"];
            basic.contains(&name) || names.contains(&name) || name.starts_with('"')
        };
        let mut written = Vec::new();
        for entry in all() {
            params(entry.params, &mut written);
            written.extend(entry.returns.iter().map(|(kind, _)| *kind));
        }
        let types = named_types();
        written.extend(types.iter().flat_map(|named| named.fields.iter().map(|(_, kind, _)| kind.as_str())));
        for text in written {
            let kind = read(text).unwrap_or_else(|| panic!("not a type: {text}"));
            let mut found = Vec::new();
            walk(&kind, &mut found);
            assert!(found.iter().all(|name| known(name)), "{text} names something that is not there");
        }
    }

    #[test]
    fn types_are_read_as_luau_reads_them() {
        let name = |text| Box::new(Type::Name(text));
        assert_eq!(read("{string}?"), Some(Type::Optional(Box::new(Type::List(name("string"))))));
        assert_eq!(
            read("(string | number)?"),
            Some(Type::Optional(Box::new(Type::Either(vec![*name("string"), *name("number")]))))
        );
        assert_eq!(
            read("(a: any) -> string?"),
            Some(Type::Function(vec![("a", *name("any"))], vec![Type::Optional(name("string"))]))
        );
        assert_eq!(read("string…"), Some(Type::Many(name("string"))));
        for bad in ["", "{", "a b", "(a: ) -> b", "{a: }"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
