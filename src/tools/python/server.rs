//! The server process and its children, seen from the host.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

use super::PythonOptions;
use super::interpreter::Interpreter;
use super::pool::SPARES;
use super::protocol::{Decoder, MAX_REPORT, ProgramReport};
use super::scratch::Scratch;
use crate::error::{Error, Kind, Result};
use crate::tools::sandbox::{Confinement, Namespaces, Role, SandboxAccess};

/// Size of an order and of a notice: operation, child, argument.
const ORDER: usize = 13;

/// The end of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
    /// Killed because its scratch directory was too full (only if it is not a separate file
    /// system).
    Full,
    /// The fork failed.
    NotStarted,
}

#[derive(Debug)]
enum ServerOrder {
    Fork {
        child: u64,
        fds: [OwnedFd; 3],
    },
    Signal {
        child: u64,
        signal: i32,
    },
    /// Kill it if it has written more than allowed.
    Check {
        child: u64,
    },
}

type Exits = Rc<RefCell<HashMap<u64, oneshot::Sender<Exit>>>>;

/// A running server. Dropping it kills it and its children.
#[derive(Debug)]
pub(super) struct PythonServer {
    orders: mpsc::UnboundedSender<ServerOrder>,
    exits: Exits,
    pub(super) alive: Rc<Cell<bool>>,
    next: Cell<u64>,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<tokio::task::JoinHandle<()>>,
}

impl PythonServer {
    /// Starts the confined interpreter and waits until it has imported its modules. Must run inside
    /// a `LocalSet` on a thread that lives as long as the server, because the server dies with the
    /// thread that started it.
    pub(super) async fn start(
        interpreter: &Interpreter,
        options: &PythonOptions,
        places: usize,
        namespaces: Namespaces,
    ) -> Result<Self> {
        let broken = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(Kind::Tool, format!("can't start the Python server: {what}: {error}"))
                .at_path(&interpreter.executable)
        };
        let scratch = Scratch::new()
            .map_err(|e| broken("no temporary directory", &e).hint("TMPDIR names the directory that is used"))?;
        let path = scratch.path.clone();
        // Running, ready, in a session, and a few that are dead but not yet reaped.
        let children = places + SPARES + options.max_sessions + SPARES;
        let rooms = if namespaces == Namespaces::None || options.disk_mb == 0 { 0 } else { children };
        let reach = SandboxAccess {
            read: interpreter.read.clone(),
            list: interpreter.list.clone(),
            scratch: path.clone(),
            scratch_bytes: options.disk_mb << 20,
            rooms,
            execute: false,
        };
        let confinement = Confinement::new(&reach, namespaces, Role::Server)?;
        let mut config = serde_json::json!({
            "namespaces": namespaces != Namespaces::None,
            "scratch": &path,
            "rooms": rooms,
            "disk": options.disk_mb << 20,
            "cpu": options.timeout.ceil() as u64 + 1,
            "rlimits": {
                "AS": options.memory_mb << 20,
                "FSIZE": options.disk_mb << 20,
                "NOFILE": 64,
                "CORE": 0,
            },
            "seccomp": &confinement.inner.seccomp,
            "landlock": &confinement.inner.landlock,
            "preload": options.preload.iter().chain(&interpreter.modules).collect::<Vec<_>>(),
            "plots": options.plots,
            "keep_files": options.keeps_files(),
            "files_bytes": options.files_bytes,
            "last_value": options.last_value,
            "path": &interpreter.path,
            "traceback": options.traceback,
            "max_report": MAX_REPORT,
        });
        if namespaces != Namespaces::None {
            // Counts the threads of all children together. If the kernel gives each child its own
            // user namespace, the driver sets a limit per child instead.
            config["rlimits"]["NPROC"] = (64 * (places + 4) + options.max_sessions).into();
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|e| broken("no socket", &e))?;
        let mut command = tokio::process::Command::new(&interpreter.executable);
        command
            .args([
                "-s",
                "-S",
                "-B",
                "-c",
                concat!(include_str!("files.py"), include_str!("driver.py")),
                &config.to_string(),
            ])
            .env_clear()
            .envs([("PYTHONHASHSEED", "0"), ("PYTHONUTF8", "1"), ("LC_ALL", "C.UTF-8"), ("TZ", "UTC")])
            // One thread for libraries that would start one per core, one malloc arena for all
            // threads.
            .envs([("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"), ("MALLOC_ARENA_MAX", "1")])
            .env("PATH", "/nonexistent")
            .current_dir(&path)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // SAFETY: `apply` makes only system calls, as required after a fork in a process with
        // threads.
        unsafe {
            command.pre_exec(move || confinement.apply());
        }
        let mut process = command.spawn().map_err(|e| {
            broken("the sandbox or the interpreter refused", &e).hint(
                "landlock and seccomp must be allowed; some container runtimes block them. The rhai tool needs neither",
            )
        })?;
        // The command holds the other end of the socket; when it closes, the server has ended.
        drop(command);
        let mut stderr = process.stderr.take();
        ours.set_nonblocking(true).map_err(|e| broken("no socket", &e))?;
        let control = Rc::new(UnixStream::from_std(ours).map_err(|e| broken("no socket", &e))?);
        let ready = tokio::time::timeout(Duration::from_mins(1), read_notice(&control)).await;
        if !matches!(ready, Ok(Ok((b'R', _, _)))) {
            let _ = process.kill().await;
            let mut output = Vec::new();
            if let Some(stderr) = &mut stderr {
                let _ = stderr.take(1 << 16).read_to_end(&mut output).await;
            }
            let output = String::from_utf8_lossy(&output);
            let reason = output.trim().lines().last().unwrap_or("no message").to_owned();
            return Err(broken("the interpreter stopped", &reason));
        }

