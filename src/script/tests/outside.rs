//! External calls: files, HTTP, programs, time; the needs that a recipe must declare; the record.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::script::{Record, Split, Strictness};

/// A recipe whose `reset` returns the result of `body`, with `needs`.
pub(super) fn recipe_with(needs: &str, body: &str) -> Bench {
    Bench::new(&format!(
        "return r1.recipe {{ needs = {needs}, reward = function() return 0 end,\n\
         env = r1.env {{ reset = function(task) return {{ it = (function() {body} end)() }} end }} }}"
    ))
}

pub(super) fn returned_by(bench: &Bench, record: &Record) -> Result<Json, String> {
    let worker = bench.worker();
    let state = run(worker.reset_as(Split::Train, &json!({}), 0, record)).map_err(|failure| bench.show(failure))?;
    Ok(state.snapshot().unwrap()["state"]["it"].clone())
}

/// The result of the body; a replay of its record must return the same without external calls.
pub(super) fn twice(bench: &Bench, spoil: impl FnOnce()) -> Json {
    let record = Record::live();
    let live = returned_by(bench, &record).unwrap();
    spoil();
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(returned_by(bench, &replay).unwrap(), live);
    assert_eq!(replay.close(), None);
    live
}

/// A server that answers every request with the result of `answer` for its first line, headers and
/// body.
pub(super) fn server(answer: impl Fn(&str, &str, &str) -> String + Send + 'static) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(Mutex::new(0));
    let shared_count = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            *shared_count.lock().unwrap() += 1;
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut first, mut head) = (String::new(), String::new());
            reader.read_line(&mut first).unwrap();
            while reader.read_line(&mut head).unwrap() > 2 {}
            let length = head
                .to_lowercase()
                .split("content-length: ")
                .nth(1)
                .map_or(0, |rest| rest.lines().next().unwrap().trim().parse().unwrap());
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let reported = answer(first.trim(), &head, &String::from_utf8(body).unwrap());
            let _ = stream.write_all(reported.as_bytes());
        }
    });
    (address, count)
}

pub(super) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nX-Own: yes\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn requests_are_made_and_recorded() {
    let (address, count) = server(|first, head, body| {
        let kind = if head.contains("application/json") { "json" } else { "text" };
        let key = head.to_lowercase().contains("authorization: secret");
        ok(&format!("{first} {kind} {body} {key}"))
    });
    let bench = recipe_with(
        &format!("{{ 'http:{address}' }}"),
        &format!(
            "local a = r1.http.get('http://{address}/x', {{ query = {{ q = 'a b&c' }}, headers = {{ Authorization = 'secret' }} }})\n\
             local b = r1.http.post('http://{address}/y', {{ n = 1 }})\n\
             local c = r1.http.request {{ method = 'put', url = 'http://{address}/z', body = 'hello' }}\n\
             return {{ a.status, a.body, a.headers['x-own'], b.body, c.body }}"
        ),
    );
    let record = Record::live();
    let live = returned_by(&bench, &record).unwrap();
    assert_eq!(
        live,
        json!([
            200,
            "GET /x?q=a%20b%26c HTTP/1.1 text  true",
            "yes",
            "POST /y HTTP/1.1 json {\"n\":1} false",
            "PUT /z HTTP/1.1 text hello false"
        ])
    );
    let exchanges = record.exchanges();
    assert!(!serde_json::to_string(&exchanges).unwrap().contains("\"secret\""));
    let before = *count.lock().unwrap();
    assert_eq!(returned_by(&bench, &Record::replay(exchanges, Strictness::Exact)).unwrap(), live);
    assert_eq!(*count.lock().unwrap(), before, "a replay makes no external calls");
}

