//! Queries over tables: results, refusals, limits.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
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
    let source = FileTable { name: name.to_owned(), header: Vec::new(), read, is_text: false, types };
    [Tables::of_data(vec![data]), Tables::build(&[TableInput::Rows(source)], 2).unwrap()]
}

fn films() -> [Tables; 2] {
    both("films", &json!([{ "title": "A", "year": 1999 }, { "title": "B", "year": 2004, "note": [1] }]))
}

/// A query on this thread.
fn query(
    tables: &Tables,
    sql: &str,
    params: &[Cell],
    limits: &QueryLimits,
) -> Result<std::result::Result<QueryResult, QueryError>> {
    let result = tables.database()?.query(sql, params, limits, &Arc::default(), || ());
    Ok(result.map_err(|error| error.with_tables(&tables.infos)))
}

fn ask(tables: &Tables, sql: &str) -> std::result::Result<Json, String> {
    query(tables, sql, &[], &limits()).unwrap().map(|result| result.rows_as_json()).map_err(|error| error.to_string())
}

#[test]
fn sql_over_tables_of_files_and_of_plain_data_gives_the_same() {
    for tables in films() {
        assert_eq!(
            ask(&tables, "SELECT title, year + 1, note FROM films ORDER BY year DESC").unwrap(),
            json!([["B", 2005, "[1]"], ["A", 2000, null]])
        );
        assert_eq!(ask(&tables, "WITH x(n) AS (VALUES (1), (2)) SELECT sum(n) FROM x;").unwrap(), json!([[3]]));
        let result = query(&tables, "SELECT title FROM films WHERE year = ?", &[Cell::Integer(2004)], &limits());
        assert_eq!(result.unwrap().unwrap().rows_as_json(), json!([["B"]]));
        let one = QueryLimits { rows: 1, ..limits() };
        let result = query(&tables, "SELECT title FROM films", &[], &one).unwrap().unwrap();
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
        let refused = query(&tables, "SELECT random()", &[], &repeatable).unwrap().unwrap_err();
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
            let stopped = query(&tables, sql, &[], &short).unwrap().unwrap_err().to_string();
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

/// SQLite looks at the time between its instructions, and each of these functions is one.
#[test]
fn functions_of_large_values_end_with_the_time_of_the_query() {
    let [tables, _] = films();
    let short = QueryLimits { time: Duration::from_millis(300), memory: 256 << 20, ..limits() };
    let (a, b) = ("hex(zeroblob(4000000))", "hex(zeroblob(2000000))||'1'");
    let many = (0..2000).map(|n| format!("length({a}||{n})")).collect::<Vec<_>>().join(",");
    let nested = (1..40).map(|n| format!(", c{n} AS (SELECT 1 FROM c{0}, c{0})", n - 1)).collect::<Vec<_>>().concat();
    for (sql, late) in [
        (format!("SELECT instr({a}, {b})"), false),
        (format!("SELECT length(replace({a}, {b}, ''))"), false),
        (format!("SELECT length(trim({a}, {a}))"), false),
        (format!("SELECT {a} LIKE '{}1'", "%0_0".repeat(200)), false),
        (format!("SELECT {a} GLOB '{}1'", "*[0-9]?".repeat(100)), false),
        (format!("SELECT {many}"), true),
        (format!("WITH c0 AS (SELECT 1){nested} SELECT count(*) FROM c39"), false),
        ("SELECT json_patch('{}', '{}')".to_owned(), false),
        ("SELECT max(length(printf('%.*c', 16000000, 'x'))) FROM films a, films b, films c".to_owned(), false),
    ] {
        let clock = crate::clock::Clock::of_this_thread();
        let before = clock.now();
        let result = query(&tables, &sql, &[], &short).unwrap();
        let seconds = (clock.now() - before) as f64 / 1e9;
        // The time is linear in the size of the values. Code without optimisation needs seconds.
        assert!(seconds < 30.0, "{seconds} s: {}", &sql[..60.min(sql.len())]);
        if late {
            let why = result.unwrap_err().to_string();
            let limits = ["the query ran longer than 0.3 s", "the query needs more than 256 MiB of memory"];
            assert!(limits.contains(&why.as_str()), "{why}: {}", &sql[..60]);
        }
    }
    assert_eq!(ask(&tables, "SELECT max(year) FROM films").unwrap(), json!([[2004]]));
}

/// With the results of SQLite's own functions.
#[test]
fn functions_that_replace_those_of_sqlite_give_its_results() {
    let [tables, _] = films();
    let plain = rusqlite::Connection::open_in_memory().unwrap();
    for expression in [
        "instr('añb', 'b')",
        "instr('abc', '')",
        "instr('', 'a')",
        "instr(x'0102c3b103', x'03')",
        "instr('añb', x'62')",
        "instr(12345, 34)",
        "instr(NULL, 'a')",
        "replace('aXbXc', 'X', '--')",
        "replace('aXb', '', 'y')",
        "typeof(replace(123, '', 'y'))",
        "replace(1231, 1, 0.5)",
        "replace('a', 'a', NULL)",
        "trim('ñxañxñ', 'xñ')",
        "ltrim('  a ', ' ')",
        "rtrim('aab', 'b')",
        "trim('aaa', 'a')",
        "trim('abc', '')",
        "trim(NULL, 'a')",
        "trim('a', NULL)",
        "'aBc' LIKE 'AbC'",
        "'Ñ' LIKE 'ñ'",
        "'abcd' LIKE 'a%_d'",
        "'a%b' LIKE 'a\\%b' ESCAPE '\\'",
        "'ab' LIKE 'a\\%b' ESCAPE '\\'",
        "'a' LIKE 'a\\' ESCAPE '\\'",
        "'' LIKE '%'",
        "'' LIKE '_'",
        "'mississippi' LIKE '%iss%ip%'",
        "123 LIKE '1%'",
        "NULL LIKE 'a'",
        "'abc' GLOB 'a*'",
        "'aBc' GLOB 'abc'",
        "'b' GLOB '[a-c]'",
        "'b' GLOB '[^a-c]'",
        "']' GLOB '[]]'",
        "'-' GLOB '[a-]'",
        "'a-' GLOB '[a-c][-x]'",
        "'x' GLOB '[a'",
        "'ab?' GLOB '?b[?]'",
    ] {
        let sql = format!("SELECT {expression}");
        let wanted = plain.query_row(&sql, [], |row| Ok(Cell::from(row.get_ref(0)?))).unwrap();
        let result = query(&tables, &sql, &[], &limits()).unwrap().unwrap();
        assert_eq!(result.rows, [[wanted]], "{expression}");
    }
    assert_eq!(
        ask(&tables, "SELECT 'a' LIKE 'b' ESCAPE 'xy'").unwrap_err(),
        "ESCAPE expression must be a single character"
    );
}

/// As in SQLite 3.40.1 of Python, which has these functions; its `log` has another last bit.
#[test]
fn mathematical_functions_are_those_of_sqlite() {
    let [tables, _] = films();
    for (expression, wanted) in [
        ("sqrt(2)", json!(2_f64.sqrt())),
        ("sqrt('16')", json!(4.0)),
        ("sqrt(-1)", json!(null)),
        ("sqrt('x')", json!(null)),
        ("sqrt(NULL)", json!(null)),
        ("sqrt(x'31')", json!(null)),
        ("pow(2, 10)", json!(1024.0)),
        ("power(2, 0.5)", json!(2_f64.sqrt())),
        ("pow(-1, 0.5)", json!(null)),
        ("pow(2, NULL)", json!(null)),
        ("ln(exp(1))", json!(1.0)),
        ("ln(0)", json!(null)),
        ("ln(-1)", json!(null)),
        ("log(1000)", json!(1000_f64.log10())),
        ("log10(1000)", json!(1000_f64.log10())),
        ("log2(8)", json!(3.0)),
        ("log(2, 8)", json!(8_f64.ln() / 2_f64.ln())),
        ("log(1, 8)", json!(null)),
        ("log(0, 8)", json!(null)),
        ("log(2, 0)", json!(null)),
        ("floor(-1.5)", json!(-2.0)),
        ("ceil(1.2)", json!(2.0)),
        ("ceiling(7)", json!(7)),
        ("floor('7')", json!(7)),
        ("floor(9223372036854775807)", json!(i64::MAX)),
        ("trunc(-1.9)", json!(-1.0)),
        ("mod(-7, 3)", json!(-1.0)),
        ("mod(7, 0)", json!(null)),
        ("degrees(pi())", json!(180.0)),
        ("radians(180)", json!(std::f64::consts::PI)),
        ("atan2(1, 1)", json!(std::f64::consts::FRAC_PI_4)),
        ("acos(2)", json!(null)),
        ("sin(0) + cos(0) + tan(0)", json!(1.0)),
    ] {
        assert_eq!(ask(&tables, &format!("SELECT {expression}")).unwrap(), json!([[wanted]]), "{expression}");
    }
    assert_eq!(ask(&tables, "SELECT sqrt()").unwrap_err(), "wrong number of arguments to function sqrt()");
}

/// A query whose last instruction does not end is left behind; others go on.
#[test]
fn a_caller_does_not_wait_for_a_query_longer_than_its_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endless = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x";
    for tables in films().map(Arc::new) {
        let long = QueryLimits { time: Duration::from_mins(10), ..limits() };
        // A caller that goes away cancels its query, and frees the connection.
        for _ in 0..3 {
            let query = tables.query(endless.to_owned(), long.clone());
            let waited = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(50), query).await });
            assert!(waited.is_err());
        }
        let one = "SELECT max(year) FROM films".to_owned();
        let result = runtime.block_on(tables.query(one.clone(), limits())).unwrap().unwrap();
        assert_eq!(result.rows, [[Cell::Integer(2004)]]);
        let mut used = Duration::ZERO;
        let spend = |so_far| {
            used = so_far;
            used < Duration::from_millis(50)
        };
        let stopped = tables.query_blocking(endless.to_owned(), Vec::new(), long, Duration::MAX, spend);
        assert!(stopped.unwrap().unwrap_err().timed_out() && used >= Duration::from_millis(50));
        let result = tables.query_blocking(one, Vec::new(), limits(), Duration::from_mins(1), |_| true);
        assert_eq!(result.unwrap().unwrap().rows.len(), 1);
    }
}

