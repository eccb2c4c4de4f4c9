//! Queries over tables: results, refusals, limits.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::*;

fn limits() -> QueryLimits {
    QueryLimits { time: Duration::from_secs(30), memory: 32 << 20, rows: 100, bytes: 1 << 20, repeatable: false }
}

/// The same tables in memory and in a file.
fn both(name: &str, rows: &Json) -> [Tables; 2] {
    let types = ColumnTypes::default();
    let data = TableData::read(name, rows, &types).unwrap();
    let all = rows.as_array().unwrap();
    let read: ReadRows<'_> =
        Box::new(|use_row| all.iter().try_for_each(|row| use_row(FileRow::Fields(row.as_object().unwrap()))));
    let source = Rows { name: name.to_owned(), header: Vec::new(), read, is_text: false, types };
    [Tables::of_data(vec![data]), Tables::build(&[Source::Rows(source)], 2).unwrap()]
}

fn films() -> [Tables; 2] {
    both("films", &json!([{ "title": "A", "year": 1999 }, { "title": "B", "year": 2004, "note": [1] }]))
}

fn ask(tables: &Tables, sql: &str) -> Result<Json, String> {
    tables.query(sql, &[], &limits()).unwrap().map(|result| result.rows_as_json()).map_err(|error| error.to_string())
}

#[test]
fn sql_over_tables_of_files_and_of_plain_data_gives_the_same() {
    for tables in films() {
        assert_eq!(
            ask(&tables, "SELECT title, year + 1, note FROM films ORDER BY year DESC").unwrap(),
            json!([["B", 2005, "[1]"], ["A", 2000, null]])
        );
        assert_eq!(ask(&tables, "WITH x(n) AS (VALUES (1), (2)) SELECT sum(n) FROM x;").unwrap(), json!([[3]]));
        let result = tables.query("SELECT title FROM films WHERE year = ?", &[Cell::Integer(2004)], &limits());
        assert_eq!(result.unwrap().unwrap().rows_as_json(), json!([["B"]]));
        let one = QueryLimits { rows: 1, ..limits() };
        let result = tables.query("SELECT title FROM films", &[], &one).unwrap().unwrap();
        assert!(result.more && result.rows.len() == 1);
    }
    let shown = describe(films()[0].tables(), 1, &TableOptions::default());
    insta::assert_snapshot!(shown, @r"
    films(title TEXT, year INTEGER, note TEXT), 2 rows
    | title | year | note |
    |---|---|---|
    | A | 1999 | NULL |
    … (there are more rows; 1 row is shown)
    ");
}

#[test]
fn queries_only_read_tables() {
    for tables in films() {
        for (sql, message) in [
            ("DELETE FROM films", "only SELECT statements are allowed: the tables are read-only"),
            ("UPDATE films SET year = 0", "only SELECT statements are allowed: the tables are read-only"),
            ("INSERT INTO films VALUES ('C', 1, 2)", "only SELECT statements are allowed: the tables are read-only"),
            ("CREATE TABLE t (a)", "only SELECT statements are allowed: the tables are read-only"),
            ("CREATE TEMP TABLE t (a)", "only SELECT statements are allowed: the tables are read-only"),
            ("DROP TABLE films", "only SELECT statements are allowed: the tables are read-only"),
            ("ATTACH '/etc/passwd' AS p", "only SELECT statements are allowed: the tables are read-only"),
            ("VACUUM INTO '/tmp/x'", "only SELECT statements are allowed: the tables are read-only"),
            ("BEGIN", "only SELECT statements are allowed: the tables are read-only"),
            ("PRAGMA query_only = 0", "PRAGMA query_only is not allowed"),
            ("PRAGMA temp_store_directory = '/'", "PRAGMA temp_store_directory is not allowed"),
            ("SELECT load_extension('x')", "the function load_extension is not allowed"),
            ("SELECT 1; DELETE FROM films", "only one SQL statement is allowed"),
            ("SELECT 1; SELECT 2", "only one SQL statement is allowed"),
            ("", "there is no SQL statement"),
            ("-- nothing", "there is no SQL statement"),
            ("SELECT 1\0", "the statement has a NUL character"),
            ("SELECT ?", "the statement has 1 parameters and 0 are given"),
            ("SELEC 1", "near \"SELEC\": syntax error"),
            ("SELECT * FROM film", "no such table: film; there are films(title TEXT, year INTEGER, note TEXT)"),
            ("SELECT tile FROM films", "no such column: tile; there are films(title TEXT, year INTEGER, note TEXT)"),
        ] {
            assert_eq!(ask(&tables, sql).unwrap_err(), message, "{sql}");
        }
        assert_eq!(ask(&tables, "SELECT name FROM sqlite_schema").unwrap(), json!([["films"]]));
        assert_eq!(ask(&tables, "SELECT name FROM pragma_table_info('films')").unwrap().as_array().unwrap().len(), 3);
        assert_eq!(ask(&tables, "SELECT count(*) FROM films").unwrap(), json!([[2]]));
        let repeatable = QueryLimits { repeatable: true, ..limits() };
        let refused = tables.query("SELECT random()", &[], &repeatable).unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "the function random is not allowed");
    }
}

