//! What a script asks of a policy: a text (`r1.generate`), or how likely one is (`r1.logprobs`). Carried out where the
//! trajectory is driven, since this module sees no policy.

use tokio::sync::{mpsc, oneshot};

use crate::error::Result;
use crate::mdp::{Completion, Message};

/// What is asked.
#[derive(Debug)]
pub enum Question {
    Write(Ask),
    Score(Score),
}

/// The log-probabilities of a text that are asked for.
#[derive(Debug)]
pub struct Score {
    /// What the policy is shown before it.
    pub messages: Vec<Message>,
    pub text: String,
    pub temperature: f64,
    /// Under the reference policy.
    pub reference: bool,
    /// Hears one number for each token of the text.
    pub reply: oneshot::Sender<Result<Vec<f32>>>,
}

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
pub type Asks = mpsc::UnboundedReceiver<Question>;
