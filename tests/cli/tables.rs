//! Tables in runs: a tool that answers SQL, recorded and replayed.

use super::run_files::read_json;
use super::{directory, fail, ran, succeed};

const RECIPE: &str = r#"
local tables = r1.table.open { films = "films.csv" }
local sql = r1.tools.table { tables = { films = "films.csv" }, format = "csv" }
return r1.recipe {
  env = r1.env {
    format = "retool",
    tools = { sql, r1.tools.table { name = "own", column = "rows" } },
    reset = function(task)
      local calls = {
        { name = "sql", arguments = { sql = "SELECT max(year) AS year FROM films" } },
        { name = "own", arguments = { sql = "SELECT n FROM t" } },
        { name = "own", arguments = { sql = "DELETE FROM t" } },
      }
      local texts = {}
      for i, result in ipairs(r1.call_tools(calls)) do texts[i] = result.content end
      return { task = task, text = table.concat(texts, ";"), messages = { r1.user("Say " .. #texts) } }
    end,
    step = function(state, action) return { reward = #action.text % 2, done = true } end,
  },
  reward = function(state)
    local text = state.text
    assert(text == "year\n2009;| n |\n|---|\n| " .. state.task.rows[1].n .. " |;" ..
      "Error: only SELECT statements are allowed: the tables are read-only", text)
    return tables:query("SELECT count(*) FROM films").rows[1][1]
  end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { rows = { { n = index } } } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

#[test]
fn a_run_with_sql_tools_is_recorded_and_replayed() {
    let dir = directory(&[("a.lua", RECIPE), ("films.csv", "title,year\nAlien,1979\nUp,2009\n")], true);
    let text = ran(dir.path(), &["run", "a.lua"]);
    assert!(!text.contains("failed"), "{text}");
    let config = read_json(dir.path().join("runs/a/config.json"));
    assert_eq!(config["script"]["resources"][0]["path"], "films.csv");
    succeed(dir.path(), &["replay", "a"]);

    std::fs::write(dir.path().join("films.csv"), "title,year\nHeat,1995\n").unwrap();
    let text = fail(dir.path(), &["replay", "a"]);
    assert!(text.contains("the resource has changed since the run read it"), "{text}");
}

#[test]
fn check_reports_a_table_that_cannot_be_read() {
    let dir = directory(&[("a.lua", RECIPE), ("films.csv", "title,year\nAlien,1979\nUp\n")], false);
    let text = fail(dir.path(), &["check", "a.lua"]);
    assert!(text.contains("films.csv:3: the row has 1 cells and the first line 2"), "{text}");
}
