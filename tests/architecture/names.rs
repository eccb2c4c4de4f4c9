//! Names that say nothing, and names that stand for several things.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::files_below;
use super::imports::sources;

/// Words that do not say what a value is: a variable has the name of the thing (`advantages`,
/// `index`, `limit`, `default_value`).
const EMPTY_NAMES: [&str; 9] = ["own", "found", "known", "place", "given", "most", "usual", "said", "words"];

/// Empty names that a comment may have in backticks: fields of files, names of formats.
const IN_COMMENTS: [&str; 4] = ["own", "place", "said", "words"];

/// Names that stand for two types, each for a reason: one for each operating system or build. The
/// number only falls.
const PAIRS: usize = 3;

/// Adds the variables with an empty name. A name after a dot, a path or `fn`, before a colon or an
/// argument list, or in a `use`, is a field, a module or a function.
fn empty_names(tokens: TokenStream, variables: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_sign = |index: Option<usize>, signs: &str| match index.and_then(|index| tokens.get(index)) {
        Some(TokenTree::Punct(punct)) => signs.contains(punct.as_char()),
        _ => false,
    };
    let mut in_use = false;
    for (index, token) in tokens.iter().enumerate() {
        let (before, second) = (index.checked_sub(1), index.checked_sub(2));
        match token {
            TokenTree::Ident(word) if *word == "use" => in_use = true,
            TokenTree::Punct(punct) if punct.as_char() == ';' => in_use = false,
            _ if in_use => {}
            TokenTree::Group(group) => empty_names(group.stream(), variables),
            TokenTree::Ident(word) if EMPTY_NAMES.iter().any(|name| *word == name) => {
                let is_range = is_sign(before, ".") && is_sign(second, ".");
                let is_member = is_sign(before, ".") && !is_range || is_sign(before, ":") && is_sign(second, ":");
                let is_item = before.is_some_and(|at| ["fn", "mod"].contains(&tokens[at].to_string().as_str()));
                let next = tokens.get(index + 1);
                let is_call =
                    matches!(next, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
                if !is_member && !is_item && !is_call && !is_sign(Some(index + 1), ":!") {
                    variables.push(word.to_string());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn variables_have_the_name_of_their_value() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "tests", "benches", "crates"].map(|folder| root.join(folder));
    let mut empty = Vec::new();
    for path in folders.iter().filter(|folder| folder.exists()).flat_map(|folder| files_below(folder, &["rs"])) {
        let text = std::fs::read_to_string(&path).expect("readable source");
        let mut variables = Vec::new();
        empty_names(text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display())), &mut variables);
        empty.extend(variables.iter().map(|name| format!("{}: `{name}`", path.display())));
    }
    assert!(empty.is_empty(), "name the thing:\n{}", empty.join("\n"));
}

#[test]
fn comments_name_variables_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut stale = Vec::new();
    for path in ["src", "crates"].iter().flat_map(|folder| files_below(&root.join(folder), &["rs", "cpp", "h"])) {
        let text = std::fs::read_to_string(&path).expect("readable source");
        for (index, line) in text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//")) {
            let names = EMPTY_NAMES.iter().filter(|name| !IN_COMMENTS.contains(name));
            let named = names.filter(|name| line.contains(&format!("`{name}`")));
            stale.extend(named.map(|name| format!("{}:{}: `{name}`", path.display(), index + 1)));
        }
    }
    assert!(stale.is_empty(), "no variable has these names:\n{}", stale.join("\n"));
}

#[test]
fn empty_names_are_found_where_they_are_variables() {
    for (code, count) in [
        ("let own = f(); g(&own)", 2),
        ("|(own, x)| own.x", 2),
        ("match given { Some(found) => found, None => most }", 4),
        ("S { place, x: usual } + &list[..known]", 3),
        ("use a::{own, found}; mod place; fn given(x: u8) -> u8 { given(x) + x.own + own::f(x) }", 0),
        ("S { own: 1 }", 0),
    ] {
        let mut variables = Vec::new();
        empty_names(code.parse().expect("tokens"), &mut variables);
        assert_eq!(variables.len(), count, "{code}: {variables:?}");
    }
}

#[test]
fn a_type_name_stands_for_one_type() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources() {
        let tokens: TokenStream = source.text.parse().expect("tokens");
        let texts: Vec<String> = tokens.into_iter().map(|token| token.to_string()).collect();
        for pair in texts.windows(2).filter(|pair| ["struct", "enum", "trait", "type"].contains(&pair[0].as_str())) {
            // The item of each package that runs the examples of its page.
            if pair[1] != "Readme" {
                files.entry(pair[1].clone()).or_default().push(source.path.display().to_string());
            }
        }
    }
    let several: Vec<String> = files
        .iter()
        .filter(|(_, files)| files.len() > 2)
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert!(several.is_empty(), "these types need names of their own:\n{}", several.join("\n"));
    let pairs: Vec<&String> = files.iter().filter(|(_, files)| files.len() == 2).map(|(name, _)| name).collect();
    assert!(pairs.len() <= PAIRS, "{} names stand for two types, at most {PAIRS}: {pairs:?}", pairs.len());
    assert!(pairs.len() == PAIRS, "lower PAIRS to {}", pairs.len());
}
