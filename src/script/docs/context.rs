//! Declarations: context policies, generation and scoring.

use super::{Entry, Param, f, p, table};

const OVER: Param = p("over?", "number", "Only while there are more tokens than that, oldest first");

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.context",
        &[p("messages", "{Message}", "")],
        &[("Context", "")],
        "Creates a context policy for a conversation. Its methods select and shorten the messages shown to the policy, do not change the messages themselves, and return the context. A context function returns it. By default the messages before the first response and the last message are kept.",
        "r1.context(state.messages):last_turns(4):drop_oldest_until(budget.tokens)",
    ),
    f("Context:keep_first", &[p("n", "number", "")], &[("Context", "")], "The first n messages are never dropped.", ""),
    f("Context:keep_last", &[p("n", "number", "")], &[("Context", "")], "The last n messages are never dropped.", ""),
    f(
        "Context:drop_oldest_until",
        &[p("tokens", "number", "")],
        &[("Context", "")],
        "Drops the oldest messages that are not kept until at most `tokens` tokens are left. A response is dropped together with the user message right before it and the results of its calls.",
        "",
    ),
    f(
        "Context:last_turns",
        &[p("n", "number", "")],
        &[("Context", "")],
        "Keeps the first messages and the last n turns. A turn is a response with the user message right before it and all messages up to the next turn.",
        "",
    ),
    f(
        "Context:drop_tool_results",
        &[table(
            "options?",
            "",
            &[
                p("keep?", "number", "Number of latest results to keep; default: 1"),
                OVER,
                p("text?", "string", "Replacement text"),
            ],
        )],
        &[("Context", "")],
        "Replaces old tool results by a short text; the calls are kept.",
        "",
    ),
    f(
        "Context:shorten_tool_results",
        &[table(
            "options?",
            "",
            &[
                p("keep?", "number", "Number of latest results to keep unchanged; default: 1"),
                OVER,
                p("head?", "number", "Characters kept at the beginning; default: 200"),
                p("tail?", "number", "Characters kept at the end; default: 0"),
            ],
        )],
        &[("Context", "")],
        "Shortens old tool results to their beginning and end.",
        "",
    ),
    f(
        "Context:recall",
        &[table(
            "options",
            "",
            &[
                p("notes", "{any}", "Notes: texts, or tables with `text`; a field of the state"),
                p("query?", "string", "Search query; default: the last message"),
                p("most?", "number", "Maximum number of notes; default: 3"),
                p("over?", "number", "Insert notes only while the conversation has at most this many tokens"),
                p("title?", "string", "Default: \"Notes:\""),
                p(
                    "at?",
                    "\"first\" | \"last\"",
                    "Position: \"first\" is the end of the prompt, \"last\" the end of the last message",
                ),
            ],
        )],
        &[("Context", "")],
        "Inserts the notes most similar to a query.",
        "",
    ),
    f(
        "Context:summarize",
        &[table(
            "options",
            "",
            &[
                p("over", "number", "Summarize if the conversation has more tokens"),
                p("memory", "any", "Table that stores the summary in the field `summary`, usually the state"),
                p("to?", "number", "Approximate number of tokens to keep; default: half of `over`"),
                p("title?", "string", ""),
                p("instruction?", "string", "Instruction for the summary"),
                p(
                    "model?",
                    "string | {url: string, name: string, key: Secret?, headers: {[string]: any}?, timeout: (number | string)?, retries: number?}",
                    "Model that writes the summary, as in r1.generate; default: the policy",
                ),
                p("max_new_tokens?", "number", "Maximum tokens of the summary; default: 256"),
                p("train?", "boolean", "Train on the tokens of the summary"),
                p(
                    "write?",
                    "(messages: {Message}, earlier: string?) -> string",
                    "Function that writes the summary from the dropped messages and the earlier summary",
                ),
            ],
        )],
        &[("Context", "")],
        "Replaces the oldest messages by a summary if there are too many tokens. The summary is written once and reused in later steps.",
        "",
    ),
    f(
        "Context:map",
        &[p("change", "(message: Message, place: integer, count: integer) -> Message?", "")],
        &[("Context", "")],
        "Replaces every message by the result of a function; nil drops the message.",
        "",
    ),
    f(
        "Context:tokens",
        &[],
        &[("number", "")],
        "Returns the number of prompt tokens, including template and tools.",
        "",
    ),
    f(
        "r1.generate",
        &[
            p("prompt", "{Message} | string", "Messages; text is a single user message"),
            table(
                "options?",
                "",
                &[
                    p(
                        "model?",
                        "string | {url: string, name: string, key: Secret?, headers: {[string]: any}?, timeout: (number | string)?, retries: number?}",
                        "Model: a directory, a Hub id or r1-nano; or a model behind an OpenAI-compatible server (docs/environments.md); default: the policy",
                    ),
                    p("max_new_tokens?", "number", ""),
                    p("temperature?", "number", "Defaults of this and the following: the recipe's `sampling`"),
                    p("top_k?", "number", ""),
                    p("top_p?", "number", ""),
                    p("min_p?", "number", ""),
                    p("stop?", "string | {string}", ""),
                    p("train?", "boolean", "Train on the generated tokens, with the advantage of the trajectory"),
                ],
            ),
        ],
        &[
            ("string?", "nil if the prompt leaves no room for a response"),
            ("{finish_reason: string, tokens: number} | string", "Details, or an error message"),
        ],
        "Generates a text with the policy or a named model, such as a summary or a judgement. Only the calling trajectory waits; the text is recorded for replays.",
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
                    "\"policy\" (default), \"reference\" (the run's model before training), a directory or a Hub id",
                ),
                p("prompt", "{Message} | string", "Messages; text is a single user message"),
                p("text", "string", "Response to score"),
                p("temperature?", "number", "Default: 1"),
            ],
        )],
        &[
            (
                "{logprobs: {number}, sum: number, mean: number, tokens: number}?",
                "nil if the text does not fit into the context",
            ),
            ("string?", "Error message"),
        ],
        "Computes the log-probability of each token of a text as the response to a prompt. Only the calling trajectory waits; the numbers are recorded for replays.",
        "local found = r1.logprobs { prompt = \"2 + 2 = ?\", text = outcome.text }\nlocal surprise = found and -found.mean or 0",
    ),
    f(
        "r1.reward_model",
        &[table(
            "options",
            "",
            &[
                p("model", "string", "A directory or a Hub id of a `…ForSequenceClassification` checkpoint"),
                p(
                    "prompt",
                    "{Message} | string",
                    "Messages; text with `text` is a single user message, without it the complete text",
                ),
                p(
                    "text?",
                    "string",
                    "The response, as the last assistant message; default: the last message of `prompt`",
                ),
            ],
        )],
        &[
            (
                "{score: number, scores: {number}, tokens: number}?",
                "`scores` has one number per label, before a softmax; `score` is the first. nil if the text does not fit into the model's context",
            ),
            ("string?", "Error message"),
        ],
        "Scores a conversation with a reward model (a transformer with a linear head over the last token). Concurrent calls of all trajectories are computed in batches. Only the calling trajectory waits; the numbers are recorded for replays.",
        "local found, why = r1.reward_model { model = \"Skywork/Skywork-Reward-V2-Qwen3-0.6B\", prompt = \"Say hello\", text = outcome.text }\nlocal helpful = found and found.score or error(why)",
    ),
];
