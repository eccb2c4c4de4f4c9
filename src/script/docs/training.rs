//! Entries: training loops of programs.

use super::{Entry, Param, p, program, table};

const LIST: Param = p("trajectories", "{Trajectory | string}", "What rollout gave, or ids; those of earlier steps too");

pub(super) const ENTRIES: &[Entry] = &[
    program(
        "r1.training",
        &[
            p("recipe", "string | Recipe | {[string]: any}", "A path, or a recipe in the program itself"),
            table(
                "options?",
                "",
                &[
                    p("settings?", "{[string]: any}", "Settings over those of the recipe: { [\"trainer.lr\"] = 1e-4 }"),
                    p("name?", "string", "Of the run"),
                    p("runs?", "string", "Where run directories are made; \"runs\" unless said"),
                    p("resume?", "string", "A run directory to go on with"),
                ],
            ),
        ],
        &[("Training", "With the fields step, steps, rows, run_dir, settings and critic (whether there is one)")],
        "Opens a run whose loop the program writes: model, data and run directory are those of r1 run. Script workers load a program with a recipe in it again, up to this call.",
        "local t = r1.training(\"scripts/retool.lua\", { settings = { [\"trainer.steps\"] = 10 } })\nwhile t.step < t.steps do\n  t:update(t:rollout())\n  t:next_step()\nend\nt:save()",
    ),
    program(
        "Training:rollout",
        &[table(
            "options?",
            "",
            &[
                p("groups?", "number", "Tasks; trainer.groups_per_step unless said"),
                p("samples?", "number", "Trajectories of each; trainer.group_size unless said"),
                p("rows?", "{number}", "Rows of the training data, from 0, in place of the next ones"),
                p("ids?", "boolean", "With the token ids of each step"),
            ],
        )],
        &[("{Trajectory}", "")],
        "Samples trajectories with the current weights, in the order of the data.",
        "",
    ),
    program(
        "Training:advantages",
        &[LIST, p("estimator?", "string | {[string]: any}", "The recipe's unless said")],
        &[("{any}", "For each trajectory a list with those of each step's tokens; nil for one that failed")],
        "Advantages by an estimator.",
        "",
    ),
    program(
        "Training:update",
        &[
            LIST,
            table(
                "options?",
                "What is left out is as the recipe says",
                &[
                    p(
                        "advantages?",
                        "{any}",
                        "For each trajectory a number, or a list with a number or a list for each step",
                    ),
                    p("returns?", "{any}", "The same of returns, which the critic learns; the estimator's unless said"),
                    p("policy?", "boolean", "false: only the critic learns"),
                    p("estimator?", "string | {[string]: any}", "Where no advantages are given"),
                    p(
                        "loss?",
                        "string | {[string]: any} | ((b: LossBatch, options: any) -> any)",
                        "A name, or a function",
                    ),
                    p("options?", "{[string]: any}", "Of a loss that is a function"),
                    p("groups?", "{number}", "For each trajectory the group it is compared in; its task's unless said"),
                    p("lr?", "number", ""),
                    p("epochs?", "number", ""),
                    p("mini_batches?", "number", ""),
                ],
            ),
        ],
        &[("{[string]: number}", "Metrics: docs/metrics.md")],
        "Learns from trajectories.",
        "",
    ),
    program(
        "Training:sft",
        &[
            p("examples", "{{messages: {Message}, tools: {any}?}}", ""),
            table("options?", "", &[p("lr?", "number", "The recipe's unless said")]),
        ],
        &[("{[string]: number}", "Metrics")],
        "A supervised step on conversations, with a loss over the assistant's tokens.",
        "",
    ),
    program(
        "Training:logprobs",
        &[LIST, table("options?", "", &[p("model?", "string", "\"policy\", as it is now, or \"reference\"")])],
        &[("{{{number}}}", "For each trajectory and step those of the sampled tokens")],
        "Log-probabilities of sampled tokens.",
        "",
    ),
    program(
        "Training:values",
        &[LIST],
        &[
            ("{{{number}}}", "For each trajectory and step those of the sampled tokens"),
            ("{number}", "Of what would have come next, where a limit cut the trajectory; else nil"),
        ],
        "The critic's values of the states before sampled tokens.",
        "",
    ),
    program(
        "Training:renew_reference",
        &[],
        &[],
        "Makes the policy as it is now the reference policy. Checkpoints hold it from then on.",
        "",
    ),
    program(
        "Training:evaluate",
        &[],
        &[("{[string]: any}?", "accuracy, reward, tasks, parts …; nil without held-out data")],
        "Evaluates the policy on the recipe's held-out tasks, and logs it.",
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
        &[p("values?", "{[string]: number}", "As of log")],
        &[("{[string]: number}", "Metrics of the step")],
        "Ends the step: trajectories and metrics are written, and the counters move on.",
        "",
    ),
    program(
        "Training:save",
        &[p("out?", "string", "A directory for the model alone")],
        &[("string", "The checkpoint")],
        "Writes a checkpoint, from which the run can be resumed.",
        "",
    ),
];
