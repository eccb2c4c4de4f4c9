//! One call: sends the command, then reads output and report until the call ends.

use std::io::Read;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::files::{self, InputFile};
use super::protocol::{MalformedReport, Nonce, ProgramReport, encode};
use super::server::{Child, Exit};
use super::{LastValue, PythonOptions};
use crate::mdp::OutputFile;
use crate::tools::Output;
use crate::tools::capture::Capture;

/// Printed bytes after which a program is stopped as endless.
const ENDLESS: u64 = 16 << 20;

/// Time for a killed child to disappear.
const GRACE: Duration = Duration::from_secs(5);

/// Interval at which the size of the scratch directory is checked.
const DISK_INTERVAL: Duration = Duration::from_millis(100);

/// Exit code of a driver that can't continue.
const DAMAGED: i32 = 125;

/// The reason why the host stopped reading.
#[derive(Debug)]
enum ReadEnd {
    Report(ProgramReport),
    Malformed,
    Exit(Exit),
    TimedOut,
    Endless,
    SessionEnded,
    ServerDied,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramCall<'a> {
    pub code: &'a str,
    pub prelude: &'a str,
    pub files: &'a [InputFile],
    /// Wall time in seconds.
    pub timeout: f64,
    /// Bytes of output that are kept.
    pub output_bytes: usize,
    /// For a session: notified when it is ended. `None`: the child's only program.
    pub session: Option<&'a Notify>,
}

/// Runs one program in a child. Returns the output and whether the child can run another; `None` if
/// the server died.
///
/// # Errors
/// The system returns no random bytes.
pub(super) async fn exchange(
    child: &mut Child,
    options: &PythonOptions,
    call: ProgramCall<'_>,
) -> std::io::Result<Option<(Output, bool)>> {
    let start = Instant::now();
    let mut capture = Capture::new(call.output_bytes);
    let end = read_until_end(child, options, call, nonce()?, &mut capture).await;
    let seconds = start.elapsed().as_secs_f64();
    if matches!(end, ReadEnd::TimedOut | ReadEnd::Endless | ReadEnd::SessionEnded) {
        child.process.signal(libc::SIGKILL);
        let _ = tokio::time::timeout(GRACE, &mut child.exit).await;
    }
    if call.session.is_some() && options.disk_mb > 0 {
        child.process.check();
    }
    drain(child, &mut capture);
    let alive = matches!(end, ReadEnd::Report(_));
    let files = if alive {
        files::decode(&child.decoder.files, options.files_bytes, options.disk_mb << 20)
    } else {
        Vec::new()
    };
    Ok(conclude(end, &capture, options, (seconds, files)).map(|output| (output, alive)))
}

