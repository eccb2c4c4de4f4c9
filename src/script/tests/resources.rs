//! Files that a script reads whole, and indexes of them.

use std::io::Write;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::error::Kind;
use crate::script::runtime::rank;

/// A script whose state is `it` = an expression over `corpus`.
fn bench(spec: &str, expression: &str) -> Bench {
    Bench::new(&format!(
        "local corpus = r1.resource {spec}\n\
         return r1.recipe {{ env = r1.env {{ reset = function() return {{ it = {expression} }} end }},\n\
         reward = function() return 0 end }}"
    ))
}

fn reported(bench: &Bench) -> Json {
    let state = run(bench.worker().reset(&Json::Null, 0)).map_err(|failure| bench.show(failure)).unwrap();
    state.snapshot().unwrap()["state"]["it"].clone()
}

fn failure(bench: &Bench) -> String {
    bench.show(run(bench.worker().reset(&Json::Null, 0)).unwrap_err())
}

#[test]
fn rows_are_a_list_in_every_format() {
    let all = "(function() local all = {} for i, row in corpus do all[i] = row.text end return { #corpus, all, corpus[3] == nil } end)()";
    let wanted = json!([2, ["red key", "blue sky"], true]);
    for (name, text) in [
        ("c.jsonl", "{\"text\":\"red key\"}\n\n{\"text\":\"blue sky\"}\n"),
        ("c.json", "[{\"text\":\"red key\"},{\"text\":\"blue sky\"}]"),
        ("c.csv", "text,n\nred key,1\nblue sky,2\n"),
        ("c.tsv", "text\tn\nred key\t1\nblue sky\t2\n"),
        ("c.txt", "red key\n\nblue sky"),
    ] {
        let bench = bench(&format!("'{name}'"), all);
        bench.file(name, text);
        assert_eq!(reported(&bench), wanted, "{name}");
    }
    let renamed = bench("{ path = 'sub/c', format = 'csv', columns = { text = 'body' } }", all);
    renamed.file("sub/c", "body\nred key\nblue sky\n");
    assert_eq!(reported(&renamed), wanted);
    let object = bench("'c.json'", "{ #corpus, corpus[1].a.b }");
    object.file("c.json", "{\n  \"a\": { \"b\": 5 }\n}\n");
    assert_eq!(reported(&object), json!([1, 5]));
    let packed = bench("'c.txt.gz'", "corpus[2].text");
    let mut bytes = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bytes.write_all(b"one\ntwo\n").unwrap();
    std::fs::write(packed.dir.path().join("c.txt.gz"), bytes.finish().unwrap()).unwrap();
    assert_eq!(reported(&packed), "two");
}

#[test]
fn rows_of_a_resource_are_read_only_and_cached_while_in_use() {
    let file = "{\"text\":\"x\",\"deep\":{\"list\":[1]}}\n";
    let same = bench("'c.jsonl'", "corpus[1] == corpus[1] and corpus.hash");
    same.file("c.jsonl", file);
    let hash = same.load(&[]).unwrap().resources()[0].sha256.clone().unwrap();
    assert_eq!(reported(&same), Json::from(hash));
    for (change, message) in [
        ("(function() corpus[1].text = 'y' end)()", "attempt to modify a readonly table"),
        ("(function() corpus[1].deep.list[2] = 2 end)()", "attempt to modify a readonly table"),
        ("(function() corpus[1] = {} end)()", "a resource is read-only"),
        ("corpus.rows", "a resource has no `rows`"),
        ("r1.resource('d.jsonl')", "r1.resource(\"d.jsonl\") after loading"),
    ] {
        let bench = bench("'c.jsonl'", change);
        bench.file("c.jsonl", file);
        let text = failure(&bench);
        assert!(text.contains(message) && text.contains("--> x.lua:2"), "{change}: {text}");
    }
}

