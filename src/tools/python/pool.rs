//! Runs calls: waits for a free child, sends the program, collects the output, and ends the child.
//!
//! Everything runs on one thread with its own runtime, so that callers may await on any runtime. A
//! fork takes a millisecond or two, so a few children are kept ready. If the server dies, the next
//! call starts another one, and a program that was lost with it is run once more.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};

use super::call::{ProgramCall, exchange};
use super::files::InputFile;
use super::interpreter::Interpreter;
use super::protocol::MAX_CODE;
use super::server::{Child, NotReady, PythonServer};
use super::{PythonCall, PythonOptions, probe};
use crate::error::{Error, Kind, Result};
use crate::tools::Output;
use crate::tools::sandbox::Namespaces;

enum PythonJob {
    Run(QueuedProgram, oneshot::Sender<Result<Output>>),
    End(u64),
}

/// A call with its own copy of the texts.
struct QueuedProgram {
    session: Option<u64>,
    code: String,
    prelude: String,
    files: Vec<InputFile>,
    output_bytes: usize,
}

/// The handle of callers.
#[derive(Debug)]
pub(super) struct PythonPool {
    jobs: Option<mpsc::UnboundedSender<PythonJob>>,
    /// Bytes of a program's directory.
    disk: u64,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl PythonPool {
    /// Starts the thread and the server and runs the probe.
    pub(super) fn start(options: PythonOptions) -> Result<Self> {
        let interpreter = Interpreter::find(&options)?;
        let disk = options.disk_mb << 20;
        let (jobs, queue) = mpsc::unbounded_channel();
        let (report, reported) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("r1-python".to_owned())
            .spawn(move || serve(options, interpreter, queue, &report))
            .map_err(|e| Error::new(Kind::Tool, format!("can't start the Python tool's thread: {e}")))?;
        let pool = Self { jobs: Some(jobs), disk, thread: Some(thread) };
        match reported.recv() {
            Ok(result) => result.map(|()| pool),
            Err(_) => Err(Error::new(Kind::Tool, "the Python tool's thread ended unexpectedly")),
        }
    }

    pub(super) async fn run(&self, call: PythonCall<'_>) -> Result<Output> {
        let PythonCall { code, prelude, files, session, output_bytes } = call;
        let bytes: usize = files.iter().map(|file| file.content.len()).sum();
        if bytes as u64 > self.disk {
            let (size, disk) = (bytes.div_ceil(1 << 20), self.disk >> 20);
            return Err(Error::new(
                Kind::Tool,
                format!("the files of the Python tool have {size} MiB and `disk` is {disk} MiB"),
            )
            .hint("raise `disk` of r1.tools.python: the program's own files need room too"));
        }
        if code.len().max(prelude.len()) > MAX_CODE {
            let text = format!("SyntaxError: the program is longer than {} MiB", MAX_CODE >> 20);
            return Ok(Output { text, ..Output::default() });
        }
        let (reply, answer) = oneshot::channel();
        let (code, prelude, files) = (code.to_owned(), prelude.to_owned(), files.to_vec());
        let job = PythonJob::Run(QueuedProgram { session, code, prelude, files, output_bytes }, reply);
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        match answer.await {
            Ok(output) if sent => output,
            _ => Err(fault("its thread has ended")),
        }
    }

    pub(super) fn end_session(&self, session: u64) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(PythonJob::End(session));
        }
    }
}

impl Drop for PythonPool {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // No process or directory is left over.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The error for a program that could not be run for external reasons.
fn fault(why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Tool, format!("the Python tool failed: {why}"))
}

/// The main loop of the thread.
fn serve(
    options: PythonOptions,
    interpreter: Interpreter,
    mut queue: mpsc::UnboundedReceiver<PythonJob>,
    report: &std::sync::mpsc::Sender<Result<()>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = report.send(Err(Error::new(Kind::Tool, format!("can't start the Python tool: {error}"))));
            return;
        }
    };
    let tasks = tokio::task::LocalSet::new();
    let host = Rc::new(PythonHost::new(options, interpreter));
    tasks.block_on(&runtime, async {
        let probed = probe::probe(&host).await;
        let failed = probed.is_err();
        let _ = report.send(probed);
        if !failed {
            let sweeper = tokio::task::spawn_local(sweep(host.clone()));
            while let Some(job) = queue.recv().await {
                match job {
                    PythonJob::End(session) => host.end_session(session),
                    PythonJob::Run(program, reply) => {
                        tokio::task::spawn_local(answer(host.clone(), program, reply));
                    }
                }
            }
            sweeper.abort();
        }
        host.stop().await;
    });
}

async fn answer(host: Rc<PythonHost>, program: QueuedProgram, mut reply: oneshot::Sender<Result<Output>>) {
    let output = tokio::select! {
        output = host.run_or_session(&program) => output,
        // The caller has dropped its future, so this drops the child and ends its process.
        () = reply.closed() => return,
    };
    let _ = reply.send(output);
}

/// Ends sessions that have been unused for too long.
async fn sweep(host: Rc<PythonHost>) {
    let idle = Duration::from_secs_f64(host.options.session_idle);
    loop {
        tokio::time::sleep((idle / 4).max(Duration::from_millis(50))).await;
        host.sessions
            .borrow_mut()
            .retain(|_, session| session.child.try_lock().is_err() || session.used.get().elapsed() < idle);
    }
}

/// Number of children that are kept ready.
pub(super) const SPARES: usize = 4;

