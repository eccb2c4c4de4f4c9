//! Methods of Python's strings and dictionaries: methods of minijinja's `pycompat` that agree with
//! Python, and others that templates use. Positions in texts are counted in characters.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, FormatStyle, State, Value as Jinja};

use super::size_limits::{ITEM, PrintedSize, check_list, check_size, narrow, narrow_fields, replaced};
use super::values::Items;

/// Calls a method of a value.
///
/// # Errors
/// [`ErrorKind::UnknownMethod`] for a method that the value does not have here.
pub(super) fn call(state: &State, value: &Jinja, name: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let result = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, name, args)?,
        (None, ValueKind::Map) => of_map(value, name, args)?,
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn of_map(value: &Jinja, name: &str, args: &[Jinja]) -> Result<Option<Jinja>, Error> {
    let view = match name {
        "items" => "dict_items",
        "keys" => "dict_keys",
        "values" => "dict_values",
        _ => return Ok(None),
    };
    let () = from_args(args)?;
    check_list(value)?;
    let keys = value.try_iter()?;
    let value_of = |key: &Jinja| value.get_item(key).unwrap_or_default();
    Ok(Some(match name {
        "items" => Items::view(view, keys.map(|key| Items::tuple([key.clone(), value_of(&key)]))),
        "keys" => Items::view(view, keys),
        _ => Items::view(view, keys.map(|key| value_of(&key))),
    }))
}

/// `None` for a method that `pycompat` has.
fn of_text(text: &str, name: &str, args: &[Jinja]) -> Result<Option<Jinja>, Error> {
    let all = |holds: fn(char) -> bool| -> Result<Option<Jinja>, Error> {
        let () = from_args(args)?;
        Ok(Some(Jinja::from(!text.is_empty() && text.chars().all(holds))))
    };
    let cased = |other: fn(char) -> bool, wanted: fn(char) -> bool| -> Result<Option<Jinja>, Error> {
        let () = from_args(args)?;
        Ok(Some(Jinja::from(is_cased(text, other, wanted))))
    };
    Ok(Some(match name {
        "format" => {
            narrow_fields(text, FormatStyle::StrFormat, args)?;
            return Ok(None);
        }
        "replace" => {
            let (from, to, count): (&str, &str, Option<i32>) = from_args(args)?;
            check_size(replaced(text, from, to, count.and_then(|count| usize::try_from(count).ok())))?;
            return Ok(None);
        }
        "isdigit" | "isnumeric" | "isdecimal" => return all(char::is_numeric),
        "isalpha" => return all(char::is_alphabetic),
        "isalnum" => return all(char::is_alphanumeric),
        "isspace" => return all(is_space),
        "islower" => return cased(char::is_uppercase, char::is_lowercase),
        "isupper" => return cased(char::is_lowercase, char::is_uppercase),
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |letter: char| -> String {
                if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() }
            };
            text.chars().map(swap).collect::<String>().into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let (letters,): (Option<&str>,) = from_args(args)?;
            let is_out = |letter: char| letters.map_or_else(|| is_space(letter), |letters| letters.contains(letter));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(is_out) };
            if name == "lstrip" { text } else { text.trim_end_matches(is_out) }.into()
        }
        "join" => {
            let (values,): (&Jinja,) = from_args(args)?;
            let separators = values.len().unwrap_or(0).saturating_mul(text.len());
            check_size(PrintedSize::of(values).bytes.saturating_add(separators))?;
            let wrong = |value: &Jinja| {
                let why = format!("join of a text: expected a text, {} found", value.kind());
                Error::new(ErrorKind::InvalidOperation, why)
            };
            let mut parts = Vec::new();
            for value in values.try_iter()? {
                parts.push(value.as_str().map(str::to_owned).ok_or_else(|| wrong(&value))?);
            }
            parts.join(text).into()
        }
        "split" | "rsplit" => {
            check_size(text.len().saturating_mul(ITEM))?;
            let (separator, limit, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(options.get("sep")?);
            let limit = limit.or(options.get("maxsplit")?).and_then(|limit| usize::try_from(limit).ok());
            options.assert_all_used()?;
            if separator == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            split(text, separator, limit.unwrap_or(usize::MAX), name == "rsplit").into_iter().map(Jinja::from).collect()
        }
        "splitlines" => {
            check_size(text.len().saturating_mul(ITEM))?;
            let (keep, options): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            lines(text, keep).into_iter().map(Jinja::from).collect()
        }
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let short = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            short.unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let first = name == "partition";
            let halves = if first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match halves {
                Some((before, after)) => [before, separator, after],
                None if first => [text, "", ""],
                None => ["", "", text],
            };
            Items::tuple(parts.into_iter().map(Jinja::from))
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            text.matches(what).count().into()
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<usize>, Option<usize>) = from_args(args)?;
            let offset = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
            let (from, to) = (offset(start.unwrap_or(0)), end.map_or(text.len(), offset));
            let within = text.get(from..to).unwrap_or_default();
            let offset = if name.starts_with('r') { within.rfind(what) } else { within.find(what) };
            match offset {
                Some(at) => text[..from + at].chars().count().into(),
                None if name.ends_with("find") => (-1).into(),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = narrow(width)?.saturating_sub(text.chars().count());
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            let sign = sign.chars().next().map_or("", |first| &text[..first.len_utf8()]);
            format!("{sign}{}{}", "0".repeat(missing), &text[sign.len()..]).into()
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            padded(text, narrow(width)?, fill.unwrap_or(' '), name).into()
        }
        _ => return Ok(None),
    }))
}

/// `text.center(width, fill)`, `ljust` or `rjust`.
pub(super) fn padded(text: &str, width: usize, fill: char, side: &str) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let left = match side {
        "ljust" => 0,
        "rjust" => missing,
        // Python's `center` has the odd one on the left if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = |count: usize| std::iter::repeat_n(fill, count);
    fill(left).chain(text.chars()).chain(fill(missing - left)).collect()
}

/// `str.islower` and `str.isupper`: letters without case do not count, but there must be one with.
pub(super) fn is_cased(text: &str, other: fn(char) -> bool, wanted: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}

/// `str.isspace`; Python counts four separators of ASCII.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

/// `text.split(separator, most)`; without a separator at runs of white space.
fn split<'a>(text: &'a str, separator: Option<&str>, limit: usize, from_end: bool) -> Vec<&'a str> {
    let parts = limit.saturating_add(1);
    let mut pieces: Vec<&str> = match separator {
        Some(separator) if from_end => text.rsplitn(parts, separator).collect(),
        Some(separator) => return text.splitn(parts, separator).collect(),
        None => {
            let mut pieces = Vec::new();
            let mut rest = if from_end { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
            while !rest.is_empty() {
                let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
                match cut.filter(|_| pieces.len() < limit) {
                    None => {
                        pieces.push(rest);
                        break;
                    }
                    Some(at) if from_end => {
                        let word = rest[at..].trim_start_matches(is_space);
                        pieces.push(word);
                        rest = rest[..at].trim_end_matches(is_space);
                    }
                    Some(at) => {
                        pieces.push(&rest[..at]);
                        rest = rest[at..].trim_start_matches(is_space);
                    }
                }
            }
            if !from_end {
                return pieces;
            }
            pieces
        }
    };
    pieces.reverse();
    pieces
}

/// `text.splitlines(keep)`.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let is_end = |letter: char| {
        matches!(letter, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(is_end) {
        let after = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep { after } else { at }]);
        rest = &rest[after..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
