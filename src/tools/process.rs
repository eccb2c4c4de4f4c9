//! Runs any program of this machine once in a sandbox. It can read the system's directories and the
//! given ones, and write a scratch directory in memory; it has no network and sees no other
//! process. Requires kernel namespaces (Linux).

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Name or path, and arguments.
    pub argv: Vec<String>,
    /// Environment variables in addition to the default ones.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub input: Vec<u8>,
    pub timeout: Duration,
    /// Address space of each of its processes.
    pub memory_mb: u64,
    /// Size of its scratch directory.
    pub disk_mb: u64,
    /// Bytes kept of each output: the start and the end.
    pub output: usize,
    /// Readable directories in addition to the system's.
    pub read: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgramOutput {
    /// The exit code, or 128 plus the number of the signal that ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
    /// It was stopped at its time limit.
    pub timed_out: bool,
    pub seconds: f64,
}

#[cfg(target_os = "linux")]
pub use linux::{find_program, run_program};

/// Runs a program to its end. Dropping the future ends the program.
///
/// # Errors
/// [`Kind::Tool`](crate::Kind::Tool): not supported on this system.
#[cfg(not(target_os = "linux"))]
pub async fn run_program(_: Program) -> crate::Result<ProgramOutput> {
    Err(crate::Error::new(crate::Kind::Tool, "programs can be confined on Linux only"))
}

