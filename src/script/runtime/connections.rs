//! The connections of a recipe: their declaration, and those of one trajectory.
//!
//! A trajectory has a connection of its own, which ends with it. The answered messages are kept, so
//! that a copy of the trajectory (tree sampling, branches in `r1 repl`) repeats them on a new
//! connection when it is used. A replay makes no connection; if it continues with live calls, the
//! messages of the record are repeated as well.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value as Json;

use super::convert::clip;
use super::grants::Grants;
use crate::error::{Error, Kind, Result};
use crate::tools::Endpoint;
use crate::tools::connection::{ConnectionError, Socket, SocketOptions};

/// Characters of an answer in an error message.
const SHOWN: usize = 200;

/// A connection as the recipe declares it.
pub(crate) struct Connection {
    /// Name in records and messages.
    pub(crate) name: String,
    /// Its identity: URL and headers, without secrets.
    pub(crate) definition: String,
    /// Longest wait for an answer.
    pub(crate) timeout: Duration,
    /// Longest wait until the connection is open.
    pub(crate) start_timeout: Duration,
    /// Maximum bytes of an answer.
    pub(crate) max_bytes: usize,
    /// The last message of a connection, which gets no answer.
    pub(crate) close_message: Option<String>,
    /// Checks the grants and fills in the secrets.
    pub(crate) open: PlaceOpener,
    /// Connections of calls outside a trajectory.
    pub(crate) outside: SessionConnections,
}

pub(crate) type PlaceOpener = Box<dyn Fn(&Grants) -> Result<OpenedPlace>>;

/// An endpoint with its secrets, and the function that hides them in a text.
pub(crate) struct OpenedPlace {
    pub(crate) endpoint: Endpoint,
    pub(crate) mask: Box<dyn Fn(String) -> String>,
}

/// The open connections of one trajectory, by their definitions.
#[derive(Default)]
pub(crate) struct SessionConnections(RefCell<BTreeMap<String, Rc<Link>>>);

/// A trajectory's connection.
#[derive(Default)]
struct Link {
    socket: RefCell<Option<Rc<Socket>>>,
    /// Answered messages in order, so that a copy can repeat them.
    done: RefCell<Vec<String>>,
    /// Messages that must be answered before any other.
    behind: tokio::sync::Mutex<VecDeque<String>>,
}

impl Connection {
    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// Missing declarations of the recipe, and variables that are not set. A missing answer is a
    /// [`ConnectionError`].
    pub(crate) async fn request(
        &self,
        grants: &RefCell<Grants>,
        own: &SessionConnections,
        message: String,
        timeout: Duration,
    ) -> Result<Result<Json, ConnectionError>> {
        let OpenedPlace { endpoint, mask } = (self.open)(&grants.borrow())?;
        let link = own.link(&self.definition);
        let socket = link.socket(|| self.socket(endpoint))?;
        let answer = link.request(&socket, message, timeout).await;
        Ok(match answer {
            Ok(text) => {
                let text = mask(text);
                let not_json = |_| format!("the answer is not JSON: {}", clip(&text, SHOWN)).into();
                serde_json::from_str(&text).map_err(not_json)
            }
            Err(ConnectionError::NotPublic(why)) => Err(ConnectionError::NotPublic(mask(why))),
            Err(ConnectionError::Failed(why)) => Err(ConnectionError::Failed(mask(why))),
        })
    }

    fn socket(&self, endpoint: Endpoint) -> Result<Socket> {
        let Endpoint::Url { url, headers, reach } = endpoint else {
            return Err(Error::new(Kind::Internal, format!("connection `{}` is not a URL", self.name)));
        };
        let (max_bytes, start_timeout, close_message) =
            (self.max_bytes, self.start_timeout, self.close_message.clone());
        Ok(Socket::new(SocketOptions { url, headers, reach, max_bytes, close_message, start_timeout }))
    }
}

impl SessionConnections {
    fn link(&self, definition: &str) -> Rc<Link> {
        Rc::clone(self.0.borrow_mut().entry(definition.to_owned()).or_default())
    }

    /// Adds a message that a replay answered from the record.
    pub(crate) async fn skipped(&self, connection: &Connection, message: String) {
        self.link(&connection.definition).behind.lock().await.push_back(message);
    }

    /// Ends a connection. The next message opens another one.
    pub(crate) fn close(&self, connection: &Connection) {
        self.0.borrow_mut().remove(&connection.definition);
    }

    /// Connections in the same state: the messages so far are repeated on a new connection when it
    /// is used.
    pub(crate) fn fork(&self) -> Self {
        let fork = |own: &Link| {
            let mut behind: VecDeque<String> = own.done.borrow().iter().cloned().collect();
            // Locked only while messages are repeated; a copy is made between two calls.
            if let Ok(more) = own.behind.try_lock() {
                behind.extend(more.iter().cloned());
            }
            Rc::new(Link { behind: tokio::sync::Mutex::new(behind), ..Link::default() })
        };
        Self(RefCell::new(self.0.borrow().iter().map(|(key, own)| (key.clone(), fork(own))).collect()))
    }
}

impl Link {
    /// The open connection, or a new one.
    fn socket(&self, open: impl FnOnce() -> Result<Socket>) -> Result<Rc<Socket>> {
        if let Some(socket) = &*self.socket.borrow() {
            return Ok(Rc::clone(socket));
        }
        let socket = Rc::new(open()?);
        self.socket.replace(Some(Rc::clone(&socket)));
        Ok(socket)
    }

    async fn request(&self, socket: &Socket, message: String, timeout: Duration) -> Result<String, ConnectionError> {
        {
            // A concurrent call waits until the earlier messages are answered.
            let mut behind = self.behind.lock().await;
            while let Some(earlier) = behind.front() {
                self.run(socket, earlier.clone(), timeout).await.map_err(|error| match error {
                    ConnectionError::NotPublic(why) => ConnectionError::NotPublic(why),
                    ConnectionError::Failed(why) => ConnectionError::Failed(format!(
                        "the earlier messages of the trajectory can't be repeated on a new connection: {why}"
                    )),
                })?;
                behind.pop_front();
            }
        }
        self.run(socket, message, timeout).await
    }

    async fn run(&self, socket: &Socket, message: String, timeout: Duration) -> Result<String, ConnectionError> {
        let answer = socket.request(message.clone(), timeout).await?;
        self.done.borrow_mut().push(message);
        Ok(answer)
    }
}
