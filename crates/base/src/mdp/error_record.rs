//! Stored errors: of a failed trajectory, or raised by a host function.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Subject};

/// An [`Error`] as plain data, with details of the script: the text of the line, and the frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRecord {
    pub kind: Kind,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Box<Subject>>,
    /// `file:line`, a path, a trajectory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Text of the script's line at the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The script's frames, innermost first: `scripts/retool.lua:12 in step`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traceback: Vec<String>,
}

impl ErrorRecord {
    /// An error that has only a text, as in files of the first versions of r1.
    pub fn of_text(text: impl Into<String>) -> Self {
        Self::from(&Error::new(Kind::Env, text))
    }

    /// The setting that it is about.
    pub fn setting(&self) -> Option<&str> {
        self.subject.as_deref().and_then(Subject::setting)
    }

    /// The key that errors of one cause have in common: the kind and the place, or the message
    /// where no place is known.
    pub fn cause(&self) -> (Kind, &str) {
        (self.kind, self.place.as_deref().unwrap_or(&self.message))
    }
}

impl From<&Error> for ErrorRecord {
    fn from(error: &Error) -> Self {
        let Error { kind, message, subject, place: location, hint } = error.clone();
        Self { kind, message, subject, place: location, line: None, hint, traceback: Vec::new() }
    }
}

impl From<ErrorRecord> for Error {
    fn from(record: ErrorRecord) -> Self {
        let ErrorRecord { kind, message, subject, place: location, hint, .. } = record;
        Self { kind, message, subject, place: location, hint }
    }
}

impl fmt::Display for ErrorRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(location) = &self.place {
            write!(f, "\n  --> {location}")?;
            if let (Some(line), Some((_, number))) = (&self.line, location.rsplit_once(':')) {
                write!(f, "\n  {number:>4} | {}", line.trim_end())?;
            }
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        for (index, frame) in self.traceback.iter().enumerate() {
            // The innermost frame is the place, as a rule.
            if index > 0 || self.place.as_ref().is_none_or(|location| !frame.starts_with(location.as_str())) {
                write!(f, "\n  from {frame}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_is_shown_with_its_line_and_its_frames() {
        let error = Error::new(Kind::Script, "no such row").at("a.lua:7").hint("count from 0").in_step(3, 1);
        let mut record = ErrorRecord::from(&error);
        assert_eq!(record.to_string(), error.to_string());
        record.line = Some("  error(x)  ".to_owned());
        record.traceback = vec!["a.lua:7 in find".to_owned(), "a.lua:12 in step".to_owned()];
        let shown = "no such row\n  --> a.lua:7\n     7 |   error(x)\n  hint: count from 0\n  from a.lua:12 in step";
        assert_eq!(record.to_string(), shown);
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<ErrorRecord>(&json).unwrap(), record);
        assert_eq!(Error::from(record), error);
    }

    #[test]
    fn the_cause_of_an_error_is_its_place_or_its_message() {
        let error = |message: &str| Error::new(Kind::Script, message);
        let at = |message: &str| ErrorRecord::from(&error(message).at("a.lua:3"));
        assert_eq!(at("row 17 is odd").cause(), at("row 8 is odd").cause());
        assert_ne!(at("row 17 is odd").cause(), ErrorRecord::from(&error("row 17 is odd")).cause());
        assert_ne!(ErrorRecord::from(&error("a")).cause(), ErrorRecord::from(&error("b")).cause());
    }

    #[test]
    #[cfg(unix)]
    fn a_path_with_invalid_unicode_can_be_stored() {
        use std::os::unix::ffi::OsStrExt;
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(b"x\xff.jsonl"));
        let record = ErrorRecord::from(&Error::new(Kind::Data, "no such file").at_path(path));
        assert!(serde_json::to_string(&record).unwrap().contains("x\u{fffd}.jsonl"));
    }
}
