//! The reasons why a call in a reply could not be parsed, as data. The policy reads it as text.

use std::fmt;

use r1_base::mdp::ARGUMENTS_DEPTH;

/// Maximum number of calls per reply. Each malformed call may search the rest of the reply for its
/// end.
pub(super) const CALLS: usize = 256;

/// An error in the text of one call.
#[derive(Debug)]
pub enum Malformed {
    /// The reply ends inside the call. `missing`: the tag that would close it, if it has one.
    CutOff {
        missing: Option<&'static str>,
    },
    /// There is no call between two tags.
    NothingBetweenTags,
    /// The same; the message names the tags.
    NothingBetween(&'static str, &'static str),
    NothingAfter(&'static str),
    EmptyList,
    /// A tag of the format is missing.
    NoTag(&'static str),
    /// `tag` must follow `after`.
    Expected {
        tag: &'static str,
        after: &'static str,
    },
    /// The call has no name; `before`: the tag that the name stands before.
    NoName {
        before: Option<&'static str>,
    },
    /// A tag with a name in it, such as `<function=NAME>`, without the name or without its `>`.
    BrokenTag {
        tag: &'static str,
        named: bool,
    },
    /// Text of the policy between the JSON object and this tag.
    StrayBefore(&'static str),
    StrayAfterObject,
    /// Text outside of a tag with a name in it and its closing tag.
    StrayOutside(&'static str, &'static str),
    /// The call is not JSON. The error has the line and column.
    NotJson(serde_json::Error),
    /// The arguments are a string, and the string is not JSON.
    ArgumentsNotJson(serde_json::Error),
    /// The JSON value of a call is not an object.
    NotAnObject {
        actual: &'static str,
    },
    /// A field of a call is missing.
    NoField(&'static str),
    /// A field of a call has another type.
    Field {
        name: &'static str,
        wanted: &'static str,
        actual: &'static str,
    },
    /// The call is not in Python's syntax, at this byte of it.
    Syntax {
        what: String,
        at: usize,
    },
    /// The block of calls was opened and not closed.
    Unclosed {
        open: &'static str,
        close: &'static str,
    },
}

impl Malformed {
    /// The reply ends inside a call without a closing tag.
    pub(super) const CUT_OFF: Self = Self::CutOff { missing: None };

    /// Invalid JSON. Where the JSON is incomplete because the reply ends (`closed` is false), the
    /// call is cut off.
    pub(super) fn json(error: serde_json::Error, closed: bool) -> Self {
        if error.is_eof() && !closed { Self::CUT_OFF } else { Self::NotJson(error) }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff { missing: None } => f.write_str("it is cut off"),
            Self::CutOff { missing: Some(tag) } => write!(f, "it is cut off, {tag} is missing"),
            Self::NothingBetweenTags => f.write_str("there is no text between the tags"),
            Self::NothingBetween(open, close) => write!(f, "there is no text between {open} and {close}"),
            Self::NothingAfter(tag) => write!(f, "nothing follows {tag}"),
            Self::EmptyList => f.write_str("the list is empty"),
            Self::NoTag(tag) => write!(f, "{tag} is missing"),
            Self::Expected { tag, after } => write!(f, "expected {tag} after {after}"),
            Self::NoName { before: None } => f.write_str("it has no name"),
            Self::NoName { before: Some(tag) } => write!(f, "no name before {tag}"),
            Self::BrokenTag { tag, named: true } => write!(f, "{tag} has no closing `>`"),
            Self::BrokenTag { tag, named: false } => write!(f, "{tag}> has no name or no closing `>`"),
            Self::StrayBefore(tag) => write!(f, "unexpected text between the JSON object and {tag}"),
            Self::StrayAfterObject => f.write_str("unexpected text after the JSON object"),
            Self::StrayOutside(open, close) => write!(f, "unexpected text outside of {open}…{close}"),
            Self::NotJson(error) => write!(f, "not valid JSON, {error}"),
            Self::ArgumentsNotJson(error) => write!(f, "`arguments` is a string that is not valid JSON, {error}"),
            Self::NotAnObject { actual } => {
                write!(f, "expected a JSON object with `name` and `arguments`, found {actual}")
            }
            Self::NoField(name) => write!(f, "`{name}` is missing"),
            Self::Field { name, wanted, actual } => write!(f, "`{name}` must be {wanted}, found {actual}"),
            Self::Syntax { what, .. } => f.write_str(what),
            Self::Unclosed { open, close } => write!(f, "{open} was not closed with {close}"),
        }
    }
}

/// The reason why a reply has fewer calls than the policy wrote: a sentence for the policy.
#[derive(Debug)]
pub enum ReplyError {
    /// Call `number` of the reply, from 1, could not be parsed.
    Call { number: usize, why: Malformed },
    /// There are more than `CALLS` calls.
    TooManyCalls,
    /// The arguments of this function are nested too deeply.
    TooDeep { function: String },
    /// A format with exactly one block of calls found none.
    NoBlock { open: &'static str, close: &'static str },
    /// The reply ends before the arguments of this function.
    NoArguments { function: String },
    /// The program of a format that runs code is empty; `block`: the opening tag.
    EmptyProgram { block: &'static str },
    /// The program was not closed.
    UnclosedProgram { open: &'static str, close: &'static str },
    /// A closing tag without the opening one.
    UnopenedProgram { open: &'static str, close: &'static str },
    /// The result of `parse` of a recipe's own format for a call.
    Own(String),
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { number, why } => write!(f, "Tool call {number} can't be read: {why}."),
            Self::TooManyCalls => write!(f, "There are more than {CALLS} tool calls: the rest is not read."),
            Self::TooDeep { function } => {
                write!(f, "The arguments of `{function}` are nested more than {ARGUMENTS_DEPTH} deep.")
            }
            Self::NoBlock { open, close } => write!(f, "No {open}…{close} was found, so nothing was done."),
            Self::NoArguments { function } => write!(f, "The call of `{function}` has no arguments."),
            Self::EmptyProgram { block } => write!(f, "The {block} block is empty."),
            Self::UnclosedProgram { open, close } => {
                write!(f, "{open} was not closed with {close}, so nothing was run.")
            }
            Self::UnopenedProgram { open, close } => {
                write!(f, "{close} is written without {open}, so nothing was run.")
            }
            Self::Own(why) => f.write_str(why),
        }
    }
}
