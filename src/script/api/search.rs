//! Regular-expression searches that respect the CPU limit of the call.
//!
//! One search is a single call into the `regex` crate. Its cost is linear in the text, with the
//! size of the compiled pattern as a factor, and it cannot be interrupted. Searches that may take
//! long therefore run on a thread ([`apart`]), which the call abandons on timeout; short searches
//! run directly. The limit is checked between matches.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlua::{Lua, LuaString};
use regex::bytes::{Captures, Regex};

use super::apart::apart;
use super::args::{fail, in_time};

/// A compiled pattern, and an upper bound of its size in bytes (a power of four).
#[derive(Clone)]
pub(super) struct SearchPattern {
    pub(super) regex: Regex,
    pub(super) size: usize,
}

/// Pattern bytes times text bytes: below this, a search takes less than half a second on any
/// machine.
const SHORT: usize = 1 << 31;
/// Above this, a search could take more than half a minute.
const LONGEST: usize = 1 << 37;
/// Time after which a thread returns the matches that it has, so that it does not work long for a
/// call that has ended.
const BATCH_TIME: Duration = Duration::from_millis(5);

/// Start and end byte (exclusive) of a match and of its groups.
pub(super) struct Match(Vec<Option<(usize, usize)>>);

impl Match {
    fn of(captures: &Captures<'_>) -> Self {
        Self(captures.iter().map(|group| group.map(|group| (group.start(), group.end()))).collect())
    }

    /// Span of the whole match.
    pub(super) fn span(&self) -> (usize, usize) {
        self.0.first().copied().flatten().unwrap_or_default()
    }

    /// Number of groups, including the whole match.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn group(&self, index: usize) -> Option<(usize, usize)> {
        self.0.get(index).copied().flatten()
    }
}

/// A text that is searched from front to back.
pub(super) struct Search {
    pub(super) text: LuaString,
    pub(super) pattern: SearchPattern,
    function: &'static str,
    /// The copy of the text for threads.
    shared: OnceCell<Arc<[u8]>>,
}

impl Search {
    pub(super) fn new(function: &'static str, text: LuaString, pattern: SearchPattern) -> Self {
        Self { text, pattern, function, shared: OnceCell::new() }
    }

    /// The first match at or after a position.
    pub(super) fn at(&self, lua: &Lua, position: usize) -> mlua::Result<Option<Match>> {
        let mut steps = MatchSteps { cursor: MatchCursor { at: position, last_end: None }, ..MatchSteps::default() };
        steps.fetch(lua, self, 1)?;
        Ok(steps.matches.pop_front())
    }

    /// Every match, like the crate's own iterator: an empty match directly after another is
    /// skipped.
    pub(super) fn each(
        &self,
        lua: &Lua,
        limit: usize,
        mut take: impl FnMut(&Self, &Match) -> mlua::Result<()>,
    ) -> mlua::Result<()> {
        let mut steps = MatchSteps::default();
        for _ in 0..limit {
            let Some(next) = steps.next(lua, self)? else { break };
            take(self, &next)?;
        }
        Ok(())
    }
}

/// The position of an iteration over matches.
#[derive(Clone, Copy, Default)]
struct MatchCursor {
    at: usize,
    last_end: Option<usize>,
}

impl MatchCursor {
    fn next(&mut self, regex: &Regex, text: &[u8]) -> Option<Match> {
        loop {
            let captures = (self.at <= text.len()).then(|| regex.captures_at(text, self.at)).flatten();
            let Some(captures) = captures else {
                self.at = usize::MAX;
                return None;
            };
            let next = Match::of(&captures);
            let (start, end) = next.span();
            self.at = if start == end { end + 1 } else { end };
            let is_repeated = start == end && self.last_end == Some(end);
            self.last_end = Some(end);
            if !is_repeated {
                return Some(next);
            }
        }
    }
}

/// An iteration over matches.
#[derive(Default)]
pub(super) struct MatchSteps {
    cursor: MatchCursor,
    /// Matches that a thread has returned.
    matches: VecDeque<Match>,
}

impl MatchSteps {
    pub(super) fn next(&mut self, lua: &Lua, search: &Search) -> mlua::Result<Option<Match>> {
        if self.matches.is_empty() {
            self.fetch(lua, search, usize::MAX)?;
        }
        Ok(self.matches.pop_front())
    }

    /// Fetches the next match, or up to `limit` from a thread; none at the end of the text.
    fn fetch(&mut self, lua: &Lua, search: &Search, limit: usize) -> mlua::Result<()> {
        in_time(lua)?;
        let (bytes, regex) = (search.text.as_bytes(), &search.pattern.regex);
        let work = search.pattern.size.saturating_mul(bytes.len().saturating_sub(self.cursor.at));
        if work <= SHORT {
            self.matches.extend(self.cursor.next(regex, &bytes));
            return Ok(());
        }
        if work > LONGEST {
            let why = format!("a pattern of this size over a text of {} bytes is too much work", bytes.len());
            return Err(fail(lua, search.function, why));
        }
        let text = Arc::clone(search.shared.get_or_init(|| Arc::from(&bytes[..])));
        let (regex, mut cursor) = (regex.clone(), self.cursor);
        (self.cursor, self.matches) = apart(lua, search.function, move || {
            let (started, mut matches) = (Instant::now(), VecDeque::new());
            while matches.len() < limit && started.elapsed() < BATCH_TIME {
                let Some(next) = cursor.next(&regex, &text) else { break };
                matches.push_back(next);
            }
            Ok((cursor, matches))
        })?;
        Ok(())
    }
}
