//! Programs in Rhai, a small scripting language with an interpreter in the binary: no processes, no
//! installation, every system. Programs can't access anything outside, because the interpreter has
//! no such functions.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::Output;
use super::capture::Capture;
use crate::error::{Error, Kind, Result};
use crate::schema::section;
use rhai::{AST, Dynamic, Engine, EvalAltResult, Position, Scope};

section! {
    /// Settings of `r1.tools.rhai`.
    pub struct RhaiOptions: "" {
        /// Wall time of one call in seconds. For results that do not depend on the machine use
        /// `operations`.
        timeout: f64 = 1.0;
        /// Operations of one call; a million take about 50 ms.
        operations: u64 = 2_000_000;
        /// Depth of nested calls.
        call_depth: usize = 64;
        /// Depth of nested expressions.
        expression_depth: usize = 64;
        /// Bytes of a string.
        string_bytes: usize = 1 << 18;
        /// Elements of an array, including nested arrays.
        array_length: usize = 10_000;
        /// Entries of an object map, including nested maps.
        map_length: usize = 10_000;
        /// Printed bytes that are kept; the rest is dropped.
        output_bytes: usize = 8192;
    }
}

impl RhaiOptions {
    fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Kind::Tool, format!("rhai: {what}")));
        if !(self.timeout > 0.0 && self.timeout <= 86_400.0) {
            return bad("timeout must be more than 0 and at most 86400 seconds");
        }
        // In the engine a limit of 0 means no limit.
        let limits = [
            (self.operations as usize, usize::MAX, "operations"),
            (self.call_depth, 1000, "call_depth"),
            (self.expression_depth, 1000, "expression_depth"),
            (self.string_bytes, 1 << 26, "string_bytes"),
            (self.array_length, 1 << 16, "array_length"),
            (self.map_length, 1 << 16, "map_length"),
        ];
        for (value, limit, name) in limits {
            if value == 0 || value > limit {
                return bad(&format!("{name} must be at least 1 and at most {limit}"));
            }
        }
        if self.output_bytes < 64 || self.output_bytes > 1 << 28 {
            return bad("output_bytes must be at least 64 and at most 268435456");
        }
        Ok(())
    }
}

/// The Rhai interpreter. Cheap to clone.
#[derive(Clone)]
pub struct Rhai {
    inner: Arc<RhaiProgram>,
}

struct RhaiProgram {
    options: RhaiOptions,
    engine: Engine,
}

impl std::fmt::Debug for Rhai {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rhai").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// Variables that a program may have at once; together with the limits on each this bounds memory.
const VARIABLES: usize = 64;

/// Parsing, running, copying and dropping nested values recurse; the limits keep them within this
/// size.
const STACK: usize = 64 << 20;

/// Time after the time-out at which a program is abandoned.
const GRACE: Duration = Duration::from_millis(500);

impl Rhai {
    /// # Errors
    /// [`Kind::Tool`] if a limit is invalid.
    pub fn new(options: RhaiOptions) -> Result<Self> {
        options.check()?;
        let mut engine = Engine::new();
        engine
            .set_max_operations(options.operations)
            .set_max_call_levels(options.call_depth)
            .set_max_expr_depths(options.expression_depth, options.expression_depth)
            .set_max_string_size(options.string_bytes)
            .set_max_array_size(options.array_length)
            .set_max_map_size(options.map_length)
            .set_max_variables(VARIABLES)
            .set_max_functions(256)
            .disable_symbol("eval");
        // The only library functions that wait.
        engine.register_fn("sleep", |_: i64| -> std::result::Result<(), Box<EvalAltResult>> { no_sleep() });
        engine.register_fn("sleep", |_: f64| -> std::result::Result<(), Box<EvalAltResult>> { no_sleep() });
        engine.on_print(|text| CALL.with_borrow_mut(|call| call.print(text)));
        engine.on_debug(|text, _, _| CALL.with_borrow_mut(|call| call.print(text)));
        engine.on_progress(|operations| {
            // Reading the clock takes longer than most operations, and an operation on long strings
            // and arrays takes milliseconds.
            let late = operations % 16 == 0 && CALL.with_borrow(|call| Instant::now() >= call.deadline);
            late.then_some(Dynamic::UNIT)
        });
        Ok(Self { inner: Arc::new(RhaiProgram { options, engine }) })
    }

