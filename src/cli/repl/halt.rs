//! Interaction at a breakpoint.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use console::Style as Paint;
use serde_json::json;

use super::commands::{self, HALTED};
use super::terminal::{Terminal, script_error};
use crate::error::Result;
use crate::script::{AfterHalt, Halt, OnHalt, ShowLimits, Shown};

/// The handler of breakpoints.
pub(super) fn handler(terminal: &Rc<Terminal>) -> OnHalt {
    let terminal = Rc::clone(terminal);
    let last = RefCell::default();
    Box::new(move |halt| {
        if terminal.passing.get() {
            return AfterHalt::Continue;
        }
        let resume = if halt.trace { traced(&terminal, halt, &last) } else { stopped(&terminal, halt) };
        resume.unwrap_or_else(|error| {
            terminal.broken.replace(Some(error));
            AfterHalt::Abort
        })
    })
}

/// Prints the locals that changed since the last line.
fn traced(terminal: &Terminal, halt: &Halt<'_>, last: &RefCell<BTreeMap<String, String>>) -> Result<AfterHalt> {
    let now: BTreeMap<String, Shown> = halt
        .locals(&ShowLimits::brief())
        .into_iter()
        .filter(|(_, value)| value.spans.first().is_some_and(|span| !span.text.starts_with("function")))
        .collect();
    let old = last.replace(now.iter().map(|(name, value)| (name.clone(), value.to_string())).collect());
    let changed = now.iter().filter(|(name, value)| old.get(*name) != Some(&value.to_string()));
    let values: Vec<String> = changed.map(|(name, value)| format!("{name} = {}", terminal.value(value))).collect();
    let location = terminal.paint(&Paint::new().dim(), &halt.place);
    let line = format!("{location}  {}", halt.source.trim());
    let text = if values.is_empty() { line } else { format!("{line}\n    {}", values.join(", ")) };
    let json = || {
        let locals: BTreeMap<&String, String> = now.iter().map(|(name, value)| (name, value.to_string())).collect();
        json!({ "place": halt.place, "source": halt.source.trim(), "locals": locals })
    };
    terminal.item("traces", &text, json).map(|()| AfterHalt::Continue)
}

fn stopped(terminal: &Terminal, halt: &Halt<'_>) -> Result<AfterHalt> {
    let source = halt.source.trim();
    let line = format!("{}  {source}", terminal.paint(&Paint::new().bold(), &halt.place));
    let kept = terminal.halt(&halt.place, source, &line)?;
    let resume = inspect(terminal, halt);
    terminal.go_on(kept);
    resume
}

fn inspect(terminal: &Terminal, halt: &Halt<'_>) -> Result<AfterHalt> {
    loop {
        terminal.finish()?;
        let Some(typed) = terminal.next("halted> ")? else {
            terminal.leaving.set(true);
            return Ok(AfterHalt::Abort);
        };
        let typed = typed.trim();
        if typed.is_empty() {
            continue;
        }
        if !typed.starts_with(':') {
            terminal.begin("eval");
            match halt.eval(typed) {
                Ok(values) => terminal.values(&values)?,
                Err(failure) => terminal.fail(script_error(&failure, None))?,
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
        terminal.begin(command.name);
        match command.name {
            "continue" => return Ok(AfterHalt::Continue),
            "next" => return Ok(AfterHalt::Next),
            "in" => return Ok(AfterHalt::Into),
            "out" => return Ok(AfterHalt::Out),
            "abort" => {
                terminal.aborted.set(true);
                return Ok(AfterHalt::Abort);
            }
            "quit" => {
                terminal.leaving.set(true);
                return Ok(AfterHalt::Abort);
            }
            "locals" => {
                for (name, value) in halt.locals(&ShowLimits::default()) {
                    let text = format!("{name} = {}", terminal.value(&value));
                    terminal.item("locals", &text, || json!({ "name": name, "shown": value.to_string() }))?;
                }
            }
            "where" => terminal.result("frames", &halt.frames.join("\n"), || json!(halt.frames))?,
            _ => {
                let help = commands::help(HALTED, "")?;
                terminal.result("help", &help, || json!(help))?;
            }
        }
    }
}
