//! Settings of an environment: its limits, and what calls of tools earn.

use serde::{Deserialize, Serialize};

/// Settings of `r1.env` that are data; its functions stay in the VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSettings {
    /// How tool calls are written: `auto` (what the model's chat template asks for), `hermes`, `qwen3_coder`, `llama3`,
    /// `pythonic`, `mistral`, `deepseek_v3`, `deepseek_v31`, `harmony`, `retool`, `tir`, `answer`, or the name of a format of
    /// the recipe's own (`r1.format`).
    pub format: String,
    /// Reaching it truncates the trajectory.
    pub max_steps: usize,
    /// Tokens sampled for all replies of a trajectory. The last reply has what is left; reaching it truncates. 0 is no limit.
    pub max_tokens: usize,
    /// What a prompt that leaves no room for a reply does to a trajectory that has sampled something: `end` truncates it, and
    /// it is scored and trained on; `fail` makes it a failure.
    pub on_overflow: OnOverflow,
    /// Most calls of a reply that are carried out; 0 is no limit.
    pub max_calls: usize,
    /// What happens to a reply with more calls than that: `refuse` carries out the first ones and answers the others with an
    /// error; `refuse_all` carries out none; `ignore` carries out the first ones and answers no others.
    pub excess_calls: ExcessCalls,
    /// Which replies must call a tool: none (`auto`), the first of a trajectory (`first`) or all (`required`). One that does
    /// not counts as a malformed call, and the trajectory goes on.
    pub tool_choice: ToolChoice,
    /// Longest result of a tool in tokens of the policy; a longer one is cut, and says so. 0 is no limit. A tool's own
    /// `max_result_tokens` takes precedence.
    pub max_result_tokens: usize,
    /// Process rewards of calls by how they end.
    pub call_rewards: CallRewards,
    /// System prompt the default `reset` puts first; empty for none.
    pub system: String,
    /// Text that every reply begins with, such as `<think>\n`. It is the end of the prompt: it is not sampled and not trained
    /// on, and the environment sees it as the beginning of the reply.
    pub reply_prefix: String,
}

impl Default for EnvSettings {
    fn default() -> Self {
        Self {
            format: "auto".to_owned(),
            max_steps: 8,
            max_tokens: 0,
            on_overflow: OnOverflow::End,
            max_calls: 0,
            excess_calls: ExcessCalls::Refuse,
            tool_choice: ToolChoice::Auto,
            max_result_tokens: 0,
            call_rewards: CallRewards::default(),
            system: String::new(),
            reply_prefix: String::new(),
        }
    }
}

/// What happens to a reply with more calls than `env.max_calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExcessCalls {
    /// The first ones are carried out, the others are refused.
    Refuse,
    /// All are refused.
    RefuseAll,
    /// The first ones are carried out, the others get no answer.
    Ignore,
}

/// Which replies must call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The policy decides.
    Auto,
    /// The first one of a trajectory.
    First,
    /// Every one.
    Required,
}

/// Process rewards of calls, where the tool gives none of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallRewards {
    /// The tool succeeded.
    pub ok: f64,
    /// The tool failed or timed out.
    pub failed: f64,
    /// The call was not carried out: an unknown tool, arguments that do not fit, more calls than `env.max_calls`.
    pub refused: f64,
    /// The call could not be parsed, or is missing where `env.tool_choice` requires one.
    pub malformed: f64,
}

/// What a full context does to a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOverflow {
    /// It is truncated.
    End,
    /// It fails as `context_overflow`.
    Fail,
}
