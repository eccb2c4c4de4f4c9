//! The record of a trajectory's external calls: every value that a script gets from outside and
//! that is not a function of its state, the action and the seed.
//!
//! Host functions with such values go through [`Call::external`] (which may wait) or
//! [`Call::external_now`]: a kind, a request, and a function for the live answer. Both are plain
//! data, JSON in the record. The exchange is recorded. A replay reads the reply from the record and
//! makes no live call. A request that the record does not contain is the *first difference*.
//!
//! Concurrent code (tool calls) makes its requests in branches ([`Call::branch`]). Each branch has
//! its own sequence in the record and its own random stream, so that a replay does not depend on
//! the order of answers. An exchange without an answer was cut off by a time limit: on a replay it
//! never completes, and [`Call::within`] times out at once.
//!
//! The script's code is not recorded. A tool written in Lua runs again on a replay; only its
//! requests to the host get their replies from the record.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::host::{Call, EntryPoint};
use super::policy_request::{PolicyRequest, PolicyRequests};
use crate::error::{Error, Kind, Result, clip};
use crate::mdp::{Answer, ErrorRecord, ExternalCall};

/// The record of one trajectory: written in a live run, read in a replay. `Clone` gives another
/// handle.
#[derive(Clone, Debug, Default)]
pub struct Record(Rc<RecordInner>);

#[derive(Debug, Default)]
struct RecordInner {
    /// Id of the trajectory, for its log lines.
    name: RefCell<String>,
    written: RefCell<Vec<ExternalCall>>,
    tape: Option<RefCell<Tape>>,
    /// Nothing is recorded: for programs, scripts that are being loaded, and rows.
    off: bool,
    /// Channel for generation requests; closed while no driver runs the trajectory.
    requests: RefCell<Option<mpsc::UnboundedSender<PolicyRequest>>>,
}

/// The unread part of a record in a replay.
#[derive(Clone, Debug)]
struct Tape {
    branches: BTreeMap<(u64, String), VecDeque<ExternalCall>>,
    strictness: Strictness,
    difference: Option<RecordDifference>,
}

/// The handling of a request in a replay that the record does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// It is the first difference, and the call fails. An equal request elsewhere in the record is
    /// not used.
    Exact,
    /// An answer to an equal request anywhere in the record is used; without one it is a
    /// difference. For scripts that have changed.
    Found,
    /// As [`Strictness::Found`], but missing answers come from a live call.
    Live,
}

/// The place where a replay differs from its record.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordDifference {
    pub step: u64,
    /// As [`ExternalCall::at`].
    pub at: String,
    /// The recorded call at that place: kind and request.
    pub recorded: Option<(String, Json)>,
    /// The request of the script; `None` if it made none.
    pub requested: Option<(String, Json)>,
}

impl std::fmt::Display for RecordDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |side: &Option<(String, Json)>| match side {
            Some((kind, request)) => format!("{kind} {}", clip(&request.to_string(), 200)),
            None => "nothing".to_owned(),
        };
        write!(f, "step {}, {}: the record has {}", self.step, self.at, show(&self.recorded))?;
        write!(f, " and the script requests {}", show(&self.requested))
    }
}

impl Record {
    /// A record for a live run.
    pub fn live() -> Self {
        Self::default()
    }

    pub fn set_name(&self, id: &str) {
        self.0.name.replace(id.to_owned());
    }

    pub(crate) fn name(&self) -> String {
        self.0.name.borrow().clone()
    }

    /// A record that keeps nothing.
    pub(crate) fn off() -> Self {
        Self(Rc::new(RecordInner { off: true, ..RecordInner::default() }))
    }

    /// Answers from `exchanges`, and records the requests again.
    pub fn replay(exchanges: Vec<ExternalCall>, strictness: Strictness) -> Self {
        let mut branches: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for exchange in exchanges {
            branches.entry((exchange.step, exchange.at.clone())).or_default().push_back(exchange);
        }
        let tape = Tape { branches, strictness, difference: None };
        Self(Rc::new(RecordInner { tape: Some(RefCell::new(tape)), ..RecordInner::default() }))
    }

    /// The receiver of generation requests (`r1.generate`), until it is dropped.
    pub fn listen(&self) -> PolicyRequests {
        let (sender, requests) = mpsc::unbounded_channel();
        self.0.requests.replace(Some(sender));
        requests
    }

    /// Sends a request to the driver of the trajectory; false if there is none.
    pub(crate) fn send(&self, question: PolicyRequest) -> bool {
        self.0.requests.borrow().as_ref().is_some_and(|requests| requests.send(question).is_ok())
    }

    /// The exchanges so far, in the order of the requests.
    pub fn exchanges(&self) -> Vec<ExternalCall> {
        self.0.written.borrow().clone()
    }

    /// Takes the exchanges.
    pub fn take(&self) -> Vec<ExternalCall> {
        self.0.written.take()
    }

    /// Whether answers come from a record.
    pub fn is_replay(&self) -> bool {
        self.0.tape.is_some()
    }

