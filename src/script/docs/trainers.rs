//! Declarations: trainers, estimators and losses.

use super::{Entry, f, p, program};

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.grpo",
        &[p("settings", "Learner", "docs/training.md")],
        &[("Trainer", "")],
        "Group-relative policy optimisation.",
        "r1.grpo { group_size = 8, groups_per_step = 16, lr = 1e-6, clip = { 0.2, 0.28 } }",
    ),
    f(
        "r1.ppo",
        &[p("settings", "Learner", "")],
        &[("Trainer", "")],
        "Policy optimisation with a critic.",
        "r1.ppo { group_size = 1, lr = 1e-6 }",
    ),
    f(
        "r1.trainer",
        &[p("settings", "{algorithm: string, [string]: any}", "Name of the algorithm, and its settings")],
        &[("Trainer", "")],
        "Training with an algorithm by name.",
        "r1.trainer { algorithm = \"gigpo\", group_size = 8 }",
    ),
    f(
        "r1.sft",
        &[p("settings", "Sft", "")],
        &[("Trainer", "")],
        "Supervised fine-tuning on conversations: rows with `messages`, and other formats (docs/sft.md).",
        "r1.sft { steps = 100, lr = 1e-5 }",
    ),
    program(
        "r1.rl.advantages",
        &[
            p("name", "string", "Estimator: grpo, rloo, gae, gigpo …"),
            p("rows", "{{[string]: any}}", "Steps: group, trajectory, step, mask, rewards, values, logp, shared …"),
            p("options?", "{[string]: any}", "Options of the estimator"),
        ],
        &[("{advantages: {{number}}, counted: {boolean}, returns: {{number}}?, targets: {{boolean}}?}", "")],
        "Computes advantages with an estimator of training, over plain tables, in f64.",
        "local rows = {\n  { group = 1, trajectory = 1, step = 1, mask = { 1, 1 }, rewards = { 0, 1 } },\n  { group = 1, trajectory = 2, step = 1, mask = { 1 }, rewards = { 0 } },\n}\nr1.rl.advantages(\"grpo\", rows, { normalize = \"none\" }).advantages  --> [[0.5,0.5],[-0.5]]",
    ),
    program(
        "r1.rl.loss",
        &[
            p(
                "loss",
                "string | ((b: LossBatch, options: {[string]: any}) -> any)",
                "Name (ppo, gspo, cispo …) or function",
            ),
            p("rows", "{{[string]: any}}", "Steps with logp, logp_old and advantages"),
            p("options?", "{[string]: any}", "Options of the loss"),
        ],
        &[("{loss: number, gradient: {{number}}, metrics: {[string]: number}}", "")],
        "Computes a loss of training and its gradient with respect to `logp`.",
        "",
    ),
    program(
        "r1.rl.value_loss",
        &[
            p("values", "{number}", "Current values of the critic"),
            p("values_old", "{number}", "Values before the update"),
            p("returns", "{number}", "Targets"),
            p("options?", "{clip: number?}", "`clip`: maximum change from the old value; default: off"),
        ],
        &[("{loss: number, gradient: {number}, clip_frac: number}", "")],
        "Computes the value loss (half the squared error, clipped as in PPO, averaged over all entries) and its gradient with respect to `values`.",
        "r1.rl.value_loss({ 1 }, { 0 }, { 2 }, { clip = 0.5 })",
    ),
    program(
        "r1.rl.entropy",
        &[p("logits", "{{number}}", "One list per position"), p("temperature?", "number", "Default: 1")],
        &[("{number}", "")],
        "Computes the entropy of each distribution, in nats.",
        "r1.rl.entropy({ { 0, 0 }, { 0, 0, 0, 0 } }, 1)",
    ),
];
