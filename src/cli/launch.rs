//! The processes of a run: those that `--nproc` starts on this machine, or those that `torchrun`,
//! Slurm or a script started, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their
//! environment.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;

use crate::error::{Error, Kind, Result};
use crate::native;
use crate::process_group::{ProcessGroup, Rendezvous};
use crate::programs::ProgramProcesses;
use crate::telemetry::{Interrupt, Reporter, ctrl_c};
use crate::tools::die_with_parent;
use crate::train::{EvalOptions, Ranks, RunOptions};

/// The port of `torchrun`.
const PORT: u16 = 29500;
/// Variable with the directory for the directories of ranks.
const RANK_DIRS: &str = "R1_RANK_DIRS";
/// Bytes of a process's error output that are kept: the last ones.
const STDERR: usize = 16 << 10;
/// Time for the other processes to end after the first one, and again after signals.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The processes of a run.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Processes")]
pub(super) struct ProcessArgs {
    /// Use this number of processes on this machine. Processes that `torchrun` or `srun`
    /// starts need no option
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) nproc: Option<u16>,
    /// Time that a process waits for the others before it ends with an error
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rank_timeout: u32,
}

/// The processes of a run, as one of them sees them.
pub(super) struct Launched {
    ranks: Ranks,
    /// Those that this process started.
    children: Vec<Arc<RankProcess>>,
    ended: Arc<AtomicBool>,
    /// Of rank 0, for the directories of the processes that it started: they may be killed.
    rank_dirs: Option<TempDir>,
    /// The directory of runs of another rank than 0.
    rank_dir: Option<TempDir>,
}

/// A process that this one started.
struct RankProcess {
    rank: usize,
    id: i32,
    state: Mutex<Option<(ExitStatus, String)>>,
}

impl RankProcess {
    fn state(&self) -> MutexGuard<'_, Option<(ExitStatus, String)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.state().is_some()
    }

    /// Why it failed, if it did.
    fn failure(&self) -> Option<String> {
        let state = self.state();
        let (status, text) = state.as_ref().filter(|(status, _)| !status.success())?;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended early".to_owned(),
        };
        let text = text.trim_end();
        let output = if text.is_empty() { String::new() } else { format!(": {}", text.replace('\n', "\n    ")) };
        Some(format!("rank {} {how}{output}", self.rank))
    }

    #[allow(unsafe_code)]
    fn signal(&self, signal: i32) {
        let state = self.state();
        if state.is_none() {
            // SAFETY: no pointers. The process is not waited for while `state` is held, so that the
            // number is still its own.
            unsafe {
                libc::kill(self.id, signal);
            }
        }
    }
}

impl ProcessArgs {
    /// Whether there are several processes: of `--nproc`, or of the environment.
    pub(super) fn are_several(self) -> bool {
        let timeout = Duration::default();
        let environment = from_environment(|name| std::env::var(name).ok(), timeout);
        self.nproc.is_some_and(|nproc| nproc > 1) || environment.is_ok_and(|rendezvous| rendezvous.is_some())
    }
}

/// Starts the processes of `--nproc`, or joins those of the environment. Returns when all are
/// there.
///
/// # Errors
/// `Kind::Usage` for an environment that is not complete; `Kind::Device` names the processes that
/// did not start in time.
pub(super) fn launch(args: ProcessArgs) -> Result<Launched> {
    let (nproc, timeout) = (args.nproc, Duration::from_secs(args.rank_timeout.into()));
    let mut launched = Launched {
        ranks: Ranks::default(),
        children: Vec::new(),
        ended: Arc::default(),
        rank_dirs: None,
        rank_dir: None,
    };
    let size = nproc.map_or(1, usize::from);
    let (rendezvous, listener) = match from_environment(|name| std::env::var(name).ok(), timeout)? {
        Some(rendezvous) if nproc.is_some_and(|nproc| usize::from(nproc) != rendezvous.size) => {
            let message = format!("--nproc is {size}, and WORLD_SIZE is {}", rendezvous.size);
            return Err(Error::new(Kind::Usage, message).hint("leave --nproc out: the processes are started already"));
        }
        Some(rendezvous) => (rendezvous, None),
        None if size == 1 => return Ok(launched),
        None => {
            let host = "127.0.0.1".to_owned();
            let listener = TcpListener::bind((host.as_str(), 0));
            let listener = listener.map_err(|error| Error::io(Kind::Device, "listen on", host.as_str(), &error))?;
            let port = listener.local_addr().map_or(0, |address| address.port());
            let address = Some(host.clone());
            (Rendezvous { host, port, rank: 0, size, runs_store: true, address, timeout }, Some(listener))
        }
    };
    share_cores(if listener.is_some() { size } else { local_size() });
    let parent = std::env::var_os(RANK_DIRS).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = || {
        let made = TempDir::with_prefix_in("r1-rank-", &parent);
        made.map_err(|error| Error::io(Kind::Store, "make a directory in", &parent, &error))
    };
    if listener.is_some() {
        let rank_dirs = directory()?;
        for rank in 1..size {
            launched.children.push(start(rank, &rendezvous, rank_dirs.path(), &launched.ended)?);
        }
        launched.rank_dirs = Some(rank_dirs);
    }
    let facts = [
        ("version of r1", env!("CARGO_PKG_VERSION")),
        ("version of libtorch", native::libtorch_version()),
        ("set of CPU kernels", native::kernels()),
    ];
    let connected = ProcessGroup::connect(&rendezvous, listener, &facts);
    let group = connected.map_err(|error| launched.explain(error))?;
    launched.ranks = Ranks::new(group, Arc::clone(&launched.ended));
    if rendezvous.rank > 0 {
        launched.rank_dir = Some(directory()?);
    }
    Ok(launched)
}

