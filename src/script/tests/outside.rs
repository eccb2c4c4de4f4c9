//! External calls: files, HTTP, programs, time; the needs that a recipe must declare; the record.
//! all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::script::{Record, Strictness};

/// A recipe whose `reset` returns what `body` returns, with `needs`.
pub(super) fn asking(needs: &str, body: &str) -> Bench {
    Bench::new(&format!(
        "return r1.recipe {{ needs = {needs}, reward = function() return 0 end,\n\
         env = r1.env {{ reset = function(task) return {{ it = (function() {body} end)() }} end }} }}"
    ))
}

pub(super) fn asked(bench: &Bench, record: &Record) -> Result<Json, String> {
    let worker = bench.worker();
    let state = run(worker.reset_with(&json!({}), 0, record)).map_err(|failure| bench.show(failure))?;
    Ok(state.snapshot().unwrap()["state"]["it"].clone())
}

/// What the body gives live; a replay of its record must give the same and ask for nothing.
pub(super) fn twice(bench: &Bench, spoil: impl FnOnce()) -> Json {
    let record = Record::live();
    let live = asked(bench, &record).unwrap();
    spoil();
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(asked(bench, &replay).unwrap(), live);
    assert_eq!(replay.close(), None);
    live
}

/// A server that answers every request with what `answer` makes of its first line, headers and
/// body.
pub(super) fn server(answer: impl Fn(&str, &str, &str) -> String + Send + 'static) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(Mutex::new(0));
    let own = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            *own.lock().unwrap() += 1;
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
            let told = answer(first.trim(), &head, &String::from_utf8(body).unwrap());
            let _ = stream.write_all(told.as_bytes());
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
    let bench = asking(
        &format!("{{ 'http:{address}' }}"),
        &format!(
            "local a = r1.http.get('http://{address}/x', {{ query = {{ q = 'a b&c' }}, headers = {{ Authorization = 'secret' }} }})\n\
             local b = r1.http.post('http://{address}/y', {{ n = 1 }})\n\
             local c = r1.http.request {{ method = 'put', url = 'http://{address}/z', body = 'hello' }}\n\
             return {{ a.status, a.body, a.headers['x-own'], b.body, c.body }}"
        ),
    );
    let record = Record::live();
    let live = asked(&bench, &record).unwrap();
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
    assert_eq!(asked(&bench, &Record::replay(exchanges, Strictness::Exact)).unwrap(), live);
    assert_eq!(*count.lock().unwrap(), before, "a replay asks nobody");
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
        let bench = asking(
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
    let bench = asking(
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
    let told = |needs: &str, body: &str| asked(&asking(needs, body), &Record::live()).unwrap_err();
    assert_snapshot!(told("{}", "return r1.http.get('https://api.co/x')"), @r#"
    r1.http.get: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "http:api.co" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'http:api.co' }", "return r1.http.get('https://other.co/x')"), @r#"
    r1.http.get: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "http:other.co" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'process:sort' }", "return r1.process.run { 'sh' }"), @r#"
    r1.process.run: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "process:sh" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'fs:other' }", "return r1.fs.read 'data/x.txt'"), @r#"
    r1.fs.read: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "fs:data" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'fs:data' }", "return r1.fs.write('data/x.txt', 'x')"), @r#"
    r1.fs.write: the recipe does not declare that it needs this
      --> x.lua:2
      hint: add needs = { "fs:write:data" } to r1.recipe
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'http' }", "return r1.http.get('ftp://x')"), @r#"
    r1.http.get: `ftp://x` is not a URL: it must begin with http:// or https://
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'http' }", "return r1.http.get('http://a.co', { timout = 3 })"), @r#"
    r1.http.get: unknown field `timout`
      --> x.lua:2
      hint: did you mean `timeout`?
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'http' }", "return r1.http.get('http://a.co', { headers = { ['x\\n'] = 'y' } })"), @r#"
    r1.http.get: the header "x\n" has a line break in it, or no name
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'http' }", "return r1.http.request { url = 'http://a.co', method = 'BREW' }"), @r#"
    r1.http.request: `method` is "BREW"; it is one of GET, POST, PUT, PATCH, DELETE, HEAD
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_snapshot!(told("{ 'process' }", "return r1.process.run 'ls -l'"), @r#"
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
    r1.recipe: `needs` holds "htp"; it is one of http, http:HOST, process, process:NAME, env:NAME, fs:DIR, fs:write:DIR
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
        asked(&asking("{ 'http' }", &get), &Record::live())
    };
    // Whether the address says what it is or its lookup does, it needs another declaration.
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"] {
        let why = get(host).unwrap_err();
        assert!(why.contains("hint: add needs = { \"http:") && why.contains("--> x.lua:2"), "{host}: {why}");
    }
    assert_eq!(*count.lock().unwrap(), 0);
}

