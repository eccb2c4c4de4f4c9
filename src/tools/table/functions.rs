//! SQL functions that replace SQLite's.
//!
//! SQLite checks the time of a query between its instructions, and a function is one instruction.
//! Its own `instr`, `replace` and `trim` take time in proportion to the product of their arguments,
//! its `LIKE` and `GLOB` in proportion to text times pattern: minutes for values of megabytes. Here
//! the first three are linear, and patterns check the time. For valid UTF-8 the results equal
//! SQLite's.

use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::time::Instant;

use memchr::memmem;
use rusqlite::{Connection, ffi};

use super::memory::{self, VALUE};
use super::pattern::{LONGEST, Late, SqlPattern};

pub(super) type SqlFunction = unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);

/// Name, number of arguments, whether it is GLOB, function.
const ALL: [(&CStr, c_int, bool, SqlFunction); 8] = [
    (c"instr", 2, false, instr),
    (c"replace", 3, false, replace),
    (c"trim", 2, false, trim::<true, true>),
    (c"ltrim", 2, false, trim::<true, false>),
    (c"rtrim", 2, false, trim::<false, true>),
    (c"like", 2, false, like),
    (c"like", 3, false, like),
    (c"glob", 2, true, like),
];

pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    ALL.into_iter().try_for_each(|(name, arguments, is_glob, function)| {
        // The address says which function it is; nothing is read through it.
        let glob = if is_glob { std::ptr::without_provenance_mut::<c_void>(1) } else { std::ptr::null_mut() };
        create(connection, name, arguments, glob, function)
    })
}

/// Registers one function; `data` is what it gets by `sqlite3_user_data`.
pub(super) fn create(
    connection: &Connection,
    name: &CStr,
    arguments: c_int,
    data: *mut c_void,
    function: SqlFunction,
) -> rusqlite::Result<()> {
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_DETERMINISTIC | ffi::SQLITE_INNOCUOUS;
    // SAFETY: the connection is open, the name ends with NUL, the function lives as long as the
    // program.
    let code = unsafe {
        let db = connection.handle();
        ffi::sqlite3_create_function_v2(db, name.as_ptr(), arguments, flags, data, Some(function), None, None, None)
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// The arguments of a call, and its result.
pub(super) struct SqlCall<'a> {
    context: *mut ffi::sqlite3_context,
    values: &'a [*mut ffi::sqlite3_value],
}

impl<'a> SqlCall<'a> {
    /// # Safety
    /// The arguments of a function that SQLite calls.
    pub(super) unsafe fn new(
        context: *mut ffi::sqlite3_context,
        count: c_int,
        values: *mut *mut ffi::sqlite3_value,
    ) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: SQLite passes `count` values.
        let values = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(values, count) } };
        Self { context, values }
    }

    fn kind(&self, at: usize) -> c_int {
        // SAFETY: a value of this call.
        self.values.get(at).map_or(ffi::SQLITE_NULL, |value| unsafe { ffi::sqlite3_value_type(*value) })
    }

    /// The bytes of a value: of a blob, or of its text. `None` for NULL, and if memory is used up.
    fn bytes(&self, at: usize, as_blob: bool) -> Option<&'a [u8]> {
        let value = *self.values.get(at)?;
        if self.kind(at) == ffi::SQLITE_NULL {
            return None;
        }
        // SAFETY: a value of this call. Both pointers are valid until the call ends, since each
        // value is read in one form only; the length is read after the conversion.
        unsafe {
            let start: *const u8 =
                if as_blob { ffi::sqlite3_value_blob(value).cast() } else { ffi::sqlite3_value_text(value) };
            let length = usize::try_from(ffi::sqlite3_value_bytes(value)).unwrap_or(0);
            match (start.is_null(), length) {
                (true, 0) if as_blob => Some(&[]),
                (true, _) => None,
                _ => Some(std::slice::from_raw_parts(start, length)),
            }
        }
    }

    fn text(&self, at: usize) -> Option<&'a [u8]> {
        self.bytes(at, false)
    }

    /// The type of a value as a number, if it is one or text that reads as one.
    fn numeric_kind(&self, at: usize) -> c_int {
        // SAFETY: a value of this call.
        self.values.get(at).map_or(ffi::SQLITE_NULL, |value| unsafe { ffi::sqlite3_value_numeric_type(*value) })
    }

    /// A whole number.
    pub(super) fn whole(&self, at: usize) -> Option<i64> {
        let value = *self.values.get(at)?;
        // SAFETY: a value of this call.
        (self.numeric_kind(at) == ffi::SQLITE_INTEGER).then(|| unsafe { ffi::sqlite3_value_int64(value) })
    }

    /// A number; `None` for other values.
    pub(super) fn number(&self, at: usize) -> Option<f64> {
        let value = *self.values.get(at)?;
        let is_number = matches!(self.numeric_kind(at), ffi::SQLITE_INTEGER | ffi::SQLITE_FLOAT);
        // SAFETY: a value of this call.
        is_number.then(|| unsafe { ffi::sqlite3_value_double(value) })
    }

    pub(super) fn integer(&self, value: i64) {
        // SAFETY: the context of this call.
        unsafe { ffi::sqlite3_result_int64(self.context, value) };
    }

    /// A number; NaN is NULL.
    pub(super) fn real(&self, value: f64) {
        // SAFETY: the context of this call.
        unsafe { ffi::sqlite3_result_double(self.context, value) };
    }

    fn result(&self, text: &[u8]) {
        let Ok(length) = c_int::try_from(text.len()) else { return self.too_big() };
        // SAFETY: SQLite copies the text.
        unsafe { ffi::sqlite3_result_text(self.context, text.as_ptr().cast(), length, ffi::SQLITE_TRANSIENT()) };
    }

    fn too_big(&self) {
        // SAFETY: the context of this call.
        unsafe { ffi::sqlite3_result_error_toobig(self.context) };
    }

    fn late(&self) {
        // SAFETY: the context of this call.
        unsafe { ffi::sqlite3_result_error_code(self.context, ffi::SQLITE_INTERRUPT) };
    }

    fn error(&self, message: &str) {
        let length = c_int::try_from(message.len()).unwrap_or(0);
        // SAFETY: SQLite copies the message.
        unsafe { ffi::sqlite3_result_error(self.context, message.as_ptr().cast(), length) };
    }
}

