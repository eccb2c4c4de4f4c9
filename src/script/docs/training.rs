//! Declarations: training loops of programs.

use super::{Entry, Param, p, program, table};

const LIST: Param =
    p("trajectories", "{Trajectory | string}", "Trajectories of `rollout`, or their ids; also of earlier steps");

pub(super) const ENTRIES: &[Entry] = &[
    program(
        "r1.training",
        &[
            p("recipe", "string | Recipe | {[string]: any}", "Path of a recipe, or a recipe in the program"),
            table(
                "options?",
                "",
                &[
                    p(
                        "settings?",
                        "{[string]: any}",
                        "Overrides of the recipe's settings: { [\"trainer.lr\"] = 1e-4 }",
                    ),
                    p("name?", "string", "Name of the run"),
                    p("runs?", "string", "Directory of runs; default: \"runs\""),
                    p("resume?", "string", "Run directory to resume"),
                ],
            ),
        ],
        &[("Training", "Fields: step, steps, rows, run_dir, settings, critic (boolean)")],
        "Opens a run with a training loop written in Lua. Model, data and run directory are those of r1 run. If the program contains the recipe, script workers load the program again up to this call.",
        "local t = r1.training(\"scripts/retool.lua\", { settings = { [\"trainer.steps\"] = 10 } })\nwhile t.step < t.steps do\n  t:update(t:rollout())\n  t:next_step()\nend\nt:save()",
    ),
    program(
        "Training:rollout",
        &[table(
            "options?",
            "",
            &[
                p("groups?", "number", "Number of tasks; default: trainer.groups_per_step"),
                p("samples?", "number", "Trajectories per task; default: trainer.group_size"),
                p("rows?", "{number}", "Rows of the training data, from 0; default: the next rows"),
                p("ids?", "boolean", "Include the token ids of each step"),
            ],
        )],
        &[("{Trajectory}", "")],
        "Samples trajectories with the current weights, in the order of the data.",
        "",
    ),
    program(
        "Training:advantages",
        &[LIST, p("estimator?", "string | {[string]: any}", "Default: the estimator of the recipe")],
        &[(
            "{any}",
            "For each trajectory a list with the advantages of each step's tokens; nil for a failed trajectory",
        )],
        "Computes advantages.",
        "",
    ),
    program(
        "Training:update",
        &[
            LIST,
            table(
                "options?",
                "Defaults: the recipe's settings",
                &[
                    p(
                        "advantages?",
                        "{any}",
                        "For each trajectory a number, or a list with a number or a list per step",
                    ),
                    p("returns?", "{any}", "Targets of the critic, in the same form; default: those of the estimator"),
                    p("policy?", "boolean", "false: update only the critic"),
                    p("estimator?", "string | {[string]: any}", "Estimator, if `advantages` is not given"),
                    p(
                        "loss?",
                        "string | {[string]: any} | ((b: LossBatch, options: any) -> any)",
                        "Name of a loss, or a function",
                    ),
                    p("options?", "{[string]: any}", "Options of a loss function"),
                    p("groups?", "{number}", "Group of each trajectory; default: its task"),
                    p("lr?", "number", ""),
                    p("epochs?", "number", ""),
                    p("mini_batches?", "number", ""),
                ],
            ),
        ],
        &[("{[string]: number}", "Metrics: docs/metrics.md")],
        "Updates the policy (and critic) on trajectories.",
        "",
    ),
    program(
        "Training:sft",
        &[
            p("examples", "{{messages: {Message}, tools: {any}?}}", ""),
            table("options?", "", &[p("lr?", "number", "Default: that of the recipe")]),
        ],
        &[("{[string]: number}", "Metrics")],
        "Takes a supervised step on conversations; the loss covers the assistant's tokens.",
        "",
    ),
    program(
        "Training:logprobs",
        &[LIST, table("options?", "", &[p("model?", "string", "\"policy\" (current weights) or \"reference\"")])],
        &[("{{{number}}}", "One list per trajectory and step, with one number per sampled token")],
        "Computes log-probabilities of the sampled tokens.",
        "",
    ),
    program(
        "Training:values",
        &[LIST],
        &[
            ("{{{number}}}", "One list per trajectory and step, with one number per sampled token"),
            ("{number}", "Bootstrap value of each truncated trajectory; nil for the others"),
        ],
        "Computes the critic's values of the states before the sampled tokens.",
        "",
    ),
    program(
        "Training:renew_reference",
        &[],
        &[],
        "Copies the current policy to the reference policy, which checkpoints include from then on.",
        "",
    ),
    program(
        "Training:evaluate",
        &[],
        &[("{[string]: any}?", "accuracy, reward, tasks, parts …; nil without held-out data")],
        "Evaluates the policy on the recipe's held-out tasks and logs the result.",
        "",
    ),
    program(
        "Training:log",
        &[p("values", "{[string]: number}", "")],
        &[],
        "Adds metrics to the line of this step in metrics.jsonl.",
        "",
    ),
    program(
        "Training:next_step",
        &[p("values?", "{[string]: number}", "As in Training:log")],
        &[("{[string]: number}", "Metrics of the step")],
        "Ends the step: writes trajectories and metrics, and advances the step counter.",
        "",
    ),
    program(
        "Training:save",
        &[p("out?", "string", "Directory for the model only")],
        &[("string", "Path of the checkpoint")],
        "Writes a checkpoint from which the run can be resumed.",
        "",
    ),
];
