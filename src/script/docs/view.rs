//! Entries: context policies.

use super::{Entry, Param, f, p, table};

const OVER: Param = p("over?", "number", "Only while there are more tokens than that, oldest first");

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.context",
        &[p("messages", "{Message}", "")],
        &[("Context", "")],
        "A view of a conversation: its methods change what is shown, never the messages themselves, and give it back. A context function returns it. Without further ado it keeps the messages before the first reply, and the last.",
        "r1.context(state.messages):last_turns(4):drop_oldest_until(budget.tokens)",
    ),
    f("Context:keep_first", &[p("n", "number", "")], &[("Context", "")], "The first n messages are never dropped.", ""),
    f("Context:keep_last", &[p("n", "number", "")], &[("Context", "")], "The last n messages are never dropped.", ""),
    f(
        "Context:drop_oldest_until",
        &[p("tokens", "number", "")],
        &[("Context", "")],
        "Drops the oldest messages that are not kept until the rest has at most so many tokens, a reply together with what a user asked right before it and the results of its calls.",
        "",
    ),
    f(
        "Context:last_turns",
        &[p("n", "number", "")],
        &[("Context", "")],
        "Shows the kept first messages and the last n turns. A turn is a reply, what a user asked right before it, and all behind it up to the next turn.",
        "",
    ),
    f(
        "Context:drop_tool_results",
        &[table(
            "options?",
            "",
            &[p("keep?", "number", "How many of the last stay (1)"), OVER, p("text?", "string", "What stands instead")],
        )],
        &[("Context", "")],
        "Old tool results give way to a few words; their calls stay.",
        "",
    ),
    f(
        "Context:shorten_tool_results",
        &[table(
            "options?",
            "",
            &[
                p("keep?", "number", "How many of the last stay as they are (1)"),
                OVER,
                p("head?", "number", "Characters of the beginning (200)"),
                p("tail?", "number", "Characters of the end (0)"),
            ],
        )],
        &[("Context", "")],
        "Shows beginning and end of old tool results.",
        "",
    ),
    f(
        "Context:recall",
        &[table(
            "options",
            "",
            &[
                p("notes", "{any}", "A scratchpad: texts, or tables with `text`; a field of the state"),
                p("query?", "string", "What they should be like; the last message unless said"),
                p("most?", "number", "How many (3)"),
                p("over?", "number", "As many as leave the conversation at most so many tokens"),
                p("title?", "string", "\"Notes:\" unless said"),
                p("at?", "\"first\" | \"last\"", "At the end of the prompt, or of the last message"),
            ],
        )],
        &[("Context", "")],
        "Puts the notes of a scratchpad that are most like a query into view.",
        "",
    ),
    f(
        "Context:summarize",
        &[table(
            "options",
            "",
            &[
                p("over", "number", "Above so many tokens"),
                p("memory", "any", "Where the summary is kept, as `summary`: the state, as a rule"),
                p("to?", "number", "About so many are left; half of `over`"),
                p("title?", "string", ""),
                p("instruction?", "string", "What the policy is told"),
                p(
                    "model?",
                    "string | {url: string, name: string, key: Secret?, headers: {[string]: any}?, timeout: (number | string)?, retries: number?}",
                    "Who writes it instead of the policy, as in r1.generate",
                ),
                p("max_new_tokens?", "number", "Of the summary (256)"),
                p("train?", "boolean", "Whether its tokens are trained on"),
                p(
                    "write?",
                    "(messages: {Message}, earlier: string?) -> string",
                    "Writes it instead: from those that go and the summary so far",
                ),
            ],
        )],
        &[("Context", "")],
        "Has the oldest messages give way to a summary when there are too many tokens. It is written once; steps go on from it.",
        "",
    ),
    f(
        "Context:map",
        &[p("change", "(message: Message, place: integer, count: integer) -> Message?", "")],
        &[("Context", "")],
        "Shows every message as a function gives it back, or not at all where it gives nil.",
        "",
    ),
    f(
        "Context:tokens",
        &[],
        &[("number", "")],
        "How many tokens the policy would see, template and tools included.",
        "",
    ),
    f(
        "r1.generate",
        &[
            p("prompt", "{Message} | string", "Text is one message of the user"),
            table(
                "options?",
                "",
                &[
                    p(
                        "model?",
                        "string | {url: string, name: string, key: Secret?, headers: {[string]: any}?, timeout: (number | string)?, retries: number?}",
                        "Instead of the policy: a directory, a hub id or r1-nano; or a model behind an OpenAI-compatible server (docs/environments.md)",
                    ),
                    p("max_new_tokens?", "number", ""),
                    p("temperature?", "number", "These are as in the recipe's `sampling` unless said"),
                    p("top_k?", "number", ""),
                    p("top_p?", "number", ""),
                    p("min_p?", "number", ""),
                    p("stop?", "string | {string}", ""),
                    p(
                        "train?",
                        "boolean",
                        "Whether the policy's tokens are trained on, with the advantage of the trajectory",
                    ),
                ],
            ),
        ],
        &[
            ("string?", "Nil if the prompt leaves no room"),
            ("{finish_reason: string, tokens: number} | string", "Facts, or why there is none"),
        ],
        "Has the policy, or a model by name, write a text: a summary, a judgement. Only this trajectory waits; the text is recorded for replays.",
        "local verdict = r1.generate(\"Is this polite? \" .. outcome.text, { model = \"Qwen/Qwen2.5-1.5B-Instruct\", max_new_tokens = 4 })",
    ),
    f(
        "r1.logprobs",
        &[table(
            "options",
            "",
            &[
                p(
                    "model?",
                    "string",
                    "\"policy\" unless said, \"reference\" (the run's model before training), a directory or a hub id",
                ),
                p("prompt", "{Message} | string", "Text is one message of the user"),
                p("text", "string", "What the model would reply"),
                p("temperature?", "number", "1 unless said"),
            ],
        )],
        &[
            ("{logprobs: {number}, sum: number, mean: number, tokens: number}?", "Nil if the text leaves no room"),
            ("string?", "Why there is none"),
        ],
        "How likely a text is as the reply to a prompt: the log-probability of each of its tokens. Only this trajectory waits; the numbers are recorded for replays.",
        "local found = r1.logprobs { prompt = \"2 + 2 = ?\", text = outcome.text }\nlocal surprise = found and -found.mean or 0",
    ),
];