        // With namespaces it was only the mount point and is no longer needed.
        let scratch = (namespaces == Namespaces::None).then_some(scratch);
        let exits = Exits::default();
        let alive = Rc::new(Cell::new(true));
        let (orders, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let writer = tokio::task::spawn_local(write_orders(control.clone(), queue));
        let ended = tokio::task::spawn_local({
            let (exits, alive) = (exits.clone(), alive.clone());
            async move {
                tokio::select! {
                    () = read_notices(&control, &exits) => {}
                    _ = stopped => {}
                }
                alive.set(false);
                // Dropping the senders wakes waiting callers, since no exit status follows.
                exits.borrow_mut().clear();
                writer.abort();
                let _ = process.kill().await;
                drop(stderr);
                if let Some(scratch) = scratch {
                    scratch.remove().await;
                }
            }
        });
        Ok(Self { orders, exits, alive, next: Cell::new(0), stop: Some(stop), ended: Some(ended) })
    }

    /// Requests a child. It confines itself and then reports [`ProgramReport::Ready`].
    pub(super) fn fork(&self) -> io::Result<Child> {
        let child = self.next.get();
        self.next.set(child + 1);
        let (out_read, out) = io::pipe()?;
        let (report_read, report) = io::pipe()?;
        let (command, command_write) = io::pipe()?;
        let (notify, exit) = oneshot::channel();
        self.exits.borrow_mut().insert(child, notify);
        // If the server died meanwhile, the order is dropped with all pipes.
        let fds = [out.into(), report.into(), command.into()];
        let _ = self.orders.send(ServerOrder::Fork { child, fds });
        Ok(Child {
            process: ServerChild { id: child, orders: self.orders.clone() },
            out: pipe::Receiver::from_owned_fd(out_read.into())?,
            report: pipe::Receiver::from_owned_fd(report_read.into())?,
            command: pipe::Sender::from_owned_fd(command_write.into())?,
            decoder: Decoder::default(),
            exit,
            server_alive: self.alive.clone(),
        })
    }

    /// Kills the server and waits until it has ended.
    pub(super) async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(ended) = self.ended.take() {
            let _ = ended.await;
        }
    }
}

/// A forked child. Dropping it kills its process.
#[derive(Debug)]
pub(super) struct Child {
    pub process: ServerChild,
    pub out: pipe::Receiver,
    pub report: pipe::Receiver,
    pub command: pipe::Sender,
    pub decoder: Decoder,
    pub exit: oneshot::Receiver<Exit>,
    /// Whether its server is still running.
    pub server_alive: Rc<Cell<bool>>,
}

/// A child's id at its server.
#[derive(Debug)]
pub(super) struct ServerChild {
    id: u64,
    orders: mpsc::UnboundedSender<ServerOrder>,
}

