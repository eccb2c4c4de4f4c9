//! Declarations: models and runs, for programs.

use super::{Entry, p, program, table};

pub(super) const ENTRIES: &[Entry] = &[
    program(
        "r1.model",
        &[
            p("model", "string", "Directory, Hub id, or r1-nano"),
            table(
                "options?",
                "",
                &[
                    p("base?", "string", "For an adapter: another copy of its base model, as policy.base"),
                    p("device?", "string", "auto, cpu or cuda"),
                    p("dtype?", "string", "auto, f32 or bf16"),
                    p("max_context?", "number", ""),
                    p("format?", "string", "Tool-call format"),
                ],
            ),
        ],
        &[("Model", "")],
        "Opens a model. A model directory without a tokenizer takes token ids only.",
        "local model = r1.model(\"r1-nano\")\nmodel:generate(\"2+3\", { temperature = 0, max_new_tokens = 3 }).finish_reason  --> \"length\"",
    ),
    program(
        "Model:generate",
        &[
            p("prompt", "{number} | string | {Message}", "Token ids, raw text, or messages"),
            table(
                "sampling?",
                "Defaults: the model's generation_config.json",
                &[
                    p("temperature?", "number", ""),
                    p("top_k?", "number", ""),
                    p("top_p?", "number", ""),
                    p("min_p?", "number", ""),
                    p("repetition_penalty?", "number", ""),
                    p("logit_bias?", "{[number]: number}", "Added to the logits, by token id; -100 excludes a token"),
                    p("top_logprobs?", "number", ""),
                    p("max_new_tokens?", "number", ""),
                    p("max_seconds?", "number", ""),
                    p("stop?", "{string}", ""),
                    p("stop_ids?", "{number}", ""),
                    p("seed?", "number", ""),
                    p("ignore_eos?", "boolean", ""),
                    p("tools?", "{{[string]: any}}", "Tool schemas, for messages"),
                ],
            ),
        ],
        &[("{text: string?, token_ids: {number}, logprobs: {number}, finish_reason: string, top_logprobs: any}", "")],
        "Samples a response.",
        "",
    ),
    program(
        "Model:logprobs",
        &[
            p("ids", "{number}", ""),
            table(
                "options?",
                "",
                &[p("top?", "number", "Number of top log-probabilities per position"), p("temperature?", "number", "")],
            ),
        ],
        &[
            ("{number}", "Log-probability of every id except the first, given the preceding ids"),
            ("{{{id: number, logprob: number}}}", "With `top`: the top ids per position"),
        ],
        "Log-probabilities of token ids.",
        "",
    ),
    program(
        "Model:logits",
        &[p("ids", "{number}", "")],
        &[("{{number}}", "One list per id")],
        "Logits at every position; for small inputs.",
        "",
    ),
    program("Model:config", &[], &[("{[string]: any}", "")], "The model's config.json.", ""),
    program(
        "r1.store.steps",
        &[
            p("run", "string", "Run directory, or the name of a run in `runs`"),
            table("options?", "", &[p("split?", "\"train\" | \"eval\"", "Default: \"train\"")]),
        ],
        &[("{number}", "")],
        "Steps of a run with stored trajectories; with `split = \"eval\"`, steps with a stored evaluation.",
        "",
    ),
    program(
        "r1.store.trajectories",
        &[
            p("run", "string", "Run, or Parquet file of trajectories"),
            p("step?", "number", "Step of the run; default: all steps. Not used for a file"),
            table(
                "options?",
                "",
                &[
                    p("ids?", "boolean", "Include token ids and log-probabilities"),
                    p("record?", "boolean", "Include the record of external calls"),
                    p("split?", "\"train\" | \"eval\"", "\"eval\": trajectories of the evaluation after the step"),
                ],
            ),
        ],
        &[("{Trajectory}", "")],
        "Reads the trajectories of a step, or of all steps of a run.",
        "",
    ),
    program(
        "r1.store.write",
        &[
            p("path", "string", "Parquet file, such as runs/NAME/trajectories/step-000007.parquet"),
            p("trajectories", "{Trajectory}", "Tables in the format of r1.store.trajectories"),
            table(
                "options?",
                "",
                &[
                    p(
                        "from?",
                        "string",
                        "Run with the fields that the tables omit (token ids, seed, record), matched by id",
                    ),
                    p("overwrite?", "boolean", "Replace an existing file"),
                ],
            ),
        ],
        &[],
        "Writes trajectories in the format of runs. Trajectories of a run keep their seed and record, so that they can be replayed.",
        "",
    ),
    program(
        "r1.script",
        &[
            p("path", "string", "Path, relative to the program's directory or the current one"),
            table(
                "options?",
                "",
                &[
                    p("settings?", "{[string]: any}", "Overrides, as on the command line: { [\"env.max_steps\"] = 2 }"),
                    p("model?", "Model", "Model with the chat template and tokenizer"),
                ],
            ),
        ],
        &[("Script", "")],
        "Opens another script, to read its rows and to run trajectories step by step.",
        "local script = r1.script(\"scripts/retool.lua\")\nlocal attempt = script:reset { row = 0 }\nlocal step = attempt:step(\"<answer>\\\\boxed{42}</answer>\")",
    ),
    program(
        "Script:rows",
        &[p("split?", "string", "train or eval")],
        &[("number?", "")],
        "Number of rows; nil if the recipe has no such split.",
        "",
    ),
    program(
        "Script:row",
        &[p("row?", "number", "Row index, from 0"), p("split?", "string", "")],
        &[("Task", "")],
        "One row.",
        "",
    ),
    program(
        "Script:reset",
        &[table(
            "which?",
            "",
            &[
                p("row?", "number", "Row index, from 0"),
                p("split?", "string", ""),
                p("task?", "Task", "Task to use instead of a row"),
                p("seed?", "number", ""),
                p(
                    "generate?",
                    "string | {string}",
                    "What r1.generate returns, in the order of its calls; the last text also for later calls",
                ),
            ],
        )],
        &[("Attempt", "")],
        "Starts a trajectory.",
        "",
    ),
    program(
        "Attempt:observe",
        &[],
        &[("any", "Messages, text, or { token_ids = … }")],
        "The current observation of the policy.",
        "",
    ),
    program(
        "Attempt:step",
        &[p("reply", "string | {text: string?, tool_calls: {ToolCall}?, finish_reason: string?}", "")],
        &[("{reward: number, done: boolean, status: string?, text: string, tools: {ToolUse}}", "")],
        "Takes a step with the given response.",
        "",
    ),
    program(
        "Attempt:call",
        &[p("name", "string", ""), p("arguments?", "{[string]: any}", "")],
        &[("{[string]: any}", "The result of Attempt:step")],
        "Takes a step with a response of one tool call.",
        "",
    ),
    program(
        "Attempt:sample",
        &[p("model", "Model", "The model passed to r1.script"), p("sampling?", "{[string]: any}", "")],
        &[("{[string]: any}", "The result of Attempt:step")],
        "Takes a step with a response sampled from a model.",
        "",
    ),
    program("Attempt:state", &[], &[("any", "")], "Returns a copy of the state.", ""),
    program(
        "Attempt:reward",
        &[],
        &[("number", ""), ("{[string]: number}", "Named parts")],
        "The total reward if the trajectory ended now.",
        "",
    ),
    program("Attempt:fork", &[], &[("Attempt", "")], "Returns an independent copy of the trajectory.", ""),
    program("Attempt:finish", &[], &[("Trajectory", "")], "Returns the trajectory so far; more steps can follow.", ""),
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
                    "Model, or a function that returns an argument of Attempt:step, or nil to stop",
                ),
                p("rows?", "{number}", "Row indexes, from 0; default: { 0 }"),
                p("tasks?", "{Task}", "Tasks to use instead of rows"),
                p("split?", "string", ""),
                p("samples?", "number", "Trajectories per task"),
                p("seed?", "number", ""),
                p("sampling?", "{[string]: any}", "Options of Model:generate"),
                p("branch?", "{step: number?, count: number?}", "Fork at a step into several continuations"),
                p("settings?", "{[string]: any}", "Overrides, for a script given by path"),
            ],
        )],
        &[("{Trajectory}", "")],
        "Runs trajectories of a script with a model or a function as the policy.",
        "local all = r1.rollout { script = \"scripts/retool.lua\", policy = r1.model(\"r1-nano\"), rows = { 0, 1 }, samples = 4 }",
    ),
];
