//! Settings of Agent-R1 that verl does not have: the legacy version (one growing token sequence
//! with an action mask) and v0.1.0 (a step-level MDP, arXiv:2511.14460).

use super::{Counterpart, c, none};

pub(super) const SETTINGS: &[Counterpart] = &[
    // v0.1.0.
    c("actor_rollout_ref.rollout.agent.max_steps", &["env.max_steps"], "steps"),
    none("actor_rollout_ref.rollout.agent.agent_flow_config_path", "r1.env { … } in the recipe"),
    none("actor_rollout_ref.rollout.agent.skip_special_tokens", "formats decide what is text"),
    c("trainer.minibatch_mode", &["trainer.mini_batch_by"], "\"trajectory\" or \"step\""),
    c("asymmetric_critic.enabled", &["trainer.critic.privileged"], "a text with {column} of the dataset row"),
    c("asymmetric_critic.template", &["trainer.critic.privileged"], "a text with {column} of the dataset row"),
    c("asymmetric_critic.max_tokens", &["trainer.critic.privileged_tokens"], "tokens"),
    c("algorithm.step_advantage_w", &["trainer.estimator.weight"], "with estimator gigpo"),
    c("algorithm.reward_scaling.enable", &["trainer.shaping.running"], "the discount of the return"),
    none("agent_name", "the same column of a row, or `env`, chooses one of the recipe's `envs`"),
    none("env_kwargs", "the same column of a row: `kwargs`, the second argument of `reset`"),
    none("env_type", "the same field of `env_kwargs`, or the column `env`, chooses one of the recipe's `envs`"),
    // Legacy.
    c("actor_rollout_ref.rollout.n_repeat", &["trainer.group_size"], "trajectories per task"),
    c("tool.max_turns", &["env.max_steps"], "steps"),
    none("tool.tools", "tools are values of the script: r1.env { tools = { … } }"),
    c("tool.env", &["env.format"], "hermes (Agent-R1: nous), retool, tir (mathtir)"),
    c("tool.max_tool_response_length", &["env.max_result_tokens"], "tokens"),
    none("tool.use_batch_tool_calls", "calls of one reply always run at the same time"),
    c("data.max_response_length_single_turn", &["sampling.max_new_tokens"], "tokens of one step"),
    none("data.use_default_tool_template", "the model's chat template shows the tools"),
    c("data.use_custom_system_prompt", &["env.system"], "the system prompt"),
];