/// The state of the thread.
#[derive(Debug)]
pub(super) struct PythonHost {
    pub(super) options: PythonOptions,
    interpreter: Interpreter,
    /// Programs that run at once.
    pool: usize,
    places: Semaphore,
    /// The namespaces of the first server.
    namespaces: Cell<Option<Namespaces>>,
    /// Number of children that are kept ready.
    spare_target: usize,
    server: Mutex<Option<PythonServer>>,
    spares: RefCell<VecDeque<Child>>,
    sessions: RefCell<HashMap<u64, Rc<PythonSession>>>,
}

#[derive(Debug)]
struct PythonSession {
    child: Mutex<Option<Child>>,
    used: Cell<Instant>,
    ended: Notify,
}

impl PythonHost {
    fn new(options: PythonOptions, interpreter: Interpreter) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = if options.pool == 0 { cores } else { options.pool };
        Self {
            options,
            interpreter,
            pool,
            places: Semaphore::new(pool),
            namespaces: Cell::new(None),
            spare_target: pool.min(SPARES),
            server: Mutex::new(None),
            spares: RefCell::default(),
            sessions: RefCell::default(),
        }
    }

    /// A confined child that waits for its first program.
    async fn child(&self) -> Result<Child> {
        let mut problem = NotReady::Stopped;
        for _ in 0..3 {
            let mut server = self.server.lock().await;
            if server.as_ref().is_none_or(|server| !server.alive.get()) {
                self.spares.borrow_mut().clear();
                if let Some(mut dead) = server.take() {
                    dead.stop().await;
                }
                *server = Some(self.start_server().await?);
            }
            let Some(server) = server.as_ref() else { continue };
            let spare = self.spares.borrow_mut().pop_front();
            let fork = || server.fork().map_err(|error| fault(format!("can't make a pipe: {error}")));
            let mut child = spare.map_or_else(fork, Ok)?;
            while self.spares.borrow().len() < self.spare_target {
                let spare = fork()?;
                self.spares.borrow_mut().push_back(spare);
            }
            match tokio::time::timeout(Duration::from_secs(30), child.ready()).await {
                Ok(Ok(())) => return Ok(child),
                Ok(Err(why)) => problem = why,
                Err(_) => problem = NotReady::TimedOut,
            }
        }
        Err(fault(format!("no interpreter could be confined: {problem}")))
    }

    /// Starts a server with the best namespaces that the system allows; the first start finds them.
    async fn start_server(&self) -> Result<PythonServer> {
        let working = self.namespaces.get().map(|working| vec![working]);
        let candidates = working.unwrap_or_else(|| {
            if self.options.namespaces { Namespaces::candidates().to_vec() } else { vec![Namespaces::None] }
        });
        let mut last = Error::new(Kind::Tool, "no way to confine Python");
        for namespaces in candidates {
            match PythonServer::start(&self.interpreter, &self.options, self.pool, namespaces).await {
                Ok(server) => {
                    self.namespaces.set(Some(namespaces));
                    if namespaces == Namespaces::None && self.options.namespaces {
                        crate::tools::WITHOUT_NAMESPACES.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    return Ok(server);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn run_or_session(&self, program: &QueuedProgram) -> Result<Output> {
        let QueuedProgram { code, prelude, files, .. } = program;
        let output_bytes = self.options.output_bytes.max(program.output_bytes);
        let call = ProgramCall { code, prelude, files, timeout: self.options.timeout, output_bytes, session: None };
        match program.session {
            Some(session) => self.run_in_session(session, call).await,
            None => self.run(call).await,
        }
    }

    /// Runs a program in its own child.
    ///
    /// # Errors
    /// [`Kind::Tool`] if the tool could not run it.
    pub(super) async fn run(&self, call: ProgramCall<'_>) -> Result<Output> {
        let _place = self.places.acquire().await;
        for _ in 0..2 {
            let mut child = self.child().await?;
            if let Some((output, _)) = exchange(&mut child, &self.options, call).await.map_err(fault)? {
                return Ok(output);
            }
        }
        Err(fault("the interpreter was killed from outside"))
    }

    async fn run_in_session(&self, number: u64, call: ProgramCall<'_>) -> Result<Output> {
        let open_session = self.sessions.borrow().get(&number).cloned();
        let session = match open_session {
            Some(session) => session,
            None if self.sessions.borrow().len() >= self.options.max_sessions => {
                let limit = self.options.max_sessions;
                return Err(fault(format!("{limit} sessions are open, the maximum"))
                    .hint("raise max_sessions of r1.tools.python, or lower rollout.concurrency"));
            }
            None => {
                let (child, used, ended) = (Mutex::new(None), Cell::new(Instant::now()), Notify::new());
                let session = Rc::new(PythonSession { child, used, ended });
                self.sessions.borrow_mut().insert(number, session.clone());
                session
            }
        };
        let mut slot = session.child.lock().await;
        let _place = self.places.acquire().await;
        let (mut child, files) = match slot.take() {
            Some(child) if child.server_alive.get() => {
                child.process.signal(libc::SIGCONT);
                (child, &[][..])
            }
            _ => (self.child().await?, call.files),
        };
        let call = ProgramCall { files, session: Some(&session.ended), ..call };
        let output = exchange(&mut child, &self.options, call).await;
        session.used.set(Instant::now());
        let Some((output, alive)) = output.map_err(fault)? else {
            return Err(fault("the interpreter was killed from outside, and with it the session"));
        };
        if alive {
            // Threads that a program left running are stopped between calls.
            child.process.signal(libc::SIGSTOP);
            *slot = Some(child);
        }
        Ok(output)
    }

    fn end_session(&self, number: u64) {
        if let Some(session) = self.sessions.borrow_mut().remove(&number) {
            session.ended.notify_one();
        }
    }

    async fn stop(&self) {
        self.sessions.borrow_mut().clear();
        self.spares.borrow_mut().clear();
        if let Some(mut server) = self.server.lock().await.take() {
            server.stop().await;
        }
    }
}