impl Launched {
    /// What this process prints: only rank 0 prints more than errors.
    pub(super) fn reporter(&self, of_first: impl FnOnce() -> Reporter) -> Reporter {
        if self.is_first() { of_first() } else { Reporter::silent() }
    }

    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Whether this is rank 0.
    pub(super) fn is_first(&self) -> bool {
        self.rank_dir.is_none()
    }

    /// The options of this process. Signals are passed on to the others until `finish`.
    pub(super) fn run_options(&self, options: RunOptions) -> RunOptions {
        self.forward_signals(options.interrupt);
        let options = RunOptions { ranks: self.ranks.clone(), ..options };
        let Some(rank_dir) = &self.rank_dir else { return options };
        let runs_dir = rank_dir.path().to_owned();
        RunOptions { runs_dir, out: None, metrics_port: None, profile: false, confirm: false, ..options }
    }

    /// The processes of a program.
    pub(super) fn program(&self) -> ProgramProcesses {
        if !self.children.is_empty() {
            self.forward_signals(Some(ctrl_c()));
        }
        let runs_dir = self.rank_dir.as_ref().map(|dir| dir.path().to_owned());
        ProgramProcesses { ranks: self.ranks.clone(), runs_dir }
    }

    /// As [`run_options`](Self::run_options), of an evaluation.
    pub(super) fn eval_options(&self, options: EvalOptions) -> EvalOptions {
        self.forward_signals(options.interrupt);
        let runs_dir = self.rank_dir.as_ref().map(|dir| dir.path().to_owned()).unwrap_or(options.runs_dir);
        EvalOptions { ranks: self.ranks.clone(), runs_dir, ..options }
    }

    fn forward_signals(&self, interrupt: Option<Interrupt>) {
        if let (Some(interrupt), false) = (interrupt, self.children.is_empty()) {
            let children = self.children.clone();
            thread::spawn(move || forward_signals(interrupt, &children));
        }
    }

    /// Waits for the processes that this one started, which end with it. If one of them has ended
    /// early, the error says how.
    pub(super) fn finish<T>(mut self, done: Result<T>) -> Result<T> {
        self.ranks = Ranks::default();
        let done = done.map_err(|error| if error.kind == Kind::Device { self.explain(error) } else { error });
        if done.is_ok() {
            self.wait(PATIENCE);
        }
        // The second signal ends a rollout, the third the process.
        for _ in 0..3 {
            self.children.iter().for_each(|child| child.signal(libc::SIGTERM));
            self.wait(PATIENCE / 40);
        }
        self.wait(PATIENCE);
        self.children.iter().for_each(|child| child.signal(libc::SIGKILL));
        self.rank_dirs.take();
        done
    }

    /// Whether all ended in this time.
    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.children.iter().all(|child| child.has_ended()) && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
    }

    /// The error of a process group, with the end of the process that caused it.
    fn explain(&self, error: Error) -> Error {
        let until = Instant::now() + PATIENCE / 5;
        loop {
            if let Some(why) = self.children.iter().find_map(|child| child.failure()) {
                return Error { message: why, ..error }.hint("the other processes of the run were ended");
            }
            if self.children.is_empty() || Instant::now() > until {
                return error;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // After an early return. The others ended in `finish`.
        self.children.iter().for_each(|child| child.signal(libc::SIGKILL));
    }
}

/// The rendezvous that the environment describes, with the variables of `torchrun` or of Slurm's
/// `srun`; `None` for a process alone.
fn from_environment(variable: impl Fn(&str) -> Option<String>, timeout: Duration) -> Result<Option<Rendezvous>> {
    let number = |name: &str| -> Result<Option<usize>> {
        let Some(text) = variable(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Error::new(Kind::Usage, format!("{name} is `{text}`, not a number")))
    };
    let (rank, size) = match (number("RANK")?, number("WORLD_SIZE")?) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(_), None) => return Err(missing("WORLD_SIZE", "RANK")),
        (None, Some(size)) if size > 1 => return Err(missing("RANK", "WORLD_SIZE")),
        // Slurm sets the number of tasks of a step for processes of `srun`, not in batch scripts.
        (None, _) => match (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?) {
            (Some(rank), Some(size)) => (rank, size),
            _ => return Ok(None),
        },
    };
    if size <= 1 {
        return Ok(None);
    }
    let host = variable("MASTER_ADDR").or_else(|| variable("SLURM_LAUNCH_NODE_IPADDR"));
    let host = host.ok_or_else(|| missing("MASTER_ADDR", "RANK"))?;
    let port = number("MASTER_PORT")?.unwrap_or(usize::from(PORT));
    let port = u16::try_from(port).map_err(|_| Error::new(Kind::Usage, format!("MASTER_PORT is {port}")))?;
    // Ranks on one machine reach each other there, also if its name has no address.
    let loopback = host == "localhost" || host.starts_with("127.");
    let address = loopback.then(|| "127.0.0.1".to_owned());
    // The agent of torchrun runs a store at that port.
    let runs_store = variable("TORCHELASTIC_USE_AGENT_STORE").is_none_or(|value| value != "True");
    Ok(Some(Rendezvous { host, port, rank, size, runs_store, address, timeout }))
}

