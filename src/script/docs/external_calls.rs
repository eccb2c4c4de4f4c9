//! Declarations: external calls (HTTP, processes, files, time).

use super::{Entry, Param, f, p, table};

const TIMEOUT: Param = p("timeout?", "number | string", "Seconds, or text such as \"500ms\"; default: 10");
const HEADERS: Param = p("headers?", "{[string]: string | Secret}", "");
const QUERY: Param = p("query?", "{[string]: any}", "Query parameters");
const MAX_BYTES: Param =
    p("max_bytes?", "number", "Maximum size of the response; default: 1 MiB. A longer response is a failure");
const ANSWER: &[(&str, &str)] = &[("HttpAnswer?", "The response, with any status code"), ("string?", "Error message")];

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.http.get",
        &[
            p("url", "string", ""),
            table(
                "options?",
                "",
                &[HEADERS, QUERY, TIMEOUT, MAX_BYTES, p("body?", "string", ""), p("json?", "any", "")],
            ),
        ],
        ANSWER,
        "Sends a GET request. Recipes must declare the host: needs = { \"http:HOST\" }, or \"http\" for all public hosts; private addresses must be named. Only the calling trajectory waits. The response is recorded for replays; secrets are not recorded.",
        "local answer, why = r1.http.get(\"https://api.example.org/search\", { query = { q = \"lua\" }, timeout = 5 })",
    ),
    f(
        "r1.http.post",
        &[
            p("url", "string", ""),
            p("body?", "string | table", "A table is sent as JSON"),
            table(
                "options?",
                "",
                &[HEADERS, QUERY, TIMEOUT, MAX_BYTES, p("body?", "string", ""), p("json?", "any", "")],
            ),
        ],
        ANSWER,
        "Sends a POST request.",
        "local answer = r1.http.post(\"http://localhost:8000/search\", { query = \"lua\" })",
    ),
    f(
        "r1.http.request",
        &[table(
            "request",
            "",
            &[
                p("url", "string", ""),
                p("method?", "string", "GET, POST, PUT, PATCH, DELETE, HEAD"),
                HEADERS,
                QUERY,
                p("body?", "string", ""),
                p("json?", "any", "Body, sent as JSON"),
                TIMEOUT,
                MAX_BYTES,
            ],
        )],
        ANSWER,
        "Sends a request with any method.",
        "",
    ),
    f(
        "r1.connection",
        &[table(
            "options",
            "",
            &[
                p("url?", "string", "Address of a WebSocket server: ws://HOST:PORT/PATH or wss://…"),
                p(
                    "command?",
                    "{string | number}",
                    "Instead: a program and its arguments, which answers JSON lines; it runs outside the sandbox",
                ),
                p("name?", "string", "Name in records and messages; default: the URL, or the program's name"),
                p("env?", "{[string]: string | Secret}", "Environment variables of the program"),
                p("directory?", "string", "Working directory of the program; default: that of the script"),
                p("headers?", "{[string]: string | Secret}", "Headers of the opening request"),
                p("timeout?", "number | string", "Maximum time until an answer; default: 60 s"),
                p(
                    "start_timeout?",
                    "number | string",
                    "Maximum time until the connection is open (default: 10 s), or until the program has answered open_message (60 s)",
                ),
                p(
                    "restarts?",
                    "number",
                    "How often a program that ends is started again in a row without an answer; default: 3",
                ),
                p("processes?", "number", "Processes of the program, which share the trajectories; default: 1"),
                p("max_bytes?", "number", "Maximum size of an answer; default: 1 MiB"),
                p(
                    "open_message?",
                    "any",
                    "Sent to a program after each start; an error as its answer is reported before a run",
                ),
                p("close_message?", "any", "Sent before a WebSocket is closed; it gets no answer"),
            ],
        )],
        &[("Connection", "")],
        "A connection to a WebSocket server or a program that stays open between requests. A WebSocket is one trajectory's: its first request opens it, and it is closed after the trajectory. A program is shared by all trajectories. It reads lines {\"id\": 1, \"session\": 7, \"message\": …} and prints {\"id\": 1, \"answer\": …} or {\"id\": 1, \"error\": \"…\"} in any order; the session is that of a trajectory, and {\"session\": 7, \"end\": true} ends it. It is started before the first trajectory, and again when it ends; trajectories that it served then fail. A copy of a trajectory (tree sampling, branches in r1 repl) repeats the messages so far on a new connection. Recipes must declare the host: needs = { \"http:HOST\" }, or \"http\" for all public hosts; private addresses must be named. Or the program: needs = { \"process:NAME\" }.",
        "local server = r1.connection { url = \"ws://localhost:8000/ws\" }",
    ),
    f(
        "Connection:request",
        &[
            p("message", "any", "Plain data, sent as JSON"),
            table("options?", "", &[p("timeout?", "number | string", "Maximum time until the answer")]),
        ],
        &[("any", "The answer, decoded from JSON"), ("string?", "Error message; the answer is nil")],
        "Sends a message and returns the server's next message. Requests of a trajectory are sent one after the other. Only the calling trajectory waits. The answer is recorded for replays. If no answer comes, the connection is closed, and further requests fail until :close().",
        "local answer, why = server:request({ type = \"reset\" }, { timeout = 5 })",
    ),
    f(
        "Connection:close",
        &[],
        &[],
        "Closes the trajectory's connection. The next request opens a new one. A trajectory's connections are closed after it in any case.",
        "server:close()",
    ),
    f(
        "r1.process.run",
        &[
            p("argv", "{string | number}", "Program and arguments; searched in /usr/local/bin, /usr/bin and /bin"),
            table(
                "options?",
                "",
                &[
                    p("input?", "string", "Standard input"),
                    TIMEOUT,
                    p("memory?", "number | string", "Maximum memory per process; default: \"512MiB\""),
                    p("disk?", "number | string", "Maximum size of its working directory; default: \"64MiB\""),
                    p("output?", "number", "Maximum bytes kept per output stream (beginning and end); default: 64 KiB"),
                    p("env?", "{[string]: string | Secret}", "Environment variables"),
                ],
            ),
        ],
        &[("ProcessResult?", ""), ("string?", "Error message if the program did not start")],
        "Runs a program in a sandbox. It can read system directories and directories declared with \"fs:DIR\", and write to a temporary working directory. It has no access to the network or to other processes. Recipes must declare it: needs = { \"process:NAME\" }.",
        "local sorted = r1.process.run({ \"sort\", \"-n\" }, { input = \"3\\n1\\n2\\n\" })\nsorted.out  --> \"1\\n2\\n3\\n\"",
    ),
    f(
        "r1.fs.read",
        &[p("path", "string", "Path relative to the script's directory; in programs, to the current one")],
        &[("string?", ""), ("string?", "Error message")],
        "Reads a file. Recipes must declare the directory: needs = { \"fs:DIR\" }.",
        "local words = r1.fs.read \"data/words.txt\"",
    ),
    f(
        "r1.fs.list",
        &[p("path", "string", "")],
        &[("{string}?", ""), ("string?", "Error message")],
        "Lists the names in a directory, sorted. Names of directories end with a slash.",
        "",
    ),
    f(
        "r1.fs.stat",
        &[p("path", "string", "")],
        &[("{kind: string, size: number}?", "`kind` is \"file\" or \"directory\""), ("string?", "Error message")],
        "Returns the kind and size of a file.",
        "",
    ),
    f(
        "r1.fs.write",
        &[p("path", "string", ""), p("text", "string", ""), table("options?", "", &[p("append?", "boolean", "")])],
        &[("boolean?", "True"), ("string?", "Error message")],
        "Writes a file and creates missing parent directories. Recipes must declare the directory: needs = { \"fs:write:DIR\" }.",
        "",
    ),
    f(
        "r1.secret",
        &[p("name", "string", "Name of the environment variable")],
        &[("Secret", "Can be concatenated with text by `..`")],
        "A handle to the value of an environment variable, such as an API key, for headers and queries of r1.http and for `env` of r1.process.run. Scripts cannot read the value: the host inserts it when the request is sent, and records, trajectories and errors show \"(secret)\". Recipes must declare it: needs = { \"env:NAME\" }. Replays do not need the value.",
        "local headers = { Authorization = \"Bearer \" .. r1.secret(\"SEARCH_API_KEY\") }",
    ),
    f(
        "r1.clock",
        &[],
        &[("number", "Seconds since 1970")],
        "Returns the current time. It is recorded, so a replay returns the recorded time.",
        "",
    ),
    f(
        "r1.sleep",
        &[p("length", "number | string", "Seconds, or text such as \"500ms\"")],
        &[],
        "Waits without blocking other trajectories. Replays do not wait.",
        "r1.sleep(0)",
    ),
    f(
        "r1.join",
        &[p("functions", "{() -> any}", "")],
        &[("any…", "The result of each function, in order")],
        "Calls functions concurrently, so that their waiting times overlap. If functions fail, the error of the first one in the list is raised after all have ended.",
        "r1.join { function() return 1 end, function() return 2 end }  --> 1, 2",
    ),
];
