//! A program that answers JSON lines, shared by all trajectories of this process.
//!
//! A request is a line `{"id": 1, "session": 7, "message": …}` on its standard input, and its
//! answer the line `{"id": 1, "answer": …}` or `{"id": 1, "error": "…", "hint": "…"}` on its
//! standard output, in any order. A session belongs to a trajectory, and ends with the line
//! `{"session": 7, "end": true}`, which has no answer. The program is started by its first request,
//! and again when it has ended. Sessions do not survive that: their further requests fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::time::timeout;

use super::super::Endpoint;
use super::super::background::{block_on, detach, spawn};
use super::super::child::{Process, back_off, lock};
use super::super::lines::{Lines, Read, Traffic};
use super::ConnectionError;
use crate::error::{Error, Kind, Result};
use crate::json;

/// Bytes that a program may print without an answer. One that prints more is stopped.
const MOST_OUTPUT: usize = 64 << 20;
/// Requests in a row without an answer of the program after which it is stopped.
const MOST_SILENT: u32 = 3;

/// Bytes of an answer's line other than the answer.
const ENVELOPE: usize = 4 << 10;

/// A program, and its limits.
#[derive(Clone, PartialEq)]
pub struct ProgramOptions {
    /// Its name in messages.
    pub name: String,
    /// [`Endpoint::Command`].
    pub endpoint: Endpoint,
    /// The message after a start; its answer must not be an error.
    pub open_message: Option<Value>,
    /// Longest wait until it has started and answered `open_message`.
    pub start_timeout: Duration,
    /// Maximum number of restarts in a row without an answer to a request.
    pub restarts: u32,
    /// Longest answer, in bytes.
    pub max_bytes: usize,
    /// Distinguishes processes of the same program.
    pub number: usize,
}

/// A handle to a program; clones share it. The last one ends the program.
#[derive(Clone)]
pub struct ConnectedProgram(Arc<ProgramInner>);

struct ProgramInner {
    options: ProgramOptions,
    state: AsyncMutex<ProgramState>,
    /// The running program, for the ends of sessions.
    running: Mutex<Option<Arc<RunningProgram>>>,
    started: AtomicBool,
    /// Number of the next request.
    next: AtomicU64,
}

#[derive(Default)]
struct ProgramState {
    starts: u32,
    /// Ends and failed starts since the last answer to a request.
    ends: u32,
    /// Why it ended or did not start.
    last: Option<Error>,
}

/// One trajectory's use of a program. Dropping it ends the session.
pub struct ProgramSession {
    program: ConnectedProgram,
    number: u64,
    /// The start that has answered its first request; 0 before.
    start: Arc<AtomicU32>,
}

impl std::fmt::Debug for ConnectedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.0.options.name).finish()
    }
}

impl ConnectedProgram {
    /// A program that is not started yet.
    pub fn new(options: ProgramOptions) -> Self {
        let (state, running) = (AsyncMutex::default(), Mutex::default());
        Self(Arc::new(ProgramInner {
            options,
            state,
            running,
            started: AtomicBool::new(false),
            next: AtomicU64::new(1),
        }))
    }

    pub fn options(&self) -> &ProgramOptions {
        &self.0.options
    }

    /// Whether there is another handle to the program.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Starts the program, unless it was started before. Blocks the thread.
    ///
    /// # Errors
    /// [`Kind::Tool`]: the program is missing, it ends, or `open_message` fails.
    pub fn prepare(&self) -> Result<()> {
        if self.0.started.load(Ordering::Relaxed) {
            return Ok(());
        }
        let inner = Arc::clone(&self.0);
        block_on(async move { inner.running().await.map(drop) })?
    }

    /// A session with a new number.
    pub fn session(&self) -> ProgramSession {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        ProgramSession { program: self.clone(), number, start: Arc::default() }
    }
}