#[test]
fn equal_column_names_are_numbered_in_linear_time() {
    let mut names = TableNames::default();
    let clock = crate::clock::Clock::of_this_thread();
    let before = clock.now();
    let made: Vec<String> = (1..=50_000).map(|at| names.column("a", at)).collect();
    assert_eq!((made[0].as_str(), made[1].as_str(), made[49_999].as_str()), ("a", "a_2", "a_50000"));
    assert_eq!((names.column("A_3", 1), names.column("a", 1)), ("A_3_2".to_owned(), "a_50001".to_owned()));
    assert!(clock.now() - before < 5_000_000_000, "{} ns", clock.now() - before);
}

#[test]
fn results_end_at_their_limits_of_rows_and_bytes() {
    for tables in both("t", &(0..50).map(|n| json!({ "n": n })).collect()) {
        let returned = |rows, bytes| {
            let limits = QueryLimits { rows, bytes, ..limits() };
            let result = query(&tables, "SELECT hex(zeroblob(500)) FROM t", &[], &limits).unwrap().unwrap();
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
    query(&tables, "SELECT title FROM films", &[], &small).unwrap().unwrap();
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
    let error = query(&Tables::of_data(vec![data]), "SELECT 1", &[], &limits()).unwrap_err();
    assert!(error.message.contains("table `wide` with 3000 columns"), "{error}");
}
