//! Short starts of `r1` for tests.
//!
//! A start of `r1` takes 0.2 to 0.3 s, nearly all of it in the loader and in the constructors of
//! libtorch. Short tests spend most of their time there. A server process loads the libraries once
//! and forks a process for each command (fixtures/fork_server.cpp), as the fork server of AFL does.
//! `main` and the initialisation of the program itself run in that process as after `exec`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{LazyLock, Mutex};

/// A command line of `r1`. As a [`Command`] it starts a program of its own.
pub(crate) struct R1(pub(crate) Command);

impl From<R1> for Command {
    fn from(command: R1) -> Self {
        command.0
    }
}

impl Deref for R1 {
    type Target = Command;
    fn deref(&self) -> &Command {
        &self.0
    }
}

impl DerefMut for R1 {
    fn deref_mut(&mut self) -> &mut Command {
        &mut self.0
    }
}

/// Variables that libraries read when they are loaded: the server has loaded them already.
const READ_BY_LIBRARIES: [&str; 9] = ["ATEN_", "GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "TORCH_"];

impl R1 {
    pub(crate) fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.0.env_remove(name);
        self
    }

    /// As [`Command::output`], by the server where that is possible. Streams that were set before
    /// are not used: stdin is empty.
    pub(crate) fn output(&mut self) -> io::Result<Output> {
        if self.must_be_started() { self.0.output() } else { forked(&self.0, None) }
    }

    /// The output with `text` as stdin, from a pipe.
    pub(crate) fn output_with(&mut self, text: &str) -> io::Result<Output> {
        if self.must_be_started() {
            self.0.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = self.0.spawn()?;
            child.stdin.take().unwrap().write_all(text.as_bytes())?;
            return child.wait_with_output();
        }
        forked(&self.0, Some(text))
    }

    /// Whether the server can't fork this command.
    fn must_be_started(&self) -> bool {
        cfg!(not(all(target_os = "linux", target_env = "gnu")))
            || self.0.get_envs().any(|(name, value)| {
                let read = READ_BY_LIBRARIES.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()));
                read && (name, value) != (OsStr::new("OMP_NUM_THREADS"), Some(OsStr::new("1")))
            })
    }
}

/// A running server. It ends with this process, which holds the other end of its stdin.
struct Server {
    requests: ChildStdin,
    /// A byte for each request whose streams the server has opened.
    accepted: ChildStdout,
    _process: Child,
}

static SERVER: LazyLock<Mutex<Server>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let library = compiled(dir.path(), "fork_server");
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.env("LD_PRELOAD", library).env("OMP_NUM_THREADS", "1");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut server =
        Server { requests: process.stdin.take().unwrap(), accepted: process.stdout.take().unwrap(), _process: process };
    // The library can be removed when the server has loaded it.
    server.accepted.read_exact(&mut [0]).unwrap();
    Mutex::new(server)
});

/// Starts a command in a process of the server and waits for its end.
fn forked(command: &Command, input: Option<&str>) -> io::Result<Output> {
    let (status, status_end) = io::pipe()?;
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let (stdin_end, stdin) = io::pipe()?;
    let path = |end: RawFd| OsString::from(format!("/proc/{}/fd/{end}", std::process::id()));
    let directory = command.get_current_dir().map_or(OsStr::new("."), Path::as_os_str).to_owned();
    let arguments: Vec<&OsStr> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.to_owned(), value.to_owned()),
            None => variables.remove(name),
        };
    }
    let null = || OsString::from("/dev/null");
    let mut strings = vec![path(status_end.as_raw_fd())];
    strings.push(input.map_or_else(null, |_| path(stdin_end.as_raw_fd())));
    strings.extend([path(stdout_end.as_raw_fd()), path(stderr_end.as_raw_fd())]);
    strings.extend([directory, arguments.len().to_string().into()]);
    strings.extend(arguments.into_iter().map(OsStr::to_owned));
    strings.extend(variables.into_iter().map(|(name, value)| [name, value].join(OsStr::new("="))));
    let mut request = Vec::new();
    for string in &strings {
        request.extend_from_slice(string.as_bytes());
        request.push(0);
    }
    {
        let mut server = SERVER.lock().unwrap();
        server.requests.write_all(&u32::try_from(request.len()).unwrap().to_ne_bytes())?;
        server.requests.write_all(&request)?;
        server.accepted.read_exact(&mut [0])?;
    }
    drop((status_end, stdin_end, stdout_end, stderr_end));
    std::thread::scope(|scope| {
        let written = scope.spawn(move || input.map_or(Ok(()), |text| (&stdin).write_all(text.as_bytes())));
        let errors = scope.spawn(move || read(stderr));
        let stdout = read(stdout)?;
        let stderr = errors.join().unwrap()?;
        written.join().unwrap()?;
        let mut ended = [0; 4];
        (&status).read_exact(&mut ended)?;
        Ok(Output { status: ExitStatus::from_raw(i32::from_ne_bytes(ended)), stdout, stderr })
    })
}

fn read(mut stream: PipeReader) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The library NAME.so of a file of the fixtures, for LD_PRELOAD.
pub(crate) fn compiled(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.cpp"));
    let library = dir.join(format!("{name}.so"));
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let arguments = ["-shared", "-fPIC", "-O1", "-o"];
    let built = Command::new(compiler).args(arguments).args([&library, &source]).arg("-ldl").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// Arguments, directory, variables, stdin, both streams and the exit code.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_forked_command_does_what_a_started_one_does() {
    let program = "print(io.read('a'), os.getenv('SHOWN'), os.getenv('HOME'), arg[1], arg[2]) error('the end')";
    let dir = crate::cli::directory(&[("shows.lua", program)], false);
    for args in [&["lua", "shows.lua", "one", "--two"][..], &["version"], &["run", "none.lua"], &["unknown"]] {
        let command = || {
            let mut command = crate::cli::r1(dir.path(), args);
            command.env("SHOWN", "a value").env_remove("HOME");
            command
        };
        assert!(!command().must_be_started());
        let (forked, started) = (command().output().unwrap(), command().0.output().unwrap());
        assert_eq!(forked, started, "{args:?}");
        // A variable that OpenMP reads when it is loaded: with it the command is started.
        let input = "a text of several\nlines";
        let with_input = command().output_with(input).unwrap();
        let with_input_started = command().env("OMP_DYNAMIC", "false").output_with(input).unwrap();
        assert_eq!(with_input, with_input_started, "{args:?}");
    }
}
