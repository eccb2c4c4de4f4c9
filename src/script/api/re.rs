//! `r1.re`: regular expressions with cost linear in the text (the `regex` crate), over the bytes of
//! Lua strings. This file finds matches; `lua/re.lua` makes texts and tables of them.
//!
//! One search is a single call into the `regex` crate. Its cost is linear in the text, with the
//! size of the compiled pattern as a factor, and it cannot be interrupted. Searches that may take
//! long therefore run on a thread ([`apart`]), which the call abandons on timeout; short searches
//! run directly. The limit is checked between them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlua::{Lua, LuaString, Table, Value};
use regex::bytes::{Regex, RegexBuilder};

use super::apart::apart;
use super::args::{fail, in_time, optional, text};
use crate::config::Limits;
use crate::script::runtime::bind::in_lua;
use crate::script::runtime::convert::{kind, show};

/// Maximum bytes of a compiled pattern.
const COMPILED: usize = 1 << 20;
/// Maximum bytes of a pattern and of a text.
const PATTERN: usize = 16 << 10;
const TEXT: usize = 16 << 20;
/// Maximum number of cached patterns.
const KEPT: usize = 64;
/// Size limits tried in this order: the crate does not report the size of a compiled pattern.
const SIZES: [usize; 5] = [COMPILED >> 8, COMPILED >> 6, COMPILED >> 4, COMPILED >> 2, COMPILED];
/// Pattern bytes times text bytes: below this, a search takes less than half a second on any
/// machine.
const SHORT: usize = 1 << 31;
/// Above this, a search could take more than half a minute.
const LONGEST: usize = 1 << 37;
/// Maximum matches that are searched for at once, and the time after which fewer are returned.
const BATCH: usize = 64;
const BATCH_TIME: Duration = Duration::from_millis(5);

/// A compiled pattern, and an upper bound of its size in bytes (a power of four).
#[derive(Clone)]
struct SearchPattern {
    regex: Regex,
    size: usize,
}

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
        let cached = kept.iter().position(|(key, _)| **key == *bytes).and_then(|at| kept.remove(at));
        if let Some((key, pattern)) = cached {
            kept.push_back((key, pattern.clone()));
            return Ok(pattern);
        }
        let pattern = compile(lua, function, pattern, &bytes)?;
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((bytes.to_vec(), pattern.clone()));
        Ok(pattern)
    }
}