#[test]
fn files_are_read_and_written_where_declared() {
    let bench = asking(
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
    // The record has what was read, not the file.
    let live = twice(&bench, || std::fs::write(path, "changed").unwrap());
    assert_eq!(
        json!([live[0], live[1], live[2], live[3], live[4], live[5]]),
        json!(["hello", ["bytes", "long.txt", "sub/", "x.txt"], 5, "directory", 100_000, true])
    );
    assert!(live[6].as_str().unwrap().contains("No such file"), "{live}");
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("out/deep/a.txt")).unwrap(), "one+two");
    // Of a long file it has the checksum.
    let bench = asking("{ 'fs:data' }", "return #r1.fs.read 'data/long.txt'");
    bench.file("data/long.txt", &"l".repeat(100_000));
    let record = Record::live();
    asked(&bench, &record).unwrap();
    bench.file("data/long.txt", &"m".repeat(100_000));
    let error = asked(&bench, &Record::replay(record.exchanges(), Strictness::Exact)).unwrap_err();
    assert!(error.starts_with("r1.fs.read: data/long.txt differs from the recorded file"), "{error}");
}

#[test]
fn programs_run_in_their_sandbox() {
    let bench = asking(
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
    let bench = asking("{}", "local before = r1.clock() r1.sleep(3) return { before, r1.clock() - before }");
    let record = Record::live();
    let live = asked(&bench, &record).unwrap();
    assert!(live[0].as_f64().unwrap() > 1.6e9 && live[1].as_f64().unwrap() >= 2.9);
    let started = std::time::Instant::now();
    assert_eq!(asked(&bench, &Record::replay(record.exchanges(), Strictness::Exact)).unwrap(), live);
    assert!(started.elapsed().as_secs_f64() < 2.9);
    assert_snapshot!(asked(&asking("{}", "r1.sleep(-1)"), &Record::live()).unwrap_err(), @r#"
    r1.sleep: takes a number of seconds, or text such as "5s", got the number -1
      --> x.lua:2
      from x.lua:2 in reset
    "#);
}

#[test]
fn joined_functions_run_concurrently_and_return_in_order() {
    let bench = asking(
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
    assert_eq!(asked(&asking("{}", order), &Record::live()).unwrap(), json!(["first", "second", "last"]));
    // The first error of the list, whichever came first; the others came to their end.
    let bench = asking(
        "{}",
        "local done = 0\n\
         local ok, why = pcall(r1.join, { function() r1.sleep(0.2) error('first', 0) end, function() error('second', 0) end,\n\
           function() r1.sleep(0.1) done = 1 end })\n\
         return { ok, tostring(why):match('first'), done }",
    );
    let it = twice(&bench, || ());
    assert_eq!((&it[0], &it[2]), (&json!(false), &json!(1)));
    assert_eq!(it[1], "first");
    assert_snapshot!(asked(&asking("{}", "r1.join { 5 }"), &Record::live()).unwrap_err(), @r#"
    r1.join: entry 1 is the number 5; it must be a function
      --> x.lua:2
      from x.lua:2 in reset
    "#);
    assert_eq!(asked(&asking("{}", "return select('#', r1.join {})"), &Record::live()).unwrap(), json!(0));
}

#[test]
fn programs_read_the_trajectories_of_a_run() {
    use crate::mdp::{FinishReason, Message, Status, Step, Trajectory};
    let dir = tempfile::tempdir().unwrap();
    let run_dir = crate::store::RunDir::create(dir.path(), "demo").unwrap();
    let settings = crate::config::Settings::default();
    let recipe = crate::store::Recipe {
        script: std::path::Path::new("a.lua"),
        source: "",
        modules: &[],
        resources: &[],
        hash: "aa",
        settings: &settings,
        overrides: &[],
        algorithm: "grpo",
        from_step: 0,
        origins: &crate::store::Origins::default(),
        max_context: 9,
        libtorch: "2.11.0",
    };
    run_dir.write_recipe(&recipe).unwrap();
    let step = Step {
        prompt_ids: vec![1, 2],
        response_ids: vec![3],
        logprobs: vec![-0.5],
        text: "hi".to_owned(),
        finish_reason: FinishReason::Stop,
        reward: 0.5,
        terminated: true,
        truncated: false,
        tools: Vec::new(),
        prefilled: 2,
        new_row: true,
        support: crate::mdp::Support::default(),
        routing: crate::mdp::Routing::default(),
        privileged: None,
        next_privileged: None,
        next_prompt_ids: Vec::new(),
    };
    let trajectory = Trajectory {
        id: "7-0-0".to_owned(),
        split: Split::Train,
        task_index: 3,
        task: json!({"problem": "?"}),
        group: 0,
        sample: 0,
        fork: None,
        seed: 5,
        script_hash: "aa".to_owned(),
        status: Status::Terminated,
        truncated_by: None,
        retries: 0,
        error: None,
        steps: vec![step],
        outcome_reward: 0.5,
        reward_parts: [("right".to_owned(), 1.0)].into(),
        messages: vec![Message::user("?")],
        record: Vec::new(),
    };
    run_dir.write_trajectories(7, 0, &[trajectory], &[None]).unwrap();
    let program = |code: &str| {
        let path = dir.path().join("demo").display().to_string();
        let program = Program {
            path: std::path::Path::new("p.lua"),
            source: code,
            arguments: &[path],
            seed: 0,
            services: None,
            echo: Box::new(|_, _| ()),
        };
        match run(program.run()).unwrap() {
            End::Returned(values) => Json::Array(values),
            End::Exited(code) => json!(code),
        }
    };
    assert_eq!(
        program(
            "local run = ... local steps = r1.store.steps(run) local t = r1.store.trajectories(run, steps[1])[1]\n\
             return steps, t.id, t.status, t.reward, t.parts.right, t.task.problem, t.steps[1].text, t.steps[1].prompt_ids, t.messages[1].role"
        ),
        json!([[7], "7-0-0", "terminated", 0.5, 1, "?", "hi", null, "user"])
    );
    assert_eq!(
        program(
            "local t = r1.store.trajectories((...), 7, { ids = true })[1].steps[1] return t.prompt_ids, t.logprobs"
        ),
        json!([[1, 2], [-0.5]])
    );
    assert_snapshot!(asked(&asking("{}", "return r1.store.steps 'x'"), &Record::live()).unwrap_err(), @r#"
    r1.store.steps: is for programs (`r1 lua`)
      --> x.lua:2
      from x.lua:2 in reset
    "#);
}

/// What stands for a secret here: a variable that every test run has.
const VARIABLE: &str = "CARGO_MANIFEST_DIR";

#[test]
fn secrets_are_sent_and_never_seen() {
    let (address, _) = server(|first, head, _| ok(&format!("{first}\n{head}")));
    let own = std::env::var(VARIABLE).unwrap();
    let bench = asking(
        &format!("{{ 'http:{address}', 'env:{VARIABLE}' }}"),
        &format!(
            "local key = r1.secret('{VARIABLE}')\n\
             local answer = r1.http.get('http://{address}/x', {{\n\
             headers = {{ Authorization = 'Bearer ' .. key, ['X-Own'] = key .. '!' }}, query = {{ key = key, q = 1 }} }})\n\
             return {{ tostring(key), answer.body, answer.url }}"
        ),
    );
    let record = Record::live();
    let told = asked(&bench, &record).unwrap();
    let body = told[1].as_str().unwrap();
    assert_eq!(told[0], "(secret)");
    // The server was sent the values: what it sent back was masked.
    assert!(body.starts_with("GET /x?key=(secret)&q=1 "), "{body}");
    assert!(body.to_lowercase().contains("authorization: bearer (secret)"), "{body}");
    assert!(body.to_lowercase().contains("x-own: (secret)!"), "{body}");
    let kept = serde_json::to_string(&record.exchanges()).unwrap();
    assert!(!kept.contains(&own) && !kept.contains(&crate::tools::url_escape(&own)), "{kept}");
    // A replay needs no value.
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(asked(&bench, &replay).unwrap(), told);
}

#[test]
fn programs_are_given_secrets_in_their_environment() {
    if !crate::tools::process::has_namespaces() {
        eprintln!("skipped: no namespaces");
        return;
    }
    let bench = asking(
        &format!("{{ 'process', 'env:{VARIABLE}' }}"),
        &format!(
            "local done = r1.process.run({{ 'sh', '-c', 'echo $KEY; echo $PLAIN; test -d / -a -n \"$KEY\"' }},\n\
             {{ env = {{ KEY = r1.secret('{VARIABLE}'), PLAIN = 5 }} }})\n return {{ done.out, done.code }}"
        ),
    );
    let record = Record::live();
    assert_eq!(asked(&bench, &record).unwrap(), json!(["(secret)\n5\n", 0]));
    assert!(!serde_json::to_string(&record.exchanges()).unwrap().contains(&std::env::var(VARIABLE).unwrap()));
}

#[test]
fn secrets_are_declared_and_are_no_data() {
    let refused = |needs: &str, body: &str| asked(&asking(needs, body), &Record::live()).unwrap_err();
    let undeclared = refused("{ 'http' }", "return tostring(r1.secret('HOME'))");
    assert!(undeclared.contains("needs = { \"env:HOME\" }"), "{undeclared}");
    let unset = refused("{ 'env:R1_NO_SUCH_VARIABLE' }", "return 1");
    assert!(
        unset.contains("the environment variable R1_NO_SUCH_VARIABLE, which the script needs, is not set"),
        "{unset}"
    );
    let kept = refused(&format!("{{ 'env:{VARIABLE}' }}"), &format!("return r1.secret('{VARIABLE}')"));
    assert!(kept.contains("state.it is a userdata"), "{kept}");
    let name = refused("{}", "return r1.secret('a b')");
    assert!(name.contains("no name of an environment variable"), "{name}");
    let header = refused("{ 'http' }", "return r1.http.get('http://a.co', { headers = { a = {} } })");
    assert!(header.contains("`headers.a` must be text or r1.secret(…)"), "{header}");
}

#[test]
fn tokenizers_and_templates_are_made_of_model_directories_and_declared_files_only() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file.jinja"), "{{ 'read' }}").unwrap();
    let outside = outside.path().display();
    for body in [
        "r1.text.template('/proc/self/environ'):render({})".to_owned(),
        "r1.text.template('/etc/passwd'):render({})".to_owned(),
        format!("r1.text.template('{outside}/file.jinja'):render({{}})"),
        format!("r1.text.template('{outside}'):render({{}})"),
        format!("r1.text.tokenizer('{outside}')"),
        "r1.text.tokenizer('/proc/self')".to_owned(),
        "r1.text.tokenizer('/proc/self/environ')".to_owned(),
        "r1.text.template('x.lua/../link'):render({})".to_owned(),
    ] {
        // While the script is loaded, and in a function of the env.
        let late = asking("{}", &format!("return {body}"));
        std::os::unix::fs::symlink("/etc/passwd", late.dir.path().join("link")).unwrap();
        let error = asked(&late, &Record::live()).unwrap_err();
        assert!(error.contains("no model directory") || error.contains("no directory"), "{body}: {error}");
        let early = Bench::new(&format!("local it = {body}\nreturn r1.recipe {{ reward = function() return 0 end }}"));
        let error = early.refusal();
        assert!(error.contains("no model directory") || error.contains("no directory"), "{body}: {error}");
    }
    let linked = asking("{}", "return r1.text.template(task.link):render({})");
    let link = linked.dir.path().join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    let state = run(linked.worker().reset(&json!({ "link": link }), 0));
    assert!(state.is_err_and(|failure| failure.to_string().contains("no model directory")));

    let allowed = |needs: &str, path: &str| {
        asked(&asking(needs, &format!("return r1.text.template('{path}'):render({{}})")), &Record::live())
    };
    assert_eq!(allowed(&format!("{{ 'fs:{outside}' }}"), &format!("{outside}/file.jinja")).unwrap(), "read");
    let model = asking(
        "{}",
        &format!(
            "return r1.text.tokenizer('{root}/models/r1-nano'):decode(r1.text.tokenizer('{root}/models/r1-nano'):encode('hi'))"
        ),
    );
    assert_eq!(asked(&model, &Record::live()).unwrap(), "hi");
}

#[test]
fn an_interpreter_by_path_is_declared() {
    let recipe = |needs: &str| {
        Bench::new(&format!(
            "return r1.recipe {{ needs = {{ {needs} }}, reward = function() return 0 end,\n\
             env = r1.env {{ tools = {{ r1.tools.python {{ interpreter = './own-python' }} }} }} }}"
        ))
    };
    let refused = |bench: &Bench| Worker::new(&bench.load(&[]).unwrap(), None).map(drop).unwrap_err();
    let error = refused(&recipe("")).to_string();
    assert!(error.contains("does not declare that it runs the interpreter ./own-python"), "{error}");
    assert!(error.contains("process:./own-python"), "{error}");
    assert!(Worker::new(&recipe("'process:./own-python'").load(&[]).unwrap(), None).is_ok());
}

#[test]
fn a_tool_that_cannot_run_a_program_fails_the_trajectory() {
    let bench = Bench::new(
        "return r1.recipe { reward = function() return 0 end, env = r1.env {\n\
         tools = { r1.tools.python { session = true, max_sessions = 1 } },\n\
         reset = function() return { it = r1.call_tools { { name = 'python', arguments = { code = '1' } } }[1].content } end } }",
    );
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    run(async {
        let held = worker.reset(&json!({}), 0).await.unwrap();
        let failure = worker.reset(&json!({}), 1).await.expect_err("one session is open, which is the limit");
        assert_eq!(failure.status, crate::mdp::Status::EnvError);
        assert_eq!(failure.error.kind, crate::error::Kind::Tool, "{failure}");
        drop(held);
    });
}

/// A recipe whose `reset` has a judge at `address` write, with `options` of the model.
fn judged(address: &str, needs: &str, options: &str) -> Bench {
    let body = format!(
        "local text, facts = r1.generate({{ r1.user('rate this') }}, {{ max_new_tokens = 7, temperature = 0,\n\
         model = {{ url = 'http://{address}/v1', name = 'judge', {options} }} }})\n\
         return {{ text, facts.tokens, facts.finish_reason }}"
    );
    asking(&needs.replace("HOST", address.split(':').next().unwrap()), &body)
}

#[test]
fn a_model_behind_a_server_writes_for_the_script() {
    let home = std::env::var("HOME").unwrap();
    let own = home.clone();
    let asked_before = Mutex::new(0);
    let (address, count) = server(move |first, head, body| {
        assert!(first.starts_with("POST /v1/chat/completions"), "{first}");
        assert!(head.contains(&format!("Bearer {own}")), "{head}");
        let mut before = asked_before.lock().unwrap();
        *before += 1;
        if *before == 1 {
            return "HTTP/1.1 503 Busy\r\nConnection: close\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nbusy"
                .to_owned();
        }
        let body: Json = serde_json::from_str(body).unwrap();
        assert_eq!(
            (&body["model"], &body["max_tokens"], &body["temperature"]),
            (&json!("judge"), &json!(7), &json!(0.0))
        );
        assert_eq!(body["messages"][0]["content"], "rate this");
        let content = format!("4 of 5, says {own}");
        let choice = json!({ "message": { "content": content }, "finish_reason": "stop" });
        ok(&json!({ "choices": [choice], "usage": { "completion_tokens": 5 } }).to_string())
    });
    let needs = "{ 'http:HOST', 'env:HOME' }";
    let bench = judged(&address, needs, "key = r1.secret('HOME')");
    // A replay asks nobody, and neither what the script gets nor the record has the key.
    let told = twice(&bench, || ());
    assert_eq!(told, json!(["4 of 5, says (secret)", 5, "stop"]));
    assert_eq!(*count.lock().unwrap(), 2);
    let record = Record::live();
    asked(&bench, &record).unwrap();
    assert!(!format!("{:?}", record.exchanges()).contains(&home));
}

/// As for requests of one's own: the name is looked up, and leads to this machine.
#[test]
fn a_server_that_is_no_public_host_must_be_declared() {
    let (address, count) = server(|_, _, _| ok("{}"));
    let port = address.rsplit(':').next().unwrap();
    for name in ["2130706433", "127.1"] {
        for body in [
            "return (r1.generate('x', OPTIONS))",
            "pcall(r1.generate, 'x', OPTIONS) return (r1.generate('x', OPTIONS))",
        ] {
            let options = format!("{{ model = {{ url = 'http://{name}:{port}/v1', name = 'judge' }} }}");
            let told = asked(&asking("{ 'http' }", &body.replace("OPTIONS", &options)), &Record::live()).unwrap_err();
            let why = format!(
                "r1.generate: {name} leads to a host that the recipe does not declare: 127.0.0.1 is not a public address"
            );
            let hint = format!("hint: add needs = {{ \"http:{name}\" }} to r1.recipe, or \"http:{name}:{port}\"");
            assert!(told.contains(&why) && told.contains(&hint) && told.contains("--> x.lua:2"), "{body}: {told}");
        }
    }
    assert_eq!(*count.lock().unwrap(), 0);
}

#[test]
fn a_model_that_does_not_write_is_a_failure() {
    let (address, count) = server(|_, _, body| {
        if body.contains("max_completion_tokens") {
            return ok("{}");
        }
        let why = "use max_completion_tokens";
        format!("HTTP/1.1 400 Bad\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{why}", why.len())
    });
    let needs = "{ 'http:HOST', 'env:HOME' }";
    let failed = |options: &str| {
        asked(&judged(&address, needs, options), &Record::live()).unwrap_err().replace(&address, "HOST")
    };
    // A server that wants the other name of the limit gets it.
    let told = failed("retries = 0");
    assert!(
        told.starts_with("r1.generate: judge at http://HOST/v1/chat/completions: the answer has no text: {}"),
        "{told}"
    );
    assert_eq!(*count.lock().unwrap(), 2);
    for (options, wanted) in [
        ("key = 'sk-123'", "`model.key` is text; a key is an environment variable"),
        ("temperature = 1", "unknown field `temperature`"),
        ("retries = -1", "`retries` must be a whole number from 0 to 20"),
    ] {
        let told = failed(options);
        assert!(told.contains(wanted), "{told}");
    }
    let (busy, count) = server(|_, _, _| {
        "HTTP/1.1 429 Busy\r\nConnection: close\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow".to_owned()
    });
    let told = asked(&judged(&busy, needs, "retries = 1"), &Record::live()).unwrap_err();
    assert!(told.contains("the server answered 429: slow (asked 2 times)"), "{told}");
    assert_eq!(*count.lock().unwrap(), 2);
    // Neither a host nor a variable that the recipe does not declare.
    let told = asked(&judged(&address, "{}", ""), &Record::live()).unwrap_err();
    assert!(told.contains("needs = { \"http:127.0.0.1\" }"), "{told}");
    let told = asked(&judged(&address, "{ 'http:HOST' }", "key = r1.secret('HOME')"), &Record::live()).unwrap_err();
    assert!(told.contains("needs = { \"env:HOME\" }"), "{told}");
}
