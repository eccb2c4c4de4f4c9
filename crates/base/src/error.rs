//! The error type, exit codes and hints.
//!
//! An error has a message, a place and a hint that says how to fix it. The kind decides the exit
//! code; the table in README.md lists them.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

/// Shorthand used across the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

crate::names! {
    /// The kind of an error; each has an exit code, and a name in `--json` output.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum Kind {
        /// A fault of r1 itself.
        Internal = "internal",
        /// The command line: unknown flag, unknown `key=value`.
        Usage = "usage",
        /// The script: syntax, unknown field, wrong type, contract broken at load time.
        Script = "script",
        /// A dataset: missing file, bad row, missing column.
        Data = "data",
        /// A model directory: missing or damaged weights, unsupported architecture, tokenizer,
        /// template.
        Model = "model",
        /// The environment or reward failed for too many trajectories.
        Env = "env",
        /// A tool could not be set up (no interpreter, no sandbox).
        Tool = "tool",
        /// The run directory: disk full, no permission, damaged file.
        Store = "store",
        /// NaN or infinity where a number is needed.
        Numeric = "numeric",
        /// The device: not there, out of memory.
        Device = "device",
        /// Stopped by Ctrl-C or a signal.
        Interrupted = "interrupted",
    }
}

impl Kind {
    /// The process exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Script => 3,
            Self::Data => 4,
            Self::Model => 5,
            Self::Env => 6,
            Self::Tool => 7,
            Self::Store => 8,
            Self::Numeric => 9,
            Self::Device => 10,
            Self::Interrupted => 130,
        }
    }
}

/// The subject of an error as data, in addition to the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A setting by its dotted name (`trainer.lr`), or a field of a value that the host reads from
    /// the script.
    Setting(String),
    /// An argument of the command line: `--temperature <NUMBER>`.
    Argument(String),
    /// A file or directory.
    File(#[serde(serialize_with = "lossy")] PathBuf),
    /// Trajectories of a rollout by their numbers, and the step in them; both from 0.
    Trajectories { numbers: Vec<u64>, step: Option<u64> },
    /// A column of a row that is in no file, or a field within the column.
    Column(String),
    /// A row of a file of data, from 0, and the column that is wrong, or a field within it.
    Row {
        #[serde(serialize_with = "lossy")]
        file: PathBuf,
        row: u64,
        #[serde(default)]
        field: Option<String>,
    },
    /// The reference of a reward, which a row does not have.
    Reference,
    /// The result of a function of the recipe, and the wrong field: `reward`, `parts.format`.
    Returned { function: String, field: Option<String> },
    /// Tensors of a checkpoint by their names.
    Tensors(Vec<String>),
    /// One of the examples that a program gives, from 1.
    Example(usize),
    /// A program that ended itself with this exit code.
    Exit(u8),
}

impl Subject {
    pub fn setting(&self) -> Option<&str> {
        match self {
            Self::Setting(name) => Some(name),
            _ => None,
        }
    }
}

