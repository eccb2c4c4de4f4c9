//! Input and output: an editor with history, completion and multi-line input at a terminal, plain
//! lines from a pipe.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IsTerminal};
use std::rc::Rc;

use console::Style as Paint;
use rustyline::completion::{Completer, Pair};
use rustyline::config::CompletionType;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::answer::Answers;
use super::commands::{self, COMMANDS};
use crate::cli::args::OutputArgs;
use crate::cli::failure::ErrorFormat;
use crate::cli::line_editor::LineEditor;
use crate::error::{Error, Kind, Result, without_control_characters};
use crate::script::{self, Console, Failure, ShowStyle, Shown};

/// Reads input and writes output.
pub(super) struct Terminal {
    editor: Option<LineEditor<ReplCompleter>>,
    names: CompletionNames,
    pub(super) colour: bool,
    voice: ErrorFormat,
    pub(super) answers: Answers,
    /// An error inside a breakpoint, reported after the call.
    pub(super) broken: RefCell<Option<Error>>,
    /// The decision at a breakpoint: abort the call or quit.
    pub(super) aborted: Cell<bool>,
    pub(super) leaving: Cell<bool>,
    /// Breakpoints are skipped.
    pub(super) passing: Cell<bool>,
}

/// Names for completion: set when a script is loaded.
type CompletionNames = Rc<RefCell<Option<Console>>>;

impl Terminal {
    pub(super) fn open(output: OutputArgs) -> Result<Self> {
        let names = CompletionNames::default();
        let person = io::stdin().is_terminal();
        let wanted = output.wants_colour();
        let prompts_on_stdout = io::stdout().is_terminal() && !output.json;
        let editor = person.then(|| {
            let helper = ReplCompleter(Rc::clone(&names));
            LineEditor::open(helper, "repl_history", prompts_on_stdout, CompletionType::List)
        });
        Ok(Self {
            editor: editor.transpose()?,
            names,
            colour: wanted && !output.json && io::stdout().is_terminal(),
            voice: ErrorFormat::new(output.json, wanted),
            answers: output.json.then(RefCell::default),
            broken: RefCell::default(),
            aborted: Cell::new(false),
            leaving: Cell::new(false),
            passing: Cell::new(false),
        })
    }

    /// Whether input comes from a person.
    pub(super) fn is_person(&self) -> bool {
        self.editor.is_some()
    }

    /// Sets the names for completion.
    pub(super) fn complete_with(&self, console: Console) {
        self.names.replace(Some(console));
    }

    /// The next input with all its lines; `None` at the end.
    pub(super) fn next(&self, prompt: &str) -> Result<Option<String>> {
        let Some(editor) = &self.editor else { return from_pipe() };
        editor.next(prompt, |text| self.note(text))
    }

    /// A remark, which is not shown in a pipe.
    pub(super) fn note(&self, text: &str) {
        if self.is_person() {
            // Failures to write to stderr are ignored.
            let _ =
                io::Write::write_fmt(&mut io::stderr(), format_args!("{}\n", self.paint(&Paint::new().dim(), text)));
        }
    }

    pub(super) fn paint(&self, style: &Paint, text: &str) -> String {
        style.clone().force_styling(self.colour).apply_to(text).to_string()
    }

    /// The values of typed code.
    pub(super) fn values(&self, values: &[Shown]) -> Result<()> {
        for value in values {
            self.item("values", &self.value(value), || value.data.clone().unwrap_or_default())?;
            if self.is_json() {
                self.item("shown", "", || value.to_string().into())?;
            }
        }
        Ok(())
    }

    /// A value in colours.
    pub(super) fn value(&self, shown: &Shown) -> String {
        let paint = |style: ShowStyle| match style {
            ShowStyle::Plain => Paint::new(),
            ShowStyle::Key => Paint::new().blue(),
            ShowStyle::Text => Paint::new().green(),
            ShowStyle::Number => Paint::new().cyan(),
            ShowStyle::Word => Paint::new().magenta(),
        };
        shown.spans.iter().map(|span| self.paint(&paint(span.style), &without_control_characters(&span.text))).collect()
    }

    /// Prints an error; in a pipe it ends the session.
    pub(super) fn fail(&self, error: Error) -> Result<()> {
        if !self.is_person() {
            return Err(error);
        }
        self.voice.fail(&error);
        Ok(())
    }
}

/// A failure of the script as an error: its place, the source line, the call stack.
pub(super) fn script_error(failure: &Failure, source: Option<String>) -> Error {
    let mut error = failure.error.clone();
    if let Some(line) = source.filter(|line| !line.trim().is_empty()) {
        error.place = error.place.map(|location| {
            let number = location.rsplit_once(':').map_or("", |(_, number)| number);
            format!("{location}\n  {number:>4} | {}", line.trim_end())
        });
    }
    let frames: Vec<&str> = failure.traceback.iter().skip(1).map(String::as_str).collect();
    if !frames.is_empty() {
        let from = format!("called from {}", frames.join(", "));
        error.hint = Some(error.hint.map_or_else(|| from.clone(), |hint| format!("{hint}; {from}")));
    }
    error
}

/// The next input of a pipe: all lines that belong together.
fn from_pipe() -> Result<Option<String>> {
    let mut text = String::new();
    loop {
        let read = io::stdin().lock().read_line(&mut text);
        let read = read.map_err(|e| Error::io(Kind::Data, "read the input", "stdin", &e))?;
        if read == 0 {
            return Ok((!text.trim().is_empty()).then_some(text));
        }
        if !is_incomplete(text.trim_end_matches('\n')) {
            return Ok(Some(text.trim_end_matches('\n').to_owned()));
        }
    }
}

fn is_incomplete(text: &str) -> bool {
    if text.trim_start().starts_with(':') { commands::is_open(text) } else { script::is_open(text) }
}

/// Completes commands and names, and detects incomplete texts.
struct ReplCompleter(CompletionNames);

impl Completer for ReplCompleter {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..pos];
        if let Some(name) = typed.strip_prefix(':').filter(|name| !name.contains(char::is_whitespace)) {
            let names = COMMANDS.iter().map(|command| command.name).filter(|candidate| candidate.starts_with(name));
            let pair = |name: &str| Pair { display: format!(":{name}"), replacement: format!(":{name}") };
            return Ok((0, names.map(pair).collect()));
        }
        let Some(console) = &*self.0.borrow() else { return Ok((pos, Vec::new())) };
        let (begun, candidates) = console.complete(typed);
        let pair = |candidate: script::Candidate| {
            let what = if candidate.what.is_empty() { String::new() } else { format!("  {}", candidate.what) };
            Pair { display: format!("{}{what}", candidate.name), replacement: candidate.name }
        };
        Ok((pos - begun, candidates.into_iter().map(pair).collect()))
    }
}

impl Validator for ReplCompleter {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_incomplete(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for ReplCompleter {
    type Hint = String;
}

impl Highlighter for ReplCompleter {}

impl Helper for ReplCompleter {}
