//! Regular expressions: `r1.re`.

use insta::assert_snapshot;
use serde_json::json;

use super::*;

#[test]
fn matches_are_found_like_string_find() {
    assert_eq!(eval(r"{ r1.re.find('a 12 b', '(\\d)(\\d)') }"), json!([3, 4, "1", "2"]));
    assert_eq!(eval(r"{ r1.re.find('aXbX', 'X', 3) }"), json!([4, 4]));
    assert_eq!(eval(r"{ r1.re.find('abc', 'x') == nil, r1.re.find('abc', 'c', 9) == nil }"), json!([true, true]));
    assert_eq!(eval(r"{ r1.re.match('x = 5', '(\\w) = (\\d)'), r1.re.match('ab', 'b') }"), json!(["x", "b"]));
    assert_eq!(eval(r"{ r1.re.match('x = 5', '(\\w) = (\\d)') }"), json!(["x", "5"]));
    // `^` is the beginning of the text, wherever the search starts.
    assert_eq!(eval("r1.re.match('ab', '^b', 2) == nil"), json!(true));
    assert_eq!(
        eval(
            r"(function() local m = r1.re.captures('key: value', '(?P<name>\\w+): (\\w+)(!)?')
               return { m[1], m[2], m[3] == nil, m.name, m.text, m.first, m.last } end)()"
        ),
        json!(["key", "value", true, "key", "key: value", 1, 10])
    );
    assert_eq!(eval(r"r1.re.captures('x', 'y') == nil"), json!(true));
}

#[test]
fn all_matches_parts_and_replacements() {
    assert_eq!(
        eval(r"r1.re.find_all('a1b22', '\\d+')"),
        json!([{"text": "1", "first": 2, "last": 2}, {"text": "22", "first": 4, "last": 5}])
    );
    assert_eq!(eval(r"#r1.re.find_all('a1b22', '\\d', 2)"), json!(2));
    let collect = "(function() local out = {} for a, b in r1.re.gmatch(TEXT, PATTERN) do \
                   out[#out + 1] = a .. (b and '=' .. b or '') end return out end)()";
    let gmatch = |text: &str, pattern: &str| eval(&collect.replace("TEXT", text).replace("PATTERN", pattern));
    assert_eq!(gmatch("'x=1, y=2'", r"'(\\w)=(\\d)'"), json!(["x=1", "y=2"]));
    // Empty matches are those that the crate finds.
    assert_eq!(gmatch("'abc'", "'x*'"), json!(["", "", "", ""]));
    assert_eq!(
        gmatch("'axb'", "'x*'"),
        eval(
            "(function() local o = {} for _, m in ipairs(r1.re.find_all('axb', 'x*')) do o[#o + 1] = m.text end return o end)()"
        )
    );
    assert_eq!(eval("r1.re.split('a, b,c', ',\\\\s*')"), json!(["a", "b", "c"]));
    assert_eq!(eval("r1.re.split('a,b,c', ',', 2)"), json!(["a", "b,c"]));
    assert_eq!(eval("{ r1.re.replace('2+3', '(?P<a>\\\\d)\\\\+(\\\\d)', '$2+${a} $$') }"), json!(["3+2 $", 1]));
    assert_eq!(
        eval(
            "{ r1.re.replace('a1b2', '\\\\d', function(m) return m.text == '1' and '<' .. m.text .. '>' or nil end) }"
        ),
        json!(["a<1>b2", 2])
    );
    assert_eq!(eval("{ r1.re.replace('aaa', 'a', 'b', 2) }"), json!(["bba", 2]));
    assert_eq!(eval("r1.re.match('1.5', '^' .. r1.re.escape('1.5') .. '$')"), json!("1.5"));
    // Texts may contain bytes that are not UTF-8.
    assert_eq!(eval("r1.re.find('\\xff\\xfea', 'a')"), json!(3));
    assert_eq!(eval("r1.re.match('Größe', '(?i)GRÖSSE|größe')"), json!("Größe"));
}

#[test]
fn regular_expressions_take_linear_time() {
    let started = std::time::Instant::now();
    assert_eq!(eval("r1.re.find(string.rep('a', 100000), '(a|a)*b') == nil"), json!(true));
    assert_eq!(eval("r1.re.find(string.rep('a', 100000) .. '!', '^(a+)+$') == nil"), json!(true));
    assert!(started.elapsed().as_secs_f64() < 120.0);
}

