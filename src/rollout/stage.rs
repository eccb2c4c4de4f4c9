//! What a trajectory runs with, and the reasons why it stops early.

use crate::error::{Error, Kind};
use crate::mdp::Status;
use crate::script::{Failure, Worker};
use crate::text::Renderer;

/// A script worker and the renderer that makes tokens of its messages.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    pub worker: &'a Worker,
    pub renderer: &'a Renderer,
}

/// The reason why a trajectory stops early.
#[derive(Debug)]
pub enum Stop {
    /// A failure of this trajectory only.
    Failed(Failure),
    /// A failure of the whole run.
    Fatal(Error),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        if failure.lacks_reference() { Self::Fatal(failure.error) } else { Self::Failed(failure) }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// A failure in the recipe's own format, or in its messages, is one of the trajectory; other
/// tokenization errors are errors of the run.
pub(super) fn stop_of(error: Error) -> Stop {
    match error.kind {
        Kind::Script | Kind::Env => Failure::new(Status::EnvError, error).into(),
        _ => error.into(),
    }
}
