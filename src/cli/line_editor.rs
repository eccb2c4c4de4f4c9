//! Lines typed at a terminal, with a history that later sessions have too.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use rustyline::config::{Behavior, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Editor, Helper};

use crate::error::{Error, Kind, Result};

/// A line editor; the helper completes words and detects incomplete texts.
pub(super) struct LineEditor<H: Helper> {
    editor: RefCell<Editor<H, FileHistory>>,
    history: Option<PathBuf>,
}

impl<H: Helper> LineEditor<H> {
    /// `history` is the name of the file of the history. The prompt goes to stdout if that is the
    /// terminal and not a file or a program that receives the results (`prompts_on_stdout`).
    pub(super) fn open(helper: H, history: &str, prompts_on_stdout: bool, completion: CompletionType) -> Result<Self> {
        let behavior = if prompts_on_stdout { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().behavior(behavior).completion_type(completion).build();
        let mut editor = Editor::with_config(config).map_err(|e| failed(&e))?;
        editor.set_helper(Some(helper));
        let history = history_file(history);
        if let Some(path) = &history {
            // The history file does not exist at the first start.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor: RefCell::new(editor), history })
    }

    /// The next input with all its lines; `None` at the end. `note` shows a remark after Ctrl-C.
    pub(super) fn next(&self, prompt: &str, note: impl Fn(&str)) -> Result<Option<String>> {
        loop {
            let read = self.editor.borrow_mut().readline(prompt);
            match read {
                Ok(line) => {
                    self.keep(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Interrupted) => note("Ctrl-D leaves"),
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Adds a line to the history. Failures to save it are ignored.
    fn keep(&self, line: &str) {
        let mut editor = self.editor.borrow_mut();
        if !line.trim().is_empty()
            && editor.add_history_entry(line).unwrap_or(false)
            && let Some(path) = &self.history
        {
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = editor.append_history(path);
        }
    }
}

fn history_file(name: &str) -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("r1").join(name))
}

fn failed(error: &ReadlineError) -> Error {
    Error::new(Kind::Data, format!("can't read from the terminal: {error}"))
}
