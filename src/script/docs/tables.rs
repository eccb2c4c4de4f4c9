//! Declarations: tables and SQL.

use super::{Entry, Param, f, p, table};

const TABLES: &str = "{[string]: string | {any} | {path: string?, column: string?, data: any, format: string?, columns: {[string]: string}?, max_size: (number | string)?, types: {[string]: string}?, infer: boolean?, thousands: boolean?}}";

const TIMEOUT: Param = p("timeout?", "number | string", "Time limit of a query; default: 5 s");
const MEMORY: Param = p("memory?", "number | string", "Memory that a query may allocate; default: 256MiB");

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.tools.table",
        &[table(
            "options",
            "",
            &[
                p(
                    "tables?",
                    TABLES,
                    "Tables by name: a path relative to the script's directory, { path = … } with options, { column = \"…\" } for a \
                     column of the task, or plain data (a list of rows, { header =, rows = })",
                ),
                p("column?", "string", "Column of the task with one table, named t, or with several by name"),
                p("name?", "string", "Default: \"sql\""),
                p("description?", "string", "Replaces the first sentence; tables and columns follow it"),
                p("preview?", "number", "Rows of each table that the description shows, at most 10; default: 0"),
                TIMEOUT,
                MEMORY,
                p(
                    "retries?",
                    "number | {times: number, backoff: (number | string)?}",
                    "As in r1.tool, after a timeout",
                ),
                p("cache?", "boolean | string", "As in r1.tool; not \"run\" for tables of the task"),
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
        "A tool that answers SQL over tables (SQLite, read-only). Its description names tables and columns. docs/tables.md has the rules.",
        "r1.tools.table { tables = { films = { { title = \"A\", year = 1999 } } }, preview = 1 }",
    ),
    f(
        "r1.table.open",
        &[
            p("tables", TABLES, "As in r1.tools.table, without `column`"),
            table(
                "options?",
                "",
                &[TIMEOUT, MEMORY, p("max_rows?", "number", "Maximum rows of a result; default: 10000")],
            ),
        ],
        &[("Tables", "")],
        "Opens tables for queries of a script, such as the expected answer of a reward. Files are read at the top of the script, once per process; plain data anywhere.",
        "local films = r1.table.open { films = { { title = \"A\", year = 1999 } } }",
    ),
    f(
        "Tables:query",
        &[p("sql", "string", "One SELECT statement"), p("params?", "{any}", "Values of its `?` parameters")],
        &[
            (
                "{columns: {string}, rows: {{any}}, more: boolean}?",
                "Rows as lists of values; null is r1.json.null. `more`: there are more rows than max_rows. nil if the query fails",
            ),
            ("string?", "Error message"),
        ],
        "Runs a query. Functions with random results are refused.",
        "r1.table.open({ t = { { n = 1 }, { n = 2 } } }):query(\"SELECT sum(n) FROM t WHERE n > ?\", { 1 }).rows  --> [[2]]",
    ),
    f(
        "Tables:describe",
        &[p("preview?", "number", "Rows of each table that are shown; default: 0")],
        &[("string", "")],
        "Returns the names, columns and numbers of rows of the tables, as in the description of r1.tools.table.",
        "r1.table.open({ t = { { n = 1 } } }):describe()  --> \"t(n INTEGER), 1 row\"",
    ),
];
