//! The paths that a source file uses, read from its tokens, and the files that they refer to.
//!
//! Items under `#[cfg(test)]` are left out, wherever they are in a file. Every form of `use` is
//! read (groups, `self`, `as`), and paths within code as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A source file as a module.
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// `["script", "runtime", "vm"]`; empty for `lib.rs` and `main.rs`.
    pub(super) module: Vec<String>,
    /// Its package as a module: `["text"]` for crates/text; empty for r1, and for crates of several
    /// modules.
    package: Vec<String>,
    pub(super) text: String,
    /// Paths that its code uses, absolute: `crate::text::Format` and `r1_text::Format` are
    /// `["text", "Format"]`.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// Paths of other crates.
    pub(super) foreign: BTreeSet<Vec<String>>,
    /// Its re-exports: name and absolute path.
    pub(super) exports: Vec<(String, Vec<String>)>,
    /// Modules that it declares for tests only.
    test_modules: BTreeSet<String>,
    /// Ranges of the lines that only a test build has, counted from 0.
    pub(super) tests: Vec<std::ops::Range<usize>>,
}

impl Source {
    /// Name of its folder or file directly below `src`; `lib` or `main` for the roots.
    pub(super) fn folder(&self) -> String {
        self.module.first().cloned().unwrap_or_else(|| self.path.file_stem().unwrap().to_string_lossy().into_owned())
    }

    /// Its lines without tests, with their numbers from 1.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let of_tests = |line: &usize| self.tests.iter().any(|range| range.contains(line));
        self.text.lines().enumerate().filter(move |(line, _)| !of_tests(line)).map(|(line, text)| (line + 1, text))
    }
}

/// Packages below `crates` of several modules. The others are one module each.
const SEVERAL_MODULES: [&str; 2] = ["base", "model"];

/// The module that is a package below `crates`.
fn package_module(name: &str) -> Vec<String> {
    if SEVERAL_MODULES.contains(&name) { Vec::new() } else { vec![name.to_owned()] }
}

/// All files of r1 and of its crates that a build without tests has.
pub(super) fn sources() -> Vec<Source> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = rust_files(&repository.join("src"), &[]);
    for entry in std::fs::read_dir(repository.join("crates")).expect("crates is readable") {
        let path = entry.expect("crates is readable").path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        sources.extend(rust_files(&path.join("src"), &package_module(&name)));
    }
    let for_tests: BTreeSet<Vec<String>> = sources
        .iter()
        .flat_map(|source| {
            source.test_modules.iter().map(|name| [&source.module[..], std::slice::from_ref(name)].concat())
        })
        .collect();
    sources.retain(|source| !(1..=source.module.len()).any(|length| for_tests.contains(&source.module[..length])));
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn rust_files(root: &Path, package: &[String]) -> Vec<Source> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(read(root, package, path));
            }
        }
    }
    files
}

fn read(root: &Path, package: &[String], path: PathBuf) -> Source {
    let relative = path.strip_prefix(root).expect("below src").with_extension("");
    let parts = relative.iter().map(|part| part.to_string_lossy().into_owned());
    let mut module: Vec<String> = package.iter().cloned().chain(parts).collect();
    if ["mod", "lib", "main"].contains(&module.last().expect("a file").as_str()) {
        module.pop();
    }
    let text = std::fs::read_to_string(&path).expect("readable source");
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tests = test_lines(&text);
    let mut source = Source {
        path,
        package: package.to_vec(),
        text,
        tests,
        paths: BTreeSet::new(),
        foreign: BTreeSet::new(),
        exports: Vec::new(),
        test_modules: BTreeSet::new(),
        module: module.clone(),
    };
    walk(&mut source, &module, tokens);
    source
}

/// The lines from each `#[cfg(test)]` to the end of its item, by indentation: rustfmt closes an
/// item in the column where it begins.
fn test_lines(text: &str) -> Vec<std::ops::Range<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let starts = (0..lines.len())
        .filter(|&line| ["#[cfg(test)]", "#[cfg(any(test"].iter().any(|start| lines[line].trim().starts_with(start)));
    starts
        .map(|start| {
            let depth = indentation(lines[start]);
            let end = (start + 1..lines.len()).find(|&line| {
                let text = lines[line];
                indentation(text) == depth
                    && (text.trim_end().ends_with(';') || text.trim() == "}" || text.ends_with("{}"))
            });
            start..end.map_or(lines.len(), |end| end + 1)
        })
        .collect()
}

/// Adds what the tokens of one module use.
fn walk(source: &mut Source, module: &[String], tokens: TokenStream) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let attribute = tokens.get(at + 1).map(ToString::to_string).unwrap_or_default().replace(' ', "");
                at += 2;
                if ["[cfg(test", "[cfg(all(test", "[cfg(any(test"].iter().any(|start| attribute.starts_with(start)) {
                    at = skip_item(source, &tokens, at);
                }
            }
            TokenTree::Ident(word) if word == "use" => {
                let end = (at..tokens.len()).find(|&end| is_punct(&tokens[end], ';')).unwrap_or(tokens.len());
                let public = at > 0 && is_public(&tokens[..at]);
                for (path, name) in leaves(&tokens[at + 1..end]) {
                    add(source, module, path, public.then_some(name));
                }
                at = end;
            }
            TokenTree::Ident(word) if word == "mod" => {
                let name = tokens[at + 1].to_string();
                if let Some(TokenTree::Group(body)) = tokens.get(at + 2)
                    && body.delimiter() == Delimiter::Brace
                {
                    walk(source, &[module, &[name]].concat(), body.stream());
                }
                at += 3;
            }
            TokenTree::Ident(_) => {
                let (path, end) = path_at(&tokens, at);
                if path.len() > 1 {
                    add(source, module, path, None);
                }
                at = end;
            }
            TokenTree::Group(group) => {
                walk(source, module, group.stream());
                at += 1;
            }
            _ => at += 1,
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Whether the last tokens are `pub` or `pub(…)`.
fn is_public(before: &[TokenTree]) -> bool {
    let word = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Ident(word)) if word == "pub");
    word(before.last()) || (matches!(before.last(), Some(TokenTree::Group(_))) && word(before.iter().rev().nth(1)))
}