impl ProgramSession {
    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// The reason why there is no answer, or the program's error.
    pub async fn request(&self, message: Value, limit: Duration) -> Result<Value, ConnectionError> {
        let (inner, number, start) = (Arc::clone(&self.program.0), self.number, Arc::clone(&self.start));
        let failed = |why: String| ConnectionError::Failed(why);
        let task = spawn(async move { inner.request(number, &start, message, limit).await });
        let task = task.map_err(|error| failed(error.to_string()))?;
        // Fails only if the request panicked or the process exits.
        task.await.unwrap_or_else(|error| Err(failed(format!("the request was lost: {error}"))))
    }
}

impl Drop for ProgramSession {
    fn drop(&mut self) {
        if let Some(running) = &*lock(&self.program.0.running) {
            running.send(&json!({ "session": self.number, "end": true }));
        }
    }
}

impl ProgramInner {
    async fn request(
        &self,
        session: u64,
        start: &AtomicU32,
        message: Value,
        limit: Duration,
    ) -> Result<Value, ConnectionError> {
        let running = self.running().await.map_err(|error| ConnectionError::Failed(with_hint(&error)))?;
        let of = start.load(Ordering::Relaxed);
        if of != 0 && of != running.start {
            let last = self.state.lock().await.last.as_ref().map(|error| error.message.clone()).unwrap_or_default();
            let why = format!("the program was started again, and the state of this trajectory is lost: {last}");
            return Err(ConnectionError::Failed(why));
        }
        let answer = self.exchange(&running, session, message, limit).await;
        match &answer {
            Ok(_) | Err(RequestFault::Refused(_)) => {
                // The program works.
                running.silent.store(0, Ordering::Relaxed);
                if !running.answered.swap(true, Ordering::Relaxed) {
                    self.state.lock().await.ends = 0;
                }
                start.store(running.start, Ordering::Relaxed);
            }
            Err(RequestFault::Late) => {
                if running.silent.fetch_add(1, Ordering::Relaxed) + 1 == MOST_SILENT {
                    running.kill(&format!("it did not answer {MOST_SILENT} requests in a row"));
                }
            }
            Err(RequestFault::Ended) => {}
        }
        match answer {
            Ok(answer) => Ok(answer),
            Err(RequestFault::Refused(error)) => Err(ConnectionError::Failed(with_hint(&error))),
            Err(RequestFault::Late) => {
                Err(ConnectionError::Failed(format!("no answer within {} s", limit.as_secs_f64())))
            }
            Err(RequestFault::Ended) => Err(ConnectionError::Failed(running.ending().await)),
        }
    }

