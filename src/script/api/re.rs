//! `r1.re`: regular expressions with cost linear in the text (the `regex` crate), over the bytes of
//! Lua strings.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use mlua::{Lua, LuaString, MultiValue, Table, Value};
use regex::bytes::RegexBuilder;

use super::args::{fail, optional};
use super::search::{Match, MatchSteps, Search, SearchPattern};
use crate::config::Limits;
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::kind;

/// Maximum bytes of a compiled pattern.
const COMPILED: usize = 1 << 20;
/// Maximum bytes of a pattern and of a text.
const PATTERN: usize = 16 << 10;
const TEXT: usize = 16 << 20;
/// Maximum number of cached patterns.
const KEPT: usize = 64;

/// Size limits tried in this order: the crate does not report the size of a compiled pattern.
const SIZES: [usize; 5] = [COMPILED >> 8, COMPILED >> 6, COMPILED >> 4, COMPILED >> 2, COMPILED];

/// Cached patterns, the latest last.
#[derive(Default)]
struct PatternCache(RefCell<VecDeque<(Vec<u8>, SearchPattern)>>);

impl PatternCache {
    fn get(&self, lua: &Lua, function: &str, pattern: &Value) -> mlua::Result<SearchPattern> {
        let Value::String(text) = pattern else {
            return Err(fail(lua, function, format!("`pattern` must be text, got {}", kind(pattern))));
        };
        let bytes = text.as_bytes();
        let mut kept = self.0.borrow_mut();
        if let Some(at) = kept.iter().position(|(key, _)| **key == *bytes) {
            let entry = kept.remove(at).map(|(key, pattern)| (key, pattern.clone()));
            if let Some((key, pattern)) = entry {
                kept.push_back((key, pattern.clone()));
                return Ok(pattern);
            }
        }
        let refuse = |why: &str| {
            fail(lua, function, format!("the pattern {}: {why}", crate::script::runtime::convert::show(pattern)))
        };
        if bytes.len() > PATTERN {
            return Err(fail(lua, function, format!("the pattern has {} bytes; {PATTERN} are the most", bytes.len())));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| refuse("not valid UTF-8"))?;
        let build = |size: usize| RegexBuilder::new(text).size_limit(size).dfa_size_limit(COMPILED).build();
        let mut fits = SIZES.into_iter().map(|size| (size, build(size)));
        let compiled = fits.find(|(_, built)| !matches!(built, Err(regex::Error::CompiledTooBig(_))));
        let (size, regex) = compiled.ok_or_else(|| refuse("too large: its repetitions take more than 1 MiB"))?;
        let regex = regex.map_err(|error| {
            let text = error.to_string();
            refuse(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
        })?;
        if kept.len() == KEPT {
            kept.pop_front();
        }
        let pattern = SearchPattern { regex, size };
        kept.push_back((bytes.to_vec(), pattern.clone()));
        Ok(pattern)
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let re = lua.create_table()?;
    let bindings = Bindings { cache: Rc::default() };
    let shared_bindings = bindings.clone();
    bind(lua, &re, "find", move |lua, (text, pattern, from): (Value, Value, Value)| {
        find(lua, &shared_bindings.of(lua, "r1.re.find", &text, &pattern)?, &from)
    })?;
    let shared_bindings = bindings.clone();
    bind(lua, &re, "match", move |lua, (text, pattern, from): (Value, Value, Value)| {
        let search = shared_bindings.of(lua, "r1.re.match", &text, &pattern)?;
        match search.at(lua, start(lua, "r1.re.match", &from)?)? {
            Some(matched) => groups(lua, &search, &matched),
            None => Ok(MultiValue::from_iter([Value::Nil])),
        }
    })?;
    let shared_bindings = bindings.clone();
    bind(lua, &re, "captures", move |lua, (text, pattern): (Value, Value)| {
        let search = shared_bindings.of(lua, "r1.re.captures", &text, &pattern)?;
        search.at(lua, 0)?.map(|matched| table(lua, &search, &matched)).transpose()
    })?;
    let shared_bindings = bindings.clone();
    bind(lua, &re, "find_all", move |lua, (text, pattern, limit): (Value, Value, Value)| {
        let search = shared_bindings.of(lua, "r1.re.find_all", &text, &pattern)?;
        let list = lua.create_table()?;
        search.each(lua, at_most(lua, "r1.re.find_all", &limit)?, |search, matched| {
            list.raw_push(table(lua, search, matched)?)
        })?;
        Ok(list)
    })?;
    let shared_bindings = bindings.clone();
    bind(lua, &re, "gmatch", move |lua, (text, pattern): (Value, Value)| {
        let search = shared_bindings.of(lua, "r1.re.gmatch", &text, &pattern)?;
        let mut steps = MatchSteps::default();
        lua.create_function_mut(move |lua, ()| match steps.next(lua, &search)? {
            Some(matched) => groups(lua, &search, &matched),
            None => Ok(MultiValue::from_iter([Value::Nil])),
        })
    })?;
    let shared_bindings = bindings.clone();
    bind(lua, &re, "replace", move |lua, (text, pattern, with, limit): (Value, Value, Value, Value)| {
        replace(lua, &shared_bindings.of(lua, REPLACE, &text, &pattern)?, &with, &limit)
    })?;
    let shared_bindings = bindings;
    bind(lua, &re, "split", move |lua, (text, pattern, limit): (Value, Value, Value)| {
        let search = shared_bindings.of(lua, "r1.re.split", &text, &pattern)?;
        let limit = at_most(lua, "r1.re.split", &limit)?;
        let list = lua.create_table()?;
        let mut end = 0;
        if limit == 0 {
            return Ok(list);
        }
        search.each(lua, limit - 1, |search, matched| {
            let (first, last) = matched.span();
            list.raw_push(lua.create_string(&search.text.as_bytes()[end..first])?)?;
            end = last;
            Ok(())
        })?;
        list.raw_push(lua.create_string(&search.text.as_bytes()[end..])?)?;
        Ok(list)
    })?;
    bind(lua, &re, "escape", |lua, text: Value| {
        Ok(regex::escape(&super::args::text(lua, "r1.re.escape", "text", &text)?))
    })?;
    super::seal(lua, "r1.re", &re)?;
    r1.raw_set("re", re)
}

/// State shared by the functions.
#[derive(Clone)]
struct Bindings {
    cache: Rc<PatternCache>,
}

impl Bindings {
    fn of(&self, lua: &Lua, function: &'static str, text: &Value, pattern: &Value) -> mlua::Result<Search> {
        let Value::String(text) = text else {
            return Err(fail(lua, function, format!("`text` must be text, got {}", kind(text))));
        };
        let length = text.as_bytes().len();
        let limit = lua.app_data_ref::<Limits>().map_or(TEXT, |limits| TEXT.min(limits.text.saturating_mul(1 << 20)));
        if length > limit {
            return Err(fail(
                lua,
                function,
                format!("the text has {length} bytes; {limit} are the most (limits.text)"),
            ));
        }
        let pattern = self.cache.get(lua, function, pattern)?;
        Ok(Search::new(function, text.clone(), pattern))
    }
}

fn start(lua: &Lua, function: &str, from: &Value) -> mlua::Result<usize> {
    match from {
        Value::Nil => Ok(0),
        Value::Integer(from @ 1..) => Ok(*from as usize - 1),
        other => {
            Err(fail(lua, function, format!("`from` must be a position in the text, 1 or more, got {}", kind(other))))
        }
    }
}

fn at_most(lua: &Lua, function: &str, limit: &Value) -> mlua::Result<usize> {
    Ok(optional::<usize>(lua, function, "most", limit)?.unwrap_or(usize::MAX))
}

/// Start and end of the first match, and its groups, like `string.find`.
fn find(lua: &Lua, search: &Search, from: &Value) -> mlua::Result<MultiValue> {
    let Some(matched) = search.at(lua, start(lua, "r1.re.find", from)?)? else {
        return Ok(MultiValue::from_iter([Value::Nil]));
    };
    let (first, last) = matched.span();
    let mut values = vec![Value::Integer(first as i64 + 1), Value::Integer(last as i64)];
    if matched.len() > 1 {
        values.extend(groups(lua, search, &matched)?);
    }
    Ok(MultiValue::from_iter(values))
}

/// The groups of a match, or the whole match if there are none.
fn groups(lua: &Lua, search: &Search, matched: &Match) -> mlua::Result<MultiValue> {
    let first = usize::from(matched.len() > 1);
    (first..matched.len())
        .map(|index| matched.group(index).map_or(Ok(Value::Nil), |span| part(lua, search, span)))
        .collect()
}

fn part(lua: &Lua, search: &Search, (first, last): (usize, usize)) -> mlua::Result<Value> {
    lua.create_string(&search.text.as_bytes()[first..last]).map(Value::String)
}

/// `{ text =, first =, last =, [1] =, …, NAME = }`
fn table(lua: &Lua, search: &Search, matched: &Match) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (index, name) in search.pattern.regex.capture_names().enumerate().skip(1) {
        if let Some(span) = matched.group(index) {
            let value = part(lua, search, span)?;
            if let Some(name) = name {
                table.raw_set(name, &value)?;
            }
            table.raw_set(index, value)?;
        }
    }
    let (first, last) = matched.span();
    table.raw_set("text", part(lua, search, (first, last))?)?;
    table.raw_set("first", first + 1)?;
    table.raw_set("last", last)?;
    Ok(table)
}

const REPLACE: &str = "r1.re.replace";

/// Replaces by a text (`$1`, `${name}`, `$$`) or a function of the match; returns the new text and
/// the number of replacements.
fn replace(lua: &Lua, search: &Search, with: &Value, limit: &Value) -> mlua::Result<(LuaString, usize)> {
    let (mut out, mut end, mut replaced) = (Vec::new(), 0, 0);
    search.each(lua, at_most(lua, REPLACE, limit)?, |search, matched| {
        let bytes = search.text.as_bytes();
        let (first, last) = matched.span();
        out.extend_from_slice(&bytes[end..first]);
        match with {
            Value::String(template) => expand(search, matched, &template.as_bytes(), &mut out),
            Value::Function(function) => match function.call::<Value>(table(lua, search, matched)?)? {
                Value::String(new) => out.extend_from_slice(&new.as_bytes()),
                // As in string.gsub, nil keeps the match.
                Value::Nil | Value::Boolean(false) => out.extend_from_slice(&bytes[first..last]),
                other => {
                    let why = format!("the function returned {}; it must return text or nil", kind(&other));
                    return Err(fail(lua, REPLACE, why));
                }
            },
            other => return Err(fail(lua, REPLACE, format!("`with` must be text or a function, got {}", kind(other)))),
        }
        if out.len() > TEXT {
            return Err(fail(lua, REPLACE, format!("the result has more than {TEXT} bytes")));
        }
        end = last;
        replaced += 1;
        Ok(())
    })?;
    out.extend_from_slice(&search.text.as_bytes()[end..]);
    Ok((lua.create_string(out)?, replaced))
}

/// Appends a template with the groups of a match: `$1`, `$name`, `${name}`, `$$`. A name consists
/// of letters, digits and `_`; a missing group is empty.
fn expand(search: &Search, matched: &Match, template: &[u8], out: &mut Vec<u8>) {
    let bytes = search.text.as_bytes();
    let mut rest = template;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let plain = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        let braced = rest.strip_prefix(b"{").and_then(|inner| inner.iter().position(|byte| *byte == b'}'));
        let (name, length) = match braced {
            _ if rest.first() == Some(&b'$') => {
                out.push(b'$');
                rest = &rest[1..];
                continue;
            }
            Some(end) => (&rest[1..=end], end + 2),
            None if plain > 0 => (&rest[..plain], plain),
            None => {
                out.push(b'$');
                continue;
            }
        };
        let name = String::from_utf8_lossy(name);
        let named = || search.pattern.regex.capture_names().position(|group_name| group_name == Some(&name));
        let group = name.parse::<usize>().ok().or_else(named).and_then(|index| matched.group(index));
        if let Some((first, last)) = group {
            out.extend_from_slice(&bytes[first..last]);
        }
        rest = &rest[length..];
    }
    out.extend_from_slice(rest);
}