    /// Runs `prelude`, then `code`, in one scope. Functions of the prelude can be called; its
    /// output is discarded, and an error in it is reported as `prelude: …`. Line numbers refer to
    /// `code`. Blocks at most until the time-out or the operations limit. A program whose last
    /// operation does not end soon after the time-out is abandoned: its thread ends with the
    /// operation.
    pub fn run(&self, code: &str, prelude: &str) -> Output {
        let start = Instant::now();
        let (inner, code, prelude) = (Arc::clone(&self.inner), code.to_owned(), prelude.to_owned());
        let (done, result) = channel();
        let started = std::thread::Builder::new().name("r1-rhai".to_owned()).stack_size(STACK).spawn(move || {
            // The receiver is gone if the program was abandoned.
            let _ = done.send(inner.run(&code, &prelude));
        });
        let limit = Duration::from_secs_f64(self.inner.options.timeout);
        let result = match started {
            Err(error) => Err(format!("SystemError: no thread for the program: {error}")),
            Ok(_) => match result.recv_timeout(limit.saturating_add(GRACE)) {
                Ok(result) => Ok(result),
                Err(RecvTimeoutError::Timeout) => Ok((self.inner.late(), false, true)),
                Err(RecvTimeoutError::Disconnected) => Err("SystemError: the interpreter failed".to_owned()),
            },
        };
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok((text, ok, timed_out)) => Output { text, ok, timed_out, seconds, ..Output::default() },
            Err(text) => Output { text, seconds, ..Output::default() },
        }
    }
}

fn no_sleep() -> std::result::Result<(), Box<EvalAltResult>> {
    Err("sleep is not available".into())
}

/// The state of the engine's hooks for the program on this thread.
struct RhaiCall {
    printed: Capture,
    quiet: bool,
    deadline: Instant,
}

impl RhaiCall {
    fn print(&mut self, text: &str) {
        if !self.quiet {
            self.printed.push(text.as_bytes());
            self.printed.push(b"\n");
        }
    }
}

thread_local! {
    static CALL: RefCell<RhaiCall> =
        RefCell::new(RhaiCall { printed: Capture::new(0), quiet: false, deadline: Instant::now() });
}

impl RhaiProgram {
    /// The text, whether the program succeeded, and whether it timed out.
    fn run(&self, code: &str, prelude: &str) -> (String, bool, bool) {
        CALL.with_borrow_mut(|call| {
            *call = RhaiCall {
                printed: Capture::new(self.options.output_bytes),
                quiet: true,
                deadline: Instant::now() + Duration::from_secs_f64(self.options.timeout),
            };
        });
        let mut scope = Scope::new();
        let functions = match self.evaluate(prelude, None, &mut scope) {
            Ok((ast, _)) => ast.clone_functions_only(),
            Err((error, late)) => return (format!("prelude: {error}"), false, late),
        };
        CALL.with_borrow_mut(|call| call.quiet = false);
        let result = self.evaluate(code, Some(&functions), &mut scope);
        let mut text = CALL.with_borrow(|call| call.printed.text());
        let (last, ok, late) = match result {
            Ok((_, value)) if text.is_empty() && !value.is_unit() => (value.to_string(), true, false),
            Ok(_) => (String::new(), true, false),
            Err((error, late)) => (error, false, late),
        };
        let mut cut = Capture::new(self.options.output_bytes);
        cut.push(last.as_bytes());
        text.push_str(&cut.text());
        if text.ends_with('\n') {
            text.pop();
        }
        (text, ok, late)
    }

    /// Compiles and runs one piece. The error is one line; the flag is set on a time-out.
    fn evaluate(
        &self,
        code: &str,
        functions: Option<&AST>,
        scope: &mut Scope<'static>,
    ) -> std::result::Result<(AST, Dynamic), (String, bool)> {
        let ast = self.engine.compile_with_scope(scope, code).map_err(|error| (one_line(&error.to_string()), false))?;
        let ast = functions.map_or_else(|| ast.clone(), |functions| functions.merge(&ast));
        match self.engine.eval_ast_with_scope::<Dynamic>(scope, &ast) {
            Ok(value) => Ok((ast, value)),
            Err(error) => Err(self.describe(&error)),
        }
    }

    fn late(&self) -> String {
        format!("TimeoutError: the program ran longer than {} s", self.options.timeout)
    }

    fn describe(&self, error: &EvalAltResult) -> (String, bool) {
        match error.unwrap_inner() {
            EvalAltResult::ErrorTerminated(..) => (self.late(), true),
            EvalAltResult::ErrorTooManyOperations(at) => {
                let (limit, line) = (self.options.operations, line(*at));
                (format!("TimeoutError: the program needs more than {limit} operations{line}"), true)
            }
            inner => (one_line(&inner.to_string()), false),
        }
    }
}