impl ServerChild {
    pub(super) fn signal(&self, signal: i32) {
        let _ = self.orders.send(ServerOrder::Signal { child: self.id, signal });
    }

    /// Orders the server to kill it if it has written more than allowed.
    pub(super) fn check(&self) {
        let _ = self.orders.send(ServerOrder::Check { child: self.id });
    }
}

/// The reason why a child can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    /// The sandbox refused it, for this reason.
    #[error("{0}")]
    Unconfined(String),
    #[error("the interpreter stopped before it was ready")]
    Stopped,
    #[error("the interpreter did not get ready")]
    TimedOut,
}

impl Child {
    /// Waits until the child is confined.
    ///
    /// # Errors
    /// If it can't be, or ends before.
    pub(super) async fn ready(&mut self) -> Result<(), NotReady> {
        let mut buffer = [0; 256];
        loop {
            let size = self.report.read(&mut buffer).await.unwrap_or(0);
            match self.decoder.push(&buffer[..size]) {
                Ok(Some(ProgramReport::Ready)) => return Ok(()),
                Ok(Some(ProgramReport::Unconfined(why))) => return Err(NotReady::Unconfined(why)),
                Ok(None) if size > 0 => {}
                _ => return Err(NotReady::Stopped),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.process.signal(libc::SIGKILL);
    }
}

async fn write_orders(control: Rc<UnixStream>, mut queue: mpsc::UnboundedReceiver<ServerOrder>) {
    while let Some(order) = queue.recv().await {
        let (operation, child, argument, fds) = match order {
            ServerOrder::Fork { child, fds } => (b'F', child, 0, Some(fds)),
            ServerOrder::Signal { child, signal } => (b'S', child, signal, None),
            ServerOrder::Check { child } => (b'C', child, 0, None),
        };
        let mut bytes = [0; ORDER];
        bytes[0] = operation;
        bytes[1..9].copy_from_slice(&child.to_le_bytes());
        bytes[9..].copy_from_slice(&argument.to_le_bytes());
        let raw: Option<[RawFd; 3]> = fds.as_ref().map(|fds| [0, 1, 2].map(|i: usize| fds[i].as_raw_fd()));
        let mut sent = 0;
        while sent < ORDER {
            // The descriptors are sent with the first byte.
            let attached = if sent == 0 { raw.as_ref().map_or(&[][..], |fds| &fds[..]) } else { &[] };
            let result =
                control.async_io(Interest::WRITABLE, || send_with_fds(control.as_raw_fd(), &bytes[sent..], attached));
            match result.await {
                Ok(size) if size > 0 => sent += size,
                _ => return,
            }
        }
    }
}

async fn read_notice(control: &UnixStream) -> io::Result<(u8, u64, i32)> {
    let mut bytes = [0; ORDER];
    let mut filled = 0;
    while filled < ORDER {
        control.readable().await?;
        match control.try_read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(size) => filled += size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let [op, b0, b1, b2, b3, b4, b5, b6, b7, a0, a1, a2, a3] = bytes;
    Ok((op, u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]), i32::from_le_bytes([a0, a1, a2, a3])))
}

/// Forwards exit notices until the server has ended.
async fn read_notices(control: &UnixStream, exits: &Exits) {
    while let Ok((operation, child, argument)) = read_notice(control).await {
        let exit = match operation {
            b'X' if libc::WIFSIGNALED(argument) => Exit::Signal(libc::WTERMSIG(argument)),
            b'X' => Exit::Code(libc::WEXITSTATUS(argument)),
            b'D' => Exit::Full,
            b'N' => Exit::NotStarted,
            _ => return,
        };
        if let Some(waiting) = exits.borrow_mut().remove(&child) {
            let _ = waiting.send(exit);
        }
    }
}

/// sendmsg(2) with up to three descriptors attached.
fn send_with_fds(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    // Space for three descriptors, aligned for the header.
    #[repr(align(8))]
    struct Space([u8; 64]);
    let mut space = Space([0; 64]);
    let length = size_of_val(fds);
    debug_assert!(fds.len() <= 3);
    let mut slice = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the message points at live values for the time of the call; `space` is zeroed,
    // aligned, and larger than CMSG_SPACE of three descriptors, so that CMSG_FIRSTHDR and CMSG_DATA
    // stay inside it.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut slice;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(header), length);
        }
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