#[test]
fn options_in_the_place_of_a_body_are_refused() {
    let (address, _) = server(|_, _, body| ok(body));
    let post = |arguments: &str| {
        let body = format!("return {{ r1.http.post('http://{address}/', {arguments}).body }}");
        let bench = recipe_with(&format!("{{ 'http:{address}' }}"), &body);
        returned_by(&bench, &Record::live())
    };
    for (arguments, sent) in [
        ("{ query = 'x' }", r#"{"query":"x"}"#),
        ("{ body = 'x', title = 'y' }", r#"{"body":"x","title":"y"}"#),
        ("nil, { json = { a = 1 } }", r#"{"a":1}"#),
        ("nil, { body = 'x' }", "x"),
        ("r1.json.encode { json = 1 }", r#"{"json":1}"#),
        ("{ json = 1 }, { timeout = 5 }", r#"{"json":1}"#),
    ] {
        assert_eq!(post(arguments).unwrap(), json!([sent]), "{arguments}");
    }
    for options in [
        "{ json = { a = 1 } }",
        "{ body = 'x' }",
        "{ headers = {}, json = 1 }",
        "{ query = { a = 1 } }",
        "{ timeout = 5 }",
    ] {
        let message = post(options).unwrap_err();
        assert!(message.contains("the second argument is the body, and these are options"), "{options}: {message}");
        assert!(message.contains("r1.http.post(url, nil, { json = … })"), "{options}: {message}");
    }
    for both in ["'x', { json = 1 }", "{ a = 1 }, { body = 'x' }"] {
        let message = post(both).unwrap_err();
        assert!(message.contains("there are two bodies"), "{both}: {message}");
    }
}

#[test]
fn network_failures_are_returned_as_nil_and_message() {
    let (address, _) = server(|first, _, _| match first.split(' ').nth(1).unwrap() {
        "/large" => ok(&"x".repeat(5000)),
        "/loop" => "HTTP/1.1 302 Found\r\nLocation: /loop\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "/away" => {
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:1/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                .to_owned()
        }
        "/moved" => {
            "HTTP/1.1 302 Found\r\nLocation: /fine\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned()
        }
        "/slow" => {
            std::thread::sleep(std::time::Duration::from_secs(2));
            ok("late")
        }
        "/missing" => "HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno".to_owned(),
        _ => ok("fine"),
    });
    let get = |path: &str, options: &str| {
        let bench = recipe_with(
            &format!("{{ 'http:{address}', 'http' }}"),
            &format!(
                "local answer, why = r1.http.get('http://{address}{path}', {options}) return {{ answer and answer.body or 'none', why or answer.url }}"
            ),
        );
        twice(&bench, || ()).to_string().replace(&address, "HOST")
    };
    assert_eq!(get("/fine", "nil"), r#"["fine","http://HOST/fine"]"#);
    assert_eq!(get("/moved", "nil"), r#"["fine","http://HOST/fine"]"#);
    assert_eq!(get("/missing", "nil"), r#"["no","http://HOST/missing"]"#);
    assert_eq!(get("/large", "{ max_bytes = 4000 }"), r#"["none","the response has more than 4000 bytes"]"#);
    assert_eq!(get("/loop", "nil"), r#"["none","too many redirects"]"#);
    assert_eq!(get("/away", "nil"), r#"["none","127.0.0.2 is not a public address"]"#);
    assert_eq!(get("/slow", "{ timeout = '200ms' }"), r#"["none","no response after 0.2 s"]"#);
}

#[test]
fn waiting_for_http_blocks_one_trajectory_only() {
    let (address, _) = server(|_, _, _| ok("x"));
    let bench = recipe_with(
        &format!("{{ 'http:{address}' }}"),
        &format!("local n = 0 for k = 1, 3 do n = n + #r1.http.get('http://{address}/').body end r1.sleep(2) return n"),
    );
    let worker = bench.worker();
    let started = std::time::Instant::now();
    run(async {
        let tasks = (0..20).map(|seed| {
            let worker = &worker;
            async move { worker.reset(&json!({}), seed).await.unwrap().snapshot().unwrap()["state"]["it"].clone() }
        });
        let all = futures_util::future::join_all(tasks).await;
        assert!(all.iter().all(|it| *it == json!(3)));
    });
    assert!(started.elapsed().as_secs_f64() < 35.0, "one after the other they wait 40 s");
}

#[test]
fn undeclared_needs_are_refused_with_a_hint() {
    let reported = |needs: &str, body: &str| returned_by(&recipe_with(needs, body), &Record::live()).unwrap_err();
    assert_snapshot!(reported("{}", "return r1.http.get('https://api.co/x')"), @r#"
    r1.http.get: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "http:api.co" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'http:api.co' }", "return r1.http.get('https://other.co/x')"), @r#"
    r1.http.get: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "http:other.co" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'process:sort' }", "return r1.process.run { 'sh' }"), @r#"
    r1.process.run: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "process:sh" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'fs:other' }", "return r1.fs.read 'data/x.txt'"), @r#"
    r1.fs.read: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "fs:data" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'fs:data' }", "return r1.fs.write('data/x.txt', 'x')"), @r#"
    r1.fs.write: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "fs:write:data" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'http' }", "return r1.http.get('ftp://x')"), @r#"
    r1.http.get: `ftp://x` is not a URL: it must begin with http:// or https://
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'http' }", "return r1.http.get('http://a.co', { timout = 3 })"), @r#"
    r1.http.get: unknown field `timout`
      --> x.lua:2
      hint: did you mean `timeout`?
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'http' }", "return r1.http.get('http://a.co', { headers = { ['x\\n'] = 'y' } })"), @r#"
    r1.http.get: the header "x\n" has a line break in it, or no name
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'http' }", "return r1.http.request { url = 'http://a.co', method = 'BREW' }"), @r#"
    r1.http.request: `method` is "BREW"; it is one of GET, POST, PUT, PATCH, DELETE, HEAD
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(reported("{ 'process' }", "return r1.process.run 'ls -l'"), @r#"
    r1.process.run: takes a list, the program and its arguments: { "sort", "-r" }; a shell is a program: { "sh", "-c", "…" }
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(refused("r1.fs.read 'x'\nreturn 1"), @r#"
    r1.fs.read: external calls are not allowed while a recipe is loaded
      --> x.lua:1
      hint: call it in reset, step, context, reward or the `run` of a tool
    "#);
    assert_snapshot!(refused("return r1.recipe { needs = { 'htp' }, reward = function() return 0 end }"), @r#"
    r1.recipe: `needs` contains "htp"; it is one of http, http:HOST, a URL, process, process:NAME, env:NAME, fs:DIR, fs:write:DIR
      --> x.lua:1
      hint: did you mean `http`?
    "#);
}

#[test]
fn private_addresses_must_be_named() {
    let (address, count) = server(|_, _, _| ok("inside"));
    let port = address.rsplit(':').next().unwrap();
    let get = |host: &str| {
        let get = format!("return select(2, r1.http.get('http://{host}:{port}/', {{ timeout = 5 }}))");
        returned_by(&recipe_with("{ 'http' }", &get), &Record::live())
    };
    // A private address needs another declaration, written out or found by a lookup.
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"] {
        let why = get(host).unwrap_err();
        assert!(why.contains("hint: add needs = { \"http:") && why.contains("--> x.lua:2"), "{host}: {why}");
    }
    assert_eq!(*count.lock().unwrap(), 0);
}

#[test]
fn files_are_read_and_written_where_declared() {
    let bench = recipe_with(
        "{ 'fs:data', 'fs:write:out' }",
        "r1.fs.write('out/deep/a.txt', 'one')\n\
         r1.fs.write('out/deep/a.txt', '+two', { append = true })\n\
         local long = r1.fs.read 'data/long.txt'\n\
         return { r1.fs.read 'data/x.txt', r1.fs.list 'data', r1.fs.stat('data/x.txt').size, r1.fs.stat('data').kind,\n\
           #long, r1.fs.read 'data/bytes' == '\\xff\\0', (select(2, r1.fs.read 'data/none.txt')) }",
    );
    bench.file("data/x.txt", "hello");
    bench.file("data/long.txt", &"l".repeat(100_000));
    bench.file("data/sub/y", "");
    std::fs::write(bench.dir.path().join("data/bytes"), b"\xff\0").unwrap();
    let path = bench.dir.path().join("data/x.txt");
    // The record has the content that was read, so the file is not needed.
    let live = twice(&bench, || std::fs::write(path, "changed").unwrap());
    assert_eq!(
        json!([live[0], live[1], live[2], live[3], live[4], live[5]]),
        json!(["hello", ["bytes", "long.txt", "sub/", "x.txt"], 5, "directory", 100_000, true])
    );
    assert!(live[6].as_str().unwrap().contains("No such file"), "{live}");
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("out/deep/a.txt")).unwrap(), "one+two");
    // For a long file it has the checksum.
    let bench = recipe_with("{ 'fs:data' }", "return #r1.fs.read 'data/long.txt'");
    bench.file("data/long.txt", &"l".repeat(100_000));
    let record = Record::live();
    returned_by(&bench, &record).unwrap();
    bench.file("data/long.txt", &"m".repeat(100_000));
    let error = returned_by(&bench, &Record::replay(record.exchanges(), Strictness::Exact)).unwrap_err();
    assert!(error.starts_with("r1.fs.read: data/long.txt differs from the recorded file"), "{error}");
}

#[test]
fn programs_run_in_their_sandbox() {
    let bench = recipe_with(
        "{ 'process', 'fs:data' }",
        "local sorted, why = r1.process.run({ 'sort', '-r' }, { input = 'a\\nb\\n' })\n\
         if not sorted then return why end\n\
         local own = r1.process.run { 'sh', '-c', 'cat ' .. task_path .. '; exit 3' }\n\
         local late = r1.process.run({ 'sleep', 100 }, { timeout = '300ms' })\n\
         return { sorted.out, sorted.code, own.code, own.out, late.timed_out, (select(2, r1.process.run { 'no-such-program' })) }"
            .replace("task_path", "'/etc/passwd'")
            .as_str(),
    );
    bench.file("data/x", "");
    let it = twice(&bench, || ());
    if it.is_string() && !crate::tools::process::has_namespaces() {
        eprintln!("skipped: {it}");
        return;
    }
    assert_eq!(json!([it[0], it[1], it[2], it[3], it[4]]), json!(["b\na\n", 0, 3, "", true]));
    assert!(it[5].as_str().unwrap().starts_with("there is no program `no-such-program`"));
}

#[test]
fn a_replay_does_not_wait_and_has_the_recorded_time() {
    let bench = recipe_with("{}", "local before = r1.clock() r1.sleep(3) return { before, r1.clock() - before }");
    let record = Record::live();
    let live = returned_by(&bench, &record).unwrap();
    assert!(live[0].as_f64().unwrap() > 1.6e9 && live[1].as_f64().unwrap() >= 2.9);
    let started = std::time::Instant::now();
    assert_eq!(returned_by(&bench, &Record::replay(record.exchanges(), Strictness::Exact)).unwrap(), live);
    assert!(started.elapsed().as_secs_f64() < 2.9);
    assert_snapshot!(returned_by(&recipe_with("{}", "r1.sleep(-1)"), &Record::live()).unwrap_err(), @r#"
    r1.sleep: takes a number of seconds, or text such as "5s", got the number -1
      --> x.lua:2
      from x.lua:2 in reset
    "#);
}

#[test]
fn joined_functions_run_concurrently_and_return_in_order() {
    let bench = recipe_with(
        "{}",
        "local function wait(t, v) return function() r1.sleep(t) return v and v + math.random(1000) / 1000 end end\n\
         local a, b, c = r1.join { wait(0.3, 1), wait(0.1, 2), wait(0.2) }\n\
         return { a, b, c == nil, math.random(1000) }",
    );
    let it = twice(&bench, || ());
    assert_eq!((it[0].as_f64().unwrap().floor(), it[1].as_f64().unwrap().floor(), &it[2]), (1.0, 2.0, &json!(true)));
    let order = "local order = {}\n\
        local function wait(t, v) return function() r1.sleep(t) r1.push(order, v) end end\n\
        r1.join { wait(0.9, 'last'), wait(0.1, 'first'), wait(0.5, 'second') } return order";
    assert_eq!(returned_by(&recipe_with("{}", order), &Record::live()).unwrap(), json!(["first", "second", "last"]));
    // The error of the first failing function in the list is raised; the others run to their end.
    let bench = recipe_with(
        "{}",
        "local done = 0\n\
         local ok, why = pcall(r1.join, { function() r1.sleep(0.2) error('first', 0) end, function() error('second', 0) end,\n\
           function() r1.sleep(0.1) done = 1 end })\n\
         return { ok, tostring(why):match('first'), done }",
    );
    let it = twice(&bench, || ());
    assert_eq!((&it[0], &it[2]), (&json!(false), &json!(1)));
    assert_eq!(it[1], "first");
    assert_snapshot!(returned_by(&recipe_with("{}", "r1.join { 5 }"), &Record::live()).unwrap_err(), @r#"
    r1.join: entry 1 is the number 5; it must be a function
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_eq!(returned_by(&recipe_with("{}", "return select('#', r1.join {})"), &Record::live()).unwrap(), json!(0));
}
