//! The memory that SQLite allocates for one query, and the end of its time.
//!
//! SQLite's own limit is one number for the process, so that a large query of one trajectory would
//! fail small ones of others. Here its allocator is wrapped: each allocation is added to a counter
//! of the thread, and refused above the limit of the thread's query. SQLite reports a refused
//! allocation as SQLITE_NOMEM. A query runs on one thread; memory of earlier queries that it frees
//! lowers the counter.
//!
//! SQLite checks the time between instructions only, and one instruction may run a function that
//! makes a value of megabytes, thousands of them in a row. Large allocations are therefore refused
//! too when the query's time has ended.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::time::Instant;

use rusqlite::ffi;

use crate::error::{Error, Kind, Result};

thread_local! {
    /// Bytes since the query began, and the most that it may allocate.
    static COUNT: Cell<(i64, i64)> = const { Cell::new((0, i64::MAX)) };
    /// The end of the query's time, and whether an allocation was refused because of it.
    static END: Cell<(Option<Instant>, bool)> = const { Cell::new((None, false)) };
}

/// Longest value of a query, bytes.
pub(super) const VALUE: i32 = 16 << 20;

/// Allocations of at least this many bytes check the time.
const LARGE: c_int = 4096;

static SYSTEM: OnceLock<Methods> = OnceLock::new();
static INSTALLED: OnceLock<c_int> = OnceLock::new();

/// SQLite's own allocator.
struct Methods(ffi::sqlite3_mem_methods);

// SAFETY: functions, and a pointer that SQLite's own allocator leaves null.
unsafe impl Send for Methods {}
// SAFETY: as above; the functions are made for several threads.
unsafe impl Sync for Methods {}

/// Wraps SQLite's allocator; needed before the first database is opened.
///
/// # Errors
/// [`Kind::Internal`] if SQLite was used before.
pub(super) fn install() -> Result<()> {
    let code = *INSTALLED.get_or_init(|| {
        // SAFETY: all fields are pointers to functions or data, for which null is valid (`None`).
        let mut system: ffi::sqlite3_mem_methods = unsafe { std::mem::zeroed() };
        // SAFETY: SQLite writes its methods to a valid structure; this runs once, before any
        // database is opened.
        let code = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut system) };
        if code != ffi::SQLITE_OK {
            return code;
        }
        let system = SYSTEM.get_or_init(|| Methods(system));
        let mut counted =
            ffi::sqlite3_mem_methods { xMalloc: Some(malloc), xFree: Some(free), xRealloc: Some(realloc), ..system.0 };
        // SAFETY: SQLite copies the structure, whose functions live as long as the program.
        unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut counted) }
    });
    if code == ffi::SQLITE_OK {
        return Ok(());
    }
    Err(Error::new(Kind::Internal, format!("SQLite's allocator can't be set (code {code})")))
}

/// The end of the time of the thread's query.
pub(super) fn end() -> Option<Instant> {
    END.get().0
}

/// Whether an allocation was refused because the time of the thread's query has ended.
pub(super) fn is_late() -> bool {
    END.get().1
}

/// While it exists, the thread's SQLite calls may allocate at most `limit` bytes, and nothing large
/// after `end`.
pub(super) struct Limit(());

impl Limit {
    pub(super) fn new(limit: u64, end: Option<Instant>) -> Self {
        COUNT.set((0, i64::try_from(limit).unwrap_or(i64::MAX)));
        END.set((end, false));
        Self(())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        COUNT.set((0, i64::MAX));
        END.set((None, false));
    }
}

/// Whether an allocation of `bytes` is in time.
fn in_time(bytes: c_int) -> bool {
    if bytes < LARGE {
        return true;
    }
    // The value of an ending thread no longer exists.
    END.try_with(|cell| match cell.get().0 {
        Some(end) if Instant::now() >= end => {
            cell.set((Some(end), true));
            false
        }
        _ => true,
    })
    .unwrap_or(true)
}

fn fits(more: i64) -> bool {
    // The counter of an ending thread no longer exists.
    COUNT.try_with(|count| count.get().0.saturating_add(more) <= count.get().1).unwrap_or(true)
}

fn add(bytes: i64) {
    let _ = COUNT.try_with(|count| count.set((count.get().0.saturating_add(bytes), count.get().1)));
}

/// The size of an allocation.
///
/// # Safety
/// `of` is null or an allocation of [`SYSTEM`].
unsafe fn size(of: *mut c_void) -> i64 {
    match SYSTEM.get().and_then(|system| system.0.xSize) {
        // SAFETY: the caller passes an allocation.
        Some(size) if !of.is_null() => i64::from(unsafe { size(of) }),
        _ => 0,
    }
}

unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    let allowed = in_time(bytes) && fits(i64::from(bytes));
    let Some(malloc) = SYSTEM.get().and_then(|system| system.0.xMalloc).filter(|_| allowed) else {
        return std::ptr::null_mut();
    };
    // SAFETY: SQLite's own function with SQLite's argument.
    let new = unsafe { malloc(bytes) };
    // SAFETY: `new` is null or an allocation.
    add(unsafe { size(new) });
    new
}

unsafe extern "C" fn free(old: *mut c_void) {
    if let Some(free) = SYSTEM.get().and_then(|system| system.0.xFree) {
        // SAFETY: SQLite frees what it allocated; the size is read before that.
        unsafe {
            add(-size(old));
            free(old);
        }
    }
}

unsafe extern "C" fn realloc(old: *mut c_void, bytes: c_int) -> *mut c_void {
    // SAFETY: SQLite passes an allocation.
    let before = unsafe { size(old) };
    let allowed = in_time(bytes) && fits(i64::from(bytes) - before);
    let Some(realloc) = SYSTEM.get().and_then(|system| system.0.xRealloc).filter(|_| allowed) else {
        return std::ptr::null_mut();
    };
    // SAFETY: SQLite's own function with SQLite's arguments.
    let new = unsafe { realloc(old, bytes) };
    if !new.is_null() {
        // SAFETY: `new` is an allocation.
        add(unsafe { size(new) } - before);
    }
    new
}
