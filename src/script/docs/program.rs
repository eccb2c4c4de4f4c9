//! Entries: globals that the host gives.

use super::{Entry, Param, Scope, f, p, program};

pub(super) const ENTRIES: &[Entry] = &[
    f(
        "require",
        &[p("name", "string", "A path without its ending, from the script's directory")],
        &[("any", "What the module returns")],
        "Loads a module of the script: only while the script itself is loaded, and only from its directory.",
        "",
    ),
    f(
        "print",
        &[p("...", "any", "")],
        &[],
        "In a recipe, a line of the log; in a program, a line of standard output.",
        "",
    ),
    f(
        "math.random",
        &[p("low?", "number", ""), p("high?", "number", "")],
        &[("number", "")],
        "As in Lua, from the trajectory's own stream: the same seed draws the same numbers, whatever else runs.",
        "",
    ),
    f("math.randomseed", &[p("seed", "number", "")], &[], "Another stream for this call.", ""),
    f(
        "error",
        &[p("message", "any", "A plain table is shown as JSON"), p("level?", "number", "")],
        &[],
        "As in Lua.",
        "",
    ),
    program(
        "io.read",
        &[p(
            "format?",
            "string | number",
            "\"l\" a line, \"L\" with its end, \"n\" a number, \"a\" all, or so many bytes",
        )],
        &[("(string | number)?", "")],
        "Reads standard input.",
        "",
    ),
    program(
        "io.lines",
        &[p("path?", "string", "Standard input unless said")],
        &[("() -> string?", "")],
        "The lines of a file, for loops.",
        "",
    ),
    program("io.write", &[p("...", "any", "")], &[], "Writes to standard output.", ""),
    program(
        "io.open",
        &[p("path", "string", ""), p("mode?", "string", "\"r\": files are only read here")],
        &[("any", "A file with :read, :lines and :close"), ("string?", "Why not")],
        "Opens a file to read.",
        "",
    ),
    program("os.exit", &[p("code?", "number | boolean", "")], &[], "Ends the program.", ""),
    program("os.time", &[], &[("number", "Whole seconds since 1970")], "The time.", ""),
    program("os.clock", &[], &[("number", "")], "Seconds since the program began.", ""),
    program("os.getenv", &[p("name", "string", "")], &[("string?", "")], "An environment variable.", ""),
    test(
        "test",
        &[p("name", "string", "What holds"), p("body", "() -> any…", "")],
        &[],
        "A test of a file that r1 test runs.",
    ),
    test(
        "expect",
        &[p("value", "any", ""), p("...", "any", "Not looked at")],
        &[("Expectation", "")],
        "What is looked at in a test.",
    ),
    test(
        "Expectation:equals",
        &[p("other", "any", "")],
        &[("Expectation", "")],
        "It equals another value, tables entry by entry.",
    ),
    test("Expectation:differs", &[p("other", "any", "")], &[("Expectation", "")], "It does not."),
    test(
        "Expectation:near",
        &[p("other", "number", ""), p("tolerance?", "number", "1e-9")],
        &[("Expectation", "")],
        "It is a number near another.",
    ),
    test(
        "Expectation:contains",
        &[p("part", "any", "")],
        &[("Expectation", "")],
        "It is a text with this in it, or a list with an equal item.",
    ),
    test(
        "Expectation:matches",
        &[p("pattern", "string", "Of Lua")],
        &[("Expectation", "")],
        "It is a text that a pattern fits.",
    ),
    test(
        "Expectation:raises",
        &[p("text?", "string", "")],
        &[("Expectation", "")],
        "It is a function that raises an error, with this in its message.",
    ),
];

/// A function that tests have.
const fn test(
    name: &'static str,
    params: &'static [Param],
    returns: &'static [(&'static str, &'static str)],
    doc: &'static str,
) -> Entry {
    Entry { scope: Scope::Tests, ..f(name, params, returns, doc, "") }
}
