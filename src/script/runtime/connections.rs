//! The connections of a recipe: their declaration, and the connections of one trajectory.
//!
//! A trajectory has its own connection, or a session of a program that all share; it ends with the
//! trajectory. The answered messages are kept, so that a copy of the trajectory (tree sampling,
//! branches in `r1 repl`) repeats them on a new connection when it is used. A replay makes no
//! connection; if it continues with live calls, the messages of the record are repeated as well.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;

use super::grants::Grants;
use super::servers::{OpenedPlace, ServerAccess};
use crate::error::{Error, Result, clip};
use crate::json;
use crate::tools::Endpoint;
use crate::tools::connection::{
    ConnectedProgram, ConnectionError, ProgramOptions, ProgramSession, Socket, SocketOptions,
};

/// Characters of an answer in an error message.
const SHOWN: usize = 200;

pub(crate) struct DeclaredConnection {
    /// Name in records and messages.
    pub(crate) name: String,
    /// Its identity: URL and headers, or command and environment, without secrets.
    pub(crate) definition: String,
    /// Longest wait for an answer.
    pub(crate) timeout: Duration,
    /// Longest wait until the connection is open.
    pub(crate) start_timeout: Duration,
    /// Maximum bytes of an answer.
    pub(crate) max_bytes: usize,
    /// The last message of a connection, which gets no answer.
    pub(crate) close_message: Option<String>,
    /// The first message of a program, whose answer must not be an error.
    pub(crate) open_message: Option<Json>,
    /// How many times in a row a program is started again.
    pub(crate) restarts: u32,
    /// The program that is started here, if it is no URL.
    pub(crate) program: Option<String>,
    /// Processes that share the trajectories.
    pub(crate) processes: usize,
    /// The line of its declaration.
    pub(crate) place: Option<String>,
    /// A run has started the program.
    pub(crate) is_prepared: Cell<bool>,
    /// The program's processes; held, so that they do not end between two trajectories.
    pub(crate) programs: RefCell<Vec<ConnectedProgram>>,
    pub(crate) access: ServerAccess,
    /// Connections of calls outside a trajectory.
    pub(crate) outside: SessionConnections,
}

/// The open connections of one trajectory, by their definitions.
#[derive(Default)]
pub(crate) struct SessionConnections(RefCell<BTreeMap<String, Rc<Link>>>);

/// A trajectory's connection.
#[derive(Default)]
struct Link {
    end: RefCell<Option<Rc<ConnectionEnd>>>,
    /// Answered messages in order, so that a copy can repeat them.
    done: RefCell<Vec<Json>>,
    /// Messages that must be answered before any other.
    behind: tokio::sync::Mutex<VecDeque<Json>>,
}

/// The other end of a trajectory's connection.
enum ConnectionEnd {
    Socket(Socket),
    Program(ProgramSession),
}

impl DeclaredConnection {
    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// Missing declarations of the recipe, and variables that are not set. A missing answer is a
    /// [`ConnectionError`].
    pub(crate) async fn request(
        &self,
        grants: &RefCell<Grants>,
        session: &SessionConnections,
        message: Json,
        timeout: Duration,
    ) -> Result<Result<Json, ConnectionError>> {
        let OpenedPlace { endpoint, mask } = (self.access.open)(&grants.borrow())?;
        let link = session.link(&self.definition);
        let end = link.end(|| self.connect(endpoint));
        let answer = link.request(&end, message, timeout).await;
        Ok(match answer {
            Ok(text) => {
                let text = mask(text);
                let not_json = |_| format!("the answer is not JSON: {}", clip(&text, SHOWN)).into();
                json::read_foreign(text.as_bytes()).map_err(not_json)
            }
            Err(ConnectionError::NotPublic(why)) => Err(ConnectionError::NotPublic(mask(why))),
            Err(ConnectionError::Failed(why)) => Err(ConnectionError::Failed(mask(why))),
        })
    }

    /// The program in words; `None` for a URL.
    pub(crate) fn in_words(&self) -> Option<String> {
        let program = self.program.as_ref()?;
        let times = if self.processes > 1 { format!(", {} processes", self.processes) } else { String::new() };
        Some(format!("program `{}`, outside the sandbox: {program}{times}", self.name))
    }

    fn connect(&self, endpoint: Endpoint) -> ConnectionEnd {
        match endpoint {
            Endpoint::Url { url, headers, reach } => {
                let &Self { max_bytes, start_timeout, .. } = self;
                let close_message = self.close_message.clone();
                let options = SocketOptions { url, headers, reach, max_bytes, close_message, start_timeout };
                ConnectionEnd::Socket(Socket::new(options))
            }
            command @ Endpoint::Command { .. } => {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                let number = NEXT.fetch_add(1, Ordering::Relaxed) % self.processes;
                ConnectionEnd::Program(self.program(command, number).session())
            }
        }
    }

