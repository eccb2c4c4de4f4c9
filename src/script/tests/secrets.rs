//! Secrets, declared files and interpreters, and models behind a server.

use std::sync::Mutex;

use serde_json::json;

use super::outside::{ok, recipe_with, returned_by, server, twice};
use super::*;
use crate::script::{Record, Strictness};

/// The variable used as a secret: it is set in every test run.
const VARIABLE: &str = "CARGO_MANIFEST_DIR";

#[test]
fn secrets_are_sent_and_masked_in_records() {
    let (address, _) = server(|first, head, _| ok(&format!("{first}\n{head}")));
    let secret = std::env::var(VARIABLE).unwrap();
    let bench = recipe_with(
        &format!("{{ 'http:{address}', 'env:{VARIABLE}' }}"),
        &format!(
            "local key = r1.secret('{VARIABLE}')\n\
             local answer = r1.http.get('http://{address}/x', {{\n\
             headers = {{ Authorization = 'Bearer ' .. key, ['X-Own'] = key .. '!' }}, query = {{ key = key, q = 1 }} }})\n\
             return {{ tostring(key), answer.body, answer.url }}"
        ),
    );
    let record = Record::live();
    let reported = returned_by(&bench, &record).unwrap();
    let body = reported[1].as_str().unwrap();
    assert_eq!(reported[0], "(secret)");
    // The server received the values; they are masked in its response.
    assert!(body.starts_with("GET /x?key=(secret)&q=1 "), "{body}");
    assert!(body.to_lowercase().contains("authorization: bearer (secret)"), "{body}");
    assert!(body.to_lowercase().contains("x-own: (secret)!"), "{body}");
    let kept = serde_json::to_string(&record.exchanges()).unwrap();
    assert!(!kept.contains(&secret) && !kept.contains(&crate::net::escape(&secret, false)), "{kept}");
    // A replay needs no value.
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(returned_by(&bench, &replay).unwrap(), reported);
}

#[test]
fn programs_get_secrets_in_their_environment() {
    if !crate::tools::process::has_namespaces() {
        eprintln!("skipped: no namespaces");
        return;
    }
    let bench = recipe_with(
        &format!("{{ 'process', 'env:{VARIABLE}' }}"),
        &format!(
            "local done = r1.process.run({{ 'sh', '-c', 'echo $KEY; echo $PLAIN; test -d / -a -n \"$KEY\"' }},\n\
             {{ env = {{ KEY = r1.secret('{VARIABLE}'), PLAIN = 5 }} }})\n return {{ done.out, done.code }}"
        ),
    );
    let record = Record::live();
    assert_eq!(returned_by(&bench, &record).unwrap(), json!(["(secret)\n5\n", 0]));
    assert!(!serde_json::to_string(&record.exchanges()).unwrap().contains(&std::env::var(VARIABLE).unwrap()));
}

#[test]
fn secrets_must_be_declared_and_are_not_data() {
    let refused = |needs: &str, body: &str| returned_by(&recipe_with(needs, body), &Record::live()).unwrap_err();
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
    assert!(name.contains("not a valid name of an environment variable"), "{name}");
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
        let late = recipe_with("{}", &format!("return {body}"));
        std::os::unix::fs::symlink("/etc/passwd", late.dir.path().join("link")).unwrap();
        let error = returned_by(&late, &Record::live()).unwrap_err();
        assert!(error.contains("is not a model directory") || error.contains("no directory"), "{body}: {error}");
        let early = Bench::new(&format!("local it = {body}\nreturn r1.recipe {{ reward = function() return 0 end }}"));
        let error = early.refusal();
        assert!(error.contains("is not a model directory") || error.contains("no directory"), "{body}: {error}");
    }
    let linked = recipe_with("{}", "return r1.text.template(task.link):render({})");
    let link = linked.dir.path().join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    let state = run(linked.worker().reset(&json!({ "link": link }), 0));
    assert!(state.is_err_and(|failure| failure.to_string().contains("is not a model directory")));

    let allowed = |needs: &str, path: &str| {
        returned_by(&recipe_with(needs, &format!("return r1.text.template('{path}'):render({{}})")), &Record::live())
    };
    assert_eq!(allowed(&format!("{{ 'fs:{outside}' }}"), &format!("{outside}/file.jinja")).unwrap(), "read");
    let model = recipe_with(
        "{}",
        &format!(
            "return r1.text.tokenizer('{root}/models/r1-nano'):decode(r1.text.tokenizer('{root}/models/r1-nano'):encode('hi'))"
        ),
    );
    assert_eq!(returned_by(&model, &Record::live()).unwrap(), "hi");
}

