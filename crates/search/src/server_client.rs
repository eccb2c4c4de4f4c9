//! Client of a retrieval server: one exchange per query, and a circuit that opens when the server
//! is down, so that trajectories do not wait for it one after the other.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Hit, read_documents};
use r1_net::{AllowedAddresses, HttpError, HttpRequest, host_and_port, http};

/// Consecutive failures after which no requests are sent to a server, and for how long.
const FAILURES: u32 = 5;
const OPEN_FOR: Duration = Duration::from_secs(30);
/// Largest response.
const RESPONSE: usize = 16 << 20;

/// The reason why there are no passages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchFailure {
    /// For the policy.
    pub message: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    pub timed_out: bool,
}

impl SearchFailure {
    fn new(message: impl Into<String>, retryable: bool) -> Self {
        Self { message: message.into(), retryable, timed_out: false }
    }
}

/// Consecutive failures of one server, and the time until which it gets no requests.
#[derive(Clone, Copy, Debug, Default)]
struct Circuit {
    failures: u32,
    open_until: Option<Instant>,
}

/// The circuits of this process, by host and port.
static CIRCUITS: Mutex<Option<HashMap<(String, u16), Circuit>>> = Mutex::new(None);

fn circuit<T>(server: &(String, u16), change: impl FnOnce(&mut Circuit) -> T) -> T {
    let mut all = CIRCUITS.lock().unwrap_or_else(PoisonError::into_inner);
    change(all.get_or_insert_default().entry(server.clone()).or_default())
}

/// The address of the requests: a URL without a path gets the path of Search-R1's server.
pub fn search_url(url: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    if url[after_scheme..].trim_end_matches('/').contains('/') {
        return url.to_owned();
    }
    format!("{}/retrieve", url.trim_end_matches('/'))
}

/// The best `k` passages of a server for a query. `reach` gives the allowed addresses.
///
/// # Errors
/// The reason, as a message for the policy, and whether another attempt may succeed.
pub async fn query_search_server(
    url: &str,
    query: &str,
    k: usize,
    timeout: Duration,
    reach: &dyn Fn(&str, u16) -> AllowedAddresses,
) -> Result<Vec<Hit>, SearchFailure> {
    let url = search_url(url);
    let Some(server) = host_and_port(&url) else {
        return Err(SearchFailure::new(format!("`{url}` is not a URL"), false));
    };
    let name = format!("{}:{}", server.0, server.1);
    let open = circuit(&server, |circuit| circuit.open_until.is_some_and(|until| Instant::now() < until));
    if open {
        let why =
            format!("the search server at {name} is down; no requests are sent to it for {} s", OPEN_FOR.as_secs());
        return Err(SearchFailure::new(why, false));
    }
    let answered = exchange(&url, &name, query, k, timeout, reach).await;
    // A server that refuses a query is running.
    let failed = answered.as_ref().is_err_and(|failure| failure.retryable || failure.timed_out);
    circuit(&server, |circuit| {
        if !failed {
            *circuit = Circuit::default();
            return;
        }
        circuit.failures += 1;
        if circuit.failures >= FAILURES {
            circuit.open_until = Some(Instant::now() + OPEN_FOR);
        }
    });
    answered
}

