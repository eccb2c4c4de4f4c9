//! Errors are data: no text is an error type, and no message is parsed.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::code;
use super::imports::sources;

/// Files that read error texts of other programs, because those have no other form of the
/// information.
const FOREIGN_TEXTS: &[(&str, &str)] = &[
    ("script/runtime/failure.rs", "Luau raises its own errors as text"),
    ("script/runtime/language_hints.rs", "Luau raises its own errors as text"),
    ("tools/table/query_error.rs", "SQLite names unknown tables and columns in its text only"),
    ("error.rs", "the operating system has text only"),
    ("native/failure.rs", "libtorch has text only"),
];

/// `Error::subject` and `Error::kind` have the subject and the kind of an error.
#[test]
fn no_error_message_is_parsed() {
    let searches = ["contains", "split", "split_once", "rsplit", "starts_with", "ends_with", "strip_prefix", "find"];
    let mut wrong = Vec::new();
    for source in sources() {
        if FOREIGN_TEXTS.iter().any(|(file, _)| source.path.ends_with(file)) {
            continue;
        }
        for (number, line) in source.code_lines() {
            let text = code(line);
            let of_error = |name: &&str| {
                [format!("message.{name}("), format!("error.to_string().{name}(")]
                    .iter()
                    .any(|part| text.contains(part))
            };
            if searches.iter().any(of_error) {
                wrong.push(format!("{}:{}: {}", source.path.display(), number, text.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "these read the message of an error; use its kind or subject:\n{}", wrong.join("\n"));
}

/// The types of errors that are text alone.
const TEXT: [&str; 5] = ["String", "&str", "&'static str", "Cow<'static,str>", "Box<str>"];

/// The text of tokens without the spaces between punctuation.
fn shown(tokens: &[TokenTree]) -> String {
    let spaced = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    ["& ", " <", "< ", " >", " ,", ", ", " :", ": ", "' "]
        .iter()
        .fold(spaced, |text, part| text.replace(part, part.trim()))
}

/// The generic arguments after the `<` at `at`: each as its tokens.
fn generics(tokens: &[TokenTree], at: usize) -> Vec<Vec<TokenTree>> {
    let (mut depth, mut arguments) = (0, vec![Vec::new()]);
    for (index, token) in tokens.iter().enumerate().skip(at) {
        let punct = if let TokenTree::Punct(punct) = token { punct.as_char() } else { ' ' };
        // The arrow of a function type closes nothing.
        let is_arrow = matches!(&tokens[index.saturating_sub(1)], TokenTree::Punct(before) if before.as_char() == '-');
        match punct {
            '<' => depth += 1,
            '>' if !is_arrow => depth -= 1,
            _ => {}
        }
        match (depth, punct) {
            (0, _) => break,
            (1, '<') => {}
            (1, ',') => arguments.push(Vec::new()),
            _ => arguments.last_mut().expect("one at least").push(token.clone()),
        }
    }
    arguments.retain(|tokens| !tokens.is_empty());
    arguments
}

/// The index after the item that begins at `at`.
fn item_end(tokens: &[TokenTree], at: usize) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => token.to_string() == ";",
    };
    tokens[at..].iter().position(ends).map_or(tokens.len(), |length| at + length + 1)
}

/// Every `Result<T, E>` with text as `E`, and every `type Err` that is text. Items for tests are
/// left out.
fn text_errors(tokens: TokenStream, errors: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.to_string() == text);
    let mut skipped = 0;
    for (at, token) in tokens.iter().enumerate() {
        if at < skipped {
            continue;
        }
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let attribute = tokens.get(at + 1).map(ToString::to_string).unwrap_or_default().replace(' ', "");
                if attribute.starts_with("[cfg(test") || attribute.starts_with("[cfg(all(test") {
                    skipped = item_end(&tokens, at + 2);
                }
            }
            TokenTree::Group(group) => text_errors(group.stream(), errors),
            TokenTree::Ident(word) if word == "Result" && is(at + 1, "<") => {
                let arguments = generics(&tokens, at + 1);
                if let [_, error] = &arguments[..]
                    && TEXT.contains(&shown(error).as_str())
                {
                    let arguments: Vec<String> = arguments.iter().map(|argument| shown(argument)).collect();
                    errors.push(format!("Result<{}>", arguments.join(", ")));
                }
            }
            TokenTree::Ident(word) if word == "type" && is(at + 1, "Err") && is(at + 2, "=") => {
                let end = (at..tokens.len()).find(|&end| is(end, ";")).unwrap_or(tokens.len());
                let error = shown(&tokens[at + 3..end]);
                if TEXT.contains(&error.as_str()) {
                    errors.push(format!("type Err = {error}"));
                }
            }
            _ => {}
        }
    }
}

/// A text as an error has neither kind nor subject: the next caller can only parse it.
#[test]
fn no_error_type_is_text() {
    let mut wrong = Vec::new();
    for source in sources() {
        let tokens = source.text.parse().unwrap_or_else(|error| panic!("{}: {error}", source.path.display()));
        let mut errors = Vec::new();
        text_errors(tokens, &mut errors);
        wrong.extend(errors.into_iter().map(|errors| format!("{}: {errors}", source.path.display())));
    }
    assert!(
        wrong.is_empty(),
        "use `Error` of src/error.rs, or a type with the subject of the error:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn text_errors_are_found_in_every_form() {
    for (code, wrong) in [
        ("fn f() -> Result<(), String> {}", 1),
        ("fn f() -> std::result::Result<Vec<u8>, &'static str> {}", 1),
        ("type A = Option<Result<HashMap<A, B>, String>>;", 1),
        ("fn f(g: impl Fn(u8) -> Result<u8, String>) -> Result<String, Error> {}", 1),
        ("fn f(g: Box<dyn Fn() -> Result<Result<u8, String>, String>>) {}", 2),
        ("impl FromStr for A { type Err = String; }", 1),
        ("#[cfg(test)] mod tests { fn f() -> Result<(), String> {} } fn g() -> Result<(), Box<str>> {}", 1),
        ("fn f() -> Result<String> {}", 0),
        ("fn f() -> Result<fn(String) -> String, Error> { x.collect::<Result<Vec<_>, _>>() }", 0),
        ("struct Result2<A, String>(A, String);", 0),
    ] {
        let mut errors = Vec::new();
        text_errors(code.parse().expect("tokens"), &mut errors);
        assert_eq!(errors.len(), wrong, "{code}: {errors:?}");
    }
}