#[test]
fn a_python_interpreter_by_path_must_be_declared() {
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

/// A recipe whose `reset` generates with a judge at `address`, with `options` of the model.
fn judged(address: &str, needs: &str, options: &str) -> Bench {
    let body = format!(
        "local text, facts = r1.generate({{ r1.user('rate this') }}, {{ max_new_tokens = 7, temperature = 0,\n\
         model = {{ url = 'http://{address}/v1', name = 'judge', {options} }} }})\n\
         return {{ text, facts.tokens, facts.finish_reason }}"
    );
    recipe_with(&needs.replace("HOST", address.split(':').next().unwrap()), &body)
}

#[test]
fn generate_uses_a_model_behind_a_server() {
    let home = std::env::var("HOME").unwrap();
    let key = home.clone();
    let asked_before = Mutex::new(0);
    let (address, count) = server(move |first, head, body| {
        assert!(first.starts_with("POST /v1/chat/completions"), "{first}");
        assert!(head.contains(&format!("Bearer {key}")), "{head}");
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
        let content = format!("4 of 5, says {key}");
        let choice = json!({ "message": { "content": content }, "finish_reason": "stop" });
        ok(&json!({ "choices": [choice], "usage": { "completion_tokens": 5 } }).to_string())
    });
    let needs = "{ 'http:HOST', 'env:HOME' }";
    let bench = judged(&address, needs, "key = r1.secret('HOME')");
    // A replay makes no request, and neither the script nor the record has the key.
    let reported = twice(&bench, || ());
    assert_eq!(reported, json!(["4 of 5, says (secret)", 5, "stop"]));
    assert_eq!(*count.lock().unwrap(), 2);
    let record = Record::live();
    returned_by(&bench, &record).unwrap();
    assert!(!format!("{:?}", record.exchanges()).contains(&home));
}

#[test]
fn generate_fails_without_a_valid_response_of_the_server() {
    let (address, count) = server(|_, _, body| {
        if body.contains("max_completion_tokens") {
            return ok("{}");
        }
        let why = "use max_completion_tokens";
        format!("HTTP/1.1 400 Bad\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{why}", why.len())
    });
    let needs = "{ 'http:HOST', 'env:HOME' }";
    let failed = |options: &str| {
        returned_by(&judged(&address, needs, options), &Record::live()).unwrap_err().replace(&address, "HOST")
    };
    // The limit is sent under the name that the server accepts.
    let reported = failed("retries = 0");
    assert!(
        reported.starts_with("r1.generate: judge at http://HOST/v1/chat/completions: the answer has no text: {}"),
        "{reported}"
    );
    assert_eq!(*count.lock().unwrap(), 2);
    for (options, wanted) in [
        ("key = 'sk-123'", "`model.key` is text; a key is an environment variable"),
        ("temperature = 1", "unknown field `temperature`"),
        ("retries = -1", "`retries` must be a whole number from 0 to 20"),
    ] {
        let reported = failed(options);
        assert!(reported.contains(wanted), "{reported}");
    }
    let (busy, count) = server(|_, _, _| {
        "HTTP/1.1 429 Busy\r\nConnection: close\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow".to_owned()
    });
    let reported = returned_by(&judged(&busy, needs, "retries = 1"), &Record::live()).unwrap_err();
    assert!(reported.contains("the server answered 429: slow (after 2 attempts)"), "{reported}");
    assert_eq!(*count.lock().unwrap(), 2);
    // Neither a host nor a variable that the recipe does not declare.
    let reported = returned_by(&judged(&address, "{}", ""), &Record::live()).unwrap_err();
    assert!(reported.contains("needs = { \"http:127.0.0.1\" }"), "{reported}");
    let reported =
        returned_by(&judged(&address, "{ 'http:HOST' }", "key = r1.secret('HOME')"), &Record::live()).unwrap_err();
    assert!(reported.contains("needs = { \"env:HOME\" }"), "{reported}");
}

/// As for r1.http: the name is looked up, and its address is this machine's.
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
            let reported = returned_by(&recipe_with("{ 'http' }", &body.replace("OPTIONS", &options)), &Record::live())
                .unwrap_err();
            let why = format!(
                "r1.generate: {name} leads to a host that the recipe does not declare: 127.0.0.1 is not a public address"
            );
            let hint = format!("hint: add needs = {{ \"http:{name}\" }} to r1.recipe, or \"http:{name}:{port}\"");
            assert!(
                reported.contains(&why) && reported.contains(&hint) && reported.contains("--> x.lua:2"),
                "{body}: {reported}"
            );
        }
    }
    assert_eq!(*count.lock().unwrap(), 0);
}
