//! Replies of servers that write the API in another way, or damaged: each is read, or refused with
//! the reason. None is an empty reply without a word.

#![allow(clippy::unwrap_used)]
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Patience, RawCall, RawReply, Server, ServerOptions, ServerSampling};
use crate::config::ServerApi;
use crate::mdp::{ChatMessage, FinishReason, ServerChat};

/// The reply of a server that responds with `body`, or the message of its failure.
fn reply_of(api: ServerApi, kind: &str, body: &[u8]) -> Result<RawReply, String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    let response = [head.as_bytes(), body].concat();
    let serve = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut piece = [0; 4096];
        // The requests of this test fit into their first pieces, and end with the body's brace.
        while !request.ends_with(b"}") {
            let count = stream.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..count]);
        }
        stream.write_all(&response).unwrap();
    });
    let server = Server::new(ServerOptions {
        base: base.clone(),
        api,
        model: "m".to_owned(),
        setting: "policy.api_base",
        silence: Duration::from_secs(20),
        attempts: 1,
        patience: Patience::Rollout,
    });
    let server = server.unwrap();
    let chat = ServerChat { messages: vec![ChatMessage::User("q".to_owned())], ..ServerChat::default() };
    let reply = server.reply(&chat, &ServerSampling::default(), &|| false, &mut |_| ());
    serve.join().unwrap();
    reply.map_err(|failure| server.error(&failure).message.replace(&base, "URL"))
}

fn streamed(api: ServerApi, events: &str) -> Result<RawReply, String> {
    reply_of(api, "text/event-stream", events.as_bytes())
}

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

fn data(events: &[Value]) -> String {
    events.iter().map(|event| ["data: ", &event.to_string(), "\n\n"].concat()).collect()
}

/// Two events with the text `hello`, and the end.
fn hello() -> [Value; 3] {
    [
        chunk(&json!({ "content": "hel" }), None),
        chunk(&json!({ "content": "lo" }), None),
        chunk(&json!({}), Some("stop")),
    ]
}

