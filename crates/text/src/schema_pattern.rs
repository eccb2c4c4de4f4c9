//! The compiled `pattern`s of schemas. Compiling one may take tens of milliseconds, and a list of
//! texts checks each of them.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;

/// Number of patterns that a thread keeps.
const KEPT: usize = 64;

thread_local! {
    static COMPILED: RefCell<HashMap<String, Option<Regex>>> = RefCell::default();
}

/// A pattern of a schema; `None` for one that `regex` does not support.
pub(super) fn compiled(pattern: &str) -> Option<Regex> {
    COMPILED.with_borrow_mut(|all| {
        if let Some(regex) = all.get(pattern) {
            return regex.clone();
        }
        if all.len() == KEPT {
            all.clear();
        }
        let regex = Regex::new(pattern).ok();
        all.insert(pattern.to_owned(), regex.clone());
        regex
    })
}
