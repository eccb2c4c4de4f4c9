//! Counts of libtorch's operations, for tests and measurements of how many kernels a step has.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use super::checked;
use r1_base::error::Result;

unsafe extern "C" {
    fn r1_count_operations(out: *mut *mut c_void) -> *mut c_char;
    fn r1_counted_operations(
        operations: *mut c_void,
        each: unsafe extern "C" fn(*mut c_void, *const c_char, i64),
        target: *mut c_void,
    );
}

/// Runs `body` and counts the operations of libtorch's dispatcher that this thread calls, by name
/// (`aten::add`); operations that other operations call are not counted. A thread has one count at
/// a time.
///
/// # Errors
/// `Kind::Internal` within another count; errors of `body`.
pub fn count_operations<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, BTreeMap<String, u64>)> {
    /// Ends the count, also after an error.
    struct Count(*mut c_void);
    impl Count {
        fn finish(&mut self, counts: &mut BTreeMap<String, u64>) {
            if !self.0.is_null() {
                // SAFETY: the pointer of r1_count_operations, used once; `each` gets the map.
                unsafe { r1_counted_operations(self.0, each, std::ptr::from_mut(counts).cast()) }
                self.0 = null_mut();
            }
        }
    }
    impl Drop for Count {
        fn drop(&mut self) {
            self.finish(&mut BTreeMap::new());
        }
    }
    let mut handle = null_mut();
    // SAFETY: the pointer is live for the call.
    checked(unsafe { r1_count_operations(&raw mut handle) })?;
    let mut count = Count(handle);
    let result = body()?;
    let mut counts = BTreeMap::new();
    count.finish(&mut counts);
    Ok((result, counts))
}

unsafe extern "C" fn each(target: *mut c_void, name: *const c_char, count: i64) {
    // SAFETY: the map of `finish`, and a C string, both live for the call.
    let (counts, name) = unsafe { (&mut *target.cast::<BTreeMap<String, u64>>(), CStr::from_ptr(name)) };
    counts.insert(name.to_string_lossy().into_owned(), u64::try_from(count).unwrap_or(0));
}