    /// The first difference of the replay, if any. It stays even if the script catches the error.
    pub fn difference(&self) -> Option<RecordDifference> {
        self.0.tape.as_ref().and_then(|tape| tape.borrow().difference.clone())
    }

    /// Ends an exact replay: exchanges that were not requested are a difference too.
    pub fn close(&self) -> Option<RecordDifference> {
        let mut tape = self.0.tape.as_ref()?.borrow_mut();
        if tape.difference.is_none() && tape.strictness == Strictness::Exact {
            let left = tape.branches.values().flatten().next().map(|left| RecordDifference {
                step: left.step,
                at: left.at.clone(),
                recorded: Some((left.kind.clone(), left.request.clone())),
                requested: None,
            });
            tape.difference = left;
        }
        tape.difference.clone()
    }

    /// An independent copy of the record with the rest of the replay.
    pub(crate) fn fork(&self) -> Self {
        let tape = self.0.tape.clone();
        Self(Rc::new(RecordInner { written: RefCell::new(self.exchanges()), tape, ..RecordInner::default() }))
    }

    /// Records a request; its answer is filled in later.
    fn begin(&self, step: u64, at: &str, kind: &str, request: Json) -> PendingExchange<'_> {
        let mut written = self.0.written.borrow_mut();
        written.push(ExternalCall { step, at: at.to_owned(), kind: kind.to_owned(), request, answer: None });
        PendingExchange { record: self, index: written.len() - 1 }
    }

    fn recall(&self, step: u64, at: &str, kind: &str, request: &Json) -> Result<Replay> {
        let Some(tape) = &self.0.tape else { return Ok(Replay::Live) };
        let mut tape = tape.borrow_mut();
        let same = |exchange: &ExternalCall| exchange.kind == kind && exchange.request == *request;
        let branch = tape.branches.entry((step, at.to_owned())).or_default();
        let recorded = branch.front().map(|next| (next.kind.clone(), next.request.clone()));
        if branch.front().is_some_and(same) {
            return Ok(branch.pop_front().map_or(Replay::Live, Replay::from));
        }
        if tape.strictness != Strictness::Exact {
            for branch in tape.branches.values_mut() {
                if let Some(exchange) = branch.iter().position(same).and_then(|index| branch.remove(index)) {
                    return Ok(exchange.into());
                }
            }
            if tape.strictness == Strictness::Live {
                return Ok(Replay::Live);
            }
        }
        let requested = Some((kind.to_owned(), request.clone()));
        let difference = RecordDifference { step, at: at.to_owned(), recorded, requested };
        let message = difference.to_string();
        tape.difference.get_or_insert(difference);
        Err(Error::new(Kind::Env, format!("the replay left its record: {message}")))
    }
}

/// The result of looking up a request in the record.
enum Replay {
    /// Not recorded: make a live call.
    Live,
    /// The recorded request got no answer: it timed out.
    TimedOut,
    Answer(Answer),
}

impl From<ExternalCall> for Replay {
    fn from(exchange: ExternalCall) -> Self {
        exchange.answer.map_or(Self::TimedOut, Self::Answer)
    }
}

/// A recorded request whose answer is pending.
struct PendingExchange<'a> {
    record: &'a Record,
    index: usize,
}

impl PendingExchange<'_> {
    fn finish(&self, answer: &Result<impl Serialize>) {
        let answer = match answer {
            Ok(answer) => Answer::Ok(to_json(answer)),
            Err(error) => Answer::Error(ErrorRecord::from(error)),
        };
        self.fill(answer);
    }

    fn fill(&self, answer: Answer) {
        if let Some(exchange) = self.record.0.written.borrow_mut().get_mut(self.index) {
            exchange.answer = Some(answer);
        }
    }
}

fn to_json(value: &impl Serialize) -> Json {
    // Recorded values are plain data, which is always valid JSON.
    serde_json::to_value(value).unwrap_or_default()
}

fn decode<A: DeserializeOwned>(answer: Answer) -> Result<A> {
    match answer {
        Answer::Ok(answer) => serde_json::from_value(answer)
            .map_err(|error| Error::new(Kind::Env, format!("an answer of the record can't be read: {error}"))),
        Answer::Error(error) => Err(error.into()),
    }
}

/// A sequence of requests, one after the other, within a call.
#[derive(Default)]
pub(crate) struct RecordBranch {
    /// `step`, `step/2`.
    path: String,
    parent: Option<Rc<RecordBranch>>,
    /// The tool that runs in it, or that started it.
    tool: Option<Rc<str>>,
    branches: Cell<usize>,
    rng: RefCell<Option<ChaCha8Rng>>,
    /// On a replay: waits for an answer that was never recorded.
    timed_out: Cell<bool>,
}

impl RecordBranch {
    pub(crate) fn root(entry: EntryPoint) -> Rc<Self> {
        Rc::new(Self { path: entry.name().to_owned(), ..Self::default() })
    }

    fn mark_timed_out(&self) {
        self.timed_out.set(true);
        if let Some(parent) = &self.parent {
            parent.mark_timed_out();
        }
    }

