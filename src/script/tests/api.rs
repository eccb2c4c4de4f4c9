//! The small functions of `r1`, from inside the VM.

use serde_json::json;

use super::*;

#[test]
fn answers_are_extracted_and_compared() {
    assert_eq!(
        eval(r"{ r1.last_boxed('a \\boxed{1} b \\boxed{\\frac{1}{2}} c'), r1.answer('<answer> x </answer>') }"),
        json!(["\\frac{1}{2}", "x"])
    );
    assert_eq!(eval("{ r1.last_boxed('none') == nil, r1.answer('<answer>open') == nil }"), json!([true, true]));
    assert_eq!(
        eval("{ r1.math_equal('1,000', 1000), r1.math_equal(nil, 5), r1.math_equal(0.5, '1/2') }"),
        json!([true, false, true])
    );
}

#[test]
fn json_is_encoded_and_decoded() {
    assert_eq!(eval(r#"r1.json.decode('{"a": [1, null, {}], "b": []}')"#), json!({"a": [1, null, {}], "b": []}));
    assert_eq!(eval("r1.json.encode { 1, 2.5, 'x' }"), json!("[1,2.5,\"x\"]"));
    assert_eq!(eval("select(2, r1.json.decode('{'))"), json!("EOF while parsing an object at line 1 column 1"));
}

/// `typeof` and messages of Luau have the type names of the documentation.
#[test]
fn host_objects_have_their_documented_type_names() {
    assert_eq!(eval("typeof(r1.text.index { 'a' })"), json!("TextIndex"));
    let bench = Bench::new(&recipe("local rows = r1.resource 'rows.jsonl'\nipairs(rows)\nlocal env = r1.env {}"));
    bench.file("rows.jsonl", "{\"text\": \"a\"}\n");
    assert!(bench.refusal().contains("table expected, got Resource"), "{}", bench.refusal());
}

#[test]
fn clip_counts_omitted_characters() {
    assert_eq!(eval("r1.clip('äöü', 3)"), json!("äöü"));
    assert_eq!(eval("r1.clip('äöüß', 2)"), json!("äö\n… (2 more characters)"));
}

#[test]
fn random_numbers_are_within_their_bounds() {
    let seen = eval(
        "(function() local seen = {} for k = 1, 200 do seen[math.random(3, 5)] = true end return { seen[2] == nil, seen[3], seen[4], seen[5], seen[6] == nil } end)()",
    );
    assert_eq!(seen, json!([true, true, true, true, true]));
    assert_eq!(eval("(function() local x = math.random() return x >= 0 and x < 1 end)()"), json!(true));
    assert_eq!(
        eval(
            "(function() math.randomseed(4) local a = math.random() math.randomseed(4) return a == math.random() end)()"
        ),
        json!(true)
    );
}

#[test]
fn logs_go_to_the_host() {
    let bench = Bench::new(&recipe("r1.log('hello', 1, { a = 2 }, nil)\nprint 'printed'\nlocal env = r1.env {}"));
    let worker = bench.worker();
    let lines: Vec<String> =
        worker.take_log().iter().map(|line| bench.show(format!("{}: {}", line.place, line.text))).collect();
    assert_eq!(lines, ["x.lua:1: hello 1 {\"a\":2} nil", "x.lua:2: printed"]);
    assert!(worker.take_log().is_empty());
}

/// Errors about Python idioms have a hint with the Luau form.
#[test]
fn idioms_of_other_languages_get_a_hint() {
    for (habit, hint) in [
        ("None", "in Luau it is `nil`"),
        ("True", "in Luau it is `true`"),
        ("len({})", "the length of a list or text is `#value`"),
        ("io.open('x')", "recipes reach files with r1.fs"),
        ("'a' + 'b'", "texts are concatenated with `..`"),
        ("1 + 'b'", "texts are concatenated with `..`"),
        ("({}):append(1)", "r1.push(list, item) appends to a list"),
        ("('a'):strip()", "removes spaces around a text"),
        ("1 != 2", "~="),
        ("({ 1 })[0].content", "lists begin at 1"),
        ("({ 1 })[ 0 ] + 1", "lists begin at 1"),
        ("#({ { 1 } })[-1]", "`list[#list]` is the last item"),
    ] {
        let message = refused(&recipe(&format!("local it = {habit}\nlocal env = r1.env {{}}")));
        assert!(message.contains(hint), "{habit}: {message}");
    }
    // A comment, or another error, has no such hint.
    for other in ["({}).x.y -- [0]", "({ { 1 } })[1] + 1 + #({})[0 + 1] .. error('no')"] {
        let message = refused(&recipe(&format!("local it = {other}\nlocal env = r1.env {{}}")));
        assert!(!message.contains("lists begin at 1"), "{message}");
    }
}
