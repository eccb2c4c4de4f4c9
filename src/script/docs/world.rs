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
                    p("logit_bias?", "{[string]: number}", "By token id as text"),
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
        &[p("run", "string", "A run directory, or the name of one below runs")],
        &[("{number}", "")],
        "The steps of a run that have trajectories.",
        "",
    ),
    program(
        "r1.store.trajectories",
        &[
            p("run", "string", ""),
            p("step", "number", ""),
            table(
                "options?",
                "",
                &[
                    p("ids?", "boolean", "With token ids and log-probabilities"),
                    p("record?", "boolean", "With what they asked outside"),
                ],
            ),
        ],
        &[("{Trajectory}", "")],
        "The trajectories of a step of a run.",
        "",
    ),
];