/// A path as text; invalid Unicode is replaced.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// One failure: what, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    /// One sentence, no full stop.
    pub message: String,
    /// The subject as data, in addition to the message.
    pub subject: Option<Box<Subject>>,
    /// `file:line`, a path, a tensor, a trajectory: the place of the failure.
    pub place: Option<String>,
    /// A way to fix it.
    pub hint: Option<String>,
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), subject: None, place: None, hint: None }
    }

    /// Sets the subject, unless a closer one is already set.
    #[must_use]
    pub fn about(mut self, subject: Subject) -> Self {
        self.subject.get_or_insert_with(|| Box::new(subject));
        self
    }

    /// Sets a setting as the subject, unless one is already set.
    #[must_use]
    pub fn about_setting(self, name: impl Into<String>) -> Self {
        self.about(Subject::Setting(name.into()))
    }

    /// Sets a step of a trajectory of a rollout as the subject, unless a closer one is already set.
    #[must_use]
    pub fn in_step(self, trajectory: u64, step: u64) -> Self {
        self.in_trajectories(vec![trajectory], Some(step))
    }

    /// Sets trajectories of a rollout as the subject, unless a closer one is already set.
    #[must_use]
    pub fn in_trajectories(self, numbers: Vec<u64>, step: Option<u64>) -> Self {
        let names: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        self.about(Subject::Trajectories { numbers, step }).at(trajectories_place(&names, step))
    }

    /// The numbers of the trajectories that the error is about.
    pub fn trajectories(&self) -> &[u64] {
        match self.subject.as_deref() {
            Some(Subject::Trajectories { numbers, .. }) => numbers,
            _ => &[],
        }
    }

    /// The setting that the error is about.
    pub fn setting(&self) -> Option<&str> {
        self.subject.as_deref().and_then(Subject::setting)
    }

    /// Adds the place, unless a closer one is already known.
    #[must_use]
    pub fn at(mut self, location: impl fmt::Display) -> Self {
        self.place.get_or_insert_with(|| location.to_string());
        self
    }

    /// Adds the path as place and subject, unless closer ones are already known.
    #[must_use]
    pub fn at_path(self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        self.about(Subject::File(path.to_owned())).at(path.display())
    }

    /// Adds the hint, unless there is one.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// An I/O failure while doing `what` to `path`; a full disk is named as such.
    pub fn io(kind: Kind, what: &str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        let new = Self::new(kind, format!("can't {what}: {}", io_reason(error))).at_path(path);
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => new.hint(
                "free some space; what was written before is intact, and --resume continues from the last checkpoint",
            ),
            std::io::ErrorKind::FileTooLarge => new.hint(
                "raise the limit of file sizes (ulimit -f); what was written before is intact, and --resume continues from the \
                 last checkpoint",
            ),
            std::io::ErrorKind::ReadOnlyFilesystem => new.hint(
                "make the file system writable, or use another one (--runs-dir); what was written before is intact, and \
                 --resume continues from the last checkpoint",
            ),
            std::io::ErrorKind::PermissionDenied => new.hint("check the permissions of the path"),
            _ => new,
        }
    }
}

/// The place of an error in trajectories: `trajectory 3 step 1`; of many, the first eight.
pub fn trajectories_place(names: &[String], step: Option<u64>) -> String {
    let shown = names.iter().take(8).map(String::as_str).collect::<Vec<&str>>().join(", ");
    let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
    let step = step.map_or_else(String::new, |step| format!(" step {step}"));
    format!("trajectory {shown}{more}{step}")
}

/// Refuses files that can't be read to their end: a FIFO blocks, a device may be endless.
///
/// # Errors
/// As [`std::fs::metadata`]; `InvalidInput` for what is neither a file nor a directory.
pub fn readable(path: &Path) -> std::io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_file() || metadata.is_dir() {
        return Ok(());
    }
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// The regular expression of the places of a secret in a text. A short one is part of many words
/// (`x` of `unexpected`), which are no secret: it is found only as a whole word.
pub fn secret_pattern(secret: &str) -> String {
    const SHORT: usize = 8;
    let exact = regex::escape(secret);
    if secret.chars().count() < SHORT { format!(r"\b{{start-half}}{exact}\b{{end-half}}") } else { exact }
}

/// At most `limit` characters; `…` replaces the rest.
pub fn clip(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text for display in a terminal, without escape sequences, which models, tools, servers and
/// files may contain. Control characters except tabs and line ends are replaced by their symbols,
/// and so are those that change the direction of a line or end it (UAX 9).
pub fn without_control_characters(text: &str) -> Cow<'_, str> {
    let directs = |c: char| matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let commands = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || directs(c);
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    let picture = |c: char| match c {
        '\r' => None,
        '\u{7f}' => Some('\u{2421}'),
        '\0'..='\u{1f}' if commands(c) => char::from_u32(0x2400 + u32::from(c)),
        _ if commands(c) => Some(char::REPLACEMENT_CHARACTER),
        _ => Some(c),
    };
    Cow::Owned(text.chars().filter_map(picture).collect())
}

