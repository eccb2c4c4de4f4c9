//! The channel between a flow (a function that drives its own loop over `policy:generate`) and the
//! host.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mlua::Value;
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::suspended::Suspended;
use crate::error::Error;
use crate::mdp::{Action, Observation};

/// Arguments of `policy:generate`.
#[derive(Debug)]
pub(crate) struct GenerateArguments {
    pub(crate) observation: Observation,
    /// Schemas of the tools shown to the policy.
    pub(crate) tools: Arc<[Json]>,
    /// Maximum response tokens, if smaller than `sampling.max_new_tokens`.
    pub(crate) max_new_tokens: Option<usize>,
    /// Stop texts in addition to `sampling.stop`.
    pub(crate) stop: Vec<String>,
}

/// Answer to `policy:generate`.
pub(crate) enum FlowAnswer {
    Reply(Rc<Action>),
    /// A limit ended the trajectory.
    Over,
}

/// Rewards that the flow has set since it was last resumed.
#[derive(Default)]
pub(crate) struct FlowRewards {
    /// Reward of the last step.
    pub(crate) reward: f64,
    /// Rewards of earlier steps: (step from 0, reward).
    pub(crate) earlier: Vec<(usize, f64)>,
}

/// Connects the flow's `policy` with the host.
#[derive(Default)]
pub(crate) struct Channel {
    /// The last request.
    pub(crate) wanted: RefCell<Option<Rc<GenerateArguments>>>,
    /// Receives the response while `policy:generate` waits.
    pub(crate) reply: RefCell<Option<oneshot::Sender<FlowAnswer>>>,
    /// The reason why no further response is generated.
    pub(crate) over: RefCell<Option<Error>>,
    /// Number of responses so far.
    pub(crate) steps: Cell<usize>,
    pub(crate) earned: RefCell<FlowRewards>,
}

impl Channel {
    pub(crate) fn is_waiting(&self) -> bool {
        self.reply.borrow().is_some()
    }

    pub(crate) fn answer(&self, answer: FlowAnswer) {
        if let FlowAnswer::Reply(_) = answer {
            self.steps.set(self.steps.get() + 1);
        }
        if let Some(reply) = self.reply.take() {
            // The flow holds the waiting call.
            let _ = reply.send(answer);
        }
    }
}

#[derive(Default)]
pub(crate) struct Flow {
    pub(crate) task: Json,
    /// Maximum prompt tokens such that a response fits after it.
    pub(crate) budget: usize,
    pub(crate) channel: Rc<Channel>,
    /// `None` if the flow has ended, or has to be run again from its beginning.
    pub(crate) running: RefCell<Option<Suspended<Value>>>,
    pub(crate) ended: Cell<bool>,
    pub(crate) replies: RefCell<Vec<Rc<Action>>>,
    /// Bytes that the flow has added to the memory of the VM.
    pub(crate) held: Cell<isize>,
}

impl Flow {
    pub(crate) fn new(task: Json, budget: usize) -> Self {
        Self { task, budget, ..Self::default() }
    }

    /// A copy that is run again when it is resumed.
    pub(crate) fn fork(&self) -> Rc<Self> {
        let fork = Self::new(self.task.clone(), self.budget);
        fork.channel.wanted.replace(self.wanted());
        fork.ended.set(self.ended.get());
        fork.replies.replace(self.replies.borrow().clone());
        Rc::new(fork)
    }

    /// The last request.
    pub(crate) fn wanted(&self) -> Option<Rc<GenerateArguments>> {
        self.channel.wanted.borrow().clone()
    }
}