    async fn exchange(
        &self,
        running: &RunningProgram,
        session: u64,
        message: Value,
        limit: Duration,
    ) -> Result<Value, RequestFault> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let _waiting = running.wait(id, reply);
        running.send(&json!({ "id": id, "session": session, "message": message }));
        match timeout(limit, answer).await {
            Ok(Ok(ProgramLine { error: Some(error), hint, .. })) => {
                let error = Error::new(Kind::Tool, error);
                Err(RequestFault::Refused(match hint {
                    Some(hint) => error.hint(hint),
                    None => error,
                }))
            }
            Ok(Ok(answer)) => Ok(answer.answer),
            Ok(Err(_)) => Err(RequestFault::Ended),
            Err(_) => Err(RequestFault::Late),
        }
    }

    /// The running program, or a new one. Concurrent callers wait for the same start.
    async fn running(&self) -> Result<Arc<RunningProgram>> {
        let mut state = self.state.lock().await;
        let before = lock(&self.running).clone();
        if let Some(running) = before {
            if running.is_open() {
                return Ok(running);
            }
            state.ends += 1;
            let why = running.ending().await;
            state.last = Some(Error::new(Kind::Tool, format!("program `{}`: {why}", self.options.name)));
            lock(&self.running).take();
        }
        if state.ends > self.options.restarts {
            let last = state.last.clone().unwrap_or_else(|| Error::new(Kind::Tool, "it did not start"));
            let message =
                format!("{} (it has ended {} times in a row, and is not started again)", last.message, state.ends);
            return Err(Error { message, ..last });
        }
        back_off(state.ends).await;
        state.starts += 1;
        match self.start(state.starts).await {
            Ok(running) => {
                let running = Arc::new(running);
                self.started.store(true, Ordering::Relaxed);
                lock(&self.running).replace(Arc::clone(&running));
                Ok(running)
            }
            Err(error) => {
                state.ends += 1;
                state.last = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn start(&self, start: u32) -> Result<RunningProgram> {
        let ProgramOptions { name, endpoint, open_message, start_timeout, max_bytes, .. } = &self.options;
        let named = format!("program `{name}`");
        let failed = |why: String| Error::new(Kind::Tool, format!("{named}: {why}"));
        let Endpoint::Command { argv, env, directory } = endpoint else {
            return Err(failed("it has no command".to_owned()));
        };
        let (process, pipes) = Process::start(&named, argv, env, directory)?;
        let running = RunningProgram::new(start, process, pipes.stdin, pipes.stdout, *max_bytes);
        let Some(message) = open_message else { return Ok(running) };
        match self.exchange(&running, 0, message.clone(), *start_timeout).await {
            Ok(_) => Ok(running),
            Err(RequestFault::Refused(error)) => Err(Error { message: format!("{named}: {}", error.message), ..error }),
            Err(RequestFault::Ended) => {
                Err(failed(running.ending().await).hint("run its command by hand to see what it says"))
            }
            Err(RequestFault::Late) => {
                let last_line = running.process.last_line().map(|line| format!(": {line}")).unwrap_or_default();
                let why = format!("it did not answer within {} s{last_line}", start_timeout.as_secs_f64());
                Err(failed(why).hint("`start_timeout` sets the limit"))
            }
        }
    }
}

/// Why a request has no answer.
enum RequestFault {
    /// The program answers with an error.
    Refused(Error),
    Late,
    /// The program ended, or was stopped.
    Ended,
}

fn with_hint(error: &Error) -> String {
    match &error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message.clone(),
    }
}

#[derive(Deserialize)]
struct ProgramLine {
    id: u64,
    #[serde(default)]
    answer: Value,
    error: Option<String>,
    hint: Option<String>,
}

type WaitingReplies = Arc<Mutex<HashMap<u64, oneshot::Sender<ProgramLine>>>>;

/// A started program. Dropping it ends the process.
struct RunningProgram {
    /// Which start it is, from 1.
    start: u32,
    process: Process,
    input: mpsc::UnboundedSender<Vec<u8>>,
    waiting: WaitingReplies,
    traffic: Arc<Traffic>,
    /// The output has ended.
    ended: Arc<AtomicBool>,
    /// Why r1 stopped it.
    stopped: Mutex<Option<String>>,
    /// Requests in a row without an answer.
    silent: AtomicU32,
    /// It has answered a request.
    answered: AtomicBool,
}

/// Removes a request when its caller stops waiting.
struct Registered<'a>(&'a WaitingReplies, u64);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

impl RunningProgram {
    fn new(
        start: u32,
        process: Process,
        stdin: ChildStdin,
        stdout: tokio::process::ChildStdout,
        max_bytes: usize,
    ) -> Self {
        let (input, lines) = mpsc::unbounded_channel();
        let (waiting, traffic, ended) =
            (WaitingReplies::default(), Arc::<Traffic>::default(), Arc::<AtomicBool>::default());
        detach(write(stdin, lines));
        let output = Lines::new(stdout, Arc::clone(&traffic), max_bytes + ENVELOPE, MOST_OUTPUT);
        detach(read(output, Arc::clone(&waiting), Arc::clone(&traffic), Arc::clone(&ended)));
        let (stopped, silent, answered) = (Mutex::default(), AtomicU32::new(0), AtomicBool::new(false));
        Self { start, process, input, waiting, traffic, ended, stopped, silent, answered }
    }