/// The operating system's message, without the error number.
fn io_reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    let short = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = short.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(location) = &self.place {
            write!(f, "\n  --> {location}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The names nearest to `name` among `candidates`, best first; at most three, none if all are far.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    // No name is that long; comparing one takes time.
    if name.len() > 200 {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .map(|candidate| {
            // Sections are few and long: a shared section is a poor reason to suggest a name.
            let (section, last) = candidate.rsplit_once('.').unwrap_or(("", candidate));
            let (own_section, last_name) = name.rsplit_once('.').unwrap_or(("", name));
            let part = strsim::jaro_winkler(&last_name.to_lowercase(), &last.to_lowercase());
            let sections = match own_section {
                last_name if last_name == section => 1.0,
                "" => 0.97,
                last_name => 0.88 + 0.1 * strsim::jaro_winkler(last_name, section),
            };
            (part * sections, candidate)
        })
        .filter(|(similarity, _)| *similarity > 0.8)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    // A setting of two trainers has one name.
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.into_iter().take(3).map(|(_, candidate)| candidate).collect()
}

/// The most names that [`suggest`] lists one by one.
const LISTED: usize = 60;

/// ``did you mean `x` or `y`?``, or the list (of the same section, for dotted names) when nothing
/// is near. Of many names, the sections are listed (`trainer.*`).
pub fn suggest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let quote = |names: Vec<&str>, word: &str| {
        let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        quoted.join(word)
    };
    let near = nearest(name, candidates.clone());
    if near.is_empty() {
        let section = name.split_once('.').map_or("", |(section, _)| section);
        let inside = |candidate: &str| candidate.split_once('.').is_some_and(|(table, _)| table == section);
        let mut all: Vec<&str> = candidates.clone().into_iter().filter(|candidate| inside(candidate)).collect();
        if all.is_empty() {
            all = candidates.into_iter().collect();
        }
        if all.is_empty() {
            return "there are none".to_owned();
        }
        all.sort_unstable();
        if all.len() <= LISTED {
            return format!("known: {}", quote(all, ", "));
        }
        let sections =
            all.iter().map(|name| name.split_once('.').map_or((*name).to_owned(), |(table, _)| format!("{table}.*")));
        let sections: std::collections::BTreeSet<String> = sections.collect();
        return format!("known: {}", quote(sections.iter().map(String::as_str).collect(), ", "));
    }
    format!("did you mean {}?", quote(near, " or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_does_not_list_hundreds_of_names() {
        let names: Vec<String> = (0..100).map(|n| format!("{}.option{n}", ["data", "policy"][n % 2])).collect();
        let all = || names.iter().map(String::as_str).chain(["seed"]);
        assert_eq!(suggest("cold_start", all()), "known: `data.*`, `policy.*`, `seed`");
        assert_eq!(suggest("policy.option", all()).split(',').count(), 1);
        assert_eq!(suggest("xyz", all().take(9)).split(',').count(), 9);
    }

    #[test]
    fn exit_codes_are_distinct() {
        let codes: std::collections::HashSet<u8> = Kind::ALL.iter().map(|k| k.exit_code()).collect();
        assert_eq!(codes.len(), Kind::ALL.len());
    }

    #[test]
    fn the_closer_place_wins() {
        let error = Error::new(Kind::Script, "x").at("inner:1").at("outer:2");
        assert_eq!(error.to_string(), "x\n  --> inner:1");
    }

    #[test]
    fn nearest_finds_typos_and_last_segments() {
        let names = ["trainer.group_size", "trainer.lr", "sampling.temperature"];
        assert_eq!(nearest("trainer.goup_size", names), ["trainer.group_size"]);
        assert_eq!(nearest("temprature", names), ["sampling.temperature"]);
        assert!(nearest("zzz", names).is_empty());
        let names = ["trainer.group_size", "trainer.normalize", "trainer.lr"];
        assert_eq!(nearest("trainer.goup_size", names), ["trainer.group_size"]);
        // A common section does not count as similarity, a misspelt one not as difference.
        let names = ["trainer.kl.horizon", "trainer.group_size", "policy.dtype", "policy.model"];
        assert_eq!(nearest("trainer.goup_size", names), ["trainer.group_size"]);
        assert_eq!(nearest("polcy.model", names), ["policy.model"]);
    }
}
