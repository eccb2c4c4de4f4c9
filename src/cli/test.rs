//! `r1 test`: runs test files in Lua.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use console::Style;
use serde_json::json;

use super::args::{OutputArgs, TestArgs};
use super::recorded::stop_if_interrupted;
use super::{diff, print, print_json};
use crate::data::listed;
use crate::error::{Error, Kind, Result};
use crate::programs::{Executor, Programs};
use crate::script::{Suite, TestVerdict, unreadable_script};
use crate::telemetry::{Reporter, ctrl_c};

/// The suffix of test files.
const ENDING: &str = "_test.lua";

#[derive(Default)]
struct TestCounts {
    passed: usize,
    failed: usize,
    left_out: usize,
}

pub(super) fn run(args: &TestArgs, output: OutputArgs) -> Result<ExitCode> {
    let interrupt = ctrl_c();
    let started = Instant::now();
    let files = files(&args.files)?;
    let reporter = output.reporter();
    let executor = Executor::new()?;
    let mut counts = TestCounts::default();
    for file in &files {
        stop_if_interrupted(interrupt)?;
        one_file(file, args.filter.as_deref(), &executor, output, &reporter, &mut counts)?;
    }
    let TestCounts { passed, failed, left_out } = counts;
    if passed + failed == 0 {
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(Error::new(Kind::Usage, format!("no test name contains `{filter}`")));
    }
    if output.json {
        print_json(json!({ "event": "summary", "passed": passed, "failed": failed, "left_out": left_out }))?;
    } else {
        let rest = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
        print(&format!("{passed} passed, {failed} failed{rest} in {:.1} s\n", started.elapsed().as_secs_f64()))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(Kind::Env.exit_code()) })
}

fn one_file(
    file: &Path,
    filter: Option<&str>,
    executor: &Executor,
    output: OutputArgs,
    reporter: &Reporter,
    counts: &mut TestCounts,
) -> Result<()> {
    let source = std::fs::read_to_string(file).map_err(|error| unreadable_script(file, &error))?;
    // The output of a test is shown below its name.
    let printed = Rc::new(RefCell::new(String::new()));
    let sink = Rc::clone(&printed);
    let echo = Box::new(move |line: &crate::script::LogLine, stream| {
        let mut printed = sink.borrow_mut();
        match stream {
            crate::script::LogStream::Out => printed.push_str(&line.text),
            crate::script::LogStream::Log => {
                let _ = writeln!(printed, "{}: {}", line.place, line.text);
            }
        }
    });
    let programs = Rc::new(Programs::new(reporter.clone()));
    let suite = executor.block_on(Suite::load(file, &source, Some(programs), echo))?;
    if !output.json && !output.quiet {
        print(&format!("{}\n", file.display()))?;
    }
    for (index, (name, location)) in suite.names().iter().enumerate() {
        if filter.is_some_and(|filter| !name.contains(filter)) {
            counts.left_out += 1;
            continue;
        }
        printed.borrow_mut().clear();
        let verdict = executor.block_on(suite.run(index));
        if verdict.failure.is_none() {
            counts.passed += 1;
        } else {
            counts.failed += 1;
        }
        if output.json {
            let failure = verdict.failure.as_ref().map(|failure| {
                let (expected, actual) = verdict.sides.clone().unzip();
                json!({ "message": failure.error.message, "place": failure.error.place, "hint": failure.error.hint,
                        "expected": expected, "actual": actual, "traceback": failure.traceback })
            });
            let line = json!({ "event": "test", "file": file, "name": name, "place": location,
                               "ok": failure.is_none(), "seconds": verdict.seconds, "failure": failure,
                               "printed": *printed.borrow() });
            print_json(line)?;
        } else if !output.quiet || verdict.failure.is_some() {
            print(&report(name, &verdict, &printed.borrow(), reporter.is_coloured()))?;
        }
    }
    Ok(())
}

fn report(name: &str, verdict: &TestVerdict, printed: &str, colour: bool) -> String {
    let paint = |style: Style, text: &str| style.force_styling(colour).apply_to(text).to_string();
    let output = printed.lines().map(|line| format!("        | {line}"));
    let Some(failure) = &verdict.failure else {
        let passed = format!("  {}    {name}", paint(Style::new().green(), "ok"));
        return std::iter::once(passed).chain(output).collect::<Vec<_>>().join("\n") + "\n";
    };
    let mut lines = vec![format!("  {}  {name}", paint(Style::new().red().bold(), "FAIL"))];
    lines.extend(failure.to_string().lines().map(|line| format!("        {line}")));
    if let Some((expected, actual)) = &verdict.sides
        && (expected.contains('\n') || actual.contains('\n'))
    {
        lines.push("        - expected, + got".to_owned());
        let all = diff::lines(&format!("{expected}\n"), &format!("{actual}\n"), colour);
        lines.extend(all.lines().map(|line| format!("      {line}")));
    }
    lines.extend(output);
    lines.join("\n") + "\n"
}

/// The files to run: the named ones, those in named directories, or those in `tests/lua`, `scripts`
/// and the current directory.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in named {
        if path.is_dir() {
            below(path, true, &mut files)?;
        } else {
            files.push(path.clone());
        }
    }
    if named.is_empty() {
        for (folder, deep) in [("tests/lua", true), ("scripts", true), (".", false)] {
            if Path::new(folder).is_dir() {
                below(Path::new(folder), deep, &mut files)?;
            }
        }
    }
    if files.is_empty() {
        let location = if named.is_empty() { "tests/lua, scripts or this directory" } else { "the directories named" };
        return Err(Error::new(Kind::Usage, format!("there are no tests in {location}"))
            .hint(format!("test files are named NAME{ENDING}; `r1 new NAME` writes a script and its test")));
    }
    Ok(files)
}

fn below(folder: &Path, deep: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in listed(folder).map_err(|e| Error::io(Kind::Data, "look for tests in", folder, &e))? {
        if path.is_dir() && deep {
            below(&path, deep, files)?;
        } else if path.to_string_lossy().ends_with(ENDING) {
            files.push(path.strip_prefix("./").map_or_else(|_| path.clone(), Path::to_path_buf));
        }
    }
    Ok(())
}
