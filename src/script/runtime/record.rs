//! The record of a trajectory: the one way by which a script learns anything that is not a function of its state, the
//! action and the seed.
//!
//! Every such host function asks through [`Call::ask`] (it waits) or [`Call::ask_now`]: a kind, a plain JSON request, and
//! how to get the live answer, also plain JSON. The exchange is kept; on a replay the answer comes from the record and
//! nothing live happens. A question that the record does not hold is the *first difference*.
//!
//! What runs at the same time (tool calls) asks in branches ([`Call::branch`]): each has a lane of its own in the record
//! and its own random stream, so that a replay does not depend on which answer came first. An exchange without an
//! answer was cut by a time limit: on a replay it never comes, and [`Call::within`] says at once that time is up.
//!
//! Code of the script is never recorded. A tool written in Lua runs again; only what it asks of the host is answered.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::ask::{Asks, Question};
use super::host::{Call, Entry};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Answer, ErrorRecord, Exchange};

/// The record of one trajectory: written while it runs, read from while it is replayed. `Clone` gives another handle.
#[derive(Clone, Debug, Default)]
pub struct Record(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Id of the trajectory, for the lines that it logs.
    name: RefCell<String>,
    written: RefCell<Vec<Exchange>>,
    tape: Option<RefCell<Tape>>,
    /// Nobody will ask for it: a program, a script that is loaded, a row.
    off: bool,
    /// Where texts are asked for that a policy is to write; closed while nobody drives the trajectory.
    asks: RefCell<Option<mpsc::UnboundedSender<Question>>>,
}

/// What is left of a record that is being replayed.
#[derive(Clone, Debug)]
struct Tape {
    lanes: BTreeMap<(u64, String), VecDeque<Exchange>>,
    strictness: Strictness,
    difference: Option<Difference>,
}

/// What a replay does with a question that the record does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// It is the first difference, and the call fails. The same question asked elsewhere is no answer.
    Exact,
    /// An answer to the same question from anywhere in the record will do; without one it is a difference. For scripts
    /// that have changed.
    Found,
    /// As [`Strictness::Found`], but what the record lacks is asked for real.
    Live,
}

/// Where a replay left its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub step: u64,
    /// As [`Exchange::at`].
    pub at: String,
    /// What the record has there: kind and request.
    pub recorded: Option<(String, Json)>,
    /// What was asked instead; `None` if nothing was.
    pub asked: Option<(String, Json)>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |side: &Option<(String, Json)>| match side {
            Some((kind, request)) => format!("{kind} {}", super::convert::clip(&request.to_string(), 200)),
            None => "nothing".to_owned(),
        };
        write!(f, "step {}, {}: the record has {}", self.step, self.at, show(&self.recorded))?;
        write!(f, " and the script asks for {}", show(&self.asked))
    }
}

impl Record {
    /// A record that is written.
    pub fn live() -> Self {
        Self::default()
    }

    /// Gives the record the id of its trajectory.
    pub fn set_name(&self, id: &str) {
        self.0.name.replace(id.to_owned());
    }

    pub(crate) fn name(&self) -> String {
        self.0.name.borrow().clone()
    }

    /// Keeps nothing.
    pub(crate) fn off() -> Self {
        Self(Rc::new(Inner { off: true, ..Inner::default() }))
    }

    /// Answers from `exchanges`; what is asked is also written down again.
    pub fn replay(exchanges: Vec<Exchange>, strictness: Strictness) -> Self {
        let mut lanes: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for exchange in exchanges {
            lanes.entry((exchange.step, exchange.at.clone())).or_default().push_back(exchange);
        }
        let tape = Tape { lanes, strictness, difference: None };
        Self(Rc::new(Inner { tape: Some(RefCell::new(tape)), ..Inner::default() }))
    }

    /// Takes over what scripts ask a policy to write (`r1.generate`), until the receiver is dropped.
    pub fn listen(&self) -> Asks {
        let (sender, asks) = mpsc::unbounded_channel();
        self.0.asks.replace(Some(sender));
        asks
    }

    /// Hands a question to the driver of the trajectory; false if there is none.
    pub(crate) fn send(&self, question: Question) -> bool {
        self.0.asks.borrow().as_ref().is_some_and(|asks| asks.send(question).is_ok())
    }

