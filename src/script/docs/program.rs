//! Declarations: globals of the host.

use super::{Entry, Param, Scope, f, p, program};

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "require",
        &[p("name", "string", "Path without extension, relative to the script's directory; a Python file with it")],
        &[("any", "The value that the module returns; the text of a Python file")],
        "Loads a module from the script's directory. Only available while the script is loaded.",
        "",
    ),
    f(
        "print",
        &[p("...", "any", "")],
        &[],
        "Writes a line: in a recipe to the log, in a program to standard output.",
        "",
    ),
    f(
        "math.random",
        &[p("low?", "number", ""), p("high?", "number", "")],
        &[("number", "")],
        "As in Lua, but from the trajectory's own random stream: the same seed gives the same numbers, independent of other trajectories.",
        "",
    ),
    f("math.randomseed", &[p("seed", "number", "")], &[], "Selects another random stream for this call.", ""),
    f("error", &[p("message", "any", "A table is shown as JSON"), p("level?", "number", "")], &[], "As in Lua.", ""),
    program(
        "io.read",
        &[p(
            "format?",
            "string | number",
            "\"l\" a line, \"L\" a line with its end, \"n\" a number, \"a\" all, or a number of bytes",
        )],
        &[("(string | number)?", "")],
        "Reads standard input.",
        "",
    ),
    program(
        "io.lines",
        &[p("path?", "string", "Default: standard input")],
        &[("() -> string?", "")],
        "Iterates over the lines of a file.",
        "",
    ),
    program("io.write", &[p("...", "any", "")], &[], "Writes to standard output.", ""),
    program(
        "io.open",
        &[p("path", "string", ""), p("mode?", "string", "Only \"r\" is supported")],
        &[("any", "A file with :read, :lines and :close"), ("string?", "Error message")],
        "Opens a file for reading.",
        "",
    ),
    program("os.exit", &[p("code?", "number | boolean", "")], &[], "Ends the program.", ""),
    program("os.time", &[], &[("number", "Integer seconds since 1970")], "Returns the current time.", ""),
    program("os.clock", &[], &[("number", "")], "Returns the seconds since the program started.", ""),
    program(
        "os.getenv",
        &[p("name", "string", "")],
        &[("string?", "")],
        "Returns the value of an environment variable.",
        "",
    ),
    test(
        "test",
        &[p("name", "string", "Name of the test"), p("body", "() -> any…", "")],
        &[],
        "Defines a test, which r1 test runs.",
    ),
    test(
        "expect",
        &[p("value", "any", ""), p("...", "any", "Ignored")],
        &[("Expectation", "")],
        "Starts an assertion about a value.",
    ),
    test(
        "Expectation:equals",
        &[p("other", "any", "")],
        &[("Expectation", "")],
        "Asserts that the value equals another one; tables are compared entry by entry.",
    ),
    test(
        "Expectation:differs",
        &[p("other", "any", "")],
        &[("Expectation", "")],
        "Asserts that the value differs from another one.",
    ),
    test(
        "Expectation:near",
        &[p("other", "number", ""), p("tolerance?", "number", "1e-9")],
        &[("Expectation", "")],
        "Asserts that the value is a number within a tolerance of another one.",
    ),
    test(
        "Expectation:contains",
        &[p("part", "any", "")],
        &[("Expectation", "")],
        "Asserts that a text contains a part, or a list an equal item.",
    ),
    test(
        "Expectation:matches",
        &[p("pattern", "string", "Lua pattern")],
        &[("Expectation", "")],
        "Asserts that a text matches a Lua pattern.",
    ),
    test(
        "Expectation:raises",
        &[p("text?", "string", "")],
        &[("Expectation", "")],
        "Asserts that a function raises an error whose message contains a text.",
    ),
];

/// A function for tests.
const fn test(
    name: &'static str,
    params: &'static [Param],
    returns: &'static [(&'static str, &'static str)],
    doc: &'static str,
) -> Entry {
    Entry { scope: Scope::Tests, ..f(name, params, returns, doc, "") }
}
