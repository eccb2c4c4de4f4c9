//! Declarations: search over indexes on disk.

use super::{Entry, Param, f, p, table};

const K: Param = p("k?", "number", "Number of passages, 1 to 1000");
const MODE: Param = p(
    "mode?",
    "string",
    "\"sparse\" (BM25; default); with vectors in the index also \"dense\" (inner product), or \"hybrid\" (both, fused by rank)",
);

const EF: Param = p(
    "ef?",
    "number",
    "Candidates of a search in the HNSW graph of the index, 1 to 10000: more find more of the nearest vectors, and take longer; default: 64, or `k` if that is more",
);
const EXACT: Param = p("exact?", "boolean", "Compare the query with every vector, although the index has a graph");
const RERANK: Param = p(
    "rerank?",
    "{model: string, top: number?}",
    "A cross-encoder that ranks the best `top` passages again (default: 50, or `k` if that is more): the directory of a BERT model with one label, relative to the script",
);

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "r1.index.open",
        &[p(
            "directory",
            "string",
            "An index of `r1 index build`, relative to the script; in programs, to the current directory",
        )],
        &[("Index", "")],
        "Opens an index of passages on disk (docs/search.md). It is memory-mapped and opened once per process. A run opens it before its first trajectory, and a replay not at all. For a few thousand texts that are in the script or a resource, r1.text.index needs no directory; this is for corpora that were indexed once and do not fit into memory.",
        "local wiki = r1.index.open \"wiki\"",
    ),
    f(
        "Index:search",
        &[
            p("query", "string | {string}", "A query, or a list of queries"),
            table("options?", "", &[K, MODE, EF, EXACT, RERANK]),
        ],
        &[("{SearchHit} | {{SearchHit}}", "The best passages, best first; for a list of queries one list each")],
        "Returns the passages with the best scores; by default 5. Only the calling trajectory waits. The hits are recorded for replays.",
        "local hits = wiki:search(\"longest river of Europe\", { k = 3 })\nlocal both = wiki:search { \"Danube\", \"Volga\" }",
    ),
    f(
        "r1.tools.search",
        &[table(
            "options",
            "",
            &[
                p("index?", "string", "Directory of an index, as for r1.index.open"),
                p(
                    "url?",
                    "string",
                    "Instead: a retrieval server of `r1 index serve`, Search-R1 (POST /retrieve) or Agent-R1 (POST /search). Recipes must declare it: needs = { URL }",
                ),
                p("k?", "number", "Number of passages, 1 to 1000; default: 3"),
                MODE,
                EF,
                EXACT,
                RERANK,
                p("name?", "string", "Default: \"search\""),
                p("description?", "string", ""),
                p("timeout?", "number | string", "Maximum seconds of one attempt; default: 10"),
                p(
                    "retries?",
                    "number | {times: number, backoff: any?}",
                    "As in r1.tool; attempts that time out or that the server fails are repeated",
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
        "A search tool with the parameter `query`. Its result has a line per passage, `Doc 1(Title: …) text`. After 5 failures in a row no requests are sent to a server for 30 s: its calls fail at once.",
        "r1.tools.search { index = \"wiki\", k = 3 }",
    ),
];
