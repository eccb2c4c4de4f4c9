//! What a script asks a policy to write (`r1.generate`): carried out by whoever drives the trajectory, since this module
//! sees no policy.

use tokio::sync::{mpsc, oneshot};

use crate::error::Result;
use crate::mdp::{Completion, Message};

/// One text that is asked for.
#[derive(Debug)]
pub struct Ask {
    /// What the policy is shown.
    pub messages: Vec<Message>,
    pub options: AskOptions,
    /// Names the random stream: a function of the trajectory's seed, the step and the place.
    pub seed: u64,
    /// Hears what was written.
    pub reply: oneshot::Sender<Result<Written>>,
}

/// How to write; what is not said is as in the recipe's own sampling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AskOptions {
    pub max_new_tokens: Option<usize>,
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub stop: Vec<String>,
    /// Whether the tokens will be trained on, as the policy's own.
    pub train: bool,
}

/// What a policy wrote.
#[derive(Clone, Debug)]
pub struct Written {
    pub prompt_ids: Vec<u32>,
    pub completion: Completion,
    /// The reply without thinking and end-of-turn token.
    pub text: String,
}

/// Where what is asked for arrives.
pub type Asks = mpsc::UnboundedReceiver<Ask>;