/// The end of the item that begins at `at`; records a module that it declares.
fn skip_item(source: &mut Source, tokens: &[TokenTree], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        if let TokenTree::Ident(word) = token
            && word == "mod"
            && tokens.get(at + 2).is_some_and(|end| is_punct(end, ';'))
        {
            source.test_modules.insert(tokens[at + 1].to_string());
        }
        let braces = matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        at += 1;
        if braces || is_punct(token, ';') {
            break;
        }
    }
    at
}

/// The path `a::b::c` at `at`, and the index after it.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = vec![tokens[at].to_string()];
    at += 1;
    while tokens.get(at).is_some_and(|token| is_punct(token, ':'))
        && tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'))
        && let Some(TokenTree::Ident(part)) = tokens.get(at + 2)
    {
        path.push(part.to_string());
        at += 3;
    }
    (path, at)
}

/// The paths of a `use`, each with the name that it binds.
fn leaves(tokens: &[TokenTree]) -> Vec<(Vec<String>, String)> {
    let mut prefix = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if word == "as" => {
                return vec![(prefix, tokens[at + 1].to_string())];
            }
            TokenTree::Ident(word) => prefix.push(word.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let parts = inner.split(|token| is_punct(token, ',')).filter(|part| !part.is_empty());
                let below = |(path, name): (Vec<String>, String)| ([&prefix[..], &path[..]].concat(), name);
                return parts.flat_map(leaves).map(below).collect();
            }
            TokenTree::Punct(punct) if punct.as_char() == '*' => prefix.push("*".to_owned()),
            _ => {}
        }
        at += 1;
    }
    let name = prefix.last().cloned().unwrap_or_default();
    vec![(prefix, name)]
}

fn add(source: &mut Source, module: &[String], path: Vec<String>, exported: Option<String>) {
    let mut rest = &path[..];
    let mut base = match path[0].as_str() {
        "crate" => source.package.clone(),
        "self" | "super" => module.to_vec(),
        other if other.starts_with("r1_") && path.len() > 1 => {
            rest = &path[1..];
            package_module(&other["r1_".len()..])
        }
        _ => {
            source.foreign.insert(path);
            return;
        }
    };
    while let Some(first) = rest.first().filter(|part| ["crate", "self", "super"].contains(&part.as_str())) {
        if first == "super" {
            base.pop();
        }
        rest = &rest[1..];
    }
    let mut absolute = [&base[..], rest].concat();
    if absolute.last().is_some_and(|last| last == "self") {
        absolute.pop();
    }
    if let Some(name) = exported {
        source.exports.push((name, absolute.clone()));
    }
    source.paths.insert(absolute);
}

/// The files that each file uses, by index; re-exports of `mod.rs` files are resolved to the file
/// of the item.
pub(super) fn graph(sources: &[Source]) -> Vec<BTreeSet<usize>> {
    let files: BTreeMap<&[String], usize> =
        sources.iter().enumerate().map(|(index, source)| (&source.module[..], index)).collect();
    let exports: BTreeMap<Vec<String>, &Vec<String>> = sources
        .iter()
        .flat_map(|source| {
            let of = |name: &String| [&source.module[..], std::slice::from_ref(name)].concat();
            source.exports.iter().map(move |(name, path)| (of(name), path))
        })
        .collect();
    let find = |path: &Vec<String>| {
        let mut path = path.clone();
        for _ in 0..8 {
            let Some(length) = (1..=path.len()).rev().find(|&length| exports.contains_key(&path[..length])) else {
                break;
            };
            let target = [exports[&path[..length]], &path[length..]].concat();
            if target == path {
                break;
            }
            path = target;
        }
        (1..=path.len()).rev().find_map(|length| files.get(&path[..length]).copied())
    };
    sources
        .iter()
        .enumerate()
        .map(|(importer, source)| {
            // Paths that begin with a module of the file's own folder.
            let below = source.foreign.iter().map(|path| [&source.module[..], &path[..]].concat());
            let below = below.filter(|path| files.contains_key(&path[..=source.module.len()]));
            source
                .paths
                .iter()
                .cloned()
                .chain(below)
                .filter_map(|path| find(&path))
                .filter(|&file| file != importer)
                .collect()
        })
        .collect()
}

/// Sizes of the import cycles within one set of files.
pub(super) fn circles(members: &BTreeSet<usize>, graph: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reach = |start: usize| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            for &next in graph[file].intersection(members) {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<usize, BTreeSet<usize>> = members.iter().map(|&file| (file, reach(file))).collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for &file in members {
        if !done.contains(&file) && reached[&file].contains(&file) {
            let circle: Vec<usize> =
                reached[&file].iter().copied().filter(|other| reached[other].contains(&file)).collect();
            done.extend(circle.iter().copied());
            circles.push(circle);
        }
    }
    circles
}