    /// A process of the program, shared by all workers.
    fn program(&self, endpoint: Endpoint, number: usize) -> ConnectedProgram {
        let options = ProgramOptions {
            name: self.name.clone(),
            endpoint,
            open_message: self.open_message.clone(),
            start_timeout: self.start_timeout,
            restarts: self.restarts,
            max_bytes: self.max_bytes,
            number,
        };
        let mut programs = self.programs.borrow_mut();
        if let Some(program) = programs.iter().find(|program| *program.options() == options) {
            return program.clone();
        }
        // A variable that a secret is read from has changed, or it is used for the first time.
        programs.retain(|program| program.options().number != number);
        let program = shared(options);
        programs.push(program.clone());
        program
    }

    /// Starts a program, so that what it misses is found before the first trajectory.
    ///
    /// # Errors
    /// As [`ConnectedProgram::prepare`]; what the recipe does not declare.
    pub(crate) fn prepare(&self, grants: &Grants) -> Result<()> {
        if self.is_prepared.get() {
            return Ok(());
        }
        let placed = |error: Error| Error { place: self.place.clone().or(error.place), ..error };
        let OpenedPlace { endpoint, mask } = (self.access.open)(grants).map_err(placed)?;
        if let command @ Endpoint::Command { .. } = endpoint {
            let prepared = self.program(command, 0).prepare();
            prepared.map_err(|error| placed(Error { message: mask(error.message), ..error }))?;
        }
        self.is_prepared.set(true);
        Ok(())
    }
}

/// The program with these options. Programs without further users are ended.
fn shared(options: ProgramOptions) -> ConnectedProgram {
    static PROGRAMS: Mutex<Vec<ConnectedProgram>> = Mutex::new(Vec::new());
    let mut all = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = all.iter().find(|program| *program.options() == options) {
        return program.clone();
    }
    all.retain(ConnectedProgram::is_used);
    let program = ConnectedProgram::new(options);
    all.push(program.clone());
    program
}

impl SessionConnections {
    fn link(&self, definition: &str) -> Rc<Link> {
        Rc::clone(self.0.borrow_mut().entry(definition.to_owned()).or_default())
    }

    /// Adds a message that a replay answered from the record.
    pub(crate) async fn skipped(&self, connection: &DeclaredConnection, message: Json) {
        self.link(&connection.definition).behind.lock().await.push_back(message);
    }

    /// Ends a connection. The next message opens another one.
    pub(crate) fn close(&self, connection: &DeclaredConnection) {
        self.0.borrow_mut().remove(&connection.definition);
    }

    /// Connections in the same state: the messages so far are repeated on a new connection when it
    /// is used.
    pub(crate) fn fork(&self) -> Self {
        let fork = |link: &Link| {
            let mut behind: VecDeque<Json> = link.done.borrow().iter().cloned().collect();
            // Locked only while messages are repeated; a copy is made between two calls.
            if let Ok(more) = link.behind.try_lock() {
                behind.extend(more.iter().cloned());
            }
            Rc::new(Link { behind: tokio::sync::Mutex::new(behind), ..Link::default() })
        };
        Self(RefCell::new(self.0.borrow().iter().map(|(key, link)| (key.clone(), fork(link))).collect()))
    }
}

impl Link {
    /// The open connection, or a new one.
    fn end(&self, connect: impl FnOnce() -> ConnectionEnd) -> Rc<ConnectionEnd> {
        Rc::clone(self.end.borrow_mut().get_or_insert_with(|| Rc::new(connect())))
    }

    /// The text of the answer.
    async fn request(&self, end: &ConnectionEnd, message: Json, timeout: Duration) -> Result<String, ConnectionError> {
        {
            // A concurrent call waits until the earlier messages are answered.
            let mut behind = self.behind.lock().await;
            while let Some(earlier) = behind.front() {
                self.run(end, earlier.clone(), timeout).await.map_err(|error| match error {
                    ConnectionError::NotPublic(why) => ConnectionError::NotPublic(why),
                    ConnectionError::Failed(why) => ConnectionError::Failed(format!(
                        "the earlier messages of the trajectory can't be repeated on a new connection: {why}"
                    )),
                })?;
                behind.pop_front();
            }
        }
        self.run(end, message, timeout).await
    }

    async fn run(&self, end: &ConnectionEnd, message: Json, timeout: Duration) -> Result<String, ConnectionError> {
        let answer = match end {
            ConnectionEnd::Socket(socket) => socket.request(message.to_string(), timeout).await?,
            ConnectionEnd::Program(session) => session.request(message.clone(), timeout).await?.to_string(),
        };
        self.done.borrow_mut().push(message);
        Ok(answer)
    }
}