    /// 64 bits of the branch's own stream: a pure function of (seed, step, entry point, branch).
    pub(crate) fn random(&self, seed: (u64, u64), entry: EntryPoint) -> u64 {
        self.rng
            .borrow_mut()
            .get_or_insert_with(|| {
                let mut key = [0; 32];
                key[..8].copy_from_slice(&seed.0.to_le_bytes());
                key[8..16].copy_from_slice(&seed.1.to_le_bytes());
                key[16] = entry as u8;
                if self.parent.is_some() {
                    key[24..].copy_from_slice(&fnv(&self.path).to_le_bytes());
                }
                ChaCha8Rng::from_seed(key)
            })
            .next_u64()
    }

    pub(crate) fn reseed(&self, seed: u64) {
        *self.rng.borrow_mut() = Some(ChaCha8Rng::seed_from_u64(seed));
    }
}

/// FNV-1a hash of a branch's path.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Restores the current branch after another one was polled.
struct RestoreBranch<'a>(&'a Call, Rc<RecordBranch>);

impl Drop for RestoreBranch<'_> {
    fn drop(&mut self) {
        self.0.current_branch.replace(self.1.clone());
    }
}

impl Call {
    fn current(&self) -> Rc<RecordBranch> {
        self.current_branch.borrow().clone()
    }

    /// Makes an external call with an immediate answer (the clock). `request` and answer are plain
    /// data; the record has them as JSON.
    ///
    /// # Errors
    /// The error of `live`, now or as recorded; [`Kind::Env`] if a replay has no answer.
    pub(crate) fn external_now<A: Serialize + DeserializeOwned>(
        &self,
        kind: &str,
        request: impl Serialize,
        live: impl FnOnce() -> Result<A>,
    ) -> Result<A> {
        if self.record.0.off {
            return live();
        }
        let request = to_json(&request);
        let (step, branch) = (self.seed.1, self.current());
        let recalled = self.record.recall(step, &branch.path, kind, &request)?;
        let slot = self.record.begin(step, &branch.path, kind, request);
        if let Replay::Answer(answer) = recalled {
            slot.fill(answer.clone());
            return decode(answer);
        }
        let answer = live();
        slot.finish(&answer);
        answer
    }

    /// Makes an external call that may wait. Must be the first await of the host function, so that
    /// it belongs to the branch of its caller.
    ///
    /// # Errors
    /// As [`Call::external_now`].
    pub(crate) async fn external<A: Serialize + DeserializeOwned>(
        &self,
        kind: &'static str,
        request: impl Serialize,
        live: impl Future<Output = Result<A>>,
    ) -> Result<A> {
        self.awaited.set(kind);
        if self.record.0.off {
            return live.await;
        }
        let request = to_json(&request);
        let (step, branch) = (self.seed.1, self.current());
        let recalled = self.record.recall(step, &branch.path, kind, &request)?;
        let slot = self.record.begin(step, &branch.path, kind, request);
        match recalled {
            Replay::Answer(answer) => {
                slot.fill(answer.clone());
                decode(answer)
            }
            Replay::TimedOut => {
                branch.mark_timed_out();
                pending().await
            }
            Replay::Live => {
                let answer = live.await;
                slot.finish(&answer);
                answer
            }
        }
    }

    /// The tools whose calls started the running tool call, innermost first.
    pub(crate) fn outer_tools(&self) -> impl Iterator<Item = Rc<str>> {
        let first = self.current_branch.borrow().parent.clone();
        std::iter::successors(first, |branch| branch.parent.clone()).filter_map(|branch| branch.tool.clone())
    }

    /// Whether a tool is running, or code that a tool started.
    pub(crate) fn in_tool(&self) -> bool {
        self.current_branch.borrow().tool.is_some()
    }

    /// Whether concurrent code is running: a tool, or a function of `r1.join`.
    pub(crate) fn in_branch(&self) -> bool {
        self.current_branch.borrow().parent.is_some()
    }

    /// Runs `future` concurrently, in a new branch: a call of `tool`, or code of what runs now.
    /// Branches are numbered in the order of these calls, which must not depend on time.
    pub(crate) fn branch<F: Future>(
        self: &Rc<Self>,
        future: F,
        tool: Option<Rc<str>>,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (call, parent) = (self.clone(), self.current());
        let tool = tool.or_else(|| parent.tool.clone());
        parent.branches.set(parent.branches.get() + 1);
        let path = format!("{}/{}", parent.path, parent.branches.get());
        let branch = Rc::new(RecordBranch { path, parent: Some(parent), tool, ..RecordBranch::default() });
        async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let _back = RestoreBranch(&call, call.current_branch.replace(branch.clone()));
                future.as_mut().poll(cx)
            })
            .await
        }
    }

    /// Waits at most `limit`; `None` on timeout. A replay times out exactly where the record has no
    /// answer.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // Most calls never wait: they complete at the first poll, without a timer.
        let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = first {
            return Some(done);
        }
        if self.record.is_replay() && self.current().timed_out.replace(false) {
            return None;
        }
        tokio::time::timeout(limit, future).await.ok()
    }
}