#[test]
fn streams_of_openai_servers_are_read_in_any_form() {
    let plain = data(&hello());
    let with = |more: &str| format!("{more}{plain}data: [DONE]\n\n");
    let parts = |content: Value| data(&[chunk(&json!({ "content": content }), None), chunk(&json!({}), Some("stop"))]);
    let lines = |event: &Value| {
        let text = serde_json::to_string_pretty(event).unwrap();
        text.lines().map(|line| ["data: ", line, "\n"].concat()).collect::<String>() + "\n"
    };
    for (name, events) in [
        ("plain", with("")),
        ("without [DONE]", plain.clone()),
        ("usage without choices", plain.clone() + "data: {\"usage\": {\"completion_tokens\": 2}}\n\n"),
        ("usage with null choices", plain.clone() + "data: {\"choices\": null, \"usage\": {}}\n\n"),
        ("empty choices", with("data: {\"choices\": []}\n\n")),
        ("comments", with(": ping\n\n: x\n")),
        ("ping events", with("event: ping\ndata: {\"type\": \"ping\"}\n\n")),
        ("empty objects", with("data: {}\n\n")),
        ("empty data", with("data: \n\ndata:\n\n")),
        ("an event over several lines", hello().iter().map(lines).collect()),
        ("carriage returns", with("").replace('\n', "\r\n")),
        ("only carriage returns", with("").replace('\n', "\r")),
        ("no blank lines", with("").replace("\n\n", "\n")),
        ("no end of the last line", with("").trim_end().to_owned()),
        ("a byte order mark", format!("\u{feff}{plain}")),
        ("ids and waits", with("id: 7\nretry: 10\n\n")),
        ("parts", parts(json!([{ "type": "text", "text": "hello" }]))),
        ("parts as texts", parts(json!(["hel", "lo"]))),
        ("one part", parts(json!({ "type": "text", "text": "hello" }))),
        (
            "parts with reasoning",
            parts(json!([
                { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
                { "type": "reference", "reference_ids": [1] },
                { "type": "text", "text": "hello" },
            ])),
        ),
        ("reasoning in a field", data(&[chunk(&json!({ "reasoning": "hm", "content": null }), None)]) + plain.as_str()),
        (
            "huge counts",
            plain.clone() + "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 18446744073709551615}}\n\n",
        ),
        ("NaN and long numbers", with("data: {\"choices\": [], \"x\": [NaN, 12345678901234567890123]}\n\n")),
    ] {
        let reply = streamed(ServerApi::OpenAi, &events).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((reply.content.as_str(), reply.finish_reason), ("hello", FinishReason::Stop), "{name}");
        assert!(reply.calls.is_empty() && reply.usage.response_tokens <= 3, "{name}: {reply:?}");
    }
    let half = streamed(ServerApi::OpenAi, &plain.replace("lo", "lo\\ud83d")).unwrap();
    assert_eq!(half.content, "hello\u{fffd}");
    let whole = json!({ "choices": [{ "message": { "content": [{ "type": "text", "text": "hello" }] }, "finish_reason": "stop" }] });
    let reply = reply_of(ServerApi::OpenAi, "application/json; charset=utf-8", whole.to_string().as_bytes()).unwrap();
    assert_eq!(reply.content, "hello");
}

#[test]
fn replies_of_openai_servers_that_are_not_understood_are_refused() {
    let not = |why: &str| format!("URL is not an OpenAI-compatible server: {why}");
    let one = |delta: Value| data(&[chunk(&delta, None), chunk(&json!({}), Some("stop"))]);
    for (events, message) in [
        (one(json!({ "content": 5 })), not("`content` of its answer is not text: 5")),
        (
            one(json!({ "content": [{ "type": "image_url" }] })),
            not("`content` of its answer has a part of type `image_url`"),
        ),
        (
            one(json!({ "content": [{ "type": "text" }] })),
            not("`content` of its answer is not text: {\"type\":\"text\"}"),
        ),
        (
            one(json!({ "tool_calls": { "name": "f" } })),
            not("`tool_calls` of its answer is not a list: {\"name\":\"f\"}"),
        ),
        (one(json!("hello")), not("`delta` of its answer is not an object: \"hello\"")),
        ("data: {\"choices\": {\"a\": 1}}\n\n".to_owned(), not("`choices` of its answer is not a list: {\"a\":1}")),
        (
            "data: {\"choices\": [{\"text\": \"hello\"}]}\n\n".to_owned(),
            not("its choices have `text`, as those of completions, not of a chat"),
        ),
        ("data: {\"response\": \"hello\"}\n\n".to_owned(), not("its answer has no `choices`, and has `response`")),
        ("data: {\"status\": \"ok\"}\n\n".to_owned(), not("its answer has no `choices`")),
        ("data: 5\n\n".to_owned(), not("its answer has no `choices`")),
        ("data: hello\n\n".to_owned(), not("what it sends is not JSON: expected value at line 1 column 1")),
        ("hello\n\n".to_owned(), not("there is no event in what it streams")),
        (": ping\n\n".to_owned(), not("there is no event in what it streams")),
        (
            "data: {\"error\": {\"message\": \"no GPU\"}}\n\n".to_owned(),
            "URL failed during its reply: no GPU".to_owned(),
        ),
        (data(&hello()[..2]), "URL interrupted its reply".to_owned()),
        (data(&hello()[..2]) + "data: {\"choi\n\n", "URL interrupted its reply: what it sent is cut short".to_owned()),
    ] {
        assert_eq!(streamed(ServerApi::OpenAi, &events).unwrap_err(), message, "{events}");
    }
}

#[test]
fn calls_of_openai_servers_are_read_in_any_form() {
    let call = |index: Value, id: Value, name: Value, arguments: Value| json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] });
    let end = || chunk(&json!({}), Some("tool_calls"));
    let some = |n: u64| json!({ "n": n });
    let text = |n: u64| json!(some(n).to_string());
    let null = || Value::Null;
    for (name, deltas, expected) in [
        ("one", vec![call(json!(0), json!("a"), json!("f"), text(4))], vec![some(4)]),
        (
            "in pieces",
            vec![
                call(json!(0), json!("a"), json!("f"), json!("{\"n\"")),
                call(json!(0), null(), null(), json!(": 4}")),
            ],
            vec![some(4)],
        ),
        (
            "two",
            vec![call(json!(0), json!("a"), json!("f"), text(4)), call(json!(1), json!("b"), json!("f"), text(5))],
            vec![some(4), some(5)],
        ),
        (
            "two of one index",
            vec![call(json!(0), json!("a"), json!("f"), text(4)), call(json!(0), json!("b"), json!("f"), text(5))],
            vec![some(4), some(5)],
        ),
        (
            "two of one index without ids",
            vec![call(json!(0), null(), json!("f"), text(4)), call(json!(0), null(), json!("f"), text(5))],
            vec![some(4), some(5)],
        ),
        (
            "without an index",
            vec![call(null(), json!("a"), json!("f"), text(4)), call(null(), json!("b"), json!("f"), text(5))],
            vec![some(4), some(5)],
        ),
        ("an object", vec![call(json!(0), json!("a"), json!("f"), some(4))], vec![some(4)]),
        (
            "the old form",
            vec![
                json!({ "function_call": { "name": "f", "arguments": "{\"n\"" } }),
                json!({ "function_call": { "arguments": ": 4}" } }),
            ],
            vec![some(4)],
        ),
        (
            "a long number",
            vec![call(json!(0), json!("a"), json!("f"), json!("{\"n\": 12345678901234567890123}"))],
            vec![json!({ "n": "12345678901234567890123" })],
        ),
    ] {
        let events: Vec<Value> = deltas.iter().map(|delta| chunk(delta, None)).chain([end()]).collect();
        let reply = streamed(ServerApi::OpenAi, &data(&events)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let actual: Vec<Value> = reply
            .calls
            .iter()
            .map(|call| match call {
                RawCall::Call(call) if call.name == "f" => call.arguments.clone(),
                other => panic!("{name}: {other:?}"),
            })
            .collect();
        assert_eq!(actual, expected, "{name}");
    }
}

