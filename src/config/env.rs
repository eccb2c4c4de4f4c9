//! Settings of an environment: limits, tool calls and process rewards.

use serde::{Deserialize, Serialize};

/// Settings of `r1.env` that are data; its functions stay in the VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvSettings {
    /// Tool-call format: `auto` (the format of the model's chat template), `hermes`, `qwen3_coder`,
    /// `llama3`, `pythonic`, `mistral`, `deepseek_v3`, `deepseek_v31`, `harmony`, `retool`, `tir`,
    /// `answer`, or the name of a format defined with `r1.format`.
    pub format: String,
    /// Steps after which a trajectory is truncated.
    pub max_steps: usize,
    /// Maximum number of response tokens of a trajectory, which is truncated there; 0 is no limit.
    /// The last response is limited to the remaining tokens.
    pub max_tokens: usize,
    /// Handling of a prompt that leaves no room for a response, after at least one response: `end`
    /// truncates the trajectory, which is scored and trained on; `fail` makes it a failure.
    pub on_overflow: OnOverflow,
    /// Maximum number of tool calls executed per response; 0 is no limit.
    pub max_calls: usize,
    /// Handling of a response with more calls: `refuse` executes the first calls and returns an
    /// error for the others; `refuse_all` executes none; `ignore` executes the first calls and
    /// returns nothing for the others.
    pub excess_calls: ExcessCalls,
    /// Responses that must call a tool: none (`auto`), the first of a trajectory (`first`) or all
    /// (`required`). A response without a required call counts as a malformed call, and the
    /// trajectory continues.
    pub tool_choice: ToolChoice,
    /// Maximum length of a tool result in tokens of the policy; a longer result is truncated with a
    /// notice. 0 is no limit. A tool's own `max_result_tokens` takes precedence.
    pub max_result_tokens: usize,
    /// Process rewards of tool calls by outcome.
    pub call_rewards: CallRewards,
    /// System prompt of the default `reset`; empty for none.
    pub system: String,
    /// Text that every response starts with, such as `<think>\n`. It is part of the prompt, so it
    /// is neither sampled nor trained on; the environment sees it as the start of the response.
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

/// Handling of a response with more calls than `env.max_calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExcessCalls {
    /// The first calls are executed, the others are refused.
    Refuse,
    /// All calls are refused.
    RefuseAll,
    /// The first calls are executed, the others are ignored.
    Ignore,
}

/// Responses that must call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// None.
    Auto,
    /// The first response of a trajectory.
    First,
    /// All responses.
    Required,
}

/// Process rewards of tool calls; a reward that the tool returns takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallRewards {
    /// The tool succeeded.
    pub ok: f64,
    /// The tool failed or timed out.
    pub failed: f64,
    /// The call was not executed: unknown tool, invalid arguments, or more calls than
    /// `env.max_calls`.
    pub refused: f64,
    /// The call could not be parsed, or is missing where `env.tool_choice` requires one.
    pub malformed: f64,
}

/// Handling of a trajectory whose context is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOverflow {
    /// The trajectory is truncated.
    End,
    /// The trajectory fails with `context_overflow`.
    Fail,
}
