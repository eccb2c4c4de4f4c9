//! Tools: in Lua, interpreters, MCP servers.

use super::{Entry, f, p, table};

pub(super) const ENTRIES: &[Entry] = &[
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
                    "Parameters by name, each a type (\"string\", \"integer\" …) or a JSON schema; required unless optional = true",
                ),
                p("timeout?", "number | string", "Timeout of one attempt: seconds, or text such as \"500ms\""),
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "Retries after a timeout, or if `run` returns true as fourth value; default: 0. The wait is \"500ms\" before the \
                     first and doubles each time",
                ),
                p(
                    "cache?",
                    "boolean | string",
                    "Caches results by arguments: true or \"trajectory\" per trajectory, \"run\" for all trajectories; such a tool cannot use \
                     call.state; default: false",
                ),
                p("concurrency?", "number", "Maximum concurrent calls over the whole run"),
                p("max_result_tokens?", "number", "Maximum tokens of a result; default: that of the environment"),
                p(
                    "hidden?",
                    "boolean",
                    "Only for the script (r1.call_tools with `hidden`): the policy does not see it",
                ),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards if `run` returns none; default: the environment's call_rewards",
                ),
                p(
                    "run",
                    "(arguments: {[string]: any}, call: {state: any, kwargs: {[string]: any}?}) -> (any, any, any, any)",
                    "Returns text (a table is sent as JSON) and an optional process reward; or nil, an error message, a process \
                     reward, and true if a retry may succeed",
                ),
            ],
        )],
        &[("Tool", "")],
        "Defines a tool in Lua. Arguments are validated before the call. An error message that it returns is shown to the policy.",
        "r1.tool {\n  name = \"double\", description = \"Doubles a number\", parameters = { n = \"integer\" },\n  run = function(arguments) return arguments.n * 2 end,\n}",
    ),
    f(
        "r1.tools.python",
        &[table(
            "options?",
            "",
            &[
                p("name?", "string", "Default: \"python\""),
                p("description?", "string", ""),
                p("timeout?", "number | string", "Maximum seconds per program; default: 5 s"),
                p("memory?", "number | string", "Maximum memory; default: \"512MiB\""),
                p("disk?", "number | string", "Maximum size of its scratch directory; default: \"16MiB\""),
                p("session?", "boolean", "Keep variables and files between the calls of a trajectory; default: false"),
                p(
                    "files?",
                    "{[string]: string | {path: string?, text: string?, column: string?, max_size: (number | string)?}}",
                    "Files in the directory of programs, by name: a path relative to the script's directory, { text = … }, or { column = … } of the \
                     task (a table becomes CSV). A session gets them at its start",
                ),
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "As in r1.tool, after a timeout; not with `session`",
                ),
                p("cache?", "boolean | string", "As in r1.tool; not with `session`"),
                p("concurrency?", "number", "Maximum concurrent calls over the whole run"),
                p("max_result_tokens?", "number", "Maximum tokens of a result; default: that of the environment"),
                p(
                    "hidden?",
                    "boolean",
                    "Only for the script (r1.call_tools with `hidden`): the policy does not see it",
                ),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards of its calls; default: the environment's call_rewards",
                ),
            ],
        )],
        &[("Tool", "")],
        "A Python interpreter in a sandbox without access to the network, other files or other processes.",
        "r1.tools.python { timeout = 5, memory = \"512MiB\" }",
    ),
    f(
        "r1.tools.rhai",
        &[table(
            "options?",
            "",
            &[
                p("name?", "string", "Default: \"rhai\""),
                p("description?", "string", ""),
                p("timeout?", "number | string", "Maximum seconds per program; default: 1 s"),
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "As in r1.tool, after a timeout",
                ),
                p("cache?", "boolean | string", "As in r1.tool"),
                p("concurrency?", "number", "Maximum concurrent calls over the whole run"),
                p("max_result_tokens?", "number", "Maximum tokens of a result; default: that of the environment"),
                p(
                    "hidden?",
                    "boolean",
                    "Only for the script (r1.call_tools with `hidden`): the policy does not see it",
                ),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards of its calls; default: the environment's call_rewards",
                ),
            ],
        )],
        &[("Tool", "")],
        "An embedded interpreter of the language Rhai; nothing needs to be installed.",
        "r1.tools.rhai {}",
    ),
    f(
        "r1.tools.mcp",
        &[table(
            "server",
            "",
            &[
                p("command?", "{string}", "Program and arguments of a server over standard input and output"),
                p("url?", "string", "URL of a server over streamable HTTP; a server has `command` or `url`"),
                p("name?", "string", "Name in messages; default: the program's name or the host"),
                p("prefix?", "string", "Start of the names of its tools"),
                p(
                    "allow?",
                    "{string}",
                    "Names of the tools that the policy may use, as the server calls them; default: all",
                ),
                p(
                    "env?",
                    "{[string]: string | Secret}",
                    "Environment variables, in addition to HOME, PATH and the like",
                ),
                p("headers?", "{[string]: string | Secret}", "Headers of each request to a `url`"),
                p(
                    "directory?",
                    "string",
                    "Working directory, relative to the script's directory; default: that directory",
                ),
                p(
                    "scope?",
                    "string",
                    "\"run\": one server for all trajectories; \"trajectory\": one for each; default: \"run\"",
                ),
                p("timeout?", "number | string", "Timeout of a call, without a start of the server; default: 30 s"),
                p("progress?", "boolean", "The timeout begins again with each progress notification; default: false"),
                p("start_timeout?", "number | string", "Timeout until the server has listed its tools; default: 60 s"),
                p("restarts?", "number", "How many times a server that ended is started again; default: 3"),
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "As in r1.tool, after a timeout",
                ),
                p("cache?", "boolean | string", "As in r1.tool"),
                p("concurrency?", "number", "Maximum concurrent calls of one of its tools over the whole run"),
                p("max_result_tokens?", "number", "Maximum tokens of a result; default: that of the environment"),
                p(
                    "rewards?",
                    "{ok: number?, failed: number?, refused: number?}",
                    "Process rewards of its calls; default: the environment's call_rewards",
                ),
            ],
        )],
        &[("ToolServer", "Stands for the list of its tools in env.tools")],
        "The tools of an MCP server, which is started when its tools are needed. A program needs `process:NAME` and runs outside \
         the sandbox; a URL needs `http:HOST`.",
        "r1.tools.mcp { command = { \"npx\", \"-y\", \"@modelcontextprotocol/server-everything\" }, prefix = \"mcp_\" }",
    ),
];
