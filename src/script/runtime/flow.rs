//! The channel between a flow (a function that drives its own loop over `policy:generate`) and the host.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mlua::Value;
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::suspended::Suspended;
use crate::error::Error;
use crate::mdp::{Action, Observation};

/// What `policy:generate` is given.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) observation: Observation,
    /// Schemas of the tools that the policy is shown.
    pub(crate) tools: Arc<[Json]>,
    /// Longest reply, where it is shorter than `sampling.max_new_tokens`.
    pub(crate) max_new_tokens: Option<usize>,
    /// Texts that end the reply beside those of `sampling.stop`.
    pub(crate) stop: Vec<String>,
}

/// What `policy:generate` gets.
pub(crate) enum Answer {
    Reply(Rc<Action>),
    /// A limit ended the trajectory.
    Over,
}

/// Rewards that the flow set since it was last resumed.
#[derive(Default)]
pub(crate) struct Earned {
    /// Of the last step.
    pub(crate) reward: f64,
    /// Of steps before it, counted from 0.
    pub(crate) earlier: Vec<(usize, f64)>,
}

/// Between the flow's `policy` and the host.
#[derive(Default)]
pub(crate) struct Channel {
    /// What was asked for last.
    pub(crate) wanted: RefCell<Option<Rc<Wanted>>>,
    /// Where the reply goes, while `policy:generate` waits.
    pub(crate) reply: RefCell<Option<oneshot::Sender<Answer>>>,
    /// Why nothing more is generated.
    pub(crate) over: RefCell<Option<Error>>,
    /// Replies so far.
    pub(crate) steps: Cell<usize>,
    pub(crate) earned: RefCell<Earned>,
}

impl Channel {
    pub(crate) fn is_waiting(&self) -> bool {
        self.reply.borrow().is_some()
    }

    pub(crate) fn answer(&self, answer: Answer) {
        if let Answer::Reply(_) = answer {
            self.steps.set(self.steps.get() + 1);
        }
        if let Some(reply) = self.reply.take() {
            // The call that waits is held by the flow.
            let _ = reply.send(answer);
        }
    }
}

/// A flow under way.
pub(crate) struct Flow {
    pub(crate) task: Json,
    /// Tokens that a prompt may have so that a reply fits behind it.
    pub(crate) budget: usize,
    pub(crate) channel: Rc<Channel>,
    /// `None` when it has ended, or has to be run again from its beginning.
    pub(crate) running: RefCell<Option<Suspended<Value>>>,
    pub(crate) ended: Cell<bool>,
    pub(crate) replies: RefCell<Vec<Rc<Action>>>,
    /// Bytes that it has added to what the machine holds.
    pub(crate) held: Cell<isize>,
}

impl Flow {
    pub(crate) fn new(task: Json, budget: usize) -> Self {
        Self {
            task,
            budget,
            channel: Rc::default(),
            running: RefCell::default(),
            ended: Cell::new(false),
            replies: RefCell::default(),
            held: Cell::new(0),
        }
    }

    /// A copy that is run again when it is resumed.
    pub(crate) fn fork(&self) -> Rc<Self> {
        let fork = Self::new(self.task.clone(), self.budget);
        fork.channel.wanted.replace(self.wanted());
        fork.ended.set(self.ended.get());
        fork.replies.replace(self.replies.borrow().clone());
        Rc::new(fork)
    }

    /// What it asked for last.
    pub(crate) fn wanted(&self) -> Option<Rc<Wanted>> {
        self.channel.wanted.borrow().clone()
    }
}
