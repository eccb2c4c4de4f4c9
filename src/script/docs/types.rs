//! Named types of the declarations: tables that scripts see, objects that only the host looks into,
//! settings.

use serde::Serialize;

use crate::config::{
    Branch, CallRewards, CheckpointSettings, CriticSettings, EnvSettings, EvalSettings, Filter, InitModel, Kl, Learner,
    Limits, LoraSettings, PolicySettings, RolloutSettings, Sft, WeightGroup,
};
use crate::mdp::Sampling;
use crate::schema::{Section, Setting};

/// A type with a name: a table with fields, or something that only the host looks into.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: &'static str,
    pub doc: String,
    /// Name (a `?` at the end: may be missing), type, what it is.
    pub fields: Vec<(String, String, String)>,
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
            ("error?", "string", "Why it failed: message, place, hint and frames"),
            (
                "error_fields?",
                "{[string]: any}",
                "The same as data: kind, message, place, line, hint, traceback, subject",
            ),
        ],
    ),
    (
        "FormatCall",
        "A call as `parse` of r1.format reads it; one that can't be read has only `error`",
        &[
            ("name?", "string", "Of the tool"),
            ("arguments?", "{[string]: any}", "By name; none unless said"),
            ("id?", "string", ""),
            ("error?", "string", "What is wrong with it, in words for the policy"),
        ],
    ),
    (
        "FormatResult",
        "A tool's result as `result` of r1.format gets it",
        &[("content", "string", ""), ("name?", "string", "The tool"), ("call_id?", "string", "")],
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
            ("parts?", "{[string]: number}", "Named parts for the logs; other names than those of reward"),
        ],
    ),
    (
        "Outcome",
        "How a trajectory ended",
        &[
            ("text", "string", "The last reply"),
            ("steps", "number", ""),
            ("calls", "number", "Calls of tools, with those that were not carried out"),
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
    (
        "Policy",
        "The policy, as a flow sees it",
        &[
            ("steps", "number", "Replies so far"),
            ("state", "any", "Plain data that `reward` and tools get; `task` and `messages` are in it"),
            ("budget", "Budget", "What a prompt may have"),
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
            ("retries?", "number", "Tries behind the first one"),
            ("cached?", "boolean", "The result came from the tool's cache"),
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
            ("split", "string", "train, or eval: the dataset of its task"),
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
const OPAQUE: [(&str, &str); 17] = [
    ("Recipe", "What a script returns"),
    ("Env", "An environment"),
    ("Tool", "What a policy can call"),
    ("Format", "How tool calls are written"),
    ("Trainer", "How to train"),
    ("Dataset", "Where tasks come from"),
    ("Resource", "A file of data: a read-only list of rows"),
    ("TextIndex", "An index of texts"),
    ("Context", "A view of a conversation"),
    ("LossTensor", "A number, or a boolean, per response token; + - * / ^ are elementwise"),
    ("Secret", "The value of an environment variable, which scripts do not see"),
    ("Tokenizer", "The tokenizer of a model"),
    ("Template", "A chat template"),
    ("Model", "An open model"),
    ("Attempt", "A trajectory that is played by hand"),
    ("Expectation", "A value that a test looks at"),
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
    let settings = [
        of_section::<EnvSettings>(),
        of_section::<CallRewards>(),
        of_section::<PolicySettings>(),
        of_section::<InitModel>(),
        of_section::<LoraSettings>(),
        of_section::<Sampling>(),
        of_section::<RolloutSettings>(),
        of_section::<Learner>(),
        of_section::<Branch>(),
        of_section::<Kl>(),
        of_section::<Filter>(),
        of_section::<CriticSettings>(),
        of_section::<WeightGroup>(),
        of_section::<Sft>(),
        of_section::<EvalSettings>(),
        of_section::<CheckpointSettings>(),
        of_section::<Limits>(),
    ];
    tables.chain(opaque).chain(settings).collect()
}

/// The table of a section of settings; every field may be left out.
fn of_section<S: Section>() -> Named {
    let field = |setting: &Setting| (format!("{}?", setting.name()), setting.lua.clone(), setting.summary());
    Named {
        name: S::NAME,
        doc: S::about().replace('`', "").trim_end_matches('.').to_owned(),
        fields: S::declared().iter().map(field).collect(),
    }
}