async fn exchange(
    url: &str,
    name: &str,
    query: &str,
    k: usize,
    timeout: Duration,
    reach: &dyn Fn(&str, u16) -> AllowedAddresses,
) -> Result<Vec<Hit>, SearchFailure> {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let body = if path.ends_with("/search") {
        json!({ "queries": [query], "top_k": k })
    } else {
        json!({ "queries": [query], "topk": k, "return_scores": true })
    };
    let request = HttpRequest {
        method: "POST",
        url: url.to_owned(),
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        secrets: Vec::new(),
        body: Some(body.to_string().into_bytes()),
        timeout,
        max_bytes: RESPONSE,
    };
    let started = Instant::now();
    let response = http(request, reach).await.map_err(|error| {
        let (HttpError::NotPublic(why) | HttpError::Failed(why)) = error;
        let timed_out = started.elapsed() >= timeout;
        let failure = SearchFailure::new(format!("the search server at {name} did not answer: {why}"), !timed_out);
        SearchFailure { timed_out, ..failure }
    })?;
    match response.status {
        200 => {}
        // The server is overloaded, or still starting.
        status @ (408 | 429 | 500..=599) => {
            return Err(SearchFailure::new(format!("the search server at {name} answered with status {status}"), true));
        }
        status => {
            let detail = serde_json::from_slice::<serde_json::Value>(&response.body).ok();
            let detail =
                detail.and_then(|json| Some(json.get("detail")?.as_str()?.chars().take(300).collect::<String>()));
            let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
            let why = format!("the search server at {name} refused the query with status {status}{detail}");
            return Err(SearchFailure::new(why, false));
        }
    }
    let mut hits = read_documents(&response.body)
        .map_err(|not| SearchFailure::new(format!("the answer of the search server at {name} {}", not.0), true))?;
    hits.truncate(k);
    Ok(hits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that returns the responses in order, then the last one repeatedly; with its
    /// requests.
    fn server(responses: Vec<(u16, &'static str)>) -> (String, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut line, mut first, mut length) = (String::new(), String::new(), 0);
                while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                    if first.is_empty() {
                        first.clone_from(&line);
                    }
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                drop(sender.send(format!("{} {}", first.trim(), String::from_utf8_lossy(&body))));
                let (status, body) = responses[number.min(responses.len() - 1)];
                let head =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                drop(stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()));
            }
        });
        (url, requests)
    }

    async fn ask(url: &str) -> Result<Vec<Hit>, SearchFailure> {
        query_search_server(url, "a query", 2, Duration::from_secs(5), &|_, _| AllowedAddresses::Anywhere).await
    }

    #[tokio::test]
    async fn requests_use_the_protocol_of_the_search_server() {
        let body = r#"{"result": [[{"document": {"contents": "\"T\"\nx"}, "score": 1}, {"document": {"contents": "y"}, "score": 1}, {"document": {"contents": "z"}, "score": 0}]]}"#;
        let (url, requests) = server(vec![(200, body)]);
        let hits = ask(&url).await.unwrap();
        assert_eq!(hits.iter().map(|hit| hit.text.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        let request = requests.recv().unwrap();
        assert_eq!(request, r#"POST /retrieve HTTP/1.1 {"queries":["a query"],"topk":2,"return_scores":true}"#);
        ask(&format!("{url}/v1/search")).await.unwrap();
        assert_eq!(requests.recv().unwrap(), r#"POST /v1/search HTTP/1.1 {"queries":["a query"],"top_k":2}"#);
    }

    #[tokio::test]
    async fn failures_of_a_search_server_say_whether_to_try_again() {
        let cases = [
            (503, "", "answered with status 503", true),
            (422, r#"{"detail": "too long"}"#, "refused the query with status 422: too long", false),
            (200, "<html>", "is not JSON", true),
            (200, "{}", "has no `result`", true),
            (200, r#"{"result": [[{"document": 1}]]}"#, "has a document without", true),
        ];
        for (status, body, part, retryable) in cases {
            let (url, _requests) = server(vec![(status, body)]);
            let failure = ask(&url).await.unwrap_err();
            assert!(failure.message.contains(part) && failure.retryable == retryable, "{failure:?}");
        }
    }

    #[tokio::test]
    async fn a_search_server_that_keeps_failing_gets_no_requests() {
        let (url, requests) = server(vec![(500, "")]);
        for _ in 0..FAILURES {
            assert!(ask(&url).await.unwrap_err().retryable);
        }
        let failure = ask(&url).await.unwrap_err();
        assert!(failure.message.contains("is down") && !failure.retryable, "{failure:?}");
        assert_eq!(requests.try_iter().count(), FAILURES as usize);
        // The circuit closes with the first success.
        let target = host_and_port(&url).unwrap();
        circuit(&target, |circuit| circuit.open_until = Some(Instant::now()));
        assert!(ask(&url).await.unwrap_err().message.contains("status 500"));
        assert!(ask(&url).await.unwrap_err().message.contains("is down"), "one more failure opens it again");
    }

    #[tokio::test]
    async fn refused_queries_and_successes_keep_the_circuit_closed() {
        let (url, requests) = server(vec![(422, "")]);
        for _ in 0..2 * FAILURES {
            assert!(ask(&url).await.unwrap_err().message.contains("status 422"));
        }
        assert_eq!(requests.try_iter().count(), 2 * FAILURES as usize);
        // Failures before a success do not count.
        let mut responses = vec![(500, ""); FAILURES as usize - 1];
        responses.push((200, r#"{"result": [[]]}"#));
        responses.extend(vec![(500, ""); FAILURES as usize]);
        let (url, _requests) = server(responses);
        for _ in 1..FAILURES {
            ask(&url).await.unwrap_err();
        }
        assert!(ask(&url).await.unwrap().is_empty());
        for _ in 0..FAILURES {
            assert!(ask(&url).await.unwrap_err().message.contains("status 500"));
        }
        assert!(ask(&url).await.unwrap_err().message.contains("is down"));
    }

    #[test]
    fn search_urls_without_a_path_are_those_of_search_r1() {
        assert_eq!(search_url("http://h:1"), "http://h:1/retrieve");
        assert_eq!(search_url("http://h:1/"), "http://h:1/retrieve");
        assert_eq!(search_url("http://h:1/search"), "http://h:1/search");
    }
}
