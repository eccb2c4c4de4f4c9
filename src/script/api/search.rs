//! Regular-expression searches that respect the CPU limit of the call.
//!
//! One search is a single call into the `regex` crate. Its cost is linear in the text, with the
//! size of the compiled pattern as a factor, and it cannot be interrupted. A search that may take
//! long therefore runs on its own thread, which the call abandons on timeout; short searches run
//! directly. The limit is checked between matches.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use mlua::{Lua, LuaString};
use regex::bytes::{Captures, Regex};

use super::args::{charge, fail, in_time};
use crate::clock::Clock;

/// A compiled pattern, and an upper bound of its size in bytes (a power of four).
#[derive(Clone)]
pub(super) struct Pattern {
    pub(super) regex: Regex,
    pub(super) size: usize,
}

/// Pattern bytes times text bytes: below this, a search takes less than half a second on any
/// machine.
const SHORT: usize = 1 << 31;
/// Above this, a search could take more than half a minute.
const LONGEST: usize = 1 << 37;
/// Maximum number of search threads, including abandoned ones.
const UNDER_WAY: usize = 8;
static THREADS: AtomicUsize = AtomicUsize::new(0);

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
    pub(super) pattern: Pattern,
    function: &'static str,
    helper: Option<Helper>,
}

struct Helper {
    positions: Sender<usize>,
    matches: Receiver<Option<Match>>,
    /// CPU time of the thread, and the part of it that is charged to the call.
    clock: Clock,
    used: Cell<u64>,
}

impl Search {
    pub(super) fn new(function: &'static str, text: LuaString, pattern: Pattern) -> Self {
        Self { text, pattern, function, helper: None }
    }

    /// The first match at or after a position.
    pub(super) fn at(&mut self, lua: &Lua, place: usize) -> mlua::Result<Option<Match>> {
        in_time(lua)?;
        let bytes = self.text.as_bytes();
        if place > bytes.len() {
            return Ok(None);
        }
        let work = self.pattern.size.saturating_mul(bytes.len() - place);
        if work <= SHORT {
            return Ok(self.pattern.regex.captures_at(&bytes, place).as_ref().map(Match::of));
        }
        if work > LONGEST {
            let why = format!("a pattern of this size over a text of {} bytes is too much work", bytes.len());
            return Err(fail(lua, self.function, why));
        }
        let helper = match self.helper.take() {
            Some(helper) => helper,
            None => start(lua, self.function, &self.pattern.regex, bytes.to_vec())?,
        };
        let found = self.request(lua, &helper, place)?;
        self.helper = Some(helper);
        Ok(found)
    }

    fn request(&self, lua: &Lua, helper: &Helper, place: usize) -> mlua::Result<Option<Match>> {
        let gone = || fail(lua, self.function, "the search has stopped");
        helper.positions.send(place).map_err(|_| gone())?;
        loop {
            let found = helper.matches.recv_timeout(Duration::from_millis(5));
            // The search works for this call.
            let now = helper.clock.now().max(helper.used.get());
            charge(lua, Duration::from_nanos(now - helper.used.replace(now)))?;
            match found {
                Ok(found) => return Ok(found),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }

    /// Every match, like the crate's own iterator: an empty match directly after another is
    /// skipped.
    pub(super) fn each(
        &mut self,
        lua: &Lua,
        most: usize,
        mut take: impl FnMut(&Self, &Match) -> mlua::Result<()>,
    ) -> mlua::Result<()> {
        let mut steps = Steps::default();
        for _ in 0..most {
            let Some(found) = steps.next(lua, self)? else { break };
            take(self, &found)?;
        }
        Ok(())
    }
}

/// The position of an iteration over matches.
#[derive(Default)]
pub(super) struct Steps {
    at: usize,
    last_end: Option<usize>,
}

impl Steps {
    pub(super) fn next(&mut self, lua: &Lua, search: &mut Search) -> mlua::Result<Option<Match>> {
        loop {
            let Some(found) = search.at(lua, self.at)? else {
                self.at = usize::MAX;
                return Ok(None);
            };
            let (start, end) = found.span();
            self.at = if start == end { end + 1 } else { end };
            if start == end && self.last_end == Some(end) {
                continue;
            }
            self.last_end = Some(end);
            return Ok(Some(found));
        }
    }
}

/// Starts a thread that searches a text on request.
fn start(lua: &Lua, function: &str, regex: &Regex, text: Vec<u8>) -> mlua::Result<Helper> {
    if THREADS.fetch_add(1, Ordering::Relaxed) >= UNDER_WAY {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        return Err(fail(lua, function, format!("{UNDER_WAY} long searches are under way; search shorter texts")));
    }
    let (positions, next_position) = channel();
    let (found_match, matches) = channel();
    let (started, clock) = channel();
    let regex = regex.clone();
    let work = move || {
        let _ = started.send(Clock::of_this_thread());
        for place in next_position {
            let found = regex.captures_at(&text, place).as_ref().map(Match::of);
            if found_match.send(found).is_err() {
                break;
            }
        }
        THREADS.fetch_sub(1, Ordering::Relaxed);
    };
    let spawned = std::thread::Builder::new().name("r1-search".to_owned()).spawn(work);
    spawned.map_err(|error| {
        THREADS.fetch_sub(1, Ordering::Relaxed);
        fail(lua, function, format!("can't start a thread: {error}"))
    })?;
    let clock = clock.recv().map_err(|_| fail(lua, function, "the search has stopped"))?;
    Ok(Helper { positions, matches, clock, used: Cell::new(0) })
}
