//! Hints for names and idioms of Python and JavaScript that do not exist in Luau.

/// Names of other languages, and their replacements in Luau, a line each; methods begin with a
/// colon.
const NAMES: &str = include_str!("language_hints.tsv");

/// The hint for an unknown global name.
pub(crate) fn of_name(name: &str) -> Option<&'static str> {
    NAMES.lines().filter_map(|line| line.split_once('\t')).find(|(key, _)| *key == name).map(|(_, hint)| hint)
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
    let method = message.split_once("missing method '").and_then(|(_, rest)| rest.split_once('\''));
    if let Some(hint) = method.and_then(|(name, _)| of_name(&format!(":{name}"))) {
        return Some(hint);
    }
    Some(match message {
        "attempt to modify a readonly table" => "globals, libraries and r1 are read-only",
        _ if message.starts_with("attempt to yield across") => {
            "host functions that wait can't be called inside table.sort, string.gsub or a metamethod"
        }
        _ if message.starts_with("attempt to perform arithmetic (add) on") && message.contains("string") => {
            "texts are concatenated with `..`"
        }
        _ if message.starts_with("attempt to get length of a number") => "`#` is the length of a list or a text",
        _ => return None,
    })
}