/// `instr(text, part)`: the position of a part, in characters, or in bytes of two blobs.
unsafe extern "C" fn instr(context: *mut ffi::sqlite3_context, count: c_int, values: *mut *mut ffi::sqlite3_value) {
    // SAFETY: called by SQLite.
    let call = unsafe { SqlCall::new(context, count, values) };
    let blobs = call.kind(0) == ffi::SQLITE_BLOB && call.kind(1) == ffi::SQLITE_BLOB;
    let (Some(text), Some(part)) = (call.bytes(0, blobs), call.bytes(1, blobs)) else { return };
    let index = memmem::find(text, part).map_or(0, |at| {
        let before = &text[..at];
        let characters = || before.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        1 + if blobs { at } else { characters() }
    });
    call.integer(i64::try_from(index).unwrap_or(0));
}

/// `replace(text, part, new)`.
unsafe extern "C" fn replace(context: *mut ffi::sqlite3_context, count: c_int, values: *mut *mut ffi::sqlite3_value) {
    // SAFETY: called by SQLite.
    let call = unsafe { SqlCall::new(context, count, values) };
    let (Some(text), Some(part)) = (call.text(0), call.text(1)) else { return };
    if part.first().is_none_or(|first| *first == 0) {
        return call.result(text);
    }
    let Some(new) = call.text(2) else { return };
    let (mut out, mut end) = (Vec::with_capacity(text.len()), 0);
    for at in memmem::find_iter(text, part) {
        out.extend_from_slice(&text[end..at]);
        out.extend_from_slice(new);
        end = at + part.len();
        if out.len() > VALUE as usize {
            return call.too_big();
        }
    }
    out.extend_from_slice(&text[end..]);
    if out.len() > VALUE as usize {
        return call.too_big();
    }
    call.result(&out);
}

/// `trim(text, characters)`, `ltrim`, `rtrim`.
unsafe extern "C" fn trim<const LEFT: bool, const RIGHT: bool>(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: called by SQLite.
    let call = unsafe { SqlCall::new(context, count, values) };
    let (Some(mut text), Some(removed)) = (call.text(0), call.text(1)) else { return };
    let removed: HashSet<&[u8]> = characters(removed).collect();
    let matches = |part: Option<&[u8]>| part.is_some_and(|part| removed.contains(part));
    while LEFT && let Some(length) = (1..=4).find(|length| matches(text.get(..*length))) {
        text = &text[length..];
    }
    while RIGHT
        && let Some(rest) =
            (1..=4).filter_map(|length| text.len().checked_sub(length)).find(|at| matches(text.get(*at..)))
    {
        text = &text[..rest];
    }
    call.result(text);
}

/// The characters of a text, as bytes.
fn characters(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let first = *text.first()?;
        let more = if first < 0xc0 { 0 } else { text[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count() };
        let (one, rest) = text.split_at(1 + more);
        text = rest;
        Some(one)
    })
}

/// `text LIKE pattern [ESCAPE escape]` is `like(pattern, text [, escape])`; the same for GLOB.
unsafe extern "C" fn like(context: *mut ffi::sqlite3_context, count: c_int, values: *mut *mut ffi::sqlite3_value) {
    // SAFETY: called by SQLite.
    let call = unsafe { SqlCall::new(context, count, values) };
    // SAFETY: the context of this call; the pointer is not read.
    let is_glob = !unsafe { ffi::sqlite3_user_data(context) }.is_null();
    let length = call.text(0).map_or(0, <[u8]>::len);
    if length > LONGEST as usize {
        return call.error("LIKE or GLOB pattern too complex");
    }
    let escape = if call.values.len() == 3 {
        let Some(escape) = call.text(2) else { return };
        let escape = String::from_utf8_lossy(escape);
        let mut letters = escape.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else {
            return call.error("ESCAPE expression must be a single character");
        };
        Some(letter)
    } else {
        None
    };
    let (Some(pattern), Some(text)) = (call.text(0), call.text(1)) else { return };
    let (pattern, text) = (String::from_utf8_lossy(pattern), String::from_utf8_lossy(text));
    let pattern = if is_glob { SqlPattern::glob(&pattern) } else { SqlPattern::like(&pattern, escape) };
    let end = memory::end();
    match pattern.matches(&text, || end.is_some_and(|end| Instant::now() >= end)) {
        Ok(matches) => call.integer(i64::from(matches)),
        Err(Late) => call.late(),
    }
}
