//! `r1.index.open` and `r1.tools.search`: searches by scripts and by the policy, their record, and
//! invalid arguments.

use serde_json::json;

use super::outside::{ok, server};
use super::*;
use crate::encoders::Checkpoints;
use crate::script::{Record, Split, Strictness};
use crate::search::{BuildOptions, Builder, PassageFields};

/// An index `i` of two passages next to the script.
fn with_index(bench: &Bench) {
    with_index_of(bench, ["The Danube is long.", "The Alps are high."].map(str::to_owned).into_iter());
}

/// An index `i` of these passages next to the script.
fn with_index_of(bench: &Bench, texts: impl Iterator<Item = String>) {
    let mut builder = Builder::begin(&bench.dir.path().join("i"), BuildOptions::default(), false, true).unwrap();
    for (row, text) in texts.enumerate() {
        let row_of = json!({ "id": format!("p{row}"), "title": "T", "text": text, "year": 2000 + row });
        builder
            .add(&PassageFields::default().passage(row as u64, row_of.as_object().unwrap().clone()).unwrap())
            .unwrap();
    }
    builder.finish().unwrap();
}

/// A recipe with these lines before it, whose `reset` returns the result of `body`.
fn recipe_with(needs: &str, before: &str, tools: &str, body: &str) -> Bench {
    Bench::new(&format!(
        "{before}\nreturn r1.recipe {{ needs = {needs}, reward = function() return 0 end,\n\
         env = r1.env {{ tools = {{ {tools} }}, reset = function(task) return {{ it = (function() {body} end)() }} end }} }}"
    ))
}

fn reset(bench: &Bench, record: &Record) -> Result<Json, String> {
    let script = bench.load(&[]).map_err(|error| bench.show(error))?.with_search_models(&Checkpoints::AUTO);
    let worker = Worker::new(&script, None).map_err(|error| bench.show(error))?;
    let state = run(worker.reset_as(Split::Train, &json!({}), 0, record)).map_err(|failure| bench.show(failure))?;
    Ok(state.snapshot().unwrap()["state"]["it"].clone())
}

/// The result; a replay without the index must give the same.
fn with_replay(bench: &Bench) -> Json {
    let record = Record::live();
    let live = reset(bench, &record).unwrap();
    let index = bench.dir.path().join("i");
    if index.exists() {
        std::fs::rename(&index, bench.dir.path().join("gone")).unwrap();
    }
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(reset(bench, &replay).unwrap(), live);
    assert_eq!(replay.close(), None);
    live
}

fn shows(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

const CALL: &str = "local all = {} for place, result in r1.call_tools(CALLS) do all[place] = { result.ok, result.content } end return all";

fn calls(queries: &[&str]) -> String {
    let calls: Vec<String> =
        queries.iter().map(|query| format!("{{ name = 'search', arguments = {{ query = '{query}' }} }}")).collect();
    CALL.replace("CALLS", &format!("{{ {} }}", calls.join(", ")))
}

#[test]
fn scripts_search_an_index_and_replays_do_not_need_it() {
    let body = "local one = index:search('danube', { k = 1 })[1]\n\
                local two = index:search { 'alps', 'nothing', 'the' }\n\
                return { one, #two, #two[1], #two[2], #two[3], two[1][1].id }";
    let bench = recipe_with("{}", "local index = r1.index.open 'i'", "", body);
    with_index(&bench);
    let live = with_replay(&bench);
    let hit = &live[0];
    assert_eq!((&hit["id"], &hit["title"], &hit["rank"]), (&json!("p0"), &json!("T"), &json!(1)));
    assert_eq!((&hit["text"], &hit["columns"]), (&json!("The Danube is long."), &json!({ "year": 2000 })));
    assert!(hit["score"].as_f64().unwrap() > 0.0);
    assert_eq!(live.as_array().unwrap()[1..], json!([3, 1, 0, 2, "p1"]).as_array().unwrap()[..]);
}

#[test]
fn a_search_tool_gives_numbered_documents_and_its_calls_are_replayed() {
    let long = "x ".repeat(20_000);
    let body = calls(&["high alps", "nothing", " ", &long]);
    let bench = recipe_with("{}", "", "r1.tools.search { index = 'i', k = 1, max_result_tokens = 0 }", &body);
    with_index(&bench);
    let expected = json!([
        [true, "Doc 1(Title: T) The Alps are high."],
        [true, "No passage was found."],
        [false, "Error: the query is empty"],
        [false, "Error: the query has 39 KiB; at most 32 are searched"],
    ]);
    assert_eq!(with_replay(&bench), expected);
}

#[test]
fn a_search_of_an_index_that_takes_too_long_is_an_observation() {
    // Every passage has a third of the words of the query.
    let word = |index: usize| format!("w{}", index * 7919 % 900);
    let texts = (0..4000).map(|row| (0..300).map(|k| word(row * 13 + k)).collect::<Vec<_>>().join(" "));
    let query: Vec<String> = (0..900).map(word).collect();
    let tool = "r1.tools.search { index = 'i', k = 1, timeout = '1ms' }";
    let bench = recipe_with("{}", "", tool, &calls(&[&query.join(" ")]));
    with_index_of(&bench, texts);
    assert_eq!(with_replay(&bench), json!([[false, "Error: the search took longer than 0.001 s"]]));
}

#[test]
fn a_search_tool_queries_a_retrieval_server_with_retries() {
    let requests = std::sync::atomic::AtomicUsize::new(0);
    let (address, count) = server(move |first, _, body| {
        assert!(first.starts_with("POST /retrieve"), "{first}");
        if requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return "HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned();
        }
        let query = serde_json::from_str::<Json>(body).unwrap()["queries"][0].as_str().unwrap().to_owned();
        ok(&json!({ "result": [[{ "document": { "contents": format!("\"About\"\n{query}") }, "score": 1 }]] })
            .to_string())
    });
    let tool = format!(
        "r1.tools.search {{ url = 'http://{address}', retries = {{ times = 1, backoff = '1ms' }}, cache = true }}"
    );
    let bench = recipe_with(&format!("{{ 'http:{address}' }}"), "", &tool, &calls(&["rivers"]));
    assert_eq!(with_replay(&bench), json!([[true, "Doc 1(Title: About) rivers"]]));
    assert_eq!(*count.lock().unwrap(), 2, "one attempt and one retry; the replay sends no request");
}

