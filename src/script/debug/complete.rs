//! Completion: names of the session, the script and the host, and fields of tables.

use mlua::{Table, Value};

use super::Console;
use crate::script::docs;
use crate::script::runtime::show::is_name;

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    /// Its kind: `table`, or the signature and summary of a host function.
    pub what: String,
    /// The completed path: `r1.json.encode`.
    pub path: String,
}

/// Keywords that begin or end statements.
const WORDS: [&str; 20] = [
    "and", "break", "continue", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "while",
];

impl Console {
    /// Completions of the end of `typed`, and the number of bytes they replace. No code runs: only
    /// fields of plain tables are read.
    pub fn complete(&self, typed: &str) -> (usize, Vec<Candidate>) {
        let start = typed
            .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':')))
            .map_or(0, |at| at + typed[at..].chars().next().map_or(1, char::len_utf8));
        let path = &typed[start..];
        let (base, partial) = match path.rfind(['.', ':']) {
            Some(dot) => (&path[..dot], &path[dot + 1..]),
            None => ("", path),
        };
        let mut candidates = Vec::new();
        let mut add = |name: &str, value: &Value| {
            if name.starts_with(partial) && is_name(name) {
                let path = if base.is_empty() { name.to_owned() } else { format!("{base}.{name}") };
                // Host functions are described by their declarations.
                let declared = docs::all()
                    .find(|entry| entry.name == path)
                    .map(|entry| format!("{}  {}", entry.signature(), entry.summary()));
                candidates.push(Candidate {
                    name: name.to_owned(),
                    what: declared.unwrap_or_else(|| type_label(value)),
                    path,
                });
            }
        };
        if base.is_empty() {
            for table in [&self.variables, &self.values, &self.locals, &self.vm.environment] {
                each(table, &mut add);
            }
            if !partial.is_empty() {
                for word in WORDS {
                    add(word, &Value::Nil);
                }
            }
        } else if let Some(value) = self.find(base) {
            match &value {
                Value::Table(table) => {
                    each(table, &mut add);
                    // Methods of objects are in their metatable.
                    let behind = table.metatable().and_then(|meta| meta.raw_get::<Table>("__index").ok());
                    if let Some(methods) = behind {
                        each(&methods, &mut add);
                    }
                }
                Value::String(_) => {
                    if let Ok(strings) = self.vm.environment.raw_get::<Table>("string") {
                        each(&strings, &mut add);
                    }
                }
                _ => {}
            }
        }
        candidates.sort_by(|a, b| a.name.cmp(&b.name));
        candidates.dedup_by(|a, b| a.name == b.name);
        (partial.len(), candidates)
    }

    /// The value of a dotted path.
    fn find(&self, path: &str) -> Option<Value> {
        let mut names = path.split(['.', ':']);
        let first = names.next()?;
        let tables = [&self.variables, &self.values, &self.locals, &self.vm.environment];
        let mut value = tables.iter().find_map(|table| {
            let value: Value = table.raw_get(first).ok()?;
            (!value.is_nil()).then_some(value)
        })?;
        for name in names {
            value = value.as_table()?.raw_get(name).ok()?;
        }
        Some(value)
    }
}

fn each(table: &Table, add: &mut impl FnMut(&str, &Value)) {
    // The iteration cannot fail, since the closure does not.
    let _ = table.for_each(|key: Value, value: Value| {
        if let Value::String(name) = &key {
            add(&name.to_string_lossy(), &value);
        }
        Ok(())
    });
}

fn type_label(value: &Value) -> String {
    match value {
        Value::Nil => String::new(),
        Value::Table(table) if table.raw_len() > 0 => format!("list of {}", table.raw_len()),
        other => other.type_name().to_owned(),
    }
}
