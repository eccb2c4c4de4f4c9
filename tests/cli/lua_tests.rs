//! `r1 test`: the repository's own tests in Lua, and the output of failing ones.

use std::path::Path;

use super::run_files::json_lines;
use super::{cli_snapshot, r1, shown};

#[test]
fn the_lua_tests_of_this_repository_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = r1(root, &["test", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(root, &output));
    let lines = json_lines(&String::from_utf8(output.stdout).unwrap());
    assert!(lines.last().unwrap()["passed"].as_u64().unwrap() >= 10, "{lines:?}");
}

const TESTS: &str = r#"test("a table that differs", function()
  print("seen")
  expect({ a = { 1, 2 }, b = "x" }):equals { a = { 1, 3 }, b = "x" }
end)
test("an error", function()
  local nothing
  return nothing.x
end)
test("one that holds", function()
  expect("a text"):contains("text"):matches("^a"):differs("b")
  expect(0.1 + 0.2):near(0.3)
  expect({ { n = 1 } }):contains { n = 1 }
  expect(function() error("so it is") end):raises("so it")
end)
"#;

#[test]
fn failed_lua_tests_show_the_line_and_the_difference() {
    cli_snapshot!({ "x_test.lua" => TESTS }, ["test"], @r#"
    exit: 6
    --- stdout
    x_test.lua
      FAIL  a table that differs
            expected {"a":[1,3],"b":"x"}, got {"a":[1,2],"b":"x"}
              --> x_test.lua:3
            - expected, + got
                a = {
                  1,
            -     3,
            +     2,
                },
                b = "x",
            | seen
      FAIL  an error
            attempt to index nil with 'x'
              --> x_test.lua:7
      ok    one that holds
    1 passed, 2 failed in [time]
    "#);
    cli_snapshot!({ "x_test.lua" => TESTS }, ["test", "-k", "holds", "-q"], @"
    exit: 0
    --- stdout
    1 passed, 0 failed, 2 left out in [time]
    ");
    cli_snapshot!({ "x_test.lua" => "test('x', 3)" }, ["test", "x_test.lua"], @r#"
    exit: 3
    --- stderr
    error: test: takes a name and a function, got the text "x" and the number 3
      --> x_test.lua:1
    "#);
    cli_snapshot!({ "x_test.lua" => "return 1" }, ["test", "x_test.lua"], @r#"
    exit: 3
    --- stderr
    error: the file has no tests
      --> x_test.lua
      hint: test("what holds", function() … end) makes one
    "#);
    cli_snapshot!({ "x.lua" => "return 1" }, ["test"], @"
    exit: 2
    --- stderr
    error: there are no tests in tests/lua, scripts or this directory
      hint: test files are named NAME_test.lua; `r1 new NAME` writes a script and its test
    ");
}
