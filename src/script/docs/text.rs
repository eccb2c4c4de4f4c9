//! Entries: text, answers, JSON, regular expressions.

use super::{Entry, constant, f, p, table};

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.last_boxed",
        &[p("text", "string", "")],
        &[("string?", "")],
        "The content of the last \\boxed{…}, braces balanced.",
        "r1.last_boxed(\"so \\\\boxed{\\\\frac{1}{2}}\")  --> \"\\\\frac{1}{2}\"",
    ),
    f(
        "r1.answer",
        &[p("text", "string", "")],
        &[("string?", "")],
        "The content of the last <answer>…</answer>.",
        "r1.answer(\"<answer> 42 </answer>\")  --> \"42\"",
    ),
    f(
        "r1.math_equal",
        &[
            p(
                "answer",
                "string | number | nil",
                "What is graded: a bare answer, LaTeX or plain text, or a reply that states one",
            ),
            p("reference", "string | number | nil", "The right answer"),
        ],
        &[("boolean", "")],
        "Whether an answer says what the reference says: numbers, algebra, sets, intervals, points, matrices, equations, units, text. Whole numbers, fractions and decimals are compared exactly: 0.333333 is not 1/3. One of two units may be left out; two different ones differ. No answer equals nothing. docs/answers.md has the rules.",
        "r1.math_equal(\"\\\\frac{1}{2}\", 0.5)  --> true\nr1.math_equal(\"x = 3 or x = -3\", \"\\\\pm 3\")  --> true\nr1.math_equal(\"10 cm\", \"10 m\")  --> false\nr1.math_equal(nil, nil)  --> false",
    ),
    f(
        "r1.clip",
        &[
            p("text", "string", ""),
            p("head", "number", "Characters of the beginning"),
            p("tail?", "number", "Characters of the end"),
        ],
        &[("string", "")],
        "Shortens a text and says by how much.",
        "r1.clip(\"abcdefgh\", 2, 1)  --> \"ab\\n… (5 more characters)\\nh\"",
    ),
    f(
        "r1.json.encode",
        &[p("value", "any", "Plain data")],
        &[("string", "")],
        "A value as JSON. Lists are tables with keys 1..n; an empty table is an object, unless it came from JSON as a list. What came from JSON keeps its nulls, long whole numbers, floats such as 3.0 and the order of its keys (docs/luau.md).",
        "r1.json.encode { 1, \"two\", r1.json.null }  --> \"[1,\\\"two\\\",null]\"",
    ),
    f(
        "r1.json.decode",
        &[p("text", "string", "")],
        &[("any", "Nil if it is no JSON"), ("string?", "Why not")],
        "JSON as a value. Fields that are null are nil; whole numbers above 2^53 are text. The table remembers both for the way out.",
        "r1.json.decode('{\"a\": [1, 2]}').a  --> [1,2]",
    ),
    constant("r1.json.null", &[("any", "")], "JSON's null in a list, and in a table that a script makes."),
    f(
        "r1.re.find",
        &[p("text", "string", ""), p("pattern", "string", ""), p("from?", "number", "Where to begin (1)")],
        &[("number?", "First place of the match"), ("number?", "Last place"), ("string…", "Its groups")],
        "The first match of a regular expression, as string.find gives it. Patterns are those of Rust's regex crate: no backreferences and no look-around, and time linear in the text. Places count bytes.",
        "r1.re.find(\"a 12 b\", \"(\\\\d)(\\\\d)\")  --> 3, 4, \"1\", \"2\"",
    ),
    f(
        "r1.re.match",
        &[p("text", "string", ""), p("pattern", "string", ""), p("from?", "number", "")],
        &[("string?", "The first group, or all of the match where there are none"), ("string…", "")],
        "The groups of the first match.",
        "r1.re.match(\"x = 5\", \"(\\\\w) = (\\\\d)\")  --> \"x\", \"5\"",
    ),
    f(
        "r1.re.captures",
        &[p("text", "string", ""), p("pattern", "string", "")],
        &[("Match?", "")],
        "The first match as a table: groups by number and by name, `text`, `first` and `last`.",
        "r1.re.captures(\"key: 7\", \"(?P<name>\\\\w+): (\\\\d)\").name  --> \"key\"",
    ),
    f(
        "r1.re.find_all",
        &[p("text", "string", ""), p("pattern", "string", ""), p("most?", "number", "")],
        &[("{Match}", "")],
        "All matches as tables.",
        "#r1.re.find_all(\"a1b22\", \"\\\\d+\")  --> 2",
    ),
    f(
        "r1.re.gmatch",
        &[p("text", "string", ""), p("pattern", "string", "")],
        &[("() -> string…", "")],
        "The groups of one match after the other, for loops.",
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
                "Text with $1, ${name} and $$, or a function of the match; nil leaves it",
            ),
            p("most?", "number", "How many at most"),
        ],
        &[("string", ""), ("number", "How many were replaced")],
        "Replaces matches.",
        "r1.re.replace(\"2+3\", \"(\\\\d)\\\\+(\\\\d)\", \"$2+$1\")  --> \"3+2\", 1",
    ),
    f(
        "r1.re.split",
        &[p("text", "string", ""), p("pattern", "string", ""), p("most?", "number", "Parts at most")],
        &[("{string}", "")],
        "The parts between matches.",
        "r1.re.split(\"a, b,c\", \",\\\\s*\")  --> [\"a\",\"b\",\"c\"]",
    ),
    f(
        "r1.re.escape",
        &[p("text", "string", "")],
        &[("string", "")],
        "A pattern that matches the text and nothing else.",
        "r1.re.escape(\"1.5\")  --> \"1\\\\.5\"",
    ),
    f(
        "r1.text.rank",
        &[p("query", "string", ""), p("texts", "{string}", "")],
        &[("{{index: integer, score: number}}", "Best first; texts that share no word with the query are left out")],
        "Texts by likeness to a query (BM25 over words), without an index: for notes and texts that change. r1.text.index answers many queries.",
        "r1.text.rank(\"red key\", { \"the sky\", \"the key is red\" })[1].index  --> 2",
    ),
    f(
        "r1.text.index",
        &[
            p("texts", "{string} | Resource", "A list of texts, or a resource"),
            table(
                "options?",
                "",
                &[
                    p("column?", "string", "Of a resource: which column is indexed (text)"),
                    p("k1?", "number", "How soon more occurrences of a word stop to count (1.2)"),
                    p("b?", "number", "How much long texts are held back, 0 to 1 (0.75)"),
                ],
            ),
        ],
        &[("TextIndex", "")],
        "An index of texts for many searches (BM25 over words). That of a resource is made once per process; make it at the top of the script.",
        "#r1.text.index { \"the sky\", \"the key is red\" }  --> 2",
    ),
    f(
        "TextIndex:search",
        &[p("query", "string", ""), p("k?", "number", "Texts at most (10)")],
        &[("{{index: integer, score: number}}", "Best first; texts that share no word with the query are left out")],
        "The texts that are most like a query, with the scores of r1.text.rank.",
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
                    p("tools?", "{{[string]: any}}", "Schemas; arguments are checked against them"),
                    p("thinking?", "boolean", "The prompt has opened a <think> block"),
                    p("code_tool?", "string", "What bare code calls"),
                ],
            ),
        ],
        &[("{content: string, reasoning: string?, calls: {ToolCall}, errors: {string}}", "")],
        "Reads a reply as a policy's is read.",
        "r1.text.parse_tool_calls(\"hermes\", '<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>').calls[1].name  --> \"f\"",
    ),
    f(
        "r1.text.tokenizer",
        &[p("model", "string", "A directory; in programs also a hub id or r1-nano, of which no weights are fetched")],
        &[("Tokenizer", "")],
        "The tokenizer of a model. A recipe names a model directory, or one beside its script.",
        "local ids = r1.text.tokenizer(\"Qwen/Qwen3-0.6B\"):encode(\"one two\")",
    ),
    f(
        "Tokenizer:encode",
        &[p("text", "string", ""), table("options?", "", &[p("add_special_tokens?", "boolean", "")])],
        &[("{number}", "")],
        "Text as token ids.",
        "",
    ),
    f(
        "Tokenizer:decode",
        &[p("ids", "{number}", ""), table("options?", "", &[p("skip_special_tokens?", "boolean", "")])],
        &[("string", "")],
        "Token ids as text.",
        "",
    ),
    f("Tokenizer:id", &[p("token", "string", "")], &[("number?", "")], "The id of a token.", ""),
    f("Tokenizer:vocab_size", &[], &[("number", "")], "How many tokens there are.", ""),
    f(
        "r1.text.template",
        &[
            p(
                "from",
                "string",
                "A model (a directory; in programs also a hub id or r1-nano), a template's file, or the source itself",
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
        "A chat template. A recipe names a model directory, a file beside its script or, in functions of the env, a file that it declares with \"fs:DIR\".",
        "r1.text.template(\"{% for m in messages %}{{ m.content }};{% endfor %}\"):render({ r1.user(\"hi\") })  --> \"hi;\"",
    ),
    f(
        "Template:render",
        &[
            p("messages", "{Message} | string", "Or their JSON"),
            table(
                "options?",
                "Names it does not know are the template's own switches, such as enable_thinking",
                &[
                    p("tools?", "{{[string]: any}} | string", "Or their JSON"),
                    p("add_generation_prompt?", "boolean", ""),
                ],
            ),
        ],
        &[("string", "")],
        "A conversation as text. With a tokenizer it is what :encode encodes, the prompt of a rollout; a template without one \
         prints what it prints.",
        "",
    ),
    f(
        "Template:encode",
        &[
            p("messages", "{Message} | string", "As for :render"),
            table(
                "options?",
                "As for :render",
                &[p("tools?", "{{[string]: any}} | string", ""), p("add_generation_prompt?", "boolean", "")],
            ),
        ],
        &[("{number}", "Token ids"), ("{boolean}", "True on what the assistant wrote")],
        "A conversation as token ids, those of :render's text; needs the template of a model with a tokenizer.",
        "local ids, mask = template:encode({ r1.user(\"hi\") }, { add_generation_prompt = true, enable_thinking = false })",
    ),
    f("Template:stop_ids", &[], &[("{number}", "")], "The ids that end a reply.", ""),
    f("Template:format", &[], &[("string", "")], "The name of its tool-call format.", ""),
];
