//! Requests in the shapes of Search-R1 and Agent-R1, and hostile ones.

use serde_json::{Value as Json, json};

use super::super::{Index, Mode, SearchOptions, SearchRequest, as_text, read_documents, respond};
use super::{build, options};

fn index() -> (tempfile::TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let rows = [
        json!({ "id": "a", "title": "Rivers", "text": "The Danube is long.", "year": 1 }),
        json!({ "id": "b", "text": "The Danube is blue." }),
    ];
    build(&dir.path().join("i"), options(), &rows).unwrap();
    let index = Index::open(&dir.path().join("i")).unwrap();
    (dir, index)
}

fn post(index: &Index, path: &str, body: &str) -> (u16, Json) {
    respond(
        index,
        &SearchOptions::new(1, Mode::Sparse),
        None,
        &SearchRequest { method: "POST", path, query: &[], body: body.as_bytes() },
    )
}

#[test]
fn retrieve_responds_as_the_server_of_search_r1() {
    let (_dir, index) = index();
    let (status, body) =
        post(&index, "/retrieve", r#"{"queries": ["long danube", "none"], "topk": 1, "return_scores": true}"#);
    let score = index.search("long danube", 1, Mode::Sparse).unwrap()[0].score;
    let document = json!({
        "year": 1, "id": "a", "title": "Rivers", "text": "The Danube is long.",
        "contents": "\"Rivers\"\nThe Danube is long.",
    });
    assert_eq!((status, &body), (200, &json!({ "result": [[{ "document": document, "score": score }], []] })));
    // Without scores the documents themselves; topk null is the default.
    let (_, body) = post(&index, "/retrieve", r#"{"queries": ["danube"], "topk": null}"#);
    assert_eq!(body["result"][0].as_array().unwrap().len(), 2);
    assert_eq!(body["result"][0][0]["contents"], "The Danube is blue.");
}

#[test]
fn search_responds_as_the_server_of_agent_r1() {
    let (_dir, index) = index();
    let (status, body) = post(&index, "/search", r#"{"queries": ["blue"], "top_k": 5}"#);
    assert_eq!(status, 200);
    assert_eq!(body["query_results"][0]["query"], "blue");
    assert_eq!(body["query_results"][0]["results"][0]["document"]["id"], "b");
    assert!(body["query_results"][0]["results"][0]["score"].as_f64().unwrap() > 0.0);
    assert!(body["total_time"].is_number() && body["search_time"].is_number());
    let query = [("query".to_owned(), "danube".to_owned()), ("top_k".to_owned(), "1".to_owned())];
    let request = SearchRequest { method: "GET", path: "/search", query: &query, body: b"" };
    let (status, body) = respond(&index, &SearchOptions::new(1, Mode::Sparse), None, &request);
    assert_eq!((status, body["query_results"][0]["results"].as_array().unwrap().len()), (200, 1));
    let health = SearchRequest { method: "GET", path: "/health", query: &[], body: b"" };
    let (status, body) = respond(&index, &SearchOptions::new(1, Mode::Sparse), None, &health);
    assert_eq!((status, body), (200, json!({ "status": "healthy", "passages": 2 })));
}

#[test]
fn hostile_search_requests_are_refused_with_a_reason() {
    let (_dir, index) = index();
    let long = format!("{{\"queries\": [\"{}\"]}}", "x ".repeat(1 << 19));
    let many = format!("{{\"queries\": [{}\"x\"]}}", "\"x\",".repeat(2000));
    let deep = "[".repeat(100_000);
    for (body, status, part) in [
        ("", 422, "the body is not JSON"),
        ("[]", 422, "must be a JSON object"),
        ("{}", 422, "`queries` must be a list of texts"),
        (r#"{"queries": "x"}"#, 422, "`queries` must be a list of texts"),
        (r#"{"queries": [1]}"#, 422, "`queries` must be a list of texts"),
        (r#"{"queries": ["x"], "topk": -1}"#, 422, "`topk` must be a whole number"),
        (r#"{"queries": ["x"], "topk": 1e9}"#, 422, "`topk` must be a whole number"),
        (r#"{"queries": ["x"], "return_scores": 1}"#, 422, "`return_scores` must be true or false"),
        (&long, 422, "the query has 1024 KiB"),
        (&many, 422, "there are 2001 queries"),
        (&deep, 422, "the body is not JSON"),
    ] {
        let (code, response) = post(&index, "/retrieve", body);
        let detail = response["detail"].as_str().unwrap();
        assert!(code == status && detail.contains(part), "{code} {detail}");
    }
    let (status, _) = post(&index, "/nowhere", "{}");
    assert_eq!(status, 404);
    let request = SearchRequest { method: "GET", path: "/retrieve", query: &[], body: b"" };
    assert_eq!(respond(&index, &SearchOptions::new(1, Mode::Sparse), None, &request).0, 405);
    // Queries that find nothing are no failure.
    let (status, body) = post(&index, "/retrieve", r#"{"queries": ["", "?!", "\u0000"]}"#);
    assert_eq!((status, body), (200, json!({ "result": [[], [], []] })));
}

#[test]
fn responses_of_retrieval_servers_become_text_for_the_policy() {
    let (_dir, index) = index();
    let shown = |body: &Json| read_documents(body.to_string().as_bytes()).map(|hits| as_text(&hits));
    let expected = "Doc 1(Title: Rivers) The Danube is long.\nDoc 2: The Danube is blue.";
    for (path, body) in [
        ("/retrieve", r#"{"queries": ["danube rivers"]}"#),
        ("/retrieve", r#"{"queries": ["danube rivers"], "return_scores": true}"#),
        ("/search", r#"{"queries": ["danube rivers"]}"#),
    ] {
        assert_eq!(shown(&post(&index, path, body).1).unwrap(), expected, "{path} {body}");
    }
    // A server of Search-R1, whose documents have ids and contents only.
    let theirs = json!({ "result": [[{ "document": { "id": "1", "contents": "\"T\"\nx" }, "score": 2.5 }]] });
    assert_eq!(shown(&theirs).unwrap(), "Doc 1(Title: T) x");
    assert_eq!(shown(&json!({ "result": [[]] })).unwrap(), "No passage was found.");
    for wrong in
        [json!({}), json!([]), json!({ "result": [] }), json!({ "result": [["x"]] }), json!({ "result": [[{}]] })]
    {
        assert!(shown(&wrong).is_err(), "{wrong}");
    }
    assert!(read_documents(b"<html>").is_err());
}
