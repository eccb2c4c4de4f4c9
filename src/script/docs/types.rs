//! Named types of the declarations: tables of scripts, opaque objects of the host, settings.

use serde::Serialize;

use crate::config::Settings;
use crate::schema::{Field, Setting, Table};

/// A named type: a table with fields, or an opaque object.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: &'static str,
    pub doc: String,
    /// Name (a `?` at the end: may be missing), type, what it is.
    pub fields: Vec<(String, String, String)>,
}

type Fields = &'static [(&'static str, &'static str, &'static str)];

/// Tables.
const TABLES: &[(&str, &str, Fields)] = &[
    (
        "GroupMember",
        "A trajectory of a group that did not fail, as passed to the recipe's `advantage`",
        &[
            ("total", "number", "Sum of `rewards`"),
            ("rewards", "{number}", "Reward of each step, after `trainer.shaping`"),
            ("tokens", "{number}", "Number of sampled tokens of each step"),
            ("status", "string", "terminated or truncated"),
            ("parts", "{[string]: number}", "Named parts of the reward, unweighted"),
            ("task", "any", "The dataset row"),
            ("terminated", "boolean", ""),
            ("truncated", "boolean", ""),
            (
                "fork?",
                "{parent: number?, step: number}",
                "In a tree: index of the parent in the group, and the number of shared steps",
            ),
            ("values?", "{number}", "The critic's value before each step"),
            ("next_value?", "number", "The critic's bootstrap value after a truncated trajectory"),
        ],
    ),
    (
        "Message",
        "A message in the shape of the OpenAI chat API",
        &[
            ("role", "string", "system, user, assistant or tool"),
            ("content", "string | {Part}", ""),
            ("reasoning_content?", "string", "Thinking of the model before its answer"),
            ("tool_calls?", "{ToolCall}", ""),
            ("name?", "string", "Tool of the result"),
            ("tool_call_id?", "string", ""),
        ],
    ),
    (
        "Part",
        "A part of a message's content",
        &[("type", "string", "text or image"), ("text?", "string", ""), ("hash?", "string", "Hash of an image")],
    ),
    (
        "ToolCall",
        "A parsed tool call; a call that could not be parsed has only `error`",
        &[
            ("name?", "string", ""),
            ("arguments?", "{[string]: any}", ""),
            ("id?", "string", ""),
            ("error?", "string", "Error: message, place, hint and frames"),
            (
                "error_fields?",
                "{[string]: any}",
                "The same as data: kind, message, place, line, hint, traceback, subject",
            ),
        ],
    ),
    (
        "FormatCall",
        "A tool call returned by `parse` of r1.format; a call that cannot be parsed has only `error`",
        &[
            ("name?", "string", "Name of the tool"),
            ("arguments?", "{[string]: any}", "Arguments by name; default: none"),
            ("id?", "string", ""),
            ("error?", "string", "Error message for the policy"),
        ],
    ),
    (
        "FormatResult",
        "A tool result, as passed to `result` of r1.format",
        &[("content", "string", ""), ("name?", "string", "Name of the tool"), ("call_id?", "string", "")],
    ),
    (
        "ToolResult",
        "The result of a tool call",
        &[
            ("name", "string", ""),
            ("content", "string", "Text shown to the policy"),
            ("ok", "boolean", ""),
            ("kind?", "string", "bad_arguments, excess, unknown or malformed for a call that did not run"),
            ("reward", "number", "Process reward"),
            ("call_id?", "string", ""),
            (
                "files?",
                "{{name: string, size: number, content: string?}}",
                "Files that a program wrote, with keep_files of r1.tools.python; `content` is nil if they are too large to keep",
            ),
        ],
    ),
    (
        "Action",
        "The policy's response of one step",
        &[
            ("text", "string", ""),
            ("token_ids", "{number}", ""),
            ("tool_calls", "{ToolCall}", ""),
            ("finish_reason", "string", "stop, stop_string, length or deadline"),
        ],
    ),
    (
        "StepResult",
        "The result of a step",
        &[
            ("reward?", "number", ""),
            ("done?", "boolean", "The environment ends the task, also after a truncated response"),
            ("truncated?", "boolean", "A limit of the environment ends the task, or the response was truncated"),
            ("parts?", "{[string]: number}", "Named parts, which are logged; names must differ from those of `reward`"),
        ],
    ),
    (
        "Outcome",
        "How a trajectory ended",
        &[
            ("text", "string", "The last response"),
            ("token_ids", "{number}", "The sampled ids of all responses"),
            ("steps", "number", ""),
            ("calls", "number", "Number of tool calls, including those that were not run"),
            ("terminated", "boolean", "The environment ended it"),
            ("truncated", "boolean", "A limit ended it"),
            ("truncated_by?", "string", "max_steps, max_tokens, context_overflow, length, deadline or env"),
        ],
    ),
    (
        "LossBatch",
        "The sampled tokens of a mini-batch, as passed to a loss: tensors with one number per token",
        &[
            ("logp", "any", "Log-probabilities under the current weights, with gradient"),
            ("logp_old", "any", "Log-probabilities under the behaviour policy"),
            ("logp_ref", "any", "Log-probabilities under the reference policy, which is loaded if a loss reads them"),
            ("advantages", "any", ""),
            ("entropy", "any", "Entropy of the policy at each token, with gradient"),
            ("weights", "any", "Weights of trainer.importance and trainer.rejection; 1 without them"),
            ("rewards", "any", "The total reward of the token's trajectory"),
        ],
    ),
    (
        "Policy",
        "The policy, as passed to a flow",
        &[
            ("steps", "number", "Number of responses so far"),
            ("state", "any", "Plain data for `reward` and tools, with `task` and `messages`"),
            ("budget", "Budget", "Limit of a prompt"),
        ],
    ),
    ("Budget", "Limit of a context", &[("tokens", "number", "Maximum prompt tokens")]),
    (
        "Match",
        "A match of a regular expression, with its groups by number and name",
        &[("text", "string", ""), ("first", "number", ""), ("last", "number", "")],
    ),
    (
        "HttpAnswer",
        "An HTTP response",
        &[
            ("status", "number", ""),
            ("headers", "{[string]: string}", "By name in lower case"),
            ("body", "string", ""),
            ("url", "string", "URL after redirects"),
        ],
    ),
    (
        "ProcessResult",
        "The result of a program",
        &[
            ("code", "number", "Exit code; 128 + signal number if a signal ended the program"),
            ("out", "string", ""),
            ("err", "string", ""),
            ("timed_out", "boolean", ""),
            ("seconds", "number", ""),
        ],
    ),
    (
        "ToolUse",
        "A stored tool call",
        &[
            ("name", "string", ""),
            ("arguments", "any", ""),
            ("kind?", "string", "bad_arguments, excess, unknown or malformed for a call that did not run"),
            ("output", "string", "Text shown to the policy"),
            ("ok", "boolean", ""),
            ("reward", "number", "Process reward"),
            ("seconds", "number", ""),
            ("retries?", "number", "Number of retries"),
            ("cached?", "boolean", "The result came from the tool's cache"),
            ("hidden?", "boolean", "The script made it for itself (r1.call_tools with `hidden`)"),
        ],
    ),
    (
        "Script",
        "A script opened by r1.script",
        &[
            ("path", "string", ""),
            ("tools", "{{[string]: any}}", "Tool schemas"),
            ("format", "string", "Tool-call format"),
        ],
    ),
    (
        "Training",
        "A run with a training loop written in Lua",
        &[
            ("step", "number", "Number of completed steps"),
            ("steps", "number", "trainer.steps"),
            ("rows", "number", "Number of rows of the training data"),
            ("run_dir", "string", ""),
            ("settings", "{[string]: any}", "All settings of the recipe"),
        ],
    ),
    (
        "Step",
        "A step of a trajectory; token ids and log-probabilities are present after a rollout, and with `ids = true` from r1.store",
        &[
            ("text", "string", "The response"),
            ("reward", "number", "Includes process rewards; at the last step also the outcome reward"),
            ("finish_reason", "string", "stop, stop_string, length or deadline"),
            ("terminated", "boolean", ""),
            ("truncated", "boolean", ""),
            ("new_row", "boolean", "The prompt does not extend the previous step"),
            ("tools", "{ToolUse}", ""),
            ("prompt_tokens", "number", ""),
            ("response_tokens", "number", ""),
            ("prompt_ids?", "{number}", ""),
            ("response_ids?", "{number}", ""),
            ("logprobs?", "{number}", "Log-probabilities of the response ids under the policy that sampled them"),
            (
                "support?",
                "{[string]: any}",
                "The sampled-from tokens, if top-k, top-p or min-p restricted the distribution",
            ),
        ],
    ),
    (
        "Tool",
        "A tool of the policy",
        &[
            ("name", "string", ""),
            (
                "schema",
                "{[string]: any}",
                "Its schema in the OpenAI shape, for `tools` of demonstrations (docs/sft.md)",
            ),
        ],
    ),
    (
        "SearchHit",
        "A passage that Index:search found",
        &[
            ("id", "string", ""),
            ("title", "string", "Empty if it has none"),
            ("text", "string", ""),
            ("score", "number", ""),
            ("rank", "number", "From 1, the best"),
            ("columns", "{[string]: any}", "The other columns of its row"),
        ],
    ),
    (
        "Trajectory",
        "A trajectory of r1.store, r1.rollout or Attempt:finish",
        &[
            ("id", "string", ""),
            ("split", "string", "train or eval: the split of its task"),
            ("group", "number", ""),
            ("sample", "number", ""),
            ("fork?", "{parent: string, step: number}", "The parent trajectory, and the number of shared steps"),
            ("seed", "number | string", "As text if above 2^53"),
            ("task_index", "number", ""),
            ("task", "Task", ""),
            ("status", "string", ""),
            ("truncated_by?", "string", "The limit that truncated it"),
            ("retries", "number", "Number of retries after a failure"),
            ("error?", "string", ""),
            ("script_hash", "string", ""),
            ("reward", "number", ""),
            ("outcome_reward", "number", ""),
            ("parts", "{[string]: number}", "Named parts of the reward, summed over the trajectory"),
            ("messages", "{Message}", ""),
            ("steps", "{Step}", ""),
            ("record?", "{{[string]: any}}", ""),
            ("branch?", "number", "Index of the continuation, with `branch` of r1.rollout"),
        ],
    ),
];

