//! Entries: recipes, environments, tools, data.

use super::{Entry, Param, constant, f, p, table};

const COLUMNS: Param =
    p("columns?", "{[string]: string}", "What the script calls a column: what the file calls it; dots look inside");

const NAME: Param = p("name?", "string", "Its name among other datasets; it fills the column `data_source`");
const WEIGHT: Param = p("weight?", "number", "Its share of the tasks, relative to the other datasets'");
const ENV: Param = p("env?", "string", "The environment of its rows, where they name none");

pub(super) const ENTRIES: &[Entry] = &[
    constant("r1.version", &[("string", "")], "The version of r1."),
    f(
        "r1.recipe",
        &[table(
            "recipe",
            "",
            &[
                p("name?", "string", "Of the run; the script's own unless said"),
                p("seed?", "number", "Root of every random stream"),
                p("env?", "Env", "What r1.env gives"),
                p("envs?", "{[string]: Env}", "Several by name; rows choose one with their column `env`"),
                p(
                    "flow?",
                    "(task: Task, policy: Policy, kwargs: {[string]: any}) -> any",
                    "Drives a loop of its own over policy:generate; the same as env = r1.env { flow = … }",
                ),
                p(
                    "context?",
                    "(state: any, budget: Budget) -> Context | {Message} | string | {token_ids: {number}}",
                    "What the policy sees; state.messages unless said",
                ),
                p(
                    "reward?",
                    "(state: any, outcome: Outcome) -> number | {[string]: any}",
                    "The outcome reward: a number, or parts by name; { value =, weight = } weighs one",
                ),
                p(
                    "privileged?",
                    "(state: any, task: any) -> string",
                    "What the critic of r1.ppo alone reads of a state, before each step (docs/training.md)",
                ),
                p(
                    "advantage?",
                    "(group: {GroupMember}, failed: number) -> ({any}, {any}?)",
                    "The estimator \"custom\": a number, or a list of one per step, for each trajectory of a group; `failed` others failed",
                ),
                p("loss?", "(b: LossBatch, options: {[string]: any}) -> any", "The loss \"custom\""),
                p("policy?", "PolicySettings", "Which model"),
                p(
                    "cold_start?",
                    "Recipe | {[string]: any}",
                    "A recipe with r1.sft that r1 run carries out first (docs/sft.md)",
                ),
                p(
                    "data?",
                    "{train: (Dataset | string | table | {Task})?, eval: (Dataset | string | table | {Task})?, max_prompt_tokens: number?, overlong_prompts: string?, check_rows: number?}",
                    "Where tasks come from; several datasets by name or as a list are mixed (docs/data.md)",
                ),
                p("sampling?", "Sampling", "How replies are sampled"),
                p("rollout?", "RolloutSettings", ""),
                p("trainer?", "Trainer", "What r1.grpo, r1.ppo, r1.trainer or r1.sft gives"),
                p("eval?", "EvalSettings", ""),
                p("checkpoint?", "CheckpointSettings", ""),
                p("limits?", "Limits", "Time and memory of a call of the script"),
                p(
                    "needs?",
                    "{string}",
                    "What it reaches outside: \"http\" (public hosts), \"http:HOST\", \"process\", \"process:NAME\", \"env:NAME\", \"fs:DIR\", \"fs:write:DIR\"",
                ),
            ],
        )],
        &[("Recipe", "")],
        "What a script returns: what to train, on what, how.",
        "r1.recipe {\n  env = r1.env { system = \"Be brief.\" },\n  reward = function(state, outcome) return r1.math_equal(outcome.text, state.task.answer) and 1 or 0 end,\n  data = { train = \"train.jsonl\" },\n  trainer = r1.grpo { group_size = 8, lr = 1e-6 },\n}",
    ),
    f(
        "r1.env",
        &[table(
            "env",
            "",
            &[
                p("tools?", "{Tool}", "What the policy can call"),
                p(
                    "format?",
                    "string | Format",
                    "How calls are written: a name, or r1.format; \"auto\" is what the chat template asks for",
                ),
                p("max_steps?", "number", "Reaching it truncates"),
                p("max_tokens?", "number", "Tokens sampled in all replies of a trajectory; reaching it truncates"),
                p("on_overflow?", "string", "What a full context does: \"end\" (truncates) or \"fail\""),
                p("max_calls?", "number", "Most calls of a reply that are carried out"),
                p(
                    "excess_calls?",
                    "string",
                    "What more calls than that come to: \"refuse\" (the others), \"refuse_all\", or \"ignore\" (no answer)",
                ),
                p(
                    "tool_choice?",
                    "string",
                    "Which replies must call a tool: \"auto\" (none), \"first\" or \"required\" (all)",
                ),
                p("max_result_tokens?", "number", "Longest result of a tool, tokens; a longer one is cut"),
                p(
                    "call_rewards?",
                    "{ok: number?, failed: number?, refused: number?, malformed: number?}",
                    "Process rewards of calls by how they end; 0 unless said",
                ),
                p("system?", "string", "System prompt of the default reset"),
                p(
                    "reply_prefix?",
                    "string",
                    "Text that every reply begins with, such as \"<think>\\n\"; it is not sampled",
                ),
                p(
                    "reset?",
                    "(task: Task, kwargs: {[string]: any}) -> any",
                    "Gives the state, a table of plain data; shows the task's messages or prompt unless said. `kwargs`: the row's env_kwargs",
                ),
                p(
                    "step?",
                    "(state: any, action: Action) -> StepResult",
                    "Changes the state; carries out calls and ends without one unless said",
                ),
                p(
                    "flow?",
                    "(task: Task, policy: Policy, kwargs: {[string]: any}) -> any",
                    "In place of `reset` and `step`: drives a loop of its own over policy:generate; returns a reward, what `step` returns, or nothing",
                ),
                p(
                    "context?",
                    "(state: any, budget: Budget) -> Context | {Message} | string | {token_ids: {number}}",
                    "What the policy sees, in place of the recipe's `context`",
                ),
                p(
                    "reward?",
                    "(state: any, outcome: Outcome) -> number | {[string]: any}",
                    "The outcome reward, in place of the recipe's `reward`",
                ),
            ],
        )],
        &[("Env", "")],
        "An environment. Its functions hold no state: the host keeps it, copies it, takes it back.",
        "r1.env {\n  max_steps = 8,\n  reset = function(task) return { task = task, messages = { r1.user(task.problem) } } end,\n  step = function(state, action)\n    r1.push(state.messages, r1.assistant(action))\n    return { reward = 0, done = #action.tool_calls == 0 }\n  end,\n}",
    ),
    f(
        "Policy:generate",
        &[
            p(
                "shown",
                "Context | {Message} | string | {token_ids: {number}}",
                "The prompt. Messages that continue an earlier conversation of the flow keep its sampled ids",
            ),
            table(
                "options?",
                "",
                &[
                    p("max_new_tokens?", "number", "Longest reply, at most sampling.max_new_tokens"),
                    p("stop?", "string | {string}", "Texts that end the reply"),
                    p("tools?", "{string}", "Names of the tools that the policy is shown; all unless said"),
                ],
            ),
        ],
        &[("Action", "")],
        "A reply of the policy: one step of the trajectory, with its token ids and log-probabilities recorded. At a limit it raises an error, which ends the flow unless it is caught.",
        "",
    ),
    f(
        "Policy:reward",
        &[p("value", "number", ""), p("step?", "number", "Which reply, from 1; the last unless said")],
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
                p("name?", "string", "For env.format on the command line; \"custom\" by default"),
                p(
                    "parse",
                    "(text: string, tools: {{[string]: any}}) -> ({FormatCall}?, string?)",
                    "The calls of a reply without its thinking, or nil and what is wrong, in words for the policy. \
                     `tools`: schemas in the OpenAI shape",
                ),
                p("write?", "(calls: {FormatCall}) -> string", "Calls as text, for messages that have them apart"),
                p(
                    "result?",
                    "(results: {FormatResult}) -> string",
                    "Results as the policy reads them; messages of the role `tool` by default",
                ),
                p(
                    "schema?",
                    "(tools: {{[string]: any}}) -> string",
                    "Describes the tools, at the end of the system message",
                ),
                p("starts?", "{string}", "What a call may begin with: text before it is content, and is streamed"),
                p("stop?", "{string}", "Strings that end a reply; they stay part of it"),
                p("same_turn?", "boolean", "Results go on in the policy's turn, behind a reply that ended with `stop`"),
                p("thinking?", "boolean", "Split <think>…</think> off before `parse`; true by default"),
            ],
        )],
        &[("Format", "")],
        "A tool-call format of the recipe's own, for env.format. Its functions must depend on their arguments alone: \
         each thread calls its own copy.",
        "r1.format {\n  name = \"calc\", starts = { \"<calc>\" }, stop = { \"</calc>\" },\n  parse = function(text)\n    local code = text:match(\"<calc>(.-)</calc>\")\n    return code and { { name = \"calc\", arguments = { code = code } } }\n  end,\n}",
    ),
    f(
        "r1.tool",
        &[table(
            "tool",
            "",
            &[
                p("name", "string", ""),
                p("description?", "string", "Shown to the policy"),
                p(
                    "parameters?",
                    "{[string]: any}",
                    "A type for each (\"string\", \"integer\" …) or a JSON schema; all are required unless they say optional = true",
                ),
                p("timeout?", "number | string", "Of one try; seconds, or \"500ms\""),
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "Further tries after a timeout, or where `run` says that one may succeed; waits \"500ms\" before the \
                     first, twice as long before each next",
                ),
                p(
                    "cache?",
                    "boolean | string",
                    "Keeps results by arguments: true or \"trajectory\", or \"run\" for all trajectories; such a tool has no \
                     call.state",
                ),
                p("concurrency?", "number", "Most calls under way at the same time, over the whole run"),
                p("max_result_tokens?", "number", "Longest result, tokens; the env's unless said"),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards where `run` returns none; the env's call_rewards unless said",
                ),
                p(
                    "run",
                    "(arguments: {[string]: any}, call: {state: any, kwargs: {[string]: any}?}) -> (any, any, any, any)",
                    "Gives text (a table becomes JSON) and a process reward if there is one; or nil, why not, a process \
                     reward, and true if another try may succeed",
                ),
            ],
        )],
        &[("Tool", "")],
        "A tool written in Lua. Arguments are checked before it is called; what it gives as failure becomes an observation.",
        "r1.tool {\n  name = \"double\", description = \"Doubles a number\", parameters = { n = \"integer\" },\n  run = function(arguments) return arguments.n * 2 end,\n}",
    ),
    f(
        "r1.tools.python",
        &[table(
            "options?",
            "",
            &[
                p("name?", "string", "\"python\" unless said"),
                p("description?", "string", ""),
                p("timeout?", "number | string", "Seconds a program may take"),
                p("memory?", "number | string", "\"512MiB\""),
                p("disk?", "number | string", "Of its scratch directory"),
                p("session?", "boolean", "Names and files stay from call to call of a trajectory"),
                p("site_packages?", "boolean", "Whether installed packages can be imported"),
                p("preload?", "{string}", "Modules that are imported beforehand"),
                p("interpreter?", "string", "Which Python"),
                p("pool?", "number", "Programs that run at once; one a core unless said"),
                p("output_bytes?", "number", "Bytes of output that are kept"),
                p("cache?", "boolean | string", "As of r1.tool; not with `session`"),
                p("max_result_tokens?", "number", "Longest result, tokens; the env's unless said"),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards of its calls; the env's call_rewards unless said",
                ),
                p("traceback?", "string", "How much of an error is shown"),
                p("session_idle?", "number", "Seconds after which an unused session ends"),
                p("max_sessions?", "number", ""),
                p("namespaces?", "boolean", ""),
            ],
        )],
        &[("Tool", "")],
        "A Python interpreter in a sandbox: no network, no files, no other processes.",
        "r1.tools.python { timeout = 5, memory = \"512MiB\" }",
    ),
    f(
        "r1.tools.rhai",
        &[table(
            "options?",
            "",
            &[
                p("name?", "string", "\"rhai\" unless said"),
                p("description?", "string", ""),
                p("timeout?", "number | string", "Seconds a program may take"),
                p("operations?", "number", ""),
                p("call_depth?", "number", ""),
                p("expression_depth?", "number", ""),
                p("string_bytes?", "number", ""),
                p("array_length?", "number", ""),
                p("map_length?", "number", ""),
                p("output_bytes?", "number", "Bytes of output that are kept"),
                p("cache?", "boolean | string", "As of r1.tool"),
                p("max_result_tokens?", "number", "Longest result, tokens; the env's unless said"),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards of its calls; the env's call_rewards unless said",
                ),
            ],
        )],
        &[("Tool", "")],
        "An embedded interpreter that needs nothing installed.",
        "r1.tools.rhai {}",
    ),
    f(
        "r1.call_tools",
        &[
            p("calls", "{ToolCall}", "Those of action.tool_calls"),
            table(
                "options?",
                "",
                &[
                    p("prelude?", "string", "Code that runs before each program"),
                    p("state?", "any", "What tools in Lua see as call.state"),
                ],
            ),
        ],
        &[("{ToolResult}", "One a call, in their order")],
        "Carries out the calls of a reply, all at the same time; the trajectory waits. What the policy did wrong (no such tool, wrong arguments, text that is no call) comes back as a result with ok = false.",
        "for _, result in ipairs(r1.call_tools(action.tool_calls)) do\n  r1.push(state.messages, r1.observation(result))\nend",
    ),
    f(
        "r1.user",
        &[p("content", "string | {Part}", "")],
        &[("Message", "")],
        "A message of the user.",
        "r1.user(\"6 * 7?\").role  --> \"user\"",
    ),
    f(
        "r1.system",
        &[p("content", "string | {Part}", "")],
        &[("Message", "")],
        "A system message.",
        "r1.system(\"Be brief.\").content  --> \"Be brief.\"",
    ),
    f(
        "r1.assistant",
        &[p("action", "Action | string | {Part}", "The action itself keeps its exact text")],
        &[("Message", "")],
        "A reply of the policy as a message.",
        "r1.assistant({ text = \"42\" }).content  --> \"42\"",
    ),
    f(
        "r1.observation",
        &[p("result", "ToolResult | string", "")],
        &[("Message", "")],
        "What a tool answered, as a message. It is never trained on.",
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
        "Writes a line to the run's log, with the place that wrote it; print does the same in a recipe. The first lines of a \
         step are shown on the terminal, all are in `log.jsonl` of the run directory with step, trajectory and function.",
        "r1.log(\"seen\", { n = 3 })",
    ),
    f(
        "r1.data.jsonl",
        &[p(
            "path",
            "string | {path: string | {string}, columns: {[string]: string}?, name: string?, weight: number?, env: string?}",
            "A file, or its path and columns = { mine = \"theirs\" }; name, weight and env among other datasets",
        )],
        &[("Dataset", "")],
        "Rows of a file with one JSON object a line, or one list of them. A plain path does the same by its ending.",
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
        "Rows of a CSV or TSV file; the first line names the columns, cells are text.",
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
        "Rows of a Parquet file. Those of verl work as they are.",
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
                    p("split?", "string", "train or eval as the recipe uses it, unless said"),
                    p("subset?", "string", "A folder of the repository"),
                    p("file?", "string", "Files by name instead; * stands for anything"),
                    COLUMNS,
                    NAME,
                    WEIGHT,
                    ENV,
                ],
            ),
        ],
        &[("Dataset", "")],
        "Rows of a dataset of the Hugging Face hub, fetched into the cache that Python uses. The options may also follow as r1.data.hf \"ORG/NAME\" { … }.",
        "r1.data.hf(\"openai/gsm8k\", { subset = \"main\", split = \"train\" })",
    ),
    f(
        "r1.data.generate",
        &[table(
            "rows",
            "",
            &[
                p("count", "number", "How many there are"),
                p("seed?", "number", ""),
                NAME,
                WEIGHT,
                ENV,
                p(
                    "row",
                    "(index: integer) -> Task",
                    "Makes row `index`, from 1; math.random is seeded from (seed, index)",
                ),
            ],
        )],
        &[("Dataset", "")],
        "Rows made by a function.",
        "r1.data.generate { count = 1000, seed = 1, row = function(index)\n  local a, b = math.random(99), math.random(99)\n  return { problem = a .. \" + \" .. b .. \"?\", answer = a + b }\nend }",
    ),
    f(
        "r1.resource",
        &[p(
            "file",
            "string | {path: string, format: string?, columns: {[string]: string}?, max_size: (number | string)?}",
            "The path, relative to the script's directory; format by its name unless said: jsonl, json, csv, tsv, parquet, arrow, text (a row { text = … } for each line); columns = { mine = \"theirs\" }; max_size in MiB or as \"1GiB\" (256MiB)",
        )],
        &[("Resource", "")],
        "A file of data that is read once per process, at the top of the script, and shared by all workers: a corpus, a dictionary. corpus[i] is row i, frozen; #corpus their number; `for i, row in corpus do` goes through them; corpus.path and corpus.hash (SHA-256) tell the file. Runs record the hash.",
        "local pages = r1.resource { path = \"pages.jsonl\", columns = { text = \"contents\" } }",
    ),
];