#[test]
fn a_search_server_that_is_down_is_an_observation() {
    let tool = "r1.tools.search { url = 'http://127.0.0.1:9/retrieve', timeout = '2s' }";
    let bench = recipe_with("{ 'http:127.0.0.1:9' }", "", tool, &calls(&["rivers"]));
    let live = with_replay(&bench);
    assert_eq!(live[0][0], json!(false));
    let text = live[0][1].as_str().unwrap();
    assert!(text.starts_with("Error: the search server at 127.0.0.1:9 did not answer"), "{text}");
}

#[test]
fn an_index_is_opened_at_the_top_of_a_script() {
    let bench = recipe_with("{}", "", "", "return #r1.index.open 'i':search('danube')");
    with_index(&bench);
    let refused = reset(&bench, &Record::live()).unwrap_err();
    shows(&refused, "r1.index.open(\"i\") after loading");
    shows(&refused, "open indexes at the top of the script");
}

#[test]
fn search_needs_an_index_that_is_there_and_servers_that_are_declared() {
    let live = |bench: &Bench| reset(bench, &Record::live()).unwrap_err();
    let missing = recipe_with("{}", "", "r1.tools.search { index = 'i' }", "return 1");
    shows(&live(&missing), "there is no such index");
    let missing = recipe_with("{}", "local index = r1.index.open 'i'", "", "return 1");
    shows(&live(&missing), "there is no such index");
    let system = recipe_with("{}", "local index = r1.index.open '/proc/self'", "", "return 1");
    shows(&live(&system), "an index can't be read from /proc");
    let dense = recipe_with("{}", "", "r1.tools.search { index = 'i', mode = 'dense' }", "return 1");
    with_index(&dense);
    shows(&live(&dense), "the index has no vectors, which the search mode `dense` needs");
    let absent = recipe_with("{}", "", "r1.tools.search { index = 'i', rerank = { model = 'm' } }", "return 1");
    with_index(&absent);
    shows(&live(&absent), "open the cross-encoder");
    let worker = Worker::new(&absent.load(&[]).unwrap(), None).unwrap();
    let error = absent.show(worker.prepare().unwrap_err());
    shows(&error, "gives it no way to load one");
    shows(&error, "Script::with_search_models");
    let undeclared = recipe_with("{ 'http' }", "", "r1.tools.search { url = 'http://127.0.0.1:8000' }", "return 1");
    shows(&live(&undeclared), "does not declare that it sends requests to 127.0.0.1:8000");
    let bad_query = recipe_with("{}", "local index = r1.index.open 'i'", "", "return index:search(3)");
    with_index(&bad_query);
    shows(&live(&bad_query), "takes a query or a list of queries, got");
}

#[test]
fn options_of_search_are_checked() {
    let of = |tool: &str| refused(&recipe(&format!("local env = r1.env {{ tools = {{ {tool} }} }}")));
    shows(&of("r1.tools.search {}"), "needs either `index`, a directory, or `url`");
    shows(&of("r1.tools.search { index = 'i', url = 'http://h' }"), "needs either `index`, a directory, or `url`");
    shows(&of("r1.tools.search { indx = 'i' }"), "unknown field `indx`");
    shows(&of("r1.tools.search { index = 'i', k = 0 }"), "`k` must be a whole number from 1 to 1000");
    shows(
        &of("r1.tools.search { index = 'i', mode = 'spare' }"),
        "`mode` is \"spare\"; it is one of sparse, dense, hybrid",
    );
    shows(&of("r1.tools.search { url = 'ftp://h' }"), "it must begin with http:// or https://");
    shows(&of("r1.tools.search { url = 'http://h', mode = 'hybrid' }"), "`mode` applies to indexes");
    let dense = |fields: &str| of(&format!("r1.tools.search {{ index = 'i', mode = 'dense', {fields} }}"));
    shows(&dense("ef = 0"), "`ef` must be a whole number from 1 to 10000");
    shows(&dense("ef = 9, exact = true"), "`exact` compares every vector, so that `ef` has no effect");
    shows(&of("r1.tools.search { index = 'i', ef = 9 }"), "`ef` has no effect in the mode `sparse`");
    let rerank = |fields: &str| of(&format!("r1.tools.search {{ index = 'i', k = 5, rerank = {fields} }}"));
    shows(&rerank("'model'"), "`rerank` must be a table { model = DIR, top = N }");
    shows(&rerank("{}"), "`rerank` needs `model`, the directory of a cross-encoder");
    shows(&rerank("{ modle = 'm' }"), "unknown field `rerank.modle`");
    shows(&rerank("{ model = 'm', top = 0 }"), "must be a whole number from 1 to 1000");
    shows(&rerank("{ model = 'm', top = 4 }"), "`top` is 4, which is below the number of hits, 5");
    shows(&of("r1.tools.search { url = 'http://h', rerank = { model = 'm' } }"), "`rerank` applies to indexes");
}