fn line(at: Position) -> String {
    at.line().map_or_else(String::new, |line| format!(" (line {line})"))
}

/// The engine's message; its positions already have the form `(line 1, position 5)`.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(code: &str) -> (String, bool, bool) {
        run_with(code, "")
    }

    fn run_with(code: &str, prelude: &str) -> (String, bool, bool) {
        let output = Rhai::new(RhaiOptions::default()).unwrap().run(code, prelude);
        (output.text, output.ok, output.timed_out)
    }

    #[test]
    fn rhai_output_is_the_printed_text_or_the_last_value() {
        assert_eq!(run("print(6 * 7); 1"), ("42".to_owned(), true, false));
        assert_eq!(run("let x = 6; x * 7"), ("42".to_owned(), true, false));
        assert_eq!(run("let x = 6;"), (String::new(), true, false));
        assert_eq!(run(""), (String::new(), true, false));
        assert_eq!(run("print(\"a\"); print(\"\")"), ("a\n".to_owned(), true, false));
    }

    #[test]
    fn a_rhai_prelude_defines_names_and_its_output_is_discarded() {
        let prelude = "let tax = 2; fn twice(x) { x * 2 } print(\"hidden\");";
        assert_eq!(run_with("twice(20) + tax", prelude), ("42".to_owned(), true, false));
        let (text, ok, _) = run_with("1", "let x = y;");
        assert!(text.starts_with("prelude: Variable not found: y") && !ok, "{text}");
    }

    #[test]
    fn rhai_errors_are_one_line_with_the_position() {
        assert_eq!(run("print(1);\nfoo"), ("1\nVariable not found: foo (line 2, position 1)".to_owned(), false, false));
        let (text, ok, _) = run("let x = ;");
        assert!(text.contains("line 1") && !ok && !text.contains('\n'), "{text}");
        let (text, _, _) = run("fn f() {\n throw \"a\nb\" }\nf()");
        assert!(!text.contains('\n') && text.contains("line 2"), "{text}");
    }

    #[test]
    fn hostile_rhai_programs_are_stopped() {
        for (code, what) in [
            ("loop {}", "TimeoutError"),
            ("loop { try { throw 1 } catch {} }", "TimeoutError"),
            ("fn f() { f() } f()", "Stack overflow"),
            ("let s = \"x\"; loop { s += s; }", "too large"),
            ("let a = []; loop { a.push(a); }", "too large"),
            // Copying deeply nested values is slow, so either limit may be reached first.
            ("let a = []; loop { a = [a]; }", ""),
            ("let m = #{}; loop { m = #{a: m}; }", ""),
            ("let a = []; a.pad(1000000000, 0);", "too large"),
            ("blob(1000000000)", "too large"),
            ("let s = \"\"; s.pad(1000000000, 'x');", "too large"),
            ("eval(\"1\")", "eval"),
            ("sleep(1000)", "not available"),
            ("sleep(1000.0)", "not available"),
            ("import \"x\" as y;", "import"),
            ("open(\"/etc/passwd\")", "Function not found"),
            ("1 / 0", "Division by zero"),
            ("9223372036854775807 + 1", "overflow"),
            ("let n = 0; for x in 0..9223372036854775807 { n += 1; }", "TimeoutError"),
            ("let x = 1; let f = || x + 1; f.call() + no", "no"),
        ] {
            let start = Instant::now();
            let (text, ok, timed_out) = run(code);
            assert!(!ok && text.contains(what), "{code}: {text}");
            assert!(what.is_empty() || timed_out == (what == "TimeoutError"), "{code}");
            assert!(start.elapsed() < Duration::from_secs(20), "{code}");
        }
        let nested = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
        assert!(run(&nested).0.contains("complex"), "{}", run(&nested).0);
    }

    #[test]
    fn long_rhai_output_is_truncated_and_results_are_deterministic() {
        let (text, ok, _) = run("for i in 0..10000 { print(i); }");
        assert!(ok && text.contains("bytes left out") && text.ends_with("9999"), "{text}");
        let code = "let m = #{b: 1, a: 2}; let out = []; for k in m.keys() { out.push(k); } out";
        assert_eq!(run(code), run(code));
    }

    #[test]
    fn invalid_rhai_limits_are_refused() {
        let options = RhaiOptions { operations: 0, ..RhaiOptions::default() };
        assert_eq!(Rhai::new(options).unwrap_err().kind, Kind::Tool);
    }
}