#[test]
fn a_file_is_read_once_for_all_workers_and_scripts() {
    let bench = bench("'c.jsonl'", "r1.text.index(corpus):search('key')[1].index");
    bench.file("c.jsonl", "{\"text\":\"red key\"}\n");
    let script = bench.load(&[]).unwrap();
    let first = std::ptr::from_ref(script.resources_at().next().unwrap().1);
    let again = bench.load(&[]).unwrap();
    assert!(std::ptr::eq(first, again.resources_at().next().unwrap().1), "another load reads it again");
    // Workers read the data that the script was loaded with, even if the file has changed.
    std::fs::write(bench.dir.path().join("c.jsonl"), "{\"text\":\"no\"}\n{\"text\":\"key\"}\n").unwrap();
    let worker = Worker::new(&script, None).unwrap();
    let state = run(worker.reset(&Json::Null, 0)).unwrap();
    assert_eq!(state.snapshot().unwrap()["state"]["it"], 1);
    // Another content is another version of the script.
    let changed = bench.load(&[]).unwrap();
    assert_ne!(changed.hash, script.hash);
    assert_eq!(
        run(Worker::new(&changed, None).unwrap().reset(&Json::Null, 0)).unwrap().snapshot().unwrap()["state"]["it"],
        2
    );
}

#[test]
fn an_index_of_a_resource_is_built_once() {
    let bench = bench("'c.jsonl'", "1");
    bench.file("c.jsonl", "{\"text\":\"red key\"}\n");
    let script = bench.load(&[]).unwrap();
    let (_, resource) = script.resources_at().next().unwrap();
    let weights = rank::Bm25Weights::default();
    let other = rank::Bm25Weights { k1: 2.0, ..weights };
    let index = resource.index("text", weights).unwrap();
    assert!(Arc::ptr_eq(&index, &resource.index("text", weights).unwrap()));
    assert!(!Arc::ptr_eq(&index, &resource.index("text", other).unwrap()));
}

#[test]
fn a_text_index_and_direct_ranking_agree() {
    let same = "(function()\n\
        local texts = { 'the sky', 'the key is red', 'red red key', 'none' }\n\
        local index = r1.text.index(texts)\n\
        local function show(list) return r1.json.encode(list) end\n\
        return { show(index:search('red key')) == show(r1.text.rank('red key', texts)), #index:search('the red', 1), #index }\n\
      end)()";
    assert_eq!(eval(same), json!([true, 1, 4]));
}

