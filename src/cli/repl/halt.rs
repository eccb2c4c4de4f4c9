//! At a breakpoint: look around, and say how to go on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use console::Style as Paint;

use super::commands::{self, HALTED};
use super::terminal::{Terminal, say, told};
use crate::error::Result;
use crate::script::{Halt, Layout, OnHalt, Resume, Shown};

/// What breakpoints call.
pub(super) fn handler(terminal: &Rc<Terminal>) -> OnHalt {
    let terminal = Rc::clone(terminal);
    let told = RefCell::default();
    Box::new(move |halt| {
        if terminal.passing.get() {
            return Resume::Continue;
        }
        let resume = if halt.trace { traced(&terminal, halt, &told) } else { stopped(&terminal, halt) };
        resume.unwrap_or_else(|error| {
            terminal.break_off(error);
            Resume::Abort
        })
    })
}

/// Tells the locals that are not as they were at the last line.
fn traced(terminal: &Terminal, halt: &Halt<'_>, last: &RefCell<BTreeMap<String, String>>) -> Result<Resume> {
    let now: BTreeMap<String, Shown> = halt
        .locals(&Layout::brief())
        .into_iter()
        .filter(|(_, value)| value.0.first().is_some_and(|span| !span.text.starts_with("function")))
        .collect();
    let old = last.replace(now.iter().map(|(name, value)| (name.clone(), value.to_string())).collect());
    let changed = now.iter().filter(|(name, value)| old.get(*name) != Some(&value.to_string()));
    let values: Vec<String> = changed.map(|(name, value)| format!("{name} = {}", terminal.value(value))).collect();
    let place = terminal.paint(&Paint::new().dim(), &halt.place);
    let line = format!("{place}  {}", halt.source.trim());
    let text = if values.is_empty() { line } else { format!("{line}\n    {}", values.join(", ")) };
    say(&text).map(|()| Resume::Continue)
}

fn stopped(terminal: &Terminal, halt: &Halt<'_>) -> Result<Resume> {
    say(&format!("{}  {}", terminal.paint(&Paint::new().bold(), &halt.place), halt.source.trim()))?;
    loop {
        let Some(typed) = terminal.next("halted> ")? else {
            terminal.leaving.set(true);
            return Ok(Resume::Abort);
        };
        let typed = typed.trim();
        if typed.is_empty() {
            continue;
        }
        if !typed.starts_with(':') {
            match halt.eval(typed) {
                Ok(values) => {
                    for value in values {
                        say(&terminal.value(&value))?;
                    }
                }
                Err(failure) => terminal.fail(told(&failure, None))?,
            }
            continue;
        }
        let (command, _) = match commands::parse(typed, HALTED) {
            Ok(parsed) => parsed,
            Err(error) => {
                terminal.fail(error)?;
                continue;
            }
        };
        match command.name {
            "continue" => return Ok(Resume::Continue),
            "next" => return Ok(Resume::Next),
            "in" => return Ok(Resume::Into),
            "out" => return Ok(Resume::Out),
            "abort" => {
                terminal.aborted.set(true);
                return Ok(Resume::Abort);
            }
            "quit" => {
                terminal.leaving.set(true);
                return Ok(Resume::Abort);
            }
            "locals" => {
                for (name, value) in halt.locals(&Layout::default()) {
                    say(&format!("{name} = {}", terminal.value(&value)))?;
                }
            }
            "where" => say(&halt.frames.join("\n"))?,
            _ => say(&commands::help(HALTED, "")?)?,
        }
    }
}