    /// Whether it can answer requests: it has not ended, and was not stopped.
    fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Relaxed) && lock(&self.stopped).is_none()
    }

    fn wait(&self, id: u64, reply: oneshot::Sender<ProgramLine>) -> Registered<'_> {
        let mut waiting = lock(&self.waiting);
        // The program has ended and sends no more answers: the sender is dropped.
        if self.is_open() {
            waiting.insert(id, reply);
        }
        Registered(&self.waiting, id)
    }

    fn send(&self, line: &Value) {
        let mut line = line.to_string().into_bytes();
        line.push(b'\n');
        // Fails after the end, which the request notices itself.
        let _ = self.input.send(line);
    }

    /// Stops the program; `why` is the reason in messages.
    fn kill(&self, why: &str) {
        lock(&self.stopped).get_or_insert_with(|| why.to_owned());
        self.process.kill();
    }

    /// Why it ended.
    async fn ending(&self) -> String {
        let stopped = lock(&self.stopped).clone();
        if let Some(why) = stopped {
            return format!("it was stopped: {why}");
        }
        if self.traffic.flooded.load(Ordering::Relaxed) {
            self.process.kill();
            return format!("it printed more than {} MiB without an answer, and was stopped", MOST_OUTPUT >> 20);
        }
        let garbage = match self.traffic.garbage.load(Ordering::Relaxed) {
            0 => String::new(),
            count => format!("; it printed {count} lines that are no answers"),
        };
        format!("{}{garbage}", self.process.ending().await)
    }
}

/// Writes lines until the handle is dropped or the program has closed its input.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut next) = lines.recv().await {
        // Lines that wait go in one write.
        while next.len() < 1 << 16
            && let Ok(more) = lines.try_recv()
        {
            next.extend(more);
        }
        if stdin.write_all(&next).await.is_err() {
            return;
        }
    }
}

/// Gives answers to the requests that wait, until the output ends.
async fn read(mut output: Lines, waiting: WaitingReplies, traffic: Arc<Traffic>, ended: Arc<AtomicBool>) {
    loop {
        match output.next().await {
            None => break,
            Some(Read::Line) => {}
            Some(Read::TooLong) => {
                // The request is not known: all fail.
                let error = format!("the program printed a line of more than {} bytes", output.longest);
                for (id, reply) in lock(&waiting).drain() {
                    let _ = reply.send(ProgramLine { id, answer: Value::Null, error: Some(error.clone()), hint: None });
                }
                continue;
            }
        }
        let answer = json::read_foreign(&output.line).and_then(serde_json::from_value::<ProgramLine>);
        let is_answer = output.line.starts_with(b"{") && output.line.windows(4).any(|part| part == b"\"id\"");
        output.clear();
        match answer {
            Ok(answer) => {
                traffic.bytes.store(0, Ordering::Relaxed);
                let reply = lock(&waiting).remove(&answer.id);
                // Without a waiting request, the answer came too late and is dropped.
                if let Some(reply) = reply {
                    let _ = reply.send(answer);
                }
            }
            Err(error) => {
                traffic.garbage.fetch_add(1, Ordering::Relaxed);
                // An answer that can't be read belongs to the only request that waits.
                let mut waiting = lock(&waiting);
                let only = waiting.keys().next().copied().filter(|_| is_answer && waiting.len() == 1);
                if let Some((id, reply)) = only.and_then(|id| Some((id, waiting.remove(&id)?))) {
                    let why = format!("the program's answer can't be read: {error}");
                    let _ = reply.send(ProgramLine { id, answer: Value::Null, error: Some(why), hint: None });
                }
            }
        }
    }
    let mut waiting = lock(&waiting);
    ended.store(true, Ordering::Relaxed);
    waiting.clear();
}