/// The path of a program.
///
/// # Errors
/// [`Kind::Tool`](crate::Kind::Tool): not supported on this system.
#[cfg(not(target_os = "linux"))]
pub fn find_program(_: &str, _: &[PathBuf]) -> crate::Result<PathBuf> {
    Err(crate::Error::new(crate::Kind::Tool, "programs can be confined on Linux only"))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::unix::process::ExitStatusExt;
    use std::path::{Path, PathBuf};
    use std::process::Stdio;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
    use tokio::process::{Child, Command};

    use super::super::capture::Capture;
    use super::super::sandbox::{Confinement, Namespaces, Role, SandboxAccess};
    use super::{Program, ProgramOutput};
    use crate::error::{Error, Kind, Result};

    /// The search path of programs, and the visible directories of the system.
    const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
    const SYSTEM: [&str; 9] =
        ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/java"];
    /// Processes and threads of one user, including other programs.
    const PROCESSES: u64 = 512;

    /// Runs a program to its end. Dropping the future ends the program.
    ///
    /// # Errors
    /// [`Kind::Tool`] if there is no such program or it can't be confined here. A failing program
    /// is not an error.
    pub async fn run_program(program: Program) -> Result<ProgramOutput> {
        let Some(name) = program.argv.first() else {
            return Err(Error::new(Kind::Tool, "there is no program to run"));
        };
        let path = find_program(name, &program.read)?;
        let started = Instant::now();
        let scratch = tempfile::Builder::new().prefix("r1-").tempdir();
        let scratch =
            scratch.map_err(|error| Error::io(Kind::Tool, "make a directory", std::env::temp_dir(), &error))?;
        let mut child = start(&program, &path, scratch.path())?;
        let deadline = tokio::time::Instant::now() + program.timeout;
        let mut output = communicate(&mut child, &program, deadline).await?;
        output.seconds = started.elapsed().as_secs_f64();
        Ok(output)
    }

    /// The path of a program: a name is looked for in the directories of `PATH`, a path must be
    /// below a directory of the system or of `read`.
    ///
    /// # Errors
    /// [`Kind::Tool`] if there is no such program.
    pub fn find_program(name: &str, read: &[PathBuf]) -> Result<PathBuf> {
        let missing = |what: String| Error::new(Kind::Tool, what).hint(format!("programs are looked for in {PATH}"));
        if name.contains('/') {
            let path = PathBuf::from(name);
            let inside = path.is_absolute()
                && read.iter().map(PathBuf::as_path).chain(SYSTEM.map(Path::new)).any(|root| path.starts_with(root));
            return if inside && path.is_file() {
                Ok(path)
            } else {
                Err(missing(format!("there is no program `{name}` that may be run")))
            };
        }
        let program = PATH.split(':').map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
        program.ok_or_else(|| missing(format!("there is no program `{name}`")))
    }

    /// Starts it with the best namespaces that the system allows; the first start finds them.
    fn start(program: &Program, path: &Path, scratch: &Path) -> Result<Child> {
        static WORKING: Mutex<Option<Namespaces>> = Mutex::new(None);
        let working = *WORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let all = Namespaces::candidates().iter().copied().filter(|namespaces| *namespaces != Namespaces::None);
        let candidates: Vec<Namespaces> = working.map_or_else(|| all.collect(), |working| vec![working]);
        let mut last = Error::new(Kind::Tool, "no way to confine a program");
        for namespaces in candidates {
            match start_in(namespaces, program, path, scratch) {
                Ok(child) => {
                    *WORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(namespaces);
                    return Ok(child);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    #[allow(unsafe_code)]
    fn start_in(namespaces: Namespaces, program: &Program, path: &Path, scratch: &Path) -> Result<Child> {
        // Links among them are recreated in the sandbox.
        let system = SYSTEM.iter().map(PathBuf::from).filter(|path| path.exists() && !path.is_symlink());
        let reach = SandboxAccess {
            read: system.chain(program.read.iter().cloned()).collect(),
            list: Vec::new(),
            scratch: scratch.to_owned(),
            scratch_bytes: program.disk_mb << 20,
            rooms: 0,
            execute: true,
        };
        let confinement = Confinement::new(&reach, namespaces, Role::Program)?;
        let limits = [
            (libc::RLIMIT_AS, program.memory_mb << 20),
            (libc::RLIMIT_FSIZE, (program.disk_mb << 20).max(1 << 20)),
            (libc::RLIMIT_CPU, program.timeout.as_secs().saturating_mul(8) + 2),
            (libc::RLIMIT_NPROC, PROCESSES),
        ];
        let mut command = Command::new(path);
        command
            .args(&program.argv[1..])
            .env_clear()
            .envs([("PATH", PATH), ("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("HOME", "/"), ("LANG", "C.UTF-8")])
            .env("TMPDIR", scratch)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .current_dir(scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // SAFETY: only system calls, as required after a fork in a process with threads.
        unsafe {
            command.pre_exec(move || {
                for (resource, limit) in limits {
                    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                    // A lower limit of the machine stays.
                    libc::setrlimit(resource, &raw const limit);
                }
                confinement.apply()?;
                become_first()
            });
        }
        command.spawn().map_err(|error| {
            Error::new(Kind::Tool, format!("can't start the program in its sandbox: {error}"))
                .at_path(path)
                .hint("namespaces, landlock and seccomp must be allowed; some container runtimes block them")
        })
    }

    /// Forks. The child becomes the first process of the new namespace, which ends all others there
    /// when it ends; this process waits for it and exits with its status.
    #[allow(unsafe_code)]
    fn become_first() -> io::Result<()> {
        // SAFETY: only system calls; the child is a copy of this process, which has one thread.
        unsafe {
            // The raw call: the C library's `fork` would use threads that do not exist after the
            // first fork.
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            match child {
                ..0 => Err(io::Error::last_os_error()),
                // Ends together with the process that waits for it.
                0 if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                child => {
                    // The pipes belong to the child; they must close for their readers when it
                    // ends.
                    libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                    let mut status = 0;
                    while libc::wait4(child as libc::pid_t, &raw mut status, 0, std::ptr::null_mut()) < 0 {}
                    let signalled = libc::WIFSIGNALED(status);
                    libc::_exit(if signalled { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) })
                }
            }
        }
    }

    /// Writes its input, reads its output, and ends it at the time limit.
    async fn communicate(
        child: &mut Child,
        program: &Program,
        deadline: tokio::time::Instant,
    ) -> Result<ProgramOutput> {
        let (mut out, mut err) = (Capture::new(program.output), Capture::new(program.output));
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program may ignore its input.
                let _ = stdin.write_all(&program.input).await;
            }
            Ok(())
        };
        let all = async { tokio::try_join!(feed, drain(stdout, &mut out), drain(stderr, &mut err)).map(drop) };
        let ended = tokio::time::timeout_at(deadline, async {
            all.await?;
            child.wait().await
        });
        let failed = |error: io::Error| Error::new(Kind::Tool, format!("the program was lost: {error}"));
        let (code, timed_out) = if let Ok(status) = ended.await {
            let status = status.map_err(failed)?;
            (status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1), false)
        } else {
            child.start_kill().map_err(failed)?;
            // Its child processes end with it; the kernel needs a moment.
            let _ = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
            (128 + libc::SIGKILL, true)
        };
        Ok(ProgramOutput { code, out: out.text(), err: err.text(), timed_out, seconds: 0.0 })
    }

    async fn drain(from: Option<impl AsyncRead + Unpin>, into: &mut Capture) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        let mut piece = vec![0; 1 << 16];
        loop {
            match from.read(&mut piece).await? {
                0 => return Ok(()),
                count => into.push(&piece[..count]),
            }
        }
    }
}

/// Whether this system allows namespaces, tested with the system's own tool.
#[cfg(test)]
pub(crate) fn has_namespaces() -> bool {
    let flags = ["--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "true"];
    let tries = [&flags[..], &flags[2..]];
    tries
        .iter()
        .any(|flags| std::process::Command::new("unshare").args(*flags).status().is_ok_and(|status| status.success()))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;

    fn program(argv: &[&str]) -> Program {
        Program {
            argv: argv.iter().map(|&text| text.to_owned()).collect(),
            env: Vec::new(),
            input: Vec::new(),
            timeout: Duration::from_mins(1),
            memory_mb: 512,
            disk_mb: 8,
            output: 4096,
            read: Vec::new(),
        }
    }

    /// The result of a program; `None`, with a message, if programs can't be confined here.
    fn run(program: Program) -> Option<ProgramOutput> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        match runtime.block_on(run_program(program)) {
            Ok(output) => Some(output),
            Err(error) if !has_namespaces() => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn shell(script: &str) -> Option<ProgramOutput> {
        run(program(&["sh", "-c", script]))
    }

    #[test]
    fn programs_read_standard_input_and_return_exit_codes() {
        let Some(output) = run(Program { input: b"b\na\n".to_vec(), ..program(&["sort"]) }) else { return };
        assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (0, "a\nb\n", ""));
        let output = shell("echo out; echo err >&2; printf x > f; cat f; (exit 3); kill -9 $$; exit 7").unwrap();
        // The first process of a namespace can't be killed from within.
        assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (7, "out\nx", "err\n"));
        let output =
            shell("for i in 1 2 3; do echo $i | tr 123 abc; done | sort -r; sh -c 'kill -9 $$'; echo $?").unwrap();
        assert_eq!(output.out, "c\nb\na\n137\n");
        // A megabyte of unread input, and no input.
        assert_eq!(run(Program { input: vec![b'x'; 1 << 20], ..program(&["true"]) }).unwrap().code, 0);
    }

    #[test]
    fn the_sandbox_hides_files_processes_and_the_network() {
        let home = std::env::var("HOME").unwrap_or_default();
        let script = format!(
            "cat /etc/passwd; ls {home} /work /proc /home; echo x > /tmp/x; echo x > /usr/x; kill -9 1 2 3; \
             cat < /dev/tcp/127.0.0.1/80; id -u; ls -d /*; mount -t tmpfs x /usr"
        );
        let Some(output) = shell(&script) else { return };
        let lines: Vec<&str> = output.out.lines().collect();
        assert_eq!(lines.first(), Some(&"65534"), "{output:?}");
        assert!(
            lines[1..]
                .iter()
                .all(|line| ["/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/tmp", "/usr", "/var"]
                    .contains(line)),
            "{output:?}"
        );
        assert_ne!(output.code, 0);
    }

    #[test]
    fn programs_in_the_working_directory_can_be_executed() {
        let Some(output) = shell("cp /bin/echo a && ./a 42") else { return };
        assert_eq!((output.code, output.out.as_str()), (0, "42\n"), "{output:?}");
    }

    #[test]
    fn time_memory_disk_and_output_are_limited() {
        let quick = |argv: &[&str]| Program { timeout: Duration::from_millis(700), ..program(argv) };
        let Some(output) = run(quick(&["sh", "-c", "echo first; sleep 100 & sleep 100"])) else { return };
        assert_eq!((output.timed_out, output.code, output.out.as_str()), (true, 137, "first\n"));
        assert!(output.seconds < 30.0, "{output:?}");
        let output = shell("yes | head -c 100000000 > big; echo $?; ls -l big | cut -d' ' -f5").unwrap();
        assert!(output.out.lines().last().unwrap().parse::<u64>().unwrap() <= 8 << 20, "{output:?}");
        let output = shell("yes | head -c 1000000").unwrap();
        assert!(output.out.len() < 5000 && output.out.contains("bytes left out"), "{output:?}");
        let output = shell("x=a; while true; do x=$x$x; done").unwrap();
        assert_ne!(output.code, 0, "{output:?}");
        // A fork bomb ends at the time limit.
        let output = run(quick(&["sh", "-c", "b() { b | b & }; b; sleep 100"])).unwrap();
        assert!(output.timed_out || output.code != 0);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = |argv: &[&str]| runtime.block_on(run_program(program(argv))).unwrap_err().message;
        assert_eq!(error(&["no-such-program"]), "there is no program `no-such-program`");
        assert_eq!(error(&["../x"]), "there is no program `../x` that may be run");
        assert_eq!(error(&[]), "there is no program to run");
    }
}