/// Opaque objects, and objects with methods.
const OPAQUE: [(&str, &str); 20] = [
    ("Recipe", "A recipe: the value that a recipe script returns"),
    ("Env", "An environment"),
    ("ToolServer", "An MCP server: stands for the list of its tools"),
    ("Format", "A tool-call format"),
    ("Trainer", "Training settings"),
    ("Dataset", "A dataset of tasks"),
    ("Resource", "A data file: a read-only list of rows"),
    ("TextIndex", "An index of texts"),
    ("Tables", "Tables for SQL queries"),
    ("Index", "An index of passages on disk"),
    ("Connection", "A connection to a server or a program that stays open between requests"),
    ("Context", "A context policy applied to a conversation"),
    ("LossTensor", "A number or boolean per response token; + - * / ^ are elementwise"),
    ("Secret", "A handle to the value of an environment variable, which scripts cannot read"),
    ("Tokenizer", "The tokenizer of a model"),
    ("Template", "A chat template"),
    ("Model", "An open model"),
    ("Attempt", "A trajectory run step by step"),
    ("Expectation", "A value under test"),
    ("Task", "A row of a dataset, with all its columns"),
];

/// All named types; those of settings are their declarations.
pub fn named_types() -> Vec<Named> {
    let plain = |&(name, kind, doc): &(&str, &str, &str)| (name.to_owned(), kind.to_owned(), doc.to_owned());
    let tables = TABLES.iter().map(|&(name, doc, fields)| Named {
        name,
        doc: doc.to_owned(),
        fields: fields.iter().map(plain).collect(),
    });
    let opaque = OPAQUE.iter().map(|&(name, doc)| Named { name, doc: doc.to_owned(), fields: Vec::new() });
    // The recipe is one of the opaque objects.
    let declared = Settings::tables();
    let settings = declared.iter().filter(|table| table.name != "Settings").map(of_section);
    tables.chain(opaque).chain(settings).collect()
}

/// A table of settings; every field may be left out.
fn of_section(table: &Table) -> Named {
    let field = |setting: &Setting| (format!("{}?", setting.name()), setting.lua.clone(), setting.summary());
    Named {
        name: table.name,
        doc: table.about.replace('`', "").trim_end_matches('.').to_owned(),
        fields: table.fields.iter().map(field).collect(),
    }
}
