//! Declarations: text, answers, JSON, regular expressions.

use super::{Entry, constant, f, p, table};

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.last_boxed",
        &[p("text", "string", "")],
        &[("string?", "")],
        "Returns the content of the last \\boxed{…}, with balanced braces.",
        "r1.last_boxed(\"so \\\\boxed{\\\\frac{1}{2}}\")  --> \"\\\\frac{1}{2}\"",
    ),
    f(
        "r1.answer",
        &[p("text", "string", "")],
        &[("string?", "")],
        "Returns the content of the last <answer>…</answer>.",
        "r1.answer(\"<answer> 42 </answer>\")  --> \"42\"",
    ),
    f(
        "r1.math_equal",
        &[
            p(
                "answer",
                "string | number | nil",
                "Answer to grade: LaTeX or plain text, or a response that contains an answer",
            ),
            p("reference", "string | number", "Correct answer"),
        ],
        &[("boolean", "")],
        "Tests whether an answer is equivalent to the reference: numbers, algebra, sets, intervals, points, matrices, equations, units, text. Integers, fractions and decimals are compared exactly: 0.333333 is not 1/3. A unit may be missing on one side; different units are not equal. An answer that is nil is wrong; a reference that is nil or empty is an error of the dataset (r1.reference). docs/answers.md has the rules.",
        "r1.math_equal(\"\\\\frac{1}{2}\", 0.5)  --> true\nr1.math_equal(\"x = 3 or x = -3\", \"\\\\pm 3\")  --> true\nr1.math_equal(\"10 cm\", \"10 m\")  --> false\nr1.math_equal(nil, 5)  --> false",
    ),
    f(
        "r1.reference",
        &[
            p("reference", "any", "Reference of a reward, such as `state.task.answer`"),
            p("name?", "string", "Name in the error, such as the function that needs it"),
            p("options?", "{ empty: boolean? }", "`empty`: an empty text or list is a reference too"),
        ],
        &[("any", "The reference")],
        "Returns the reference of a task. A reference that is nil or empty (a missing column) is an error of the dataset with the row and its columns; it ends the run (exit code 4), because every answer would count as wrong. r1.math_equal and @r1/rewards call it.",
        "r1.reference(\"42\")  --> \"42\"",
    ),
    f(
        "r1.clip",
        &[
            p("text", "string", ""),
            p("head", "number", "Characters kept at the beginning"),
            p("tail?", "number", "Characters kept at the end"),
        ],
        &[("string", "")],
        "Shortens a text and inserts the number of omitted characters.",
        "r1.clip(\"abcdefgh\", 2, 1)  --> \"ab\\n… (5 more characters)\\nh\"",
    ),
    f(
        "r1.json.encode",
        &[p("value", "any", "Plain data")],
        &[("string", "")],
        "A value as JSON. Lists are tables with keys 1..n; an empty table is an object, unless it was an empty list in JSON. Data decoded from JSON keeps its nulls, long whole numbers, floats such as 3.0 and the order of its keys (docs/luau.md).",
        "r1.json.encode { 1, \"two\", r1.json.null }  --> \"[1,\\\"two\\\",null]\"",
    ),
    f(
        "r1.json.decode",
        &[p("text", "string", "")],
        &[("any", "nil if the text is not JSON"), ("string?", "Error message")],
        "JSON as a value. Fields that are null are nil; whole numbers above 2^53 are text. Encoding the table again gives the original values, except that whole numbers of more than 64 bits stay text. Half of a surrogate pair becomes U+FFFD, and `NaN` and `Infinity`, which Python writes, are nil.",
        "r1.json.decode('{\"a\": [1, 2]}').a  --> [1,2]",
    ),
    constant("r1.json.null", &[("any", "")], "JSON's null in a list, and in a table that a script makes."),
    f(
        "r1.re.find",
        &[p("text", "string", ""), p("pattern", "string", ""), p("from?", "number", "Start position; default: 1")],
        &[("number?", "Start of the match"), ("number?", "End of the match"), ("string…", "Groups")],
        "Finds the first match of a regular expression, like string.find. Patterns have the syntax of Rust's regex crate: no backreferences, no look-around, time linear in the text. Positions count bytes.",
        "r1.re.find(\"a 12 b\", \"(\\\\d)(\\\\d)\")  --> 3, 4, \"1\", \"2\"",
    ),
    f(
        "r1.re.match",
        &[p("text", "string", ""), p("pattern", "string", ""), p("from?", "number", "")],
        &[("string?", "First group, or the whole match if there are no groups"), ("string…", "")],
        "Returns the groups of the first match.",
        "r1.re.match(\"x = 5\", \"(\\\\w) = (\\\\d)\")  --> \"x\", \"5\"",
    ),
    f(
        "r1.re.captures",
        &[p("text", "string", ""), p("pattern", "string", "")],
        &[("Match?", "")],
        "Returns the first match as a table: groups by number and name, `text`, `first` and `last`.",
        "r1.re.captures(\"key: 7\", \"(?P<name>\\\\w+): (\\\\d)\").name  --> \"key\"",
    ),
    f(
        "r1.re.find_all",
        &[p("text", "string", ""), p("pattern", "string", ""), p("most?", "number", "")],
        &[("{Match}", "")],
        "Returns all matches as tables.",
        "#r1.re.find_all(\"a1b22\", \"\\\\d+\")  --> 2",
    ),
    f(
        "r1.re.gmatch",
        &[p("text", "string", ""), p("pattern", "string", "")],
        &[("() -> string…", "")],
        "Iterates over the groups of all matches.",
        "local sum = 0\nfor digits in r1.re.gmatch(\"1 20 300\", \"\\\\d+\") do sum = sum + tonumber(digits) end\nsum  --> 321",
    ),
    f(
        "r1.re.replace",
        &[
            p("text", "string", ""),
            p("pattern", "string", ""),
            p(
                "with",
                "string | (match: Match) -> string?",
                "Text with $1, ${name} and $$, or a function of the match; nil keeps the match",
            ),
            p("most?", "number", "Maximum number of replacements"),
        ],
        &[("string", ""), ("number", "Number of replacements")],
        "Replaces matches.",
        "r1.re.replace(\"2+3\", \"(\\\\d)\\\\+(\\\\d)\", \"$2+$1\")  --> \"3+2\", 1",
    ),
    f(
        "r1.re.split",
        &[p("text", "string", ""), p("pattern", "string", ""), p("most?", "number", "Maximum number of parts")],
        &[("{string}", "")],
        "Splits a text at matches.",
        "r1.re.split(\"a, b,c\", \",\\\\s*\")  --> [\"a\",\"b\",\"c\"]",
    ),
    f(
        "r1.re.escape",
        &[p("text", "string", "")],
        &[("string", "")],
        "Returns a pattern that matches exactly the text.",
        "r1.re.escape(\"1.5\")  --> \"1\\\\.5\"",
    ),
    f(
        "r1.text.lower",
        &[p("text", "string", "")],
        &[("string", "")],
        "Converts a text to lower case by the rules of Unicode. string.lower converts ASCII letters only.",
        "r1.text.lower(\"ÉTÉ\")  --> \"été\"",
    ),
    f(
        "r1.text.rank",
        &[p("query", "string", ""), p("texts", "{string}", "")],
        &[("{{index: integer, score: number}}", "Best first; texts without a word of the query are omitted")],
        "Ranks texts by similarity to a query (BM25 over words), without an index: for few or changing texts. For many queries use r1.text.index.",
        "r1.text.rank(\"red key\", { \"the sky\", \"the key is red\" })[1].index  --> 2",
    ),
    f(
        "r1.text.index",
        &[
            p("texts", "{string} | Resource", "List of texts, or a resource"),
            table(
                "options?",
                "",
                &[
                    p("column?", "string", "Column of a resource; default: text"),
                    p("k1?", "number", "BM25 term-frequency saturation; default: 1.2"),
                    p("b?", "number", "BM25 length normalisation, 0 to 1; default: 0.75"),
                ],
            ),
        ],
        &[("TextIndex", "")],
        "Creates an index of texts for many searches (BM25 over words). The index of a resource is built once per process; create it at the top of the script. It is kept in memory; r1.index.open searches an index on disk, for corpora of any size.",
        "#r1.text.index { \"the sky\", \"the key is red\" }  --> 2",
    ),
    f(
        "TextIndex:search",
        &[p("query", "string", ""), p("k?", "number", "Maximum number of results; default: 10")],
        &[("{{index: integer, score: number}}", "Best first; texts without a word of the query are omitted")],
        "Returns the texts most similar to a query, with the scores of r1.text.rank.",
        "r1.text.index({ \"the sky\", \"the key is red\" }):search(\"red key\", 1)[1].index  --> 2",
    ),
    f(
        "r1.text.parse_tool_calls",
        &[
            p("format", "string | Format", ""),
            p("text", "string", ""),
            table(
                "options?",
                "",
                &[
                    p("tools?", "{{[string]: any}}", "Tool schemas; arguments are validated against them"),
                    p("thinking?", "boolean", "The prompt ends in an open <think> block"),
                    p("code_tool?", "string", "Tool that a bare code block calls"),
                ],
            ),
        ],
        &[("{content: string, reasoning: string?, calls: {ToolCall}, errors: {string}}", "")],
        "Parses a response like the response of a policy.",
        "r1.text.parse_tool_calls(\"hermes\", '<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>').calls[1].name  --> \"f\"",
    ),
    f(
        "r1.text.tokenizer",
        &[p("model", "string", "Model directory; in programs also a Hub id or r1-nano. No weights are downloaded")],
        &[("Tokenizer", "")],
        "Opens the tokenizer of a model. Recipes can use model directories, and files in the script's directory.",
        "local ids = r1.text.tokenizer(\"Qwen/Qwen3-0.6B\"):encode(\"one two\")",
    ),
    f(
        "Tokenizer:encode",
        &[p("text", "string", ""), table("options?", "", &[p("add_special_tokens?", "boolean", "")])],
        &[("{number}", "")],
        "Encodes text as token ids.",
        "",
    ),
    f(
        "Tokenizer:decode",
        &[p("ids", "{number}", ""), table("options?", "", &[p("skip_special_tokens?", "boolean", "")])],
        &[("string", "")],
        "Decodes token ids to text.",
        "",
    ),
    f("Tokenizer:id", &[p("token", "string", "")], &[("number?", "")], "Returns the id of a token.", ""),
    f("Tokenizer:vocab_size", &[], &[("number", "")], "Returns the size of the vocabulary.", ""),
    f(
        "r1.text.template",
        &[
            p(
                "from",
                "string",
                "Model (a directory; in programs also a Hub id or r1-nano), template file, or template source",
            ),
            table(
                "options?",
                "",
                &[
                    p("bos_token?", "string", ""),
                    p("eos_token?", "string", ""),
                    p(
                        "format?",
                        "string | Format",
                        "Of tool calls: a name, or a format of the script (r1.format). It needs a model directory",
                    ),
                ],
            ),
        ],
        &[("Template", "")],
        "Opens a chat template. Recipes can use model directories, files in the script's directory and, in functions of the environment, files declared with \"fs:DIR\".",
        "r1.text.template(\"{% for m in messages %}{{ m.content }};{% endfor %}\"):render({ r1.user(\"hi\") })  --> \"hi;\"",
    ),
    f(
        "Template:render",
        &[
            p("messages", "{Message} | string", "Or their JSON"),
            table(
                "options?",
                "Other names are variables of the template, such as enable_thinking",
                &[
                    p("tools?", "{{[string]: any}} | string", "Tool schemas, or their JSON"),
                    p("add_generation_prompt?", "boolean", ""),
                ],
            ),
        ],
        &[("string", "")],
        "Renders a conversation as text. With a tokenizer it is the text that :encode encodes, the prompt of a rollout; a template without one \
         returns its plain output.",
        "",
    ),
    f(
        "Template:encode",
        &[
            p("messages", "{Message} | string", "As in :render"),
            table(
                "options?",
                "As in :render",
                &[p("tools?", "{{[string]: any}} | string", ""), p("add_generation_prompt?", "boolean", "")],
            ),
        ],
        &[("{number}", "Token ids"), ("{boolean}", "True for tokens of the assistant")],
        "Encodes a conversation as token ids, as in training: each reply apart from the text before it, as it is sampled. They decode to the text of :render; encoding that text at once differs where a reply begins with white space, which a tokenizer may merge with the line break before it. Requires the template of a model with a tokenizer.",
        "local ids, mask = template:encode({ r1.user(\"hi\") }, { add_generation_prompt = true, enable_thinking = false })",
    ),
    f("Template:stop_ids", &[], &[("{number}", "")], "Returns the token ids that end a response.", ""),
    f("Template:format", &[], &[("string", "")], "Returns the name of the tool-call format.", ""),
];