    /// What has been asked and answered so far, in the order of asking.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.0.written.borrow().clone()
    }

    /// Takes what has been written.
    pub fn take(&self) -> Vec<Exchange> {
        self.0.written.take()
    }

    /// Whether answers come from a record.
    pub fn is_replay(&self) -> bool {
        self.0.tape.is_some()
    }

    /// Where the replay first left the record, if it has. Scripts may catch the error that it raises; this stays.
    pub fn difference(&self) -> Option<Difference> {
        self.0.tape.as_ref().and_then(|tape| tape.borrow().difference.clone())
    }

    /// Ends an exact replay: what the record holds and nobody asked for is a difference too.
    pub fn close(&self) -> Option<Difference> {
        let mut tape = self.0.tape.as_ref()?.borrow_mut();
        if tape.difference.is_none() && tape.strictness == Strictness::Exact {
            let left = tape.lanes.values().flatten().next().map(|left| Difference {
                step: left.step,
                at: left.at.clone(),
                recorded: Some((left.kind.clone(), left.request.clone())),
                asked: None,
            });
            tape.difference = left;
        }
        tape.difference.clone()
    }

    /// A record that goes on from here on its own, with what is left to be replayed.
    pub(crate) fn fork(&self) -> Self {
        let tape = self.0.tape.clone();
        Self(Rc::new(Inner { written: RefCell::new(self.exchanges()), tape, ..Inner::default() }))
    }

    /// Writes a question down; its place waits for the answer.
    fn begin(&self, step: u64, at: &str, kind: &str, request: Json) -> Slot<'_> {
        let mut written = self.0.written.borrow_mut();
        written.push(Exchange { step, at: at.to_owned(), kind: kind.to_owned(), request, answer: None });
        Slot { record: self, index: written.len() - 1 }
    }

    fn recall(&self, step: u64, at: &str, kind: &str, request: &Json) -> Result<Recalled> {
        let Some(tape) = &self.0.tape else { return Ok(Recalled::Nothing) };
        let mut tape = tape.borrow_mut();
        let same = |exchange: &Exchange| exchange.kind == kind && exchange.request == *request;
        let lane = tape.lanes.entry((step, at.to_owned())).or_default();
        let recorded = lane.front().map(|next| (next.kind.clone(), next.request.clone()));
        if lane.front().is_some_and(same) {
            return Ok(lane.pop_front().map_or(Recalled::Nothing, Recalled::from));
        }
        if tape.strictness != Strictness::Exact {
            for lane in tape.lanes.values_mut() {
                if let Some(exchange) = lane.iter().position(same).and_then(|index| lane.remove(index)) {
                    return Ok(exchange.into());
                }
            }
            if tape.strictness == Strictness::Live {
                return Ok(Recalled::Nothing);
            }
        }
        let asked = Some((kind.to_owned(), request.clone()));
        let difference = Difference { step, at: at.to_owned(), recorded, asked };
        let told = difference.to_string();
        tape.difference.get_or_insert(difference);
        Err(Error::new(Kind::Env, format!("the replay left its record: {told}")))
    }
}

/// What a record says to a question.
enum Recalled {
    /// Ask for real.
    Nothing,
    /// It was asked, and no answer came.
    Silence,
    Answer(Answer),
}

impl From<Exchange> for Recalled {
    fn from(exchange: Exchange) -> Self {
        exchange.answer.map_or(Self::Silence, Self::Answer)
    }
}

/// A question that waits for its answer in the record.
struct Slot<'a> {
    record: &'a Record,
    index: usize,
}

