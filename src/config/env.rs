//! Settings of an environment: limits, tool calls and process rewards.

use crate::mdp::DescribeTools;
use crate::schema::{choices, section};

section! {
    /// Settings of `r1.env` that are data; its functions stay in the VM.
    pub struct EnvSettings: "env." {
        /// Tool-call format; auto is the format of the model's chat template.
        format: String = "auto".to_owned(), range("auto, hermes, qwen3_coder, llama3, pythonic, mistral, deepseek_v3, deepseek_v31, harmony, retool, tir, answer, or one of r1.format"), restart();
        /// Whether the system prompt describes the tools, with a call in the syntax of the format.
        /// auto: if the chat template prints no tools; always: also for retool, tir and answer,
        /// whose prompts show none. A template without system messages has the description in the
        /// first message of the user.
        describe_tools: DescribeTools = DescribeTools::Auto, restart();
        /// Steps after which a trajectory is truncated.
        max_steps: usize = 8, unit("steps"), range("≥ 1");
        /// Response tokens after which a trajectory is truncated; 0 means no limit.
        max_tokens: usize = 0, unit("tokens"), range("≥ 0");
        /// Handling of a trajectory whose context is full: end truncates and scores it, fail makes
        /// it a failure.
        on_overflow: OnOverflow = OnOverflow::End;
        /// Maximum number of tool calls executed per response; 0 means no limit.
        max_calls: usize = 0, unit("calls"), range("≥ 0");
        /// Handling of a response with more calls: the others are refused, all are refused, or the
        /// others are ignored.
        excess_calls: ExcessCalls = ExcessCalls::Refuse;
        /// Responses that must call a tool: none, the first of a trajectory, or all. A missing call
        /// counts as malformed.
        tool_choice: ToolChoice = ToolChoice::Auto;
        /// Maximum length of a tool result; a longer result is truncated. 0 means no limit.
        max_result_tokens: usize = 0, unit("tokens"), range("≥ 0");
        /// Process rewards of tool calls by outcome.
        call_rewards: CallRewards = CallRewards::default();
        /// System prompt of the default reset; empty for none.
        system: String = String::new();
        /// Text that every response starts with, such as `<think>`; it is part of the prompt,
        /// neither sampled nor trained on.
        reply_prefix: String = String::new(), restart();
        /// Texts in messages and tool results that spell a special token (`<|im_end|>`) become that
        /// token, as in transformers. Without it only the chat template's own text has special
        /// tokens, so that a result can't end its turn and begin another one
        /// (docs/guide/context.md).
        special_tokens_in_messages: bool = false, restart();
    }
}

choices! {
    /// Handling of a response with more calls than `env.max_calls`.
    pub enum ExcessCalls {
        /// The first calls are executed, the others are refused.
        Refuse = "refuse",
        /// All calls are refused.
        RefuseAll = "refuse_all",
        /// The first calls are executed, the others are ignored.
        Ignore = "ignore",
    }
}

choices! {
    /// Responses that must call a tool.
    pub enum ToolChoice {
        /// None.
        Auto = "auto",
        /// The first response of a trajectory.
        First = "first",
        /// All responses.
        Required = "required",
    }
}

section! {
    /// Process rewards of tool calls; a reward that the tool returns takes precedence.
    pub struct CallRewards: "env.call_rewards." {
        /// Process reward of a call that succeeded.
        ok: f64 = 0.0;
        /// Process reward of a call that failed or timed out.
        failed: f64 = 0.0;
        /// Process reward of a call of an unknown tool, with wrong arguments, or beyond max_calls.
        refused: f64 = 0.0;
        /// Process reward of a call that could not be parsed.
        malformed: f64 = 0.0;
    }
}

choices! {
    /// Handling of a trajectory whose context is full.
    pub enum OnOverflow {
        /// The trajectory is truncated.
        End = "end",
        /// The trajectory fails with `context_overflow`.
        Fail = "fail",
    }
}

impl Copy for CallRewards {}
