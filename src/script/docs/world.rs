//! Entries: models and runs, for programs.

use super::{Entry, p, program, table};

pub(super) const ENTRIES: &[Entry] = &[
    program(
        "r1.model",
        &[
            p("model", "string", "A directory, a hub id or r1-nano"),
            table(
                "options?",
                "",
                &[
                    p("base?", "string", "For an adapter: another copy of its base model, as policy.base"),
                    p("device?", "string", "auto, cpu or cuda"),
                    p("dtype?", "string", "auto, f32 or bf16"),
                    p("max_context?", "number", ""),
                    p("format?", "string", "Of tool calls"),
                ],
            ),
        ],
        &[("Model", "")],
        "Opens a model. A directory without a tokenizer is used by ids.",
        "local model = r1.model(\"r1-nano\")\nmodel:generate(\"2+3\", { temperature = 0, max_new_tokens = 3 }).finish_reason  --> \"length\"",
    ),
    program(
        "Model:generate",
        &[
            p("prompt", "{number} | string | {Message}", "Token ids, text as it is, or messages"),
            table(
                "sampling?",
                "The defaults are the model's generation_config.json",
                &[
                    p("temperature?", "number", ""),
                    p("top_k?", "number", ""),
                    p("top_p?", "number", ""),
                    p("min_p?", "number", ""),
                    p("repetition_penalty?", "number", ""),
                    p("logit_bias?", "{[number]: number}", "By token id; -100 forbids one"),
                    p("top_logprobs?", "number", ""),
                    p("max_new_tokens?", "number", ""),
                    p("max_seconds?", "number", ""),
                    p("stop?", "{string}", ""),
                    p("stop_ids?", "{number}", ""),
                    p("seed?", "number", ""),
                    p("ignore_eos?", "boolean", ""),
                    p("tools?", "{{[string]: any}}", "Schemas, for messages"),
                ],
            ),
        ],
        &[("{text: string?, token_ids: {number}, logprobs: {number}, finish_reason: string, top_logprobs: any}", "")],
        "Samples a reply.",
        "",
    ),
    program(
        "Model:logprobs",
        &[
            p("ids", "{number}", ""),
            table(
                "options?",
                "",
                &[p("top?", "number", "How many of the likeliest ids"), p("temperature?", "number", "")],
            ),
        ],
        &[
            ("{number}", "Of every id but the first, given those before it"),
            ("{{{id: number, logprob: number}}}", "With `top`: the likeliest at each place"),
        ],
        "The log-probability of ids.",
        "",
    ),
    program(
        "Model:logits",
        &[p("ids", "{number}", "")],
        &[("{{number}}", "A list for each id")],
        "The logits behind ids; for small inputs.",
        "",
    ),
    program("Model:config", &[], &[("{[string]: any}", "")], "The model's config.json.", ""),
    program(
        "r1.store.steps",
        &[
            p("run", "string", "A run directory, or the name of one below runs"),
            table("options?", "", &[p("split?", "\"train\" | \"eval\"", "\"eval\" for the stored evaluations")]),
        ],
        &[("{number}", "")],
        "The steps of a run that have trajectories; with `split = \"eval\"` those after which it was evaluated.",
        "",
    ),
    program(
        "r1.store.trajectories",
        &[
            p("run", "string", "A run, or a file of trajectories"),
            p("step?", "number", "Of the run; a file is one step"),
            table(
                "options?",
                "",
                &[
                    p("ids?", "boolean", "With token ids and log-probabilities"),
                    p("record?", "boolean", "With what they asked outside"),
                    p("split?", "\"train\" | \"eval\"", "\"eval\" for those of the evaluation after the step"),
                ],
            ),
        ],
        &[("{Trajectory}", "")],
        "The trajectories of a step of a run.",
        "",
    ),
    program(
        "r1.store.write",
        &[
            p("path", "string", "A Parquet file, such as runs/NAME/trajectories/step-000007.parquet"),
            p("trajectories", "{Trajectory}", "Tables as r1.store.trajectories gives them, edited or your own"),
            table(
                "options?",
                "",
                &[
                    p("from?", "string", "The run that has, by id, what the tables leave out: token ids, seed, record"),
                    p("overwrite?", "boolean", "Replace a file that exists"),
                ],
            ),
        ],
        &[],
        "Writes trajectories in the layout of a run. Those of a run keep their seed and record, so that they can be replayed.",
        "",
    ),
    program(
        "r1.script",
        &[
            p("path", "string", "From where the program lies, or the current directory"),
            table(
                "options?",
                "",
                &[
                    p("settings?", "{[string]: any}", "{ [\"env.max_steps\"] = 2 }, as on the command line"),
                    p("model?", "Model", "Whose template and tokenizer are used"),
                ],
            ),
        ],
        &[("Script", "")],
        "Opens another script: its rows, and trajectories that are played by hand.",
        "local script = r1.script(\"scripts/retool.lua\")\nlocal attempt = script:reset { row = 0 }\nlocal step = attempt:step(\"<answer>\\\\boxed{42}</answer>\")",
    ),
    program(
        "Script:rows",
        &[p("split?", "string", "train or eval")],
        &[("number?", "")],
        "How many rows there are.",
        "",
    ),
    program("Script:row", &[p("row?", "number", "From 0"), p("split?", "string", "")], &[("Task", "")], "One row.", ""),
    program(
        "Script:reset",
        &[table(
            "which?",
            "",
            &[
                p("row?", "number", "From 0"),
                p("split?", "string", ""),
                p("task?", "Task", "Instead of a row"),
                p("seed?", "number", ""),
            ],
        )],
        &[("Attempt", "")],
        "Begins a trajectory.",
        "",
    ),
    program(
        "Attempt:observe",
        &[],
        &[("any", "Messages, a text, or { token_ids = … }")],
        "What the policy is shown.",
        "",
    ),
    program(
        "Attempt:step",
        &[p("reply", "string | {text: string?, tool_calls: {ToolCall}?, finish_reason: string?}", "")],
        &[("{reward: number, done: boolean, status: string?, text: string, tools: {ToolUse}}", "")],
        "Replies for the policy.",
        "",
    ),
    program(
        "Attempt:call",
        &[p("name", "string", ""), p("arguments?", "{[string]: any}", "")],
        &[("{[string]: any}", "As of step")],
        "Replies with one call of a tool.",
        "",
    ),
    program(
        "Attempt:sample",
        &[p("model", "Model", "The one that the script was opened with"), p("sampling?", "{[string]: any}", "")],
        &[("{[string]: any}", "As of step")],
        "Has a model reply.",
        "",
    ),
    program("Attempt:state", &[], &[("any", "")], "A copy of the state.", ""),
    program(
        "Attempt:reward",
        &[],
        &[("number", ""), ("{[string]: number}", "Its parts")],
        "The whole reward if it ended here.",
        "",
    ),
    program("Attempt:fork", &[], &[("Attempt", "")], "A copy that goes its own way.", ""),
    program("Attempt:finish", &[], &[("Trajectory", "")], "What it came to; it can be gone on with.", ""),
    program(
        "r1.rollout",
        &[table(
            "options",
            "",
            &[
                p("script", "string | Script", ""),
                p(
                    "policy",
                    "Model | (observation: any, step: number, attempt: Attempt) -> any",
                    "A function gives what Attempt:step takes, or nil to stop",
                ),
                p("rows?", "{number}", "From 0; the first unless said"),
                p("tasks?", "{Task}", "Instead of rows"),
                p("split?", "string", ""),
                p("samples?", "number", "Tries of each"),
                p("seed?", "number", ""),
                p("sampling?", "{[string]: any}", "Of a model"),
                p("branch?", "{step: number?, count: number?}", "So many continuations from this step on"),
                p("settings?", "{[string]: any}", "Of a script given by its path"),
            ],
        )],
        &[("{Trajectory}", "")],
        "Trajectories of a script, by a function or a model.",
        "local all = r1.rollout { script = \"scripts/retool.lua\", policy = r1.model(\"r1-nano\"), rows = { 0, 1 }, samples = 4 }",
    ),
];