#[test]
fn invalid_arguments_of_a_text_index_are_refused() {
    let refused = |code: &str| {
        let bench =
            Bench::new(&format!("local corpus = r1.resource 'c.jsonl'\nlocal it = {code}\nreturn r1.recipe {{}}"));
        bench.file("c.jsonl", "{\"text\":\"x\",\"n\":1}\n{\"text\":\"y\",\"n\":2}\n");
        bench.refusal()
    };
    insta::assert_snapshot!(refused("r1.text.index(corpus, { column = 'txt' })"), @r"
    r1.text.index: row 1 of c.jsonl has no column `txt`
      --> x.lua:2
      hint: did you mean `text`?
    ");
    insta::assert_snapshot!(refused("r1.text.index(corpus, { column = 'n' })"), @r"
    r1.text.index: row 1 of c.jsonl: the column `n` is not text
      --> x.lua:2
    ");
    insta::assert_snapshot!(refused("r1.text.index({ 'a' }, { column = 'n' })"), @r"
    r1.text.index: `column` is for resources; a list has texts
      --> x.lua:2
    ");
    insta::assert_snapshot!(refused("r1.text.index({ 'a' }, { b = 2 })"), @r"
    r1.text.index: `b` must be a number from 0 to 1, got the number 2
      --> x.lua:2
    ");
    insta::assert_snapshot!(refused("r1.text.index 'a'"), @r#"
    r1.text.index: takes a list of texts or a resource, got the text "a"
      --> x.lua:2
    "#);
}

#[test]
fn an_index_of_a_list_respects_the_limits() {
    let many = "(function() local list = {} for i = 1, 300000 do list[i] = 'a b c d e f g h i j k l m n o p' end return r1.text.index(list) end)()";
    let recipe = |limits: &str| {
        let source = "return r1.recipe { env = r1.env { reset = function() local index = MANY return { it = #index } end }, \
                      reward = function() return 0 end, limits = LIMITS }";
        Bench::new(&source.replace("MANY", many).replace("LIMITS", limits))
    };
    let text = failure(&recipe("{ cpu = 0.02 }"));
    assert!(text.contains("reset used more than 0.02 s of CPU time"), "{text}");
    let text = failure(&recipe("{ cpu = 100, memory = 24, trajectory = 1000 }"));
    assert!(text.contains("the indexes take more memory than limits.memory = 24 MiB"), "{text}");
    // Indexes without a reference do not count.
    let often = "(function() local n = 0 for i = 1, 40 do local list = {} for k = 1, 2000 do list[k] = 'a b c d e f g h i j k l m n o p' end \
                 n = n + #r1.text.index(list) end return n end)()";
    let source = format!(
        "return r1.recipe {{ env = r1.env {{ reset = function() return {{ it = {often} }} end }}, \
         reward = function() return 0 end, limits = {{ cpu = 100, memory = 6, trajectory = 1000 }} }}"
    );
    assert_eq!(reported(&Bench::new(&source)), 80_000);
}

#[test]
fn invalid_resources_are_refused_with_their_place() {
    let refused = |spec: &str| {
        let bench = bench(spec, "1");
        bench.file("broken.jsonl", "{\"text\":\"x\"}\n{\n");
        bench.file("big.txt", &"x\n".repeat(1 << 20));
        bench.refusal()
    };
    insta::assert_snapshot!(refused("'missing.jsonl'"), @r#"
    r1.resource: missing.jsonl: can't read the resource: no such file or directory
      --> x.lua:1
      hint: paths of resources are relative to the script's directory
    "#);
    insta::assert_snapshot!(refused("'broken.jsonl'"), @r#"
    r1.resource: broken.jsonl:2: the row is not JSON: EOF while parsing an object in column 0
      --> x.lua:1
      hint: a dataset has one JSON object per line
    "#);
    insta::assert_snapshot!(refused("{ path = 'big.txt', max_size = '1MiB' }"), @r#"
    r1.resource: big.txt: the resource has 2 MiB and max_size is 1 MiB
      --> x.lua:1
      hint: r1.resource { path = …, max_size = "1GiB" } reads more; the rows stay in memory
    "#);
    insta::assert_snapshot!(refused("{ path = 'big.txt', format = 'texts' }"), @r#"
    r1.resource: `format` is "texts"; it is one of jsonl, json, csv, tsv, parquet, arrow, text
      --> x.lua:1
      hint: did you mean `text`?
    "#);
    insta::assert_snapshot!(refused("{ file = 'big.txt' }"), @r#"
    r1.resource: unknown field `file`
      --> x.lua:1
      hint: known: `columns`, `format`, `max_size`, `path`
    "#);
    insta::assert_snapshot!(refused("'/proc/self/environ'"), @r#"
    r1.resource: /proc/self/environ: data can't be read from /proc
      --> x.lua:1
    "#);
    insta::assert_snapshot!(refused("'/etc/passwd'"), @r#"
    r1.resource: /etc/passwd: a data file outside of the script's directory needs the extension of a data format
      --> x.lua:1
      hint: call it .jsonl, .json, .csv, .tsv, .parquet or .arrow, put it next to the script, or name it on the command line: data.train=FILE
    "#);
}

#[test]
fn datasets_are_read_from_allowed_places_only() {
    let source = |path: &str| {
        format!(
            "return r1.recipe {{ reward = function() return 0 end,\n\
             data = {{ train = {{ path = '{path}', format = 'csv' }} }}, trainer = r1.grpo {{}} }}"
        )
    };
    let rows = |path: &str, overrides: &[&str]| {
        let bench = Bench::new(&source(path));
        let worker = Worker::new(&bench.load(overrides).unwrap(), None).unwrap();
        worker.rows(Split::Train).map_err(|error| (error.kind, bench.show(error)))
    };
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("key"), "prompt\nx\n").unwrap();
    std::fs::write(other.path().join("rows.csv"), "prompt\nx\n").unwrap();
    let at = |name: &str| other.path().join(name).display().to_string();
    assert_eq!(rows(&at("rows.csv"), &[]), Ok(Some(1)));
    let (kind, text) = rows(&at("key"), &[]).unwrap_err();
    assert!(kind == Kind::Data && text.contains("needs the extension of a data format"), "{text}");
    let (_, text) = rows("/proc/self/environ", &[]).unwrap_err();
    assert!(text.contains("data can't be read from /proc"), "{text}");
    // The user who starts the recipe may name any file.
    let typed = format!("data.train.path={}", at("key"));
    assert_eq!(rows("x.csv", &[&typed]), Ok(Some(1)));
    let bench = Bench::new(&source(&at("rows.csv")));
    let script = bench.load(&[]).unwrap();
    let files = script.data_files().unwrap();
    assert_eq!((files.len(), files[0].bytes, script.is_far(&files[0].path)), (1, 9, true));
    assert!(!script.is_far(&bench.dir.path().join("x.lua")));
}
