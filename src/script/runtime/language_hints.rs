//! Hints for names and idioms of Python and JavaScript that do not exist in Luau.

/// Names of other languages, and their replacements in Luau.
const NAMES: &[(&str, &str)] = &[
    ("None", "in Luau it is `nil`"),
    ("null", "in Luau it is `nil`; r1.json.null is JSON's null in a list"),
    ("undefined", "in Luau it is `nil`"),
    ("True", "in Luau it is `true`"),
    ("False", "in Luau it is `false`"),
    ("len", "the length of a list or text is `#value`"),
    ("str", "`tostring(value)` converts a value to text"),
    ("int", "`tonumber(text)` converts text to a number, `math.floor` rounds down"),
    ("float", "`tonumber(text)` converts text to a number"),
    ("range", "a loop over numbers is `for i = 1, n do … end`"),
    ("enumerate", "a loop over a list is `for i, item in ipairs(list) do … end`"),
    ("isinstance", "`type(value) == \"string\"` tests the type of a value"),
    ("dict", "a table is `{ name = value }`"),
    ("list", "a list is `{ a, b, c }`"),
    ("append", "`r1.push(list, item)` appends"),
    ("self", "a function that is called with `:` has `self`; write `function object:method() … end`"),
    ("this", "a function that is called with `:` has `self`"),
    ("console", "`print` writes to the run's log"),
    ("JSON", "`r1.json.encode` and `r1.json.decode`"),
    ("json", "`r1.json.encode` and `r1.json.decode`"),
    ("re", "`r1.re` has regular expressions"),
    ("import", "`require(\"./lib/name\")` loads another file"),
    ("exit", "a program ends with `return` or os.exit(); in r1 repl `:quit` leaves"),
    ("quit", "a program ends with `return` or os.exit(); in r1 repl `:quit` leaves"),
    ("io", "recipes reach files with r1.fs, after `needs = { \"fs:DIR\" }`; programs (`r1 lua`) have `io`"),
    ("os", "recipes have r1.clock; programs (`r1 lua`) have `os`"),
    ("load", "code can't be made from text; `require` loads files"),
    ("loadstring", "code can't be made from text; `require` loads files"),
    ("dofile", "`require(\"./lib/name\")` loads another file"),
];

/// The hint for an unknown global name.
pub(crate) fn of_name(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(key, _)| *key == name).map(|(_, hint)| *hint)
}

/// The hint for an error about nil, from the source line: indexes that start at 0 or are negative.
pub(crate) fn of_line(message: &str, line: &str) -> Option<&'static str> {
    let code = line.split("--").next().unwrap_or_default();
    let indexed = |index: &str| code.replace(' ', "").contains(index);
    match message {
        _ if !message.contains("nil") => None,
        _ if indexed("[0]") => Some("lists begin at 1: `list[1]` is the first item"),
        _ if indexed("[-1]") => Some("`list[#list]` is the last item of a list"),
        _ => None,
    }
}

/// The hint for an error message of the VM. Luau has no error codes, so the text is compared.
pub(crate) fn of_message(message: &str) -> Option<&'static str> {
    let method = |name: &str| message.contains(&format!("missing method '{name}'"));
    Some(match message {
        _ if message.starts_with("attempt to perform arithmetic (add) on") && message.contains("string") => {
            "texts are concatenated with `..`"
        }
        _ if method("append") || method("push") || method("add") => "r1.push(list, item) appends to a list",
        _ if method("pop") => "table.remove(list) removes the last item of a list",
        _ if method("join") => "table.concat(list, \", \") joins texts",
        _ if method("strip") || method("trim") => "text:match(\"^%s*(.-)%s*$\") removes spaces around a text",
        _ if method("startswith") => "text:sub(1, #start) == start",
        _ if method("items") || method("keys") || method("values") => {
            "a loop over a table is `for key, value in pairs(t) do … end`"
        }
        _ if message.starts_with("attempt to get length of a number") => "`#` is the length of a list or a text",
        _ => return None,
    })
}
