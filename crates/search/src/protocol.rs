//! The protocols of retrieval servers: requests to an index, and the responses.
//!
//! - Search-R1 (`search_r1/search/retrieval_server.py`): `POST /retrieve` with `queries`, `topk`
//!   and `return_scores` gives `{"result": [[document…]…]}`, or with scores
//!   `{"result": [[{"document", "score"}…]…]}`
//! - Agent-R1 (`scripts/*_search_server/search_api.py`): `POST /search` with `queries` and `top_k`,
//!   or `GET /search?query=…&top_k=…`, gives `{"query_results": [{"query", "results": [{"score",
//!   "document"}…]}…], "total_time", "search_time"}`
//!
//! A document has `id`, `title`, `text`, `contents` (the title in quotes on the first line, then
//! the text: what the clients of both read) and the other columns of its row.

use std::time::Instant;

use serde_json::{Map, Value as Json, json};

use super::options::{MOST_HITS, SearchOptions};
use super::passage::Passage;
use super::query::{Hit, Index};
use r1_base::json;

/// Maximum number of queries of a request.
const MOST_QUERIES: usize = 1024;
/// Hits per query if the request has no number: the defaults of the two servers.
pub const RETRIEVE_HITS: usize = 3;
pub const SEARCH_HITS: usize = 10;

/// A request, independent of its transport.
#[derive(Clone, Copy, Debug)]
pub struct SearchRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// Names and values of the query.
    pub query: &'a [(String, String)],
    pub body: &'a [u8],
}

/// Status and JSON body of the response. `k` replaces the default number of hits; the number in
/// `options` is not used.
pub fn respond(index: &Index, options: &SearchOptions, k: Option<usize>, request: &SearchRequest<'_>) -> (u16, Json) {
    let with = |default: usize| SearchOptions { k: k.unwrap_or(default), ..options.clone() };
    let done = match (request.method, request.path.trim_end_matches('/')) {
        ("POST", "/retrieve") => retrieve(index, with(RETRIEVE_HITS), request.body),
        ("POST", "/search") => search(index, with(SEARCH_HITS), request.body),
        ("GET", "/search") => search_one(index, with(SEARCH_HITS), request.query),
        ("GET", "/health") => Ok(json!({ "status": "healthy", "passages": index.manifest().counts.passages })),
        ("GET", "") => Ok(json!({ "message": "search server of r1: POST /retrieve, POST /search, GET /health" })),
        (_, "/retrieve" | "/search" | "/health" | "") => Err((405, "the path does not support this method".to_owned())),
        _ => Err((404, "there is no such path: POST /retrieve, POST /search, GET /health".to_owned())),
    };
    done.map_or_else(|(status, why)| (status, json!({ "detail": why })), |body| (200, body))
}

type Refusal = (u16, String);

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err((422, why.into()))
}

fn object(body: &[u8]) -> Result<Map<String, Json>, Refusal> {
    match serde_json::from_slice(body) {
        Ok(Json::Object(fields)) => Ok(fields),
        Ok(_) => refuse("the body must be a JSON object"),
        Err(error) => refuse(format!("the body is not JSON: {error}")),
    }
}

fn queries(fields: &Map<String, Json>) -> Result<Vec<String>, Refusal> {
    let Some(Json::Array(items)) = fields.get("queries") else {
        return refuse("`queries` must be a list of texts");
    };
    if items.len() > MOST_QUERIES {
        return refuse(format!("there are {} queries; at most {MOST_QUERIES} are searched", items.len()));
    }
    let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    texts.map_or_else(|| refuse("`queries` must be a list of texts"), Ok)
}

/// A number of hits; null and 0 are the default, as for Search-R1's server.
fn number_of_hits(name: &str, value: Option<&Json>, default: usize) -> Result<usize, Refusal> {
    match value {
        None | Some(Json::Null) => Ok(default),
        Some(value) => match value.as_u64() {
            Some(0) => Ok(default),
            Some(count) if count <= MOST_HITS as u64 => Ok(count as usize),
            _ => refuse(format!("`{name}` must be a whole number from 1 to {MOST_HITS}")),
        },
    }
}

/// The hits of each query.
fn search_all(index: &Index, options: &SearchOptions, queries: &[String]) -> Result<Vec<Vec<Hit>>, Refusal> {
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    index.search_all(&queries, options).map_err(|error| {
        // An error of the client, or of the index.
        let status = if error.kind == r1_base::error::Kind::Usage { 422 } else { 500 };
        (status, error.message)
    })
}

