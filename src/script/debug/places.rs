//! Places given by the user: a line, a line of a file, a function.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result, suggest};

/// The file, first line and last line of a place.
pub(super) fn resolve(location: &str, main: &str, texts: &BTreeMap<String, String>) -> Result<(String, usize, usize)> {
    if let Ok(line) = location.parse::<usize>() {
        return Ok((main.to_owned(), line, line));
    }
    if let Some((file, line)) = location.rsplit_once(':')
        && let Ok(line) = line.parse::<usize>()
    {
        let ends = |path: &&String| *path == file || path.ends_with(&format!("/{file}"));
        return match texts.keys().find(ends) {
            Some(path) => Ok((path.clone(), line, line)),
            None => Err(Error::new(Kind::Usage, format!("the script has no file `{file}`"))
                .hint(suggest(file, texts.keys().map(String::as_str)))),
        };
    }
    let short = location.rsplit(['.', ':']).next().unwrap_or(location);
    let mut names = Vec::new();
    // The main file first.
    let files = texts.iter().filter(|(path, _)| *path == main).chain(texts.iter().filter(|(path, _)| *path != main));
    for (path, text) in files {
        for (name, first, last) in functions(text) {
            if name == location || name.rsplit(['.', ':']).next() == Some(short) {
                return Ok((path.clone(), if last > first { first + 1 } else { first }, last));
            }
            names.push(name);
        }
    }
    Err(Error::new(Kind::Usage, format!("no function is called `{location}`"))
        .hint(format!("{}; a line works too: 12, lib/x.lua:12", suggest(location, names.iter().map(String::as_str)))))
}

/// Named functions of a text with their first and last lines, found by a heuristic that suffices
/// for breakpoints.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let mut functions = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("--").next().unwrap_or_default();
        let Some((before, behind)) = code.split_once("function") else { continue };
        let behind = behind.trim_start();
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':');
        let name: String = if behind.starts_with('(') {
            let before = before.trim_end();
            let Some(before) = before.strip_suffix('=') else { continue };
            let before = before.trim_end();
            let start = before.rfind(|c: char| !word(c)).map_or(0, |at| at + 1);
            before[start..].to_owned()
        } else {
            behind.chars().take_while(|c| word(*c)).collect()
        };
        if name.is_empty() {
            continue;
        }
        // The function ends at the first `end` with at most its indentation.
        let indent = |line: &str| line.len() - line.trim_start().len();
        let one_line = code.trim_end().trim_end_matches([',', ';', ')', '}']).trim_end().ends_with("end");
        let last = if one_line {
            index
        } else {
            let deep = indent(line);
            let end = |line: &&str| line.trim_start().starts_with("end") && indent(line) <= deep;
            lines[index + 1..].iter().position(end).map_or(lines.len() - 1, |at| index + 1 + at)
        };
        functions.push((name, index + 1, last + 1));
    }
    functions
}