#[test]
fn streams_of_anthropic_servers_are_read_in_any_form() {
    let end =
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } });
    let text = |delta: Value| json!({ "type": "content_block_delta", "index": 0, "delta": delta });
    let hello = data(&[text(json!({ "type": "text_delta", "text": "hello" })), end.clone()]);
    let message = |content: Value| data(&[json!({ "type": "message", "content": content, "stop_reason": "end_turn" })]);
    for (name, events) in [
        ("plain", hello.clone()),
        ("pings", format!("event: ping\ndata: {{\"type\": \"ping\"}}\n\ndata: {{}}\n\n{hello}")),
        ("unknown events", format!("data: {{\"type\": \"weather\", \"text\": \"rain\"}}\n\n{hello}")),
        ("content as text", message(json!("hello"))),
        ("blocks as texts", message(json!(["hel", "lo"]))),
        (
            "huge counts",
            hello.replace(
                "\"output_tokens\":2",
                "\"output_tokens\":18446744073709551615,\"input_tokens\":18446744073709551615",
            ),
        ),
    ] {
        let reply = streamed(ServerApi::Anthropic, &events).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reply.content, "hello", "{name}");
        assert!(reply.usage.response_tokens <= 2 && reply.usage.prompt_tokens == 0, "{name}: {:?}", reply.usage);
    }
    let not = |why: &str| format!("URL is not a server with Anthropic's messages API: {why}");
    for (events, why) in [
        (message(json!(5)), "`content` of its answer is not a list: 5"),
        (data(&[text(json!({ "text": [1] })), end]), "`text` of its answer is not text: [1]"),
        ("data: {\"choices\": []}\n\n".to_owned(), "its events have no `type`"),
        ("data: {}\n\n".to_owned(), "its events have no `type`"),
    ] {
        assert_eq!(streamed(ServerApi::Anthropic, &events).unwrap_err(), not(why), "{events}");
    }
}

#[test]
fn a_short_key_is_masked_only_as_a_word() {
    let pattern = |key: &str| regex::Regex::new(&crate::error::secret_pattern(key)).unwrap();
    let masked = |key: &str, text: &str| pattern(key).replace_all(text, "***").into_owned();
    assert_eq!(masked("x", "unexpected key x (x)"), "unexpected key *** (***)");
    assert_eq!(masked("sk-12345678", "asks sk-12345678abc"), "asks ***abc");
}

/// The failure of a request to a server that sends a head and then a text again and again.
fn endless(kind: &str, text: &'static str, sampling: &ServerSampling) -> super::ServerFailure {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut sent = stream.write_all(head.as_bytes());
        while sent.is_ok() {
            sent = stream.write_all(text.as_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let server = Server::new(ServerOptions {
        base,
        api: ServerApi::OpenAi,
        model: "m".to_owned(),
        setting: "policy.api_base",
        silence: Duration::from_secs(1),
        attempts: 1,
        patience: Patience::Rollout,
    });
    server.unwrap().reply(&ServerChat::default(), sampling, &|| false, &mut |_| ()).unwrap_err()
}

#[test]
fn a_server_that_only_keeps_the_connection_open_is_left() {
    let why = "it kept the connection open, and sent nothing of the reply for 1 s";
    std::thread::scope(|scope| {
        for text in [": ping\n\ndata: {\"choices\": []}\n\n", "\n", ":\n", "  \r\n", "data:\n\n"] {
            scope.spawn(move || {
                let failure = endless("text/event-stream", text, &ServerSampling::default());
                assert_eq!(failure, super::ServerFailure::BrokeOff(Some(why.to_owned())), "{text}");
            });
        }
    });
    let failure = endless("application/json", " \n", &ServerSampling::default());
    let why = "the response did not end within 1 s";
    assert_eq!(failure, super::ServerFailure::BrokeOff(Some(why.to_owned())));
}

#[test]
fn a_reply_without_end_is_left() {
    let blank = "data: {\"choices\": [{\"delta\": {\"content\": \" \"}}]}\n\n";
    let sampling = ServerSampling { max_tokens: Some(10), ..ServerSampling::default() };
    let why = "its reply has more than 1184 pieces, and max_tokens is 10";
    assert_eq!(endless("text/event-stream", blank, &sampling), super::ServerFailure::Foreign(why.to_owned()));
}