fn retrieve(index: &Index, mut options: SearchOptions, body: &[u8]) -> Result<Json, Refusal> {
    let fields = object(body)?;
    let queries = queries(&fields)?;
    options.k = number_of_hits("topk", fields.get("topk"), options.k)?;
    let with_scores = match fields.get("return_scores") {
        None | Some(Json::Null) => false,
        Some(Json::Bool(with)) => *with,
        Some(_) => return refuse("`return_scores` must be true or false"),
    };
    let mut result = Vec::with_capacity(queries.len());
    for hits in search_all(index, &options, &queries)? {
        let hits = hits.into_iter().map(|hit| {
            let score = hit.score;
            let document = document(hit);
            if with_scores { json!({ "document": document, "score": score }) } else { document }
        });
        result.push(hits.collect::<Json>());
    }
    Ok(json!({ "result": result }))
}

fn search(index: &Index, mut options: SearchOptions, body: &[u8]) -> Result<Json, Refusal> {
    let fields = object(body)?;
    options.k = number_of_hits("top_k", fields.get("top_k"), options.k)?;
    results(index, &options, queries(&fields)?)
}

fn search_one(index: &Index, mut options: SearchOptions, query: &[(String, String)]) -> Result<Json, Refusal> {
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let Some(text) = value("query") else { return refuse("`query` is missing") };
    // Text that is not a number is refused like any other value.
    let wanted = value("top_k").map(|text| serde_json::from_str(&text).unwrap_or(Json::String(text)));
    options.k = number_of_hits("top_k", wanted.as_ref(), options.k)?;
    results(index, &options, vec![text])
}

fn results(index: &Index, options: &SearchOptions, queries: Vec<String>) -> Result<Json, Refusal> {
    let started = Instant::now();
    let mut all = Vec::with_capacity(queries.len());
    let lists = search_all(index, options, &queries)?;
    for (query, hits) in queries.into_iter().zip(lists) {
        let hits = hits.into_iter().map(|hit| {
            let score = hit.score;
            json!({ "score": score, "document": document(hit) })
        });
        all.push(json!({ "query": query, "results": hits.collect::<Json>() }));
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({ "query_results": all, "total_time": seconds, "search_time": seconds }))
}

/// A hit as a document. Its own fields replace columns of the same names.
fn document(hit: Hit) -> Json {
    let Hit { id, title, text, columns, .. } = hit;
    let passage = Passage { id, title, text, columns };
    let contents = passage.contents();
    let Passage { id, title, text, columns } = passage;
    let mut fields = columns;
    for (name, value) in [("id", id), ("title", title), ("text", text), ("contents", contents)] {
        fields.insert(name.to_owned(), value.into());
    }
    Json::Object(fields)
}

/// The documents of the first query of a response of either server.
///
/// # Errors
/// A description of the unexpected response.
pub fn read_documents(body: &[u8]) -> Result<Vec<Hit>, NotResults> {
    let json = json::read_foreign(body).map_err(|_| NotResults("is not JSON"))?;
    let list = json.pointer("/result/0").or_else(|| json.pointer("/query_results/0/results"));
    let Some(Json::Array(list)) = list else { return Err(NotResults("has no `result` with a list of documents")) };
    let hit = |(index, item): (usize, &Json)| {
        let fields = item.get("document").unwrap_or(item).as_object()?;
        let text = |name: &str| fields.get(name).and_then(Json::as_str);
        let id = fields.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        // Every server has `contents`; separate title and text are preferred.
        let (title, text) = match (text("title"), text("text"), text("contents")) {
            (title, Some(text), _) => (title.unwrap_or_default().to_owned(), text.to_owned()),
            (title, None, Some(contents)) => {
                super::passage::split_contents(title.unwrap_or_default().to_owned(), contents)
            }
            _ => return None,
        };
        let score = item.get("score").and_then(Json::as_f64).unwrap_or_default();
        Some(Hit { id: id.unwrap_or_default(), score, rank: index + 1, title, text, columns: Map::new() })
    };
    let hits: Option<Vec<Hit>> = list.iter().enumerate().map(hit).collect();
    hits.ok_or(NotResults("has a document without `text` or `contents`"))
}

/// A response that is not one of a retrieval server, with a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResults(pub &'static str);

/// The text of hits that a policy reads, as Search-R1 writes it: `Doc 1(Title: …) text`, a line
/// each.
pub fn as_text(hits: &[Hit]) -> String {
    if hits.is_empty() {
        return "No passage was found.".to_owned();
    }
    let lines = hits.iter().map(|hit| {
        if hit.title.is_empty() {
            format!("Doc {}: {}", hit.rank, hit.text)
        } else {
            format!("Doc {}(Title: {}) {}", hit.rank, hit.title, hit.text)
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
