//! Tables: SQL as a tool of the policy, and as a function of scripts.

use serde_json::json;

use super::*;
use crate::mdp::{Answer, Split};

const FILMS: &str = "title,year,gross\nAlien,1979,\"104,931,801\"\nHeat,1995,\nUp,2009,731542621\n";

/// The content of the first tool result of a step with one query.
fn reported(worker: &Worker, task: &Json, record: &Record, sql: &str) -> Result<String, Failure> {
    run(async {
        let state = worker.reset_as(Split::Train, task, 7, record).await?;
        let calls = vec![call("sql", json!({ "sql": sql }))];
        worker.step(&state, &Action { tool_calls: calls, ..action("") }).await?;
        let state = state.snapshot().unwrap();
        let messages = state["state"]["messages"].as_array().unwrap().clone();
        Ok(messages.last().unwrap()["content"].as_str().unwrap().to_owned())
    })
}

fn bench(tool: &str) -> Bench {
    let bench = Bench::new(&recipe(&format!("local env = r1.env {{ tools = {{ {tool} }} }}")));
    bench.file("films.csv", FILMS);
    bench
}

fn description(worker: &Worker, task: &Json) -> String {
    let state = run(worker.reset(task, 0)).unwrap();
    state.tools()[0]["function"]["description"].as_str().unwrap().to_owned()
}

