//! The fields of `r1.recipe` and `r1.env`: what both read, and where a field of the other belongs.

/// Fields of `r1.recipe`.
pub(super) const RECIPE: [&str; 20] = [
    "name",
    "seed",
    "env",
    "envs",
    "flow",
    "context",
    "reward",
    "privileged",
    "advantage",
    "loss",
    "policy",
    "cold_start",
    "data",
    "sampling",
    "rollout",
    "trainer",
    "eval",
    "checkpoint",
    "limits",
    "needs",
];

/// Fields of `r1.env`.
pub(super) const ENV: [&str; 17] = [
    "tools",
    "format",
    "max_steps",
    "max_tokens",
    "on_overflow",
    "max_calls",
    "excess_calls",
    "tool_choice",
    "max_result_tokens",
    "call_rewards",
    "system",
    "reply_prefix",
    "reset",
    "step",
    "flow",
    "context",
    "reward",
];