#[test]
fn queries_that_never_end_or_grow_without_end_are_stopped() {
    let endless = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x";
    let growing = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT n FROM x ORDER BY -n";
    let rows: Json = (0..300).map(|n| json!({ "n": n })).collect();
    for tables in both("t", &rows) {
        let short = QueryLimits { time: Duration::from_millis(200), ..limits() };
        for sql in [endless, "SELECT count(*) FROM t a, t b, t c, t d WHERE a.n + b.n + c.n + d.n = -1"] {
            let started = Instant::now();
            let stopped = tables.query(sql, &[], &short).unwrap().unwrap_err().to_string();
            assert_eq!(stopped, "the query ran longer than 0.2 s", "{sql}");
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        for sql in [
            growing,
            "SELECT a.n, b.n, c.n, hex(zeroblob(100)) FROM t a, t b, t c ORDER BY 4, 1, 2, 3",
            "SELECT group_concat(hex(zeroblob(4000000)) || a.n) FROM t a",
        ] {
            assert_eq!(ask(&tables, sql).unwrap_err(), "the query needs more than 32 MiB of memory", "{sql}");
        }
        // The next query of the same connection has all of its memory and time again.
        assert_eq!(ask(&tables, "SELECT max(n) FROM t").unwrap(), json!([[299]]));
        for sql in ["SELECT zeroblob(100000000)", "SELECT replace(hex(zeroblob(1000)), '0', hex(zeroblob(50000)))"] {
            assert_eq!(ask(&tables, sql).unwrap_err(), "a value of the query is longer than 16 MiB", "{sql}");
        }
    }
}

#[test]
fn results_end_at_their_limits_of_rows_and_bytes() {
    for tables in both("t", &(0..50).map(|n| json!({ "n": n })).collect()) {
        let returned = |rows, bytes| {
            let limits = QueryLimits { rows, bytes, ..limits() };
            let result = tables.query("SELECT hex(zeroblob(500)) FROM t", &[], &limits).unwrap().unwrap();
            (result.rows.len(), result.more)
        };
        assert_eq!(returned(50, 1 << 20), (50, false));
        assert_eq!(returned(49, 1 << 20), (49, true));
        // A row has 1000 bytes, and 16 for its cell; the row that passes the limit is the last.
        assert_eq!(returned(50, 5000), (5, true));
    }
}

#[test]
fn the_memory_of_a_query_does_not_limit_what_its_thread_does_next() {
    let [tables, _] = films();
    let small = QueryLimits { memory: 1 << 20, ..limits() };
    tables.query("SELECT title FROM films", &[], &small).unwrap().unwrap();
    let rows: Json = (0..3000).map(|n| json!({ "n": n, "text": "x".repeat(1000) })).collect();
    for large in both("large", &rows) {
        assert_eq!(ask(&large, "SELECT count(*) FROM large").unwrap(), json!([[3000]]));
    }
}

#[test]
fn hostile_statements_are_errors_of_the_query() {
    let [_, tables] = films();
    for sql in [
        "SELECT 1;".repeat(20_000),
        ";".repeat(200_000),
        format!("SELECT {}1{}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("SELECT {}1", "- ".repeat(50_000)),
        format!("SELECT 1{}", " UNION SELECT 1".repeat(5000)),
        format!("SELECT {}", vec!["1"; 100_000].join(",")),
        format!("SELECT 'x' LIKE '{}'", "%_".repeat(5000)),
        "SELECT 1".repeat(100_000),
        "\u{feff}\u{202e}\u{0}".to_owned(),
    ] {
        let message = ask(&tables, &sql).unwrap_err();
        assert!(message.len() < 300, "{}", &message[..300]);
    }
    assert_eq!(ask(&tables, "SELECT count(*) FROM films").unwrap(), json!([[2]]));
}

#[test]
fn a_query_of_one_thread_does_not_count_for_another() {
    let [_, tables] = both("t", &json!([{ "n": 1 }]));
    let big = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT 400000) \
               SELECT count(DISTINCT n || hex(zeroblob(100))) FROM x";
    std::thread::scope(|scope| {
        let large = scope.spawn(|| ask(&tables, big));
        let small = scope.spawn(|| (0..200).map(|_| ask(&tables, "SELECT n FROM t")).collect::<Vec<_>>());
        assert_eq!(large.join().unwrap().unwrap_err(), "the query needs more than 32 MiB of memory");
        assert!(small.join().unwrap().into_iter().all(|result| result == Ok(json!([[1]]))));
    });
}

#[test]
fn cells_of_any_text_are_kept() {
    let odd = "a\0b|c\n\"d\" é 表";
    let [memory, file] = both("t", &json!([{ "x": odd, "y": true, "z": 9_007_199_254_740_993_i64, "w": 1.5 }]));
    for tables in [memory, file] {
        assert_eq!(ask(&tables, "SELECT * FROM t").unwrap(), json!([[odd, 1, 9_007_199_254_740_993_i64, 1.5]]));
    }
}

#[test]
fn a_table_with_too_many_columns_is_refused() {
    let row: Map<String, Json> = (0..3000).map(|n| (format!("c{n}"), json!(n))).collect();
    let data = TableData::read("wide", &json!([row]), &ColumnTypes::default()).unwrap();
    let error = Tables::of_data(vec![data]).query("SELECT 1", &[], &limits()).unwrap_err();
    assert!(error.message.contains("table `wide` with 3000 columns"), "{error}");
}