/// 16 random bytes that programs can't guess.
fn nonce() -> std::io::Result<Nonce> {
    let mut nonce = Nonce::default();
    std::fs::File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

async fn read_until_end(
    child: &mut Child,
    options: &PythonOptions,
    call: ProgramCall<'_>,
    nonce: Nonce,
    capture: &mut Capture,
) -> ReadEnd {
    let Child { process, out, report, command, decoder, exit, .. } = child;
    decoder.expect(nonce);
    let deadline = tokio::time::sleep(Duration::from_secs_f64(call.timeout));
    tokio::pin!(deadline);
    let ended = async {
        match call.session {
            Some(session) => session.notified().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(ended);
    let bytes = encode(call.session.is_none(), call.code, call.prelude, &files::encode(call.files), nonce);
    let write = command.write_all(&bytes);
    tokio::pin!(write);
    let (mut writing, mut printing, mut reporting) = (true, true, true);
    let (mut printed, mut reported) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + DISK_INTERVAL, DISK_INTERVAL);
    let endless = ENDLESS.max(64 * call.output_bytes as u64);
    loop {
        tokio::select! {
            // A child that stops reading is about to exit or to reach its time limit.
            _ = &mut write, if writing => writing = false,
            result = out.read(&mut printed), if printing => match result {
                Ok(size) if size > 0 => {
                    capture.push(&printed[..size]);
                    if capture.total > endless {
                        return ReadEnd::Endless;
                    }
                }
                _ => printing = false,
            },
            result = report.read(&mut reported), if reporting => match result {
                Ok(size) if size > 0 => match decoder.push(&reported[..size]) {
                    Ok(None) => {}
                    Ok(Some(report)) => return ReadEnd::Report(report),
                    Err(MalformedReport) => return ReadEnd::Malformed,
                },
                // The program has closed the pipe: only its exit status is left.
                _ => reporting = false,
            },
            result = &mut *exit => {
                // A report that was written just before counts.
                while let Ok(size @ 1..) = report.try_read(&mut reported) {
                    match decoder.push(&reported[..size]) {
                        Ok(None) => {}
                        Ok(Some(report)) => return ReadEnd::Report(report),
                        Err(MalformedReport) => return ReadEnd::Malformed,
                    }
                }
                return result.map_or(ReadEnd::ServerDied, ReadEnd::Exit);
            }
            _ = ticks.tick(), if options.disk_mb > 0 => process.check(),
            () = &mut deadline => return ReadEnd::TimedOut,
            () = &mut ended => return ReadEnd::SessionEnded,
        }
    }
}

/// Reads what is still in the pipe, at most the capacity of a pipe.
fn drain(child: &Child, capture: &mut Capture) {
    let mut buffer = vec![0; 1 << 16];
    let mut left: usize = 1 << 20;
    while let Ok(size @ 1..) = child.out.try_read(&mut buffer) {
        capture.push(&buffer[..size]);
        left = left.saturating_sub(size);
        if left == 0 {
            break;
        }
    }
}

fn conclude(
    end: ReadEnd,
    capture: &Capture,
    options: &PythonOptions,
    (seconds, files): (f64, Vec<OutputFile>),
) -> Option<Output> {
    let mut text = capture.text();
    let (mut ok, mut timed_out) = (false, false);
    let error = match end {
        ReadEnd::ServerDied => return None,
        ReadEnd::Report(ProgramReport::Done(value)) => {
            ok = true;
            if text.is_empty() || options.last_value == LastValue::Always { value } else { String::new() }
        }
        ReadEnd::Report(ProgramReport::Error(error)) => error,
        ReadEnd::Report(ProgramReport::Ready | ProgramReport::Unconfined(_))
        | ReadEnd::Malformed
        | ReadEnd::Exit(Exit::Code(DAMAGED)) => "SystemError: the program has damaged its interpreter".to_owned(),
        // Counts as a crash: later code, such as tests, has not run.
        ReadEnd::Exit(Exit::Code(0)) => "SystemExit: the program ended its own process".to_owned(),
        // The second is the CPU time limit.
        ReadEnd::TimedOut | ReadEnd::Exit(Exit::Signal(libc::SIGXCPU)) => {
            timed_out = true;
            format!("TimeoutError: the program ran longer than {} s", options.timeout)
        }
        ReadEnd::Exit(Exit::Code(code)) => format!("SystemExit: {code}"),
        ReadEnd::Exit(Exit::Signal(signal)) => crash(signal, options),
        ReadEnd::Exit(Exit::NotStarted) => "SystemError: no process for the program".to_owned(),
        ReadEnd::Exit(Exit::Full) => {
            format!("OSError: the program keeps more than {} MiB, or too many files", options.disk_mb)
        }
        ReadEnd::Endless => format!("OutputError: the program printed more than {} MiB", capture.total >> 20),
        ReadEnd::SessionEnded => "SystemError: the session was ended while the program ran".to_owned(),
    };
    if !error.is_empty() {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let mut cut = Capture::new(options.output_bytes);
        cut.push(error.as_bytes());
        text.push_str(&cut.text());
    }
    if text.ends_with('\n') {
        text.pop();
    }
    if !files.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&files::marks(&files));
    }
    Some(Output { text, ok, timed_out, seconds, files, ..Output::default() })
}

fn crash(signal: i32, options: &PythonOptions) -> String {
    let what = match signal {
        libc::SIGSEGV | libc::SIGBUS => "the interpreter crashed, as it does when recursion goes too deep (SIGSEGV)",
        libc::SIGABRT | libc::SIGILL | libc::SIGTRAP => "the interpreter aborted (SIGABRT)",
        libc::SIGKILL => return format!("MemoryError: the program was killed; it may use {} MiB", options.memory_mb),
        _ => return format!("SystemError: the program was killed by signal {signal}"),
    };
    format!("SystemError: {what}")
}
