//! Declarations: recipes, environments, tools, data.

use super::{Entry, Param, constant, f, p, table};

const COLUMNS: Param = p(
    "columns?",
    "{[string]: string}",
    "Column name in the script -> column name in the file; dots select nested fields",
);

const NAME: Param = p("name?", "string", "Name of the dataset; default of the column `data_source`");
const WEIGHT: Param = p("weight?", "number", "Sampling weight relative to the other datasets");
const ENV: Param = p("env?", "string", "Environment of rows that do not name one");

pub(super) const ENTRIES: &[Entry] = &[
    constant("r1.version", &[("string", "")], "The version of r1."),
    f(
        "r1.recipe",
        &[table(
            "recipe",
            "",
            &[
                p("env?", "Env", "Result of r1.env"),
                p("envs?", "{[string]: Env}", "Environments by name; rows select one with the column `env`"),
                p(
                    "flow?",
                    "(task: Task, policy: Policy, kwargs: {[string]: any}) -> any",
                    "Runs its own loop over policy:generate; short for env = r1.env { flow = … }",
                ),
                p(
                    "context?",
                    "(state: any, budget: Budget) -> Context | {Message} | string | {token_ids: {number}}",
                    "Context policy: returns the observation; default: state.messages",
                ),
                p(
                    "reward?",
                    "(state: any, outcome: Outcome) -> number | {[string]: any}",
                    "Outcome reward: a number, or named parts; { value =, weight = } sets the weight of a part",
                ),
                p(
                    "privileged?",
                    "(state: any, task: any) -> string",
                    "Text that only the critic of r1.ppo observes, before each step (docs/training.md)",
                ),
                p(
                    "row_order?",
                    "(row: Task) -> number | string",
                    "Key by which training rows are sorted, ascending; equal keys in random order (docs/data.md)",
                ),
                p(
                    "row_weight?",
                    "(past: {successes: number, attempts: number}, row: Task) -> number",
                    "Probability, 0 to 1, that a training row is drawn when its turn comes (docs/data.md)",
                ),
                p(
                    "advantage?",
                    "(group: {GroupMember}, failed: number) -> ({any}, {any}?)",
                    "The estimator \"custom\": for each trajectory of a group a number, or a list with one number per step. `failed` is the number of failed trajectories",
                ),
                p("loss?", "(b: LossBatch, options: {[string]: any}) -> any", "The loss \"custom\""),
                p("cold_start?", "Recipe | {[string]: any}", "Recipe with r1.sft that is trained first (docs/sft.md)"),
            ],
        )],
        &[("Recipe", "")],
        "Defines a recipe: environment, reward, data and training settings. A recipe script returns it.",
        "r1.recipe {\n  env = r1.env { system = \"Be brief.\" },\n  reward = function(state, outcome) return r1.math_equal(outcome.text, state.task.answer) and 1 or 0 end,\n  data = { train = \"train.jsonl\" },\n  trainer = r1.grpo { group_size = 8, lr = 1e-6 },\n}",
    ),
    f(
        "r1.env",
        &[table(
            "env",
            "",
            &[
                p("tools?", "{Tool | ToolServer} | ToolServer", "Tools of the policy"),
                p(
                    "format?",
                    "string | Format",
                    "Tool-call format: a name, or a result of r1.format; \"auto\" is the format of the chat template",
                ),
                p(
                    "reset?",
                    "(task: Task, kwargs: {[string]: any}) -> any",
                    "Returns the initial state, a table of plain data; default: the task's messages or prompt. `kwargs`: the row's env_kwargs",
                ),
                p(
                    "step?",
                    "(state: any, action: Action) -> StepResult",
                    "Updates the state and returns reward and done; default: runs the tool calls, and is done after a response without calls",
                ),
                p(
                    "flow?",
                    "(task: Task, policy: Policy, kwargs: {[string]: any}) -> any",
                    "Replaces `reset` and `step`: runs its own loop over policy:generate; returns a reward, a result of `step`, or nothing",
                ),
                p(
                    "context?",
                    "(state: any, budget: Budget) -> Context | {Message} | string | {token_ids: {number}}",
                    "Context policy; replaces the recipe's `context`",
                ),
                p(
                    "reward?",
                    "(state: any, outcome: Outcome) -> number | {[string]: any}",
                    "Outcome reward; replaces the recipe's `reward`",
                ),
                p("close?", "(state: any) -> ()", "Called once after the end of a trajectory; its errors are logged"),
            ],
        )],
        &[("Env", "")],
        "Defines an environment. Its functions must not keep state in variables: the host stores, copies and restores the state.",
        "r1.env {\n  max_steps = 8,\n  reset = function(task) return { task = task, messages = { r1.user(task.problem) } } end,\n  step = function(state, action)\n    r1.push(state.messages, r1.assistant(action))\n    return { reward = 0, done = #action.tool_calls == 0 }\n  end,\n}",
    ),
    f(
        "Policy:generate",
        &[
            p(
                "shown",
                "Context | {Message} | string | {token_ids: {number}}",
                "The prompt. Messages that continue an earlier conversation of the flow keep its sampled token ids",
            ),
            table(
                "options?",
                "",
                &[
                    p("max_new_tokens?", "number", "Maximum response tokens, at most sampling.max_new_tokens"),
                    p("stop?", "string | {string}", "Stop strings"),
                    p("tools?", "{string}", "Names of the tools shown to the policy; default: all"),
                ],
            ),
        ],
        &[("Action", "")],
        "Samples a response: one step of the trajectory, with recorded token ids and log-probabilities. When a limit is reached it raises an error, which ends the flow unless it is caught.",
        "",
    ),
    f(
        "Policy:reward",
        &[p("value", "number", ""), p("step?", "number", "Step, from 1; default: the last")],
        &[],
        "Adds to the reward of a step.",
        "",
    ),
    f(
        "r1.format",
        &[table(
            "format",
            "",
            &[
                p("name?", "string", "Name for env.format on the command line; default: \"custom\""),
                p(
                    "parse",
                    "(text: string, tools: {{[string]: any}}) -> ({FormatCall}?, string?)",
                    "Returns the calls of a response (without its thinking), or nil and an error message for the policy. \
                     `tools`: schemas in the OpenAI shape",
                ),
                p("write?", "(calls: {FormatCall}) -> string", "Formats calls as text, for messages with `tool_calls`"),
                p(
                    "result?",
                    "(results: {FormatResult}) -> string",
                    "Formats tool results as text; default: messages with the role `tool`",
                ),
                p(
                    "schema?",
                    "(tools: {{[string]: any}}) -> string",
                    "Describes the tools; appended to the system message",
                ),
                p("starts?", "{string}", "Beginnings of a call; text before one is content, and is streamed"),
                p("stop?", "{string}", "Stop strings; they stay part of the response"),
                p(
                    "same_turn?",
                    "boolean",
                    "Append results to the policy's turn, after a response that ended with `stop`",
                ),
                p("thinking?", "boolean", "Remove <think>…</think> before `parse`; default: true"),
            ],
        )],
        &[("Format", "")],
        "Defines a tool-call format, for env.format. Its functions must depend on their arguments only: \
         each thread calls its own copy.",
        "r1.format {\n  name = \"calc\", starts = { \"<calc>\" }, stop = { \"</calc>\" },\n  parse = function(text)\n    local code = text:match(\"<calc>(.-)</calc>\")\n    return code and { { name = \"calc\", arguments = { code = code } } }\n  end,\n}",
    ),
    f(
        "r1.call_tools",
        &[
            p("calls", "{ToolCall}", "Calls such as action.tool_calls"),
            table(
                "options?",
                "",
                &[
                    p(
                        "hidden?",
                        "boolean",
                        "The calls are the script's own, such as those of a grader: they may use hidden tools, earn no \
                         process rewards, and are not among the policy's calls",
                    ),
                    p("prelude?", "string", "Code to run before each program"),
                    p("state?", "any", "Value of call.state for tools in Lua"),
                    p("files?", "{[string]: string}", "Texts by name, in the directory of programs of r1.tools.python"),
                ],
            ),
        ],
        &[("{ToolResult}", "One result per call, in order")],
        "Runs the tool calls of a response concurrently; the trajectory waits. Errors of the policy (unknown tool, invalid arguments, unparsable call) are returned as results with ok = false.",
        "for _, result in ipairs(r1.call_tools(action.tool_calls)) do\n  r1.push(state.messages, r1.observation(result))\nend",
    ),
    f(
        "r1.user",
        &[p("content", "string | {Part}", "")],
        &[("Message", "")],
        "Creates a user message.",
        "r1.user(\"6 * 7?\").role  --> \"user\"",
    ),
    f(
        "r1.system",
        &[p("content", "string | {Part}", "")],
        &[("Message", "")],
        "Creates a system message.",
        "r1.system(\"Be brief.\").content  --> \"Be brief.\"",
    ),
    f(
        "r1.assistant",
        &[p("action", "Action | string | {Part}", "Pass the action itself to keep its exact text")],
        &[("Message", "")],
        "Creates an assistant message from a response of the policy.",
        "r1.assistant({ text = \"42\" }).content  --> \"42\"",
    ),
    f(
        "r1.observation",
        &[p("result", "ToolResult | string", "")],
        &[("Message", "")],
        "Creates a message with a tool result. Its tokens are not trained on.",
        "r1.observation(\"sunny\").role  --> \"tool\"",
    ),
    f(
        "r1.push",
        &[p("list", "{any}", ""), p("item", "any", "")],
        &[("{any}", "The list")],
        "Appends to a list.",
        "#r1.push({ 1, 2 }, 3)  --> 3",
    ),
    f(
        "r1.log",
        &[p("...", "any", "")],
        &[],
        "Writes a line with its source position to the run's log; in recipes `print` does the same. The first lines of a \
         step are shown in the terminal. All lines are in `log.jsonl` of the run directory, with step, trajectory and function.",
        "r1.log(\"seen\", { n = 3 })",
    ),
    f(
        "r1.data.jsonl",
        &[p(
            "path",
            "string | {path: string | {string}, columns: {[string]: string}?, name: string?, weight: number?, env: string?}",
            "Path, or a table; columns = { script_name = \"file_name\" }; name, weight and env for several datasets",
        )],
        &[("Dataset", "")],
        "Rows of a file with one JSON object per line, or with one list of objects. A plain path selects the format by its extension.",
        "r1.data.jsonl { path = \"gsm8k.jsonl\", columns = { problem = \"question\" } }",
    ),
    f(
        "r1.data.csv",
        &[p(
            "path",
            "string | {path: string | {string}, columns: {[string]: string}?, name: string?, weight: number?, env: string?}",
            "",
        )],
        &[("Dataset", "")],
        "Rows of a CSV or TSV file. The first line has the column names; cells are text.",
        "r1.data.csv \"tasks.csv\"",
    ),
    f(
        "r1.data.parquet",
        &[p(
            "path",
            "string | {path: string | {string}, columns: {[string]: string}?, name: string?, weight: number?, env: string?}",
            "",
        )],
        &[("Dataset", "")],
        "Rows of a Parquet file. Files made for verl work unchanged.",
        "r1.data.parquet \"train.parquet\"",
    ),
    f(
        "r1.data.hf",
        &[
            p("name", "string", "ORG/NAME or ORG/NAME@REVISION"),
            table(
                "options?",
                "",
                &[
                    p("split?", "string", "Default: train or eval, as used in the recipe"),
                    p("subset?", "string", "Directory of the repository"),
                    p("file?", "string", "File name or pattern with *, instead of split and subset"),
                    COLUMNS,
                    NAME,
                    WEIGHT,
                    ENV,
                ],
            ),
        ],
        &[("Dataset", "")],
        "Rows of a dataset on the Hugging Face Hub, downloaded to the cache that Python libraries use. Options can also follow the name: r1.data.hf \"ORG/NAME\" { … }.",
        "r1.data.hf(\"openai/gsm8k\", { subset = \"main\", split = \"train\" })",
    ),
    f(
        "r1.data.generate",
        &[table(
            "rows",
            "",
            &[
                p("count", "number", "Number of rows"),
                p("seed?", "number", ""),
                NAME,
                WEIGHT,
                ENV,
                p(
                    "row",
                    "(index: integer) -> Task",
                    "Returns row `index`, from 1; math.random is seeded by (seed, index)",
                ),
            ],
        )],
        &[("Dataset", "")],
        "Rows generated by a function.",
        "r1.data.generate { count = 1000, seed = 1, row = function(index)\n  local a, b = math.random(99), math.random(99)\n  return { problem = a .. \" + \" .. b .. \"?\", answer = a + b }\nend }",
    ),
    f(
        "r1.params",
        &[p("defaults", "{[string]: string | number | boolean}", "Names and default values")],
        &[("{[string]: any}", "The values")],
        "Declares parameters of a recipe, at the top of its script, once: values that the command line can change as params.NAME=VALUE. A value has the type of its default. They are stored with the settings of the run, so that a replay and a resumed run have the same values.",
        "local params = r1.params { index = \"\", passages = 3 }",
    ),
    f(
        "r1.resource",
        &[p(
            "file",
            "string | {path: string, format: string?, columns: {[string]: string}?, max_size: (number | string)?}",
            "Path relative to the script's directory. format: jsonl, json, csv, tsv, parquet, arrow, text (one row { text = … } per line); default: by extension. columns = { script_name = \"file_name\" }. max_size in MiB or as \"1GiB\"; default: 256MiB",
        )],
        &[("Resource", "")],
        "Reads a data file, such as a corpus or dictionary, once per process at the top of the script, and shares it between workers. corpus[i] is row i (read-only), #corpus the number of rows, and `for i, row in corpus do` iterates over them. corpus.path and corpus.hash (SHA-256) identify the file. Runs record the hash.",
        "local pages = r1.resource { path = \"pages.jsonl\", columns = { text = \"contents\" } }",
    ),
];
