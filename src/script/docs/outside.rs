//! Entries: what reaches outside.

use super::{Entry, Param, f, p, table};

const TIMEOUT: Param = p("timeout?", "number | string", "Seconds (10), or \"500ms\"");
const HEADERS: Param = p("headers?", "{[string]: string | Secret}", "");
const QUERY: Param = p("query?", "{[string]: any}", "Is added to the address");
const MAX_BYTES: Param = p("max_bytes?", "number", "Of the answer (1 MiB); a longer one is a failure");
const ANSWER: &[(&str, &str)] = &[("HttpAnswer?", "Whatever its status"), ("string?", "Why there is none")];

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
        "Asks a host over HTTP. A recipe declares it: needs = { \"http:HOST\" }, or \"http\" for all public hosts; private addresses must be named. Only this trajectory waits; the answer is recorded for replays, secrets in headers are not.",
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
        "Sends something to a host.",
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
                p("json?", "any", "A body as JSON"),
                TIMEOUT,
                MAX_BYTES,
            ],
        )],
        ANSWER,
        "Any request.",
        "",
    ),
    f(
        "r1.process.run",
        &[
            p(
                "argv",
                "{string | number}",
                "The program and its arguments; it is looked for in /usr/local/bin, /usr/bin and /bin",
            ),
            table(
                "options?",
                "",
                &[
                    p("input?", "string", "What it reads"),
                    TIMEOUT,
                    p("memory?", "number | string", "Of each of its processes (\"512MiB\")"),
                    p("disk?", "number | string", "What its directory may hold (\"64MiB\")"),
                    p("output?", "number", "Bytes kept of what it prints (64 KiB): beginning and end"),
                    p("env?", "{[string]: string | Secret}", "Variables of its environment"),
                ],
            ),
        ],
        &[("ProcessResult?", ""), ("string?", "Why it was not started")],
        "Runs a program of this machine in a sandbox: it reads the system's directories and those that the recipe declares with \"fs:DIR\", writes to a directory of its own that goes with it, and sees no network and no other process. A recipe declares it: needs = { \"process:NAME\" }.",
        "local sorted = r1.process.run({ \"sort\", \"-n\" }, { input = \"3\\n1\\n2\\n\" })\nsorted.out  --> \"1\\n2\\n3\\n\"",
    ),
    f(
        "r1.fs.read",
        &[p("path", "string", "From the script's directory; in programs, from the current one")],
        &[("string?", ""), ("string?", "Why not")],
        "The content of a file. A recipe declares its directory: needs = { \"fs:DIR\" }.",
        "local words = r1.fs.read \"data/words.txt\"",
    ),
    f(
        "r1.fs.list",
        &[p("path", "string", "")],
        &[("{string}?", ""), ("string?", "Why not")],
        "The names in a directory, sorted; those of directories end with a slash.",
        "",
    ),
    f(
        "r1.fs.stat",
        &[p("path", "string", "")],
        &[("{kind: string, size: number}?", "`kind` is file or directory"), ("string?", "Why not")],
        "What is known of a file.",
        "",
    ),
    f(
        "r1.fs.write",
        &[p("path", "string", ""), p("text", "string", ""), table("options?", "", &[p("append?", "boolean", "")])],
        &[("boolean?", "True"), ("string?", "Why not")],
        "Writes a file; directories above it are made. A recipe declares it: needs = { \"fs:write:DIR\" }.",
        "",
    ),
    f(
        "r1.secret",
        &[p("name", "string", "Of the environment variable")],
        &[("Secret", "Joined with text by `..`")],
        "The value of an environment variable, such as an API key, for headers and queries of r1.http and for `env` of r1.process.run. The script never sees it: the host fills it in when the request is sent, and records, trajectories and errors show \"(secret)\". A recipe declares it: needs = { \"env:NAME\" }. Replays do not need it.",
        "local headers = { Authorization = \"Bearer \" .. r1.secret(\"SEARCH_API_KEY\") }",
    ),
    f(
        "r1.clock",
        &[],
        &[("number", "Seconds since 1970")],
        "The time. It is recorded: a replay sees the time it was.",
        "",
    ),
    f(
        "r1.sleep",
        &[p("length", "number | string", "Seconds, or \"500ms\"")],
        &[],
        "Waits; other trajectories go on. A replay does not wait.",
        "r1.sleep(0)",
    ),
    f(
        "r1.join",
        &[p("functions", "{() -> any}", "")],
        &[("any…", "What each of them gives, in their order")],
        "Calls functions side by side, so that what they wait for overlaps. An error is raised when all have come to their end: the first of the list.",
        "r1.join { function() return 1 end, function() return 2 end }  --> 1, 2",
    ),
];