#[test]
fn sql_over_a_csv_file_is_a_tool_that_names_its_columns() {
    let bench = bench("r1.tools.table { tables = { films = 'films.csv' }, preview = 1 }");
    let worker = bench.worker();
    let task = json!({ "prompt": "x" });
    insta::assert_snapshot!(description(&worker, &task), @r"
    Runs one SQL SELECT statement (SQLite) and gives its rows.

    Tables:
    films(title TEXT, year INTEGER, gross TEXT), 3 rows
    | title | year | gross |
    |---|---|---|
    | Alien | 1979 | 104,931,801 |
    … (there are more rows; 1 row is shown)
    ");
    let ask = |sql: &str| reported(&worker, &task, &Record::live(), sql).unwrap();
    insta::assert_snapshot!(ask("SELECT title, gross FROM films WHERE year > 1990 ORDER BY year"), @r"
    | title | gross |
    |---|---|
    | Heat | NULL |
    | Up | 731542621 |
    ");
    insta::assert_snapshot!(ask("SELECT titel FROM films"), @"Error: no such column: titel; there are films(title TEXT, year INTEGER, gross TEXT)");
    insta::assert_snapshot!(ask("DROP TABLE films"), @"Error: only SELECT statements are allowed: the tables are read-only");
    // Every row is a query of the default environment: the trajectory continues after an error.
    let thousands = "r1.tools.table { tables = { films = { path = 'films.csv', thousands = true } }, format = 'csv' }";
    let bench = self::bench(thousands);
    let shown =
        reported(&bench.worker(), &task, &Record::live(), "SELECT max(gross), typeof(gross) FROM films").unwrap();
    assert_eq!(shown, "max(gross),typeof(gross)\n731542621,integer");
}

/// Names that are keywords, or have blanks, quotes, digits at the start or other letters.
#[test]
fn names_that_need_quotes_in_sql_are_shown_with_them() {
    let bench = bench("r1.tools.table { tables = { films = 'films.csv', order = 'odd.csv' } }");
    bench.file(
        "odd.csv",
        "order,group,select,from,key,a b,\"c\"\"d\",2020,größe,name,current_date\n1,2,3,4,5,6,7,8,9,10,11\n",
    );
    let (worker, task) = (bench.worker(), json!({ "prompt": "x" }));
    let shown = description(&worker, &task);
    let names = shown.lines().find_map(|line| line.strip_prefix("\"order\"(")?.split_once(')')).unwrap().0.to_owned();
    assert_eq!(
        names,
        "\"order\" INTEGER, \"group\" INTEGER, \"select\" INTEGER, \"from\" INTEGER, \"key\" INTEGER, \"a b\" INTEGER, \
         \"c\"\"d\" INTEGER, \"2020\" INTEGER, \"größe\" INTEGER, name INTEGER, \"current_date\" INTEGER"
    );
    let sum = names.replace(" INTEGER", "").replace(", ", "+");
    let ask = |sql: &str| reported(&worker, &task, &Record::live(), sql).unwrap();
    assert_eq!(ask(&format!("SELECT {sum} AS n FROM \"order\"")), "| n |\n|---|\n| 66 |");
    let message = "Error: near \"order\": syntax error; the name is a keyword and needs quotes: \"order\"";
    assert_eq!(ask("SELECT order FROM films"), message);
    assert_eq!(ask("SELECT 1 FROM Order"), message.replacen("near \"order", "near \"Order", 1));
    assert_eq!(
        ask("SELECT FROM films"),
        "Error: near \"FROM\": syntax error; the name is a keyword and needs quotes: \"from\""
    );
}

/// A file of another encoding, or with an open quote, is refused as a dataset is.
#[test]
fn a_table_of_damaged_csv_is_refused_with_its_line() {
    for (bytes, line) in [(&b"title,n\na,1\ncaf\xe9,2\n"[..], 3), (b"title,n\na,\"1\nb,2\n", 2)] {
        let bench = Bench::new(&recipe(
            "local env = r1.env { tools = { r1.tools.table { tables = { films = 'films.csv' } } } }",
        ));
        std::fs::write(bench.dir.path().join("films.csv"), bytes).unwrap();
        let error = bench.load(&[]).unwrap_err();
        assert!(error.message.contains(&format!("films.csv:{line}: ")), "{error}");
    }
}

/// CSV is read in order without an index of its rows, and by rows where columns are renamed.
#[test]
fn csv_gives_the_same_table_with_and_without_renamed_columns() {
    for (options, column) in [("path = 't.csv'", "n"), ("path = 't.csv', columns = { m = 'n' }", "m")] {
        let bench = Bench::new(&recipe(&format!(
            "local env = r1.env {{ tools = {{ r1.tools.table {{ tables = {{ t = {{ {options} }} }} }} }} }}"
        )));
        let bytes = b"\xEF\xBB\xBFname,n\r\n\"a, b\",1\r\nc, \r\nd,3\r\n";
        std::fs::write(bench.dir.path().join("t.csv"), bytes).unwrap();
        let sql =
            format!("SELECT group_concat(name, '+'), sum({column}), count({column}), min(typeof({column})) FROM t");
        let shown = reported(&bench.worker(), &json!({ "prompt": "x" }), &Record::live(), &sql).unwrap();
        assert!(shown.ends_with("| a, b+c+d | 4 | 2 | integer |"), "{shown}");
    }
}

#[test]
fn formats_of_files_give_the_same_table() {
    for (name, text) in [
        ("t.csv", "name,n\na,1\nb,2\n"),
        ("t.tsv", "name\tn\na\t1\nb\t2\n"),
        ("t.jsonl", "{\"name\":\"a\",\"n\":1}\n{\"name\":\"b\",\"n\":2}\n"),
        ("t.json", "[{\"name\":\"a\",\"n\":1},{\"name\":\"b\",\"n\":2}]"),
    ] {
        let bench = Bench::new(&recipe(&format!(
            "local env = r1.env {{ tools = {{ r1.tools.table {{ tables = {{ '{name}' }} }} }} }}"
        )));
        bench.file(name, text);
        let shown =
            reported(&bench.worker(), &json!({ "prompt": "x" }), &Record::live(), "SELECT sum(n), max(name) FROM t");
        assert_eq!(shown.unwrap(), "| sum(n) | max(name) |\n|---|---|\n| 3 | b |", "{name}");
    }
}

#[test]
fn each_trajectory_has_the_tables_of_its_task() {
    let bench = bench("r1.tools.table { column = 'table' }");
    let worker = bench.worker();
    let wiki = json!({ "prompt": "x", "table": { "header": ["Nation", "Gold", "Gold", ""], "rows": [["A", "3", "1", "x"], ["B", "10", "2", "y"]] } });
    insta::assert_snapshot!(description(&worker, &wiki), @r"
    Runs one SQL SELECT statement (SQLite) and gives its rows.

    Tables:
    t(Nation TEXT, Gold INTEGER, Gold_2 INTEGER, column_4 TEXT), 2 rows
    ");
    let ask = |task: &Json, sql: &str| reported(&worker, task, &Record::live(), sql).unwrap();
    assert_eq!(ask(&wiki, "SELECT Nation FROM t ORDER BY Gold DESC"), "| Nation |\n|---|\n| B |\n| A |");
    let several = json!({ "prompt": "x", "table": { "a": [{ "n": 1 }], "b": "n,m\n1,7\n" } });
    assert_eq!(ask(&several, "SELECT m FROM a JOIN b USING (n)"), "| m |\n|---|\n| 7 |");
    assert_eq!(ask(&wiki, "SELECT count(*) FROM t"), "| count(*) |\n|---|\n| 2 |");
    for (task, message) in [
        (json!({ "prompt": "x" }), "tool `sql`: the task has no column `table`"),
        (json!({ "table": 5 }), "tool `sql`: table `t`: it must be a list of rows"),
        (json!({ "table": { "a b": [{ "n": 1 }] } }), "tool `sql`: \"a b\" can't be the name of a table"),
        (json!({ "table": { "header": ["a"], "rows": [["x", "y"]] } }), "row 1: the row has 2 cells and the header 1"),
    ] {
        let failure = run(worker.reset(&task, 0)).unwrap_err();
        assert!(bench.show(&failure).contains(message), "{}", bench.show(&failure));
    }
}

#[test]
fn a_state_with_tables_of_its_task_is_restored_from_its_snapshot() {
    let bench = bench("r1.tools.table { tables = { own = { column = 'rows' } } }");
    let worker = bench.worker();
    let task = json!({ "prompt": "x", "rows": [{ "n": 4 }] });
    let state = run(worker.reset(&task, 0)).unwrap();
    let snapshot = state.snapshot().unwrap();
    assert_eq!(snapshot["env"]["rows"], task["rows"]);
    let restored = worker.restore(&snapshot).unwrap();
    assert_eq!(restored.tools(), state.tools());
}

#[test]
fn a_replay_of_queries_needs_no_database() {
    let bench = bench("r1.tools.table { tables = { films = 'films.csv' } }");
    let (worker, task, record) = (bench.worker(), json!({ "prompt": "x" }), Record::live());
    let sql = "SELECT count(*) FROM films";
    reported(&worker, &task, &record, sql).unwrap();
    let mut exchanges = record.take();
    assert_eq!(exchanges.len(), 1);
    if let Some(Answer::Ok(answer)) = &mut exchanges[0].answer {
        answer["text"] = json!("from the record");
    }
    let replay = Record::replay(exchanges, Strictness::Exact);
    assert_eq!(reported(&worker, &task, &replay, sql).unwrap(), "from the record");
    assert_eq!(replay.close(), None);
}

#[test]
fn scripts_query_tables_with_parameters() {
    let rows = "r1.table.open { t = { { n = 1, s = 'a' }, { n = 2 } } }";
    assert_eq!(
        eval(&format!("{rows}:query('SELECT n, s FROM t WHERE n >= ? ORDER BY n', {{ 1 }})")),
        json!({ "columns": ["n", "s"], "rows": [[1, "a"], [2, null]], "more": false })
    );
    assert_eq!(
        eval(&format!("{{ select(2, {rows}:query('SELECT n FROM u')) }}")),
        json!(["no such table: u; there are t(n INTEGER, s TEXT)"])
    );
    assert_eq!(
        eval(&format!("{{ select(2, {rows}:query('SELECT random()')) }}")),
        json!(["the function random is not allowed"])
    );
    assert_eq!(eval(&format!("{rows}:describe()")), json!("t(n INTEGER, s TEXT), 2 rows"));
    let few = "r1.table.open({ t = { { n = 1 }, { n = 2 } } }, { max_rows = 1 }):query('SELECT n FROM t')";
    assert_eq!(eval(few), json!({ "columns": ["n"], "rows": [[1]], "more": true }));
    // A query that does not end is limited by the CPU time of the call.
    let endless = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x";
    let bench = Bench::new(&format!(
        "return r1.recipe {{ limits = {{ cpu = 0.2 }}, env = r1.env {{ reset = function() \
         return {{ it = {rows}:query([[{endless}]]) }} end }}, reward = function() return 0 end }}"
    ));
    let failure = run(bench.worker().reset(&Json::Null, 0)).unwrap_err();
    assert_eq!(failure.status, crate::mdp::Status::ScriptLimit, "{}", bench.show(&failure));
}

#[test]
fn tables_that_cannot_be_read_are_refused_with_the_reason() {
    let files = |tool: &str| {
        let bench = bench(tool);
        bench.file("ragged.csv", "a,b\n1,2\n3\n");
        bench.file("twice.csv", "a,a\n1,2\n");
        bench.file("empty.csv", "");
        bench.file("broken.parquet", "PAR1");
        bench.refusal()
    };
    for (tool, message) in [
        ("{ tables = { t = 'missing.csv' } }", "missing.csv: can't read the resource: no such file or directory"),
        ("{ tables = { t = 'ragged.csv' } }", "ragged.csv:3: the row has 1 cells and the first line 2"),
        ("{ tables = { t = 'twice.csv' } }", "twice.csv:1: two columns are called `a`"),
        ("{ tables = { t = 'empty.csv' } }", "empty.csv: the dataset has no rows"),
        ("{ tables = { t = 'broken.parquet' } }", "broken.parquet: can't read the Parquet file"),
        ("{ tables = { t = '/etc/passwd' } }", "a data file outside of the script's directory needs the extension"),
        ("{ tables = { ['a b'] = 'films.csv' } }", "\"a b\" can't be the name of a table"),
        ("{ tables = { sqlite_x = 'films.csv' } }", "\"sqlite_x\" can't be the name of a table"),
        ("{ tables = { t = 5 } }", "table `t` must be a path, a list of rows"),
        ("{ tables = { t = { path = 'films.csv', types = { yeer = 'text' } } } }", "did you mean `year`?"),
        ("{ tables = { t = { path = 'films.csv', types = { year = 'int' } } } }", "`types.year` is \"int\""),
        (
            "{ tables = { t = { path = 'films.csv', types = { title = 'real' } } } }",
            "column `title` has the type real, got \"Alien\"",
        ),
        ("{ tables = { t = { path = 'films.csv', formt = 'csv' } } }", "unknown field `formt`"),
        ("{ tables = { t = 'films.csv', u = { column = 'x' } } }", "use two tools"),
        ("{ column = 'x', cache = 'run' }", "would mix results of different tasks"),
        ("{}", "needs `tables`, or `column`"),
        ("{ tables = { t = 'films.csv' }, max_rows = 0 }", "`max_rows` must be from 1 to 1000000"),
        ("{ tables = { t = 'films.csv' }, formats = 'csv' }", "did you mean `format`?"),
        ("{ tables = { t = 'films.csv' }, format = 'html' }", "markdown"),
    ] {
        let refusal = files(&format!("r1.tools.table {tool}"));
        assert!(refusal.contains(message) && refusal.contains("x.lua:1"), "{tool}: {refusal}");
    }
    let late = Bench::new(&recipe(
        "local env = r1.env { reset = function() return { t = r1.table.open { t = 't.csv' } } end }",
    ));
    late.file("t.csv", FILMS);
    let failure = run(late.worker().reset(&Json::Null, 0)).unwrap_err();
    assert!(late.show(&failure).contains("`t.csv` is read after loading"), "{}", late.show(&failure));
}
