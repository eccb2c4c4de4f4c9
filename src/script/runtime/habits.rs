//! Habits from Python and JavaScript that Luau does not share: what to write instead.

/// Global names of other languages, and what stands for them in Luau.
const NAMES: &[(&str, &str)] = &[
    ("None", "Luau's word is `nil`"),
    ("null", "Luau's word is `nil`; r1.json.null is JSON's null in a list"),
    ("undefined", "Luau's word is `nil`"),
    ("True", "Luau's word is `true`"),
    ("False", "Luau's word is `false`"),
    ("len", "the length of a list or text is `#value`"),
    ("str", "`tostring(value)` makes a text"),
    ("int", "`tonumber(text)` makes a number, `math.floor` a whole one"),
    ("float", "`tonumber(text)` makes a number"),
    ("range", "a loop over numbers is `for i = 1, n do … end`"),
    ("enumerate", "a loop over a list is `for i, item in ipairs(list) do … end`"),
    ("isinstance", "`type(value) == \"string\"` tells what a value is"),
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

/// What to write instead of a global name that does not exist.
pub(crate) fn of_name(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, hint)| *hint)
}

/// What to write instead of what stands in the line of an error about nil: counting from 0, or from the end.
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

/// What to write instead of what an error of the virtual machine is about. Luau tells by its text alone.
pub(crate) fn of_message(message: &str) -> Option<&'static str> {
    let method = |name: &str| message.contains(&format!("missing method '{name}'"));
    Some(match message {
        _ if message.starts_with("attempt to perform arithmetic (add) on") && message.contains("string") => {
            "texts are joined with `..`"
        }
        _ if method("append") || method("push") || method("add") => "r1.push(list, item) appends to a list",
        _ if method("pop") => "table.remove(list) takes the last item of a list",
        _ if method("join") => "table.concat(list, \", \") joins texts",
        _ if method("strip") || method("trim") => "text:match(\"^%s*(.-)%s*$\") is the text without spaces around it",
        _ if method("startswith") => "text:sub(1, #start) == start",
        _ if method("items") || method("keys") || method("values") => {
            "a loop over a table is `for key, value in pairs(t) do … end`"
        }
        _ if message.starts_with("attempt to get length of a number") => "`#` is the length of a list or a text",
        _ => return None,
    })
}