#[test]
fn misuse_is_told() {
    // In a call with time to spare: the limit of loading is a tenth of a second in tests.
    let reported = |expression: &str| {
        let bench = Bench::new(&format!(
            "return r1.recipe {{ limits = {{ cpu = 100 }}, reward = function() return 0 end, \
             env = r1.env {{ reset = function() local x = {expression} return {{ x = x }} end }} }}"
        ));
        let failure = run(bench.worker().reset(&Json::Null, 0)).expect_err("this must be refused");
        bench.show(failure.error)
    };
    assert_snapshot!(reported("r1.re.find('a', '(')"), @r#"
    r1.re.find: the pattern "(": unclosed group
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find('a', '(a)\\\\1')"), @r#"
    r1.re.find: the pattern "(a)\1": backreferences are not supported
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find('a', '(?=a)')"), @r#"
    r1.re.find: the pattern "(?=a)": look-around, including look-ahead and look-behind, is not supported
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find('a', '(\\\\w{50}){50}')"), @r#"
    r1.re.find: the pattern "(\w{50}){50}": too large: its repetitions take more than 1 MiB
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find('a', string.rep('a', 20000))"), @r#"
    r1.re.find: the pattern has 20000 bytes; 16384 are the most
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find(5, 'a')"), @r#"
    r1.re.find: `text` must be text, got the number 5
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.find('a', 'a', 0)"), @r#"
    r1.re.find: `from` must be a position in the text, 1 or more, got the number 0
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.replace('a', 'a', 5)"), @r#"
    r1.re.replace: `with` must be text or a function, got the number 5
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.replace('a', 'a', function() return 5 end)"), @r#"
    r1.re.replace: the function returned the number 5; it must return text or nil
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.replace(string.rep('a', 100000), 'a', string.rep('b', 1000))"), @r#"
    r1.re.replace: the result has more than 16777216 bytes
      --> x.lua:1
    "#);
    assert_snapshot!(reported("r1.re.gmach('a', 'a')"), @r#"
    `r1.re.gmach` does not exist
      --> x.lua:1
      hint: did you mean `gmatch` or `match`?
    "#);
}

/// Searches that take seconds and that Luau's interrupts can't stop.
#[test]
fn the_cpu_limit_applies_to_host_functions() {
    for body in [
        // Quadratic: each match scans the rest of the text.
        "r1.re.find_all(('a'):rep(2^16), '.*[^a]|a')",
        "r1.re.replace(('a'):rep(2^16), '.*[^a]|a', 'b')",
        "r1.re.split(('a'):rep(2^16), '.*[^a]|a')",
        "for _ in r1.re.gmatch(('a'):rep(2^16), '.*[^a]|a') do end",
        // One search with a large program over a long text.
        "r1.re.captures(('a'):rep(100000), HEAVY)",
        "for _ = 1, 3 do pcall(r1.re.captures, ('a'):rep(100000), HEAVY) end",
        "local texts = {} for k = 1, 40 do texts[k] = ('word' .. k .. ' '):rep(100000) end for _ = 1, 100 do r1.text.rank('word1', texts) end",
        "r1.text.template('{% for a in range(99999) %}{% for b in range(999) %}{% endfor %}{% endfor %}'):render({})",
        // The time of the thread that searches counts, also of many short searches.
        "r1.re.find_all(('a'):rep(2 ^ 20), '.*[^a]|a')",
        "while true do r1.json.decode('[' .. ('[],'):rep(300000) .. '0]') end",
        "local list = r1.json.decode('[' .. ('[],'):rep(300000) .. '0]') while true do r1.json.encode(list) end",
        "local t = r1.table.open { t = { { a = 1 } } }\n\
         while true do t:query('WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT 20000) SELECT sum(n) FROM x') end",
    ] {
        let bench = Bench::new(&format!(
            "local ways = {{}} for k = 1, 40 do ways[k] = ('(a)'):rep(k) end\n\
             local HEAVY = '(?:' .. table.concat(ways, '|') .. ')*$'\n\
             return r1.recipe {{ limits = {{ cpu = 0.2, memory = 1024, trajectory = 512 }}, reward = function() return 0 end,\n\
             env = r1.env {{ reset = function() {body} return {{}} end }} }}"
        ));
        let worker = bench.worker();
        let started = std::time::Instant::now();
        let failure = run(worker.reset(&json!({}), 1)).expect_err(body);
        assert_eq!(failure.status, crate::mdp::Status::ScriptLimit, "{body}: {failure}");
        assert!(started.elapsed().as_secs_f64() < 4.0, "{body} took {:?}", started.elapsed());
    }
}

#[test]
fn patterns_too_large_for_the_text_are_refused_at_once() {
    let bench = Bench::new(
        "return r1.recipe { reward = function() return 0 end, env = r1.env { reset = function()\n\
         return { it = r1.re.captures(('a'):rep(4000000), '(?:(a?)){1000}(.*)') } end } }",
    );
    let failure = run(bench.worker().reset(&json!({}), 1)).unwrap_err();
    assert!(failure.to_string().contains("is too much work"), "{failure}");
}

#[test]
fn replacements_name_groups_as_the_crate_does() {
    let replace = |with: &str| eval(&format!("(r1.re.replace('ab', '(?P<x>a)(b)', '{with}'))"));
    let crates = regex::bytes::Regex::new("(?P<x>a)(b)").unwrap();
    for (with, expected) in [
        ("$1-$2", "a-b"),
        ("${x}y", "ay"),
        ("$xy", ""),
        ("$$1", "$1"),
        ("$", "$"),
        ("$-", "$-"),
        ("${1", "${1"),
        ("$0!", "ab!"),
        ("$9", ""),
    ] {
        assert_eq!(crates.replace_all(b"ab", with.as_bytes()).as_ref(), expected.as_bytes(), "{with}");
        assert_eq!(replace(with), json!(expected), "{with}");
    }
}
