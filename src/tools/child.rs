//! A server as a child process: its environment, its process group, its end.

use std::collections::{BTreeSet, VecDeque};
#[cfg(target_os = "linux")]
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use super::background::detach;
use crate::error::{Error, Kind, Result};

/// Variables that a server inherits. All others are named by the recipe.
pub(super) const INHERITED: [&str; 9] =
    ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"];

/// Bytes of standard error that are kept for messages: the last ones.
const STDERR: usize = 4 << 10;
/// Time for a server to end after its input is closed, and again after SIGTERM.
const PATIENCE: Duration = Duration::from_millis(500);

/// Wait before the first restart of a server; doubles with each that follows at once.
const BACKOFF: Duration = Duration::from_millis(250);
const MOST_BACKOFF: Duration = Duration::from_secs(30);

/// The process groups of running servers.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits before a start of a server that was started, or has ended, this often in a row.
pub(super) async fn back_off(starts: u32) {
    if let Some(before) = starts.checked_sub(1) {
        tokio::time::sleep(BACKOFF.saturating_mul(1 << before.min(16)).min(MOST_BACKOFF)).await;
    }
}

/// Ends all servers of this process with their child processes; called before it exits. Servers
/// that do not end after SIGTERM are killed.
pub fn kill_servers() {
    let running = lock(&GROUPS).clone();
    for group in &running {
        signal(*group, libc::SIGTERM);
    }
    let until = Instant::now() + PATIENCE;
    // Each leaves the list when it has ended.
    while !lock(&GROUPS).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    for group in running {
        signal(group, libc::SIGKILL);
    }
}

#[allow(unsafe_code)]
fn signal(group: i32, signal: i32) {
    // SAFETY: a system call without memory. A group that has ended is an error, which is expected.
    unsafe {
        libc::kill(-group, signal);
    }
}

/// The standard streams of a server.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

/// A running server. Dropping it ends the process and its group.
pub(super) struct Process {
    group: i32,
    exit: watch::Receiver<Option<ExitStatus>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
}

impl Process {
    /// Starts a server; must run on the thread of the servers. `name` names it in messages: "MCP
    /// server `files`".
    ///
    /// # Errors
    /// [`Kind::Tool`]: there is no such program, or it can't be started.
    pub(super) fn start(
        name: &str,
        argv: &[String],
        env: &[(String, String)],
        directory: &Path,
    ) -> Result<(Self, Pipes)> {
        let program = argv.first().map(String::as_str).unwrap_or_default();
        if !directory.is_dir() {
            let why = format!("{name}: its working directory {} does not exist", directory.display());
            return Err(Error::new(Kind::Tool, why).hint("`directory` is relative to the script's directory"));
        }
        let path = find(name, program, env, directory)?;
        let mut command = Command::new(&path);
        command
            .args(argv.iter().skip(1))
            .env_clear()
            .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C at the terminal reaches r1 only, which ends the servers itself.
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(command.as_std_mut());
        let failed = |why: String| Error::new(Kind::Tool, format!("{name}: {why}"));
        let mut child = command.spawn().map_err(|error| failed(format!("can't start {}: {error}", path.display())))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(group), (Some(stdin), Some(stdout), Some(errors))) = (group, pipes) else {
            return Err(failed("it ended at once".to_owned()));
        };
        lock(&GROUPS).insert(group);
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        detach(keep_last(errors, Arc::clone(&stderr)));
        let (sender, exit) = watch::channel(None);
        detach(wait(child, group, sender));
        Ok((Self { group, exit, stderr }, Pipes { stdin, stdout }))
    }

    /// Kills the server and its child processes.
    pub(super) fn kill(&self) {
        signal(self.group, libc::SIGKILL);
    }

    /// Describes how the server ended, with the last line of its standard error; waits briefly for
    /// both.
    pub(super) async fn ending(&self) -> String {
        let mut exit = self.exit.clone();
        let status = tokio::time::timeout(PATIENCE, exit.wait_for(Option::is_some)).await;
        let status = status.ok().and_then(|status| *status.ok()?);
        let ended = status.map_or_else(|| "it closed its output".to_owned(), |status| format!("it ended ({status})"));
        match self.last_line() {
            Some(line) => format!("{ended}: {line}"),
            None => ended,
        }
    }

    /// The last line of its standard error.
    pub(super) fn last_line(&self) -> Option<String> {
        let bytes: Vec<u8> = lock(&self.stderr).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().take(300).collect())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let (group, mut exit) = (self.group, self.exit.clone());
        // Its input is closed now: a server that follows the protocol ends by itself.
        detach(async move {
            for next in [libc::SIGTERM, libc::SIGKILL] {
                if tokio::time::timeout(PATIENCE, exit.wait_for(Option::is_some)).await.is_ok() {
                    return;
                }
                signal(group, next);
            }
        });
    }
}

/// The program: a path relative to `directory`, or a name on the PATH.
fn find(name: &str, program: &str, env: &[(String, String)], directory: &Path) -> Result<PathBuf> {
    let missing = |why: String, hint: String| Error::new(Kind::Tool, format!("{name}: {why}")).hint(hint);
    if program.contains('/') {
        let path = directory.join(program);
        // The path is made absolute here, since the program starts in another directory. Links
        // stay: the interpreter of a virtual environment is one, and finds its packages relative to
        // it.
        let absolute = std::fs::metadata(&path).and_then(|_| std::path::absolute(&path));
        return absolute.map_err(|error| {
            let why = format!("can't find the program {}: {error}", path.display());
            missing(why, "a path in `command` is relative to the script's directory".to_owned())
        });
    }
    let own_path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.into());
    let path = own_path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let absolute = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    absolute.ok_or_else(|| {
        let hint = match program {
            "npx" | "node" | "npm" => "it comes with Node.js; install that, or give the path of the program",
            "uvx" | "uv" => "it comes with uv (docs.astral.sh/uv); install that, or give the path of the program",
            _ => "install it, or give its path in `command`",
        };
        missing(format!("there is no program `{program}` on the PATH"), hint.to_owned())
    })
}

/// Makes the kernel end a process if r1 is killed.
#[allow(unsafe_code)]
pub fn die_with_parent(command: &mut std::process::Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: only a system call, as required after a fork in a process with threads.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Reads all of standard error, since a full pipe would stop the server, and keeps its end.
async fn keep_last(errors: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>) {
    let mut errors = BufReader::new(errors);
    let mut piece = vec![0; STDERR];
    while let Ok(count) = errors.read(&mut piece).await {
        if count == 0 {
            return;
        }
        let mut kept = lock(&kept);
        kept.extend(&piece[..count]);
        let over = kept.len().saturating_sub(STDERR);
        kept.drain(..over);
    }
}

/// Waits for the end of the process, then kills the rest of its process group.
async fn wait(mut child: Child, group: i32, sender: watch::Sender<Option<ExitStatus>>) {
    let status = child.wait().await.ok();
    signal(group, libc::SIGKILL);
    lock(&GROUPS).remove(&group);
    sender.send_replace(status);
}