fn compile(lua: &Lua, function: &str, pattern: &Value, bytes: &[u8]) -> mlua::Result<SearchPattern> {
    let refuse = |why: &str| fail(lua, function, format!("the pattern {}: {why}", show(pattern)));
    if bytes.len() > PATTERN {
        return Err(fail(lua, function, format!("the pattern has {} bytes; {PATTERN} are the most", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| refuse("not valid UTF-8"))?;
    let build = |size: usize| RegexBuilder::new(text).size_limit(size).dfa_size_limit(COMPILED).build();
    let mut fits = SIZES.into_iter().map(|size| (size, build(size)));
    let compiled = fits.find(|(_, built)| !matches!(built, Err(regex::Error::CompiledTooBig(_))));
    let (size, regex) = compiled.ok_or_else(|| refuse("too large: its repetitions take more than 1 MiB"))?;
    let regex = regex.map_err(|error| {
        let text = error.to_string();
        refuse(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })?;
    Ok(SearchPattern { regex, size })
}

/// Start and end byte (exclusive) of a match or of one of its groups.
type MatchSpan = Option<(usize, usize)>;

/// The position of an iteration over matches.
#[derive(Clone, Copy, Default)]
struct MatchCursor {
    at: usize,
    last_end: Option<usize>,
}

impl MatchCursor {
    /// Appends the spans of the next match and of its groups; false at the end of the text. As in
    /// the crate's own iterator, an empty match directly after another is skipped.
    fn next(&mut self, regex: &Regex, text: &[u8], spans: &mut Vec<MatchSpan>) -> bool {
        loop {
            let captures = (self.at <= text.len()).then(|| regex.captures_at(text, self.at)).flatten();
            let Some((captures, whole)) = captures.and_then(|captures| captures.get(0).map(|whole| (captures, whole)))
            else {
                self.at = usize::MAX;
                return false;
            };
            let end = whole.end();
            self.at = if whole.is_empty() { end + 1 } else { end };
            let is_repeated = whole.is_empty() && self.last_end == Some(end);
            self.last_end = Some(end);
            if !is_repeated {
                spans.extend(captures.iter().map(|group| group.map(|group| (group.start(), group.end()))));
                return true;
            }
        }
    }

    /// The spans of up to `limit` matches, and of at least one if there is one.
    fn batch(&mut self, regex: &Regex, text: &[u8], limit: usize) -> Vec<MatchSpan> {
        let (started, mut spans) = (Instant::now(), Vec::new());
        for _ in 0..limit {
            if !self.next(regex, text, &mut spans) || started.elapsed() > BATCH_TIME {
                break;
            }
        }
        spans
    }
}

/// A text that is searched from front to back.
struct Search {
    function: String,
    text: LuaString,
    pattern: SearchPattern,
    cursor: MatchCursor,
    /// The copy of the text for threads.
    shared: Option<Arc<[u8]>>,
}

impl Search {
    fn new(lua: &Lua, patterns: &PatternCache, function: String, text: &Value, pattern: &Value) -> mlua::Result<Self> {
        let Value::String(text) = text else {
            return Err(fail(lua, &function, format!("`text` must be text, got {}", kind(text))));
        };
        let length = text.as_bytes().len();
        let limit = lua.app_data_ref::<Limits>().map_or(TEXT, |limits| TEXT.min(limits.text.saturating_mul(1 << 20)));
        if length > limit {
            let why = format!("the text has {length} bytes; {limit} are the most (limits.text)");
            return Err(fail(lua, &function, why));
        }
        let pattern = patterns.get(lua, &function, pattern)?;
        Ok(Self { function, text: text.clone(), pattern, cursor: MatchCursor::default(), shared: None })
    }

    /// The positions of up to `limit` further matches; nil at the end of the text.
    fn fetch(&mut self, lua: &Lua, limit: usize) -> mlua::Result<Value> {
        in_time(lua)?;
        let (bytes, regex) = (self.text.as_bytes(), &self.pattern.regex);
        let work = self.pattern.size.saturating_mul(bytes.len().saturating_sub(self.cursor.at));
        let spans = if work <= SHORT {
            self.cursor.batch(regex, &bytes, limit.min(BATCH))
        } else if work > LONGEST {
            let why = format!("a pattern of this size over a text of {} bytes is too much work", bytes.len());
            return Err(fail(lua, &self.function, why));
        } else {
            let text = Arc::clone(self.shared.get_or_insert_with(|| Arc::from(&bytes[..])));
            let (regex, mut cursor) = (regex.clone(), self.cursor);
            let searched = apart(lua, &self.function, move || {
                let spans = cursor.batch(&regex, &text, limit);
                Ok((cursor, spans))
            });
            let (cursor, spans) = searched?;
            self.cursor = cursor;
            spans
        };
        if spans.is_empty() {
            return Ok(Value::Nil);
        }
        let positions = spans.into_iter().flat_map(|span| match span {
            Some((start, end)) => [Value::Integer(start as i64 + 1), Value::Integer(end as i64)],
            None => [Value::Boolean(false), Value::Boolean(false)],
        });
        lua.create_sequence_from(positions).map(Value::Table)
    }

    /// The names of groups by their numbers; `None` for a pattern without names.
    fn names(&self, lua: &Lua) -> mlua::Result<Option<Table>> {
        let mut names = self.pattern.regex.capture_names().enumerate().filter_map(|(group, name)| Some((group, name?)));
        let Some(first) = names.next() else { return Ok(None) };
        lua.create_table_from(std::iter::once(first).chain(names)).map(Some)
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let patterns = Rc::new(PatternCache::default());
    let cache = Rc::clone(&patterns);
    let first = lua.create_function(move |lua, (function, text, pattern, from): (String, Value, Value, Value)| {
        let mut search = Search::new(lua, &cache, function, &text, &pattern)?;
        search.cursor.at = start(lua, &search.function, &from)?;
        Ok((search.fetch(lua, 1)?, search.names(lua)?))
    })?;
    let all = lua.create_function(move |lua, (function, text, pattern, limit): (String, Value, Value, Value)| {
        let mut search = Search::new(lua, &patterns, function, &text, &pattern)?;
        let mut left = optional::<usize>(lua, &search.function, "most", &limit)?.unwrap_or(usize::MAX);
        let (groups, names) = (search.pattern.regex.captures_len(), search.names(lua)?);
        let more = lua.create_function_mut(move |lua, ()| {
            let positions = search.fetch(lua, left)?;
            left -= positions.as_table().map_or(0, Table::raw_len) / (2 * groups);
            Ok(positions)
        })?;
        Ok((more, 2 * groups, names))
    })?;
    let escape =
        lua.create_function(|lua, value: Value| Ok(regex::escape(&text(lua, "r1.re.escape", "text", &value)?)))?;
    let re: Table = in_lua(lua, include_str!("../../../lua/re.lua"), (first, all, escape))?;
    super::namespace(lua, r1, "r1.re", re)
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