impl Slot<'_> {
    fn finish(&self, answer: &Result<Json>) {
        let answer = match answer {
            Ok(answer) => Answer::Ok(answer.clone()),
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

fn told(answer: Answer) -> Result<Json> {
    match answer {
        Answer::Ok(answer) => Ok(answer),
        Answer::Error(error) => Err(error.into()),
    }
}

/// A line of things that happen one after the other within a call.
pub(crate) struct Lane {
    /// `step`, `step/2`.
    path: String,
    parent: Option<Rc<Lane>>,
    /// The tool that it runs, or that started it.
    tool: Option<Rc<str>>,
    branches: Cell<usize>,
    rng: RefCell<Option<ChaCha8Rng>>,
    /// On a replay: waits for an answer that never came.
    stalled: Cell<bool>,
}

impl Lane {
    pub(crate) fn root(entry: Entry) -> Rc<Self> {
        Self::new(entry.name().to_owned(), None, None)
    }

    fn new(path: String, parent: Option<Rc<Self>>, tool: Option<Rc<str>>) -> Rc<Self> {
        let (branches, stalled) = (Cell::new(0), Cell::new(false));
        Rc::new(Self { path, parent, tool, branches, rng: RefCell::default(), stalled })
    }

    fn stall(&self) {
        self.stalled.set(true);
        if let Some(parent) = &self.parent {
            parent.stall();
        }
    }

    /// 64 bits of the lane's own stream: a pure function of (seed, step, entry point, branch).
    pub(crate) fn random(&self, seed: (u64, u64), entry: Entry) -> u64 {
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

/// FNV-1a: tells branches apart.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Puts a lane back when what ran in another is off the thread.
struct Swapped<'a>(&'a Call, Rc<Lane>);

impl Drop for Swapped<'_> {
    fn drop(&mut self) {
        self.0.lane.replace(self.1.clone());
    }
}

impl Call {
    fn lane(&self) -> Rc<Lane> {
        self.lane.borrow().clone()
    }

    /// Asks the world something that has its answer at once (the clock). `request` and answer are plain JSON.
    ///
    /// # Errors
    /// What `live` said, now or when it was recorded; [`Kind::Env`] where a replay has no answer.
    pub(crate) fn ask_now(&self, kind: &str, request: Json, live: impl FnOnce() -> Result<Json>) -> Result<Json> {
        if self.record.0.off {
            return live();
        }
        let (step, lane) = (self.seed.1, self.lane());
        let recalled = self.record.recall(step, &lane.path, kind, &request)?;
        let slot = self.record.begin(step, &lane.path, kind, request);
        if let Recalled::Answer(answer) = recalled {
            slot.fill(answer.clone());
            return told(answer);
        }
        let answer = live();
        slot.finish(&answer);
        answer
    }

    /// Asks the world something that has to be waited for. Must be the first thing the host function awaits, so that it
    /// is asked in the lane of its caller.
    ///
    /// # Errors
    /// As [`Call::ask_now`].
    pub(crate) async fn ask(
        &self,
        kind: &str,
        request: Json,
        live: impl Future<Output = Result<Json>>,
    ) -> Result<Json> {
        if self.record.0.off {
            return live.await;
        }
        let (step, lane) = (self.seed.1, self.lane());
        let recalled = self.record.recall(step, &lane.path, kind, &request)?;
        let slot = self.record.begin(step, &lane.path, kind, request);
        match recalled {
            Recalled::Answer(answer) => {
                slot.fill(answer.clone());
                told(answer)
            }
            Recalled::Silence => {
                lane.stall();
                pending().await
            }
            Recalled::Nothing => {
                let answer = live.await;
                slot.finish(&answer);
                answer
            }
        }
    }

    /// Runs `future` beside others, in a lane of its own. Branches are numbered in the order of these calls, which must
    /// not depend on time.
    pub(crate) fn branch<F: Future>(self: &Rc<Self>, future: F) -> impl Future<Output = F::Output> + use<F> {
        let tool = self.lane.borrow().tool.clone();
        self.branch_as(future, tool)
    }

    /// [`Call::branch`] for a call of a tool.
    pub(crate) fn branch_for_tool<F: Future>(
        self: &Rc<Self>,
        future: F,
        tool: Rc<str>,
    ) -> impl Future<Output = F::Output> + use<F> {
        self.branch_as(future, Some(tool))
    }

    /// Whether a call of the tool is what started the call of a tool that is running.
    pub(crate) fn is_inside_tool(&self, name: &str) -> bool {
        let first = self.lane.borrow().parent.clone();
        std::iter::successors(first, |lane| lane.parent.clone()).any(|lane| lane.tool.as_deref() == Some(name))
    }

    /// Whether a tool is running, or something that a tool started.
    pub(crate) fn in_tool(&self) -> bool {
        self.lane.borrow().tool.is_some()
    }

    /// Whether something runs that was started beside others: a tool, or a function of `r1.join`.
    pub(crate) fn in_branch(&self) -> bool {
        self.lane.borrow().parent.is_some()
    }

    fn branch_as<F: Future>(
        self: &Rc<Self>,
        future: F,
        tool: Option<Rc<str>>,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (call, parent) = (self.clone(), self.lane());
        parent.branches.set(parent.branches.get() + 1);
        let lane = Lane::new(format!("{}/{}", parent.path, parent.branches.get()), Some(parent), tool);
        async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let _back = Swapped(&call, call.lane.replace(lane.clone()));
                future.as_mut().poll(cx)
            })
            .await
        }
    }

    /// Waits at most `limit`; `None` when time is up. On a replay it is up where the record has no answer, and never else.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // Most calls never wait: they are over at the first poll, without a timer.
        let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = first {
            return Some(done);
        }
        if self.record.is_replay() && self.lane().stalled.replace(false) {
            return None;
        }
        tokio::time::timeout(limit, future).await.ok()
    }
}