fn missing(name: &str, other: &str) -> Error {
    Error::new(Kind::Usage, format!("the environment has {other} and no {name}"))
        .hint("set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process, or none of them and use --nproc N")
}

/// The number of processes of the run that share the cores which this one may use. Slurm gives each
/// task cores of its own.
fn local_size() -> usize {
    std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// Divides the cores of the machine among its processes, unless the environment has a number of
/// threads. `--threads` has priority.
fn share_cores(processes: usize) {
    if native::has_default_threads() {
        native::set_threads((native::thread_count() / processes.max(1)).max(1));
    }
}

/// Starts this program again as another rank.
fn start(rank: usize, first: &Rendezvous, rank_dirs: &Path, ended: &Arc<AtomicBool>) -> Result<Arc<RankProcess>> {
    let failed = |error: std::io::Error| Error::io(Kind::Device, "start a process of", "the run", &error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .args(std::env::args_os().skip(1))
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", first.size.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", first.size.to_string())
        .env("MASTER_ADDR", &first.host)
        .env("MASTER_PORT", first.port.to_string())
        .env(RANK_DIRS, rank_dirs)
        // Ctrl-C reaches it through this process alone.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    die_with_parent(&mut command);
    let child = command.spawn().map_err(failed)?;
    let process = Arc::new(RankProcess { rank, id: child.id().cast_signed(), state: Mutex::default() });
    let (shared, ended) = (Arc::clone(&process), Arc::clone(ended));
    thread::spawn(move || watch(child, &shared, &ended));
    Ok(process)
}

/// Keeps the end of a process's error output, and its exit status.
fn watch(mut child: Child, process: &RankProcess, ended: &AtomicBool) {
    let mut kept = Vec::new();
    if let Some(mut errors) = child.stderr.take() {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = errors.read(&mut piece) {
            kept.extend_from_slice(&piece[..count]);
            kept.drain(..kept.len().saturating_sub(STDERR));
        }
    }
    // The pipe is closed: the process is ending.
    let mut state = process.state();
    let Ok(status) = child.wait() else { return };
    *state = Some((status, String::from_utf8_lossy(&kept).into_owned()));
    drop(state);
    if !status.success() {
        ended.store(true, Ordering::Relaxed);
    }
}

/// Sends each signal of this process to the others.
fn forward_signals(interrupt: Interrupt, children: &[Arc<RankProcess>]) {
    let mut sent = interrupt.count();
    while !children.iter().all(|child| child.has_ended()) {
        while sent < interrupt.count() {
            for child in children {
                child.signal(libc::SIGTERM);
            }
            sent += 1;
            // Two signals that are pending at once are one.
            thread::sleep(LOOK_EVERY);
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<(String, u16, usize, usize)>> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let rendezvous = from_environment(value, PATIENCE)?;
        Ok(rendezvous.map(|it| (it.host, it.port, it.rank, it.size)))
    }

    #[test]
    fn the_environment_names_rank_and_address() {
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node-1"), ("MASTER_PORT", "1234")];
        assert_eq!(of(&torchrun).unwrap(), Some(("node-1".to_owned(), 1234, 1, 4)));
        assert_eq!(of(&torchrun[..3]).unwrap().unwrap().1, 29500);
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")];
        assert_eq!(of(&slurm).unwrap(), Some(("10.0.0.1".to_owned(), 29500, 3, 8)));
        // A batch script, and a process alone.
        assert_eq!(of(&slurm[..1]).unwrap(), None);
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        assert_eq!(of(&[]).unwrap(), None);
    }

    #[test]
    fn an_incomplete_environment_is_refused() {
        let message = |variables: &[(&str, &str)]| of(variables).unwrap_err().message;
        assert_eq!(message(&[("RANK", "1")]), "the environment has RANK and no WORLD_SIZE");
        assert_eq!(message(&[("WORLD_SIZE", "2")]), "the environment has WORLD_SIZE and no RANK");
        assert_eq!(message(&[("RANK", "1"), ("WORLD_SIZE", "2")]), "the environment has RANK and no MASTER_ADDR");
        assert_eq!(message(&[("RANK", "first"), ("WORLD_SIZE", "2")]), "RANK is `first`, not a number");
    }
}
