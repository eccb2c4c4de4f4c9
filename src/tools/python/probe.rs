//! Tests the sandbox before the first call with programs that try to escape.

use std::io::Write;

use super::call::ProgramCall;
use super::pool::PythonHost;
use super::scratch::Scratch;
use crate::error::{Error, Kind, Result};

/// Seconds; enough for a busy machine.
const TIMEOUT: f64 = 60.0;

/// Attempts that must fail; prints those that succeeded.
const ATTACKS: &str = r"
import os, socket

def attempt(what, action):
    try:
        action()
    except OSError:
        return
    print(what)

attempt('files outside can be read', lambda: open(canary).read())
attempt('files outside can be written', lambda: open(canary, 'a'))
attempt('files outside can be made', lambda: open(canary + '.new', 'w'))
attempt('files outside can be removed', lambda: os.remove(canary))
attempt('directories outside can be listed', lambda: os.listdir(os.path.dirname(canary)))
attempt('directories outside can be listed', lambda: os.listdir(os.path.dirname(os.path.dirname(canary))))
attempt('/etc can be listed', lambda: os.listdir('/etc'))
attempt('/proc can be listed', lambda: os.listdir('/proc'))
attempt('other processes can be read', lambda: open('/proc/%d/maps' % os.getppid()))
attempt('other processes can be signalled', lambda: os.kill(os.getppid(), 0))
attempt('processes can be started', lambda: os.fork() or os._exit(0))
attempt('programs can be run', lambda: os.execv('/bin/true', ['true']))
attempt('the network can be reached', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt('the network can be reached over IPv6', lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt('local sockets can be reached', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
";

/// Operations that must succeed.
const WORK: &str = r"
import decimal, os, threading, json
if writable:
    with open('probe', 'w') as file:
        file.write('x')
    open('probe').read()
    os.remove('probe')
thread = threading.Thread(target=lambda: print(json.dumps(6 * 7)))
thread.start()
thread.join()
";

/// Runs both.
///
/// # Errors
/// [`Kind::Tool`] with the attack that succeeded or the operation that failed.
pub(super) async fn probe(host: &PythonHost) -> Result<()> {
    // If this process is killed, another one removes the directory.
    let failed = |e: &std::io::Error| Error::io(Kind::Tool, "make a temporary file", std::env::temp_dir(), e);
    let outside = Scratch::new().map_err(|e| failed(&e))?;
    let canary = tempfile::NamedTempFile::new_in(&outside.path)
        .and_then(|mut file| file.write_all(b"secret").map(|()| file))
        .map_err(|e| failed(&e))?;
    let path = canary.path().to_string_lossy();
    let path = serde_json::to_string(&path).unwrap_or_default();
    let run = |code, prelude: String| async move {
        host.run(ProgramCall {
            code,
            prelude: &prelude,
            files: &[],
            timeout: TIMEOUT,
            output_bytes: 8192,
            session: None,
        })
        .await
    };
    let attacks = run(ATTACKS, format!("canary = {path}")).await?;
    if !attacks.ok {
        return Err(unusable(&attacks.text));
    }
    if !attacks.text.is_empty() {
        let holes = attacks.text.lines().collect::<Vec<_>>().join(", ");
        return Err(Error::new(Kind::Tool, format!("the Python sandbox does not hold here: {holes}"))
            .hint("a kernel with landlock and seccomp is needed; the rhai tool needs neither"));
    }
    let writable = if host.options.disk_mb > 0 { "True" } else { "False" };
    let work = run(WORK, format!("writable = {writable}")).await?;
    if !work.ok || work.text != "42" {
        return Err(unusable(&work.text));
    }
    Ok(())
}

fn unusable(output: &str) -> Error {
    let last = output.lines().last().unwrap_or("nothing was printed");
    Error::new(Kind::Tool, format!("Python does not work inside the sandbox: {last}"))
        .hint("raise memory_mb if it is low, or name another interpreter with `interpreter`")
}
