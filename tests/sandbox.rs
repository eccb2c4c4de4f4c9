//! Well-behaved and hostile programs, through the public API of the Python tool.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::io::Write;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use r1::tools::{Output, Python, PythonOptions, Traceback};

/// A short time-out for endless programs, but long enough for others on a busy machine.
const SHORT: f64 = 0.5;
const LONG: f64 = 30.0;

fn python(timeout: f64, namespaces: bool) -> Python {
    Python::new(PythonOptions { timeout, namespaces, pool: 8, memory_mb: 128, ..PythonOptions::default() }).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn run(python: &Python, code: &str) -> Output {
    block_on(python.run(code, "")).unwrap()
}

fn text(output: &Output) -> (&str, bool) {
    (&output.text, output.ok)
}

/// The end of a program can be seen before its output is read.
#[test]
fn output_before_an_early_end_is_complete() {
    let python = python(LONG, true);
    for _ in 0..20 {
        let output = run(&python, "import os\nprint('x' * 3000)\nos._exit(7)");
        assert_eq!(text(&output), (format!("{}\nSystemExit: 7", "x".repeat(3000)).as_str(), false));
    }
}

#[test]
fn python_runs_well_behaved_programs() {
    let python = python(LONG, true);
    for (code, expected) in [
        ("print(6 * 7)", ("42", true)),
        ("6 * 7", ("42", true)),
        ("x = 6 * 7\nx", ("42", true)),
        ("'a' 'b'", ("'ab'", true)),
        ("print('a')\n'b'", ("a", true)),
        ("print('a\\n')", ("a\n", true)),
        ("None", ("", true)),
        ("", ("", true)),
        ("# nothing", ("", true)),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)\nprint(f(20))", ("2432902008176640000", true)),
        ("print(x)", ("NameError: name 'x' is not defined", false)),
        ("print(1)\n1 / 0", ("1\nZeroDivisionError: division by zero", false)),
        ("print(1, end='')\n1 / 0", ("1\nZeroDivisionError: division by zero", false)),
        (
            "x = 1\nif x:\nprint(x)",
            ("IndentationError: expected an indented block after 'if' statement on line 2 (line 3)", false),
        ),
        ("raise ValueError('two\\nlines')", ("ValueError: two\nlines", false)),
        ("raise SystemExit('bye')", ("SystemExit: bye", false)),
        ("import sys\nprint('out'); print('err', file=sys.stderr); print('out')", ("out\nerr\nout", true)),
        ("import sys\nprint(1)\nsys.exit()", ("1", true)),
        ("import sys\nprint(1)\nif __name__ == '__main__':\n  sys.exit(0)", ("1", true)),
        ("import sys\nprint(1)\nsys.exit(0)\nassert False", ("1", true)),
        ("print('before')\nexit()\nprint('after')", ("before", true)),
        ("print(1)\nquit(3)\nprint(2)", ("1\nSystemExit: 3", false)),
        ("print(1)\nexit('stopped')", ("1\nSystemExit: stopped", false)),
        ("import os\nprint(1)\nos._exit(0)", ("1\nSystemExit: the program ended its own process", false)),
        ("from __future__ import annotations\ndef f(x: y): pass\nf.__annotations__['x']", ("'y'", true)),
        ("print(1)\nreturn 5", ("SyntaxError: 'return' outside function (line 2)", false)),
        ("import os\nprint(1)\nos._exit(7)", ("1\nSystemExit: 7", false)),
        ("print('é ∑ 😀')", ("é ∑ 😀", true)),
        ("print('\\ud800')", ("\\ud800", true)),
        ("import os\nos.write(1, b'\\xff\\n') and None", ("\u{fffd}", true)),
        ("print('a\\0b')", ("a\0b", true)),
        ("print(1)\0", ("SyntaxError: source code cannot contain null bytes", false)),
        ("input()", ("EOFError: EOF when reading a line", false)),
        ("len(str(10 ** 20000))", ("20001", true)),
        ("import random, string\n(random.random(), hash('a') == hash('a'))", ("(0.8444218515250481, True)", true)),
        ("__name__", ("'__main__'", true)),
        ("import threading\nthreading.Thread(target=lambda: print('joined')).start()", ("joined", true)),
        ("import asyncio\nasync def f():\n  await asyncio.sleep(0.01)\n  return 42\nasyncio.run(f())", ("42", true)),
        ("open('a.txt', 'w').write('kept')\nopen('a.txt').read()", ("'kept'", true)),
        ("import os\nos.listdir('.')", ("[]", true)),
        ("import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')", ("", true)),
        ("from zoneinfo import ZoneInfo\nimport sqlite3, decimal, ctypes, zlib, hashlib\n1", ("1", true)),
        ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A", ("True", true)),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nP(1)", ("P(x=1)", true)),
        (
            "import sys, os\n(sys.argv, sorted(k for k in os.environ if 'PATH' in k or 'KEY' in k), os.environ['PATH'])",
            ("([''], ['PATH'], '/nonexistent')", true),
        ),
    ] {
        let output = run(&python, code);
        // Messages that differ between versions of Python.
        let same = output.text == expected.0
            || (expected.0.starts_with("IndentationError") && output.text.starts_with("IndentationError"))
            || (expected.0.contains("null bytes") && output.text.contains("null bytes"));
        assert!(same && output.ok == expected.1 && !output.timed_out, "{code}\n{output:?}");
    }
}

#[test]
fn python_preludes_and_tracebacks() {
    let short = python(LONG, true);
    let with = |code, prelude| block_on(short.run(code, prelude)).unwrap();
    assert_eq!(text(&with("tax(100)", "print('hidden')\ndef tax(x): return x // 5")), ("20", true));
    assert_eq!(text(&with("1", "\n1 / 0")), ("prelude: ZeroDivisionError: division by zero", false));
    assert_eq!(text(&with("1", "x = = 1")), ("prelude: SyntaxError: invalid syntax (line 1)", false));
    assert_eq!(text(&with("x = = 1", "a = 1\nb = 2")), ("SyntaxError: invalid syntax (line 1)", false));

    let options = PythonOptions { traceback: Traceback::Full, timeout: LONG, ..PythonOptions::default() };
    let full = Python::new(options).unwrap();
    let output = block_on(full.run("def f():\n    return y\nf()", "x = 1")).unwrap();
    assert!(
        output.text.starts_with("Traceback (most recent call last):\n  File \"<program>\", line 3"),
        "{}",
        output.text
    );
    assert!(output.text.contains("line 2, in f\n    return y"), "{}", output.text);
    assert!(output.text.ends_with("NameError: name 'y' is not defined"), "{}", output.text);
}

#[test]
fn long_python_output_keeps_its_start_and_end() {
    let python = python(LONG, true);
    let output = run(&python, "for i in range(100000): print(i)");
    assert!(output.ok && output.text.starts_with("0\n1\n2\n") && output.text.ends_with("99998\n99999"));
    assert!(output.text.contains("bytes left out") && output.text.len() < 8300, "{}", output.text.len());
    let value = run(&python, "'x' * 100000");
    assert!(value.ok && value.text.contains("bytes left out") && value.text.len() < 8300);
    let error = run(&python, "print('p' * 100000)\nraise ValueError('v' * 10**7)");
    assert!(error.text.contains("\nValueError: vvv") && error.text.len() < 17000);
}

#[test]
fn python_calls_share_no_state() {
    let python = python(LONG, true);
    run(&python, "import math, builtins\nmath.pi = 3; builtins.len = None; x = 1\nopen('left', 'w').write('x')");
    let code =
        "import math, os, random\nprint(math.pi > 3, len('ab'), 'x' in globals(), os.listdir('.'), random.random())";
    let first = run(&python, code);
    assert_eq!(text(&first), ("True 2 False [] 0.8444218515250481", true));
    assert_eq!(first.text, run(&python, code).text);
}

#[test]
fn python_sessions_have_separate_state() {
    let python = python(SHORT, true);
    let on = |session, code| block_on(python.run_in_session(session, code, "")).unwrap();
    assert_eq!(text(&on(1, "x = 1; open('f', 'w').write('one'); import json")), ("", true));
    assert_eq!(text(&on(2, "x")), ("NameError: name 'x' is not defined", false));
    assert_eq!(text(&on(2, "x = 2; open('f', 'w').write('two')\nprint(x)")), ("2", true));
    assert_eq!(text(&on(1, "print(x, json.dumps(x), open('f').read())")), ("1 1 one", true));
    // Files of another session can't be reached even if their names are known.
    let look = "import os\nhere = os.getcwd()\nup = os.path.dirname(here)\nfound = []\nfor i in range(100):\n  p = f'{up}/{i}'\n  if p != here:\n    try: found += os.listdir(p)\n    except OSError: pass\n    try: found.append(open(p + '/f').read())\n    except OSError: pass\nfound";
    assert_eq!(text(&on(2, look)), ("[]", true));
    // An error keeps the state; a time-out ends the session.
    assert_eq!(text(&on(1, "y = 5\n1 / 0")), ("ZeroDivisionError: division by zero", false));
    assert_eq!(text(&on(1, "x + y")), ("6", true));
    assert!(on(1, "while True: pass").timed_out);
    assert_eq!(text(&on(1, "x")), ("NameError: name 'x' is not defined", false));
    assert_eq!(text(&on(2, "x")), ("2", true));
    python.end_session(2);
    assert_eq!(text(&on(2, "x")), ("NameError: name 'x' is not defined", false));
    python.end_session(99);
    // Threads and processes left by a program are stopped between calls.
    let ticking = "import threading, time\nn = 0\ndef tick():\n  global n\n  while True:\n    n += 1\n    time.sleep(0.001)\nthreading.Thread(target=tick, daemon=True).start()";
    assert_eq!(text(&on(3, ticking)), ("", true));
    let count = |output: Output| output.text.parse::<u64>().unwrap();
    let before = count(on(3, "n"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(count(on(3, "n")) < before + 250);
}

#[test]
fn python_sessions_end_when_idle_and_are_limited() {
    let options = PythonOptions { timeout: LONG, session_idle: 0.2, max_sessions: 2, ..PythonOptions::default() };
    let python = Python::new(options).unwrap();
    let on = |session, code| block_on(python.run_in_session(session, code, ""));
    on(1, "x = 1").unwrap();
    on(2, "x = 2").unwrap();
    // On a slow machine one of the first two has ended by now.
    match on(3, "x = 3") {
        Ok(output) => assert!(output.ok, "{output:?}"),
        Err(error) => assert!(error.kind == r1::Kind::Tool && error.message.contains("2 sessions are open"), "{error}"),
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(text(&on(1, "x").unwrap()), ("NameError: name 'x' is not defined", false));
}

#[test]
fn many_python_calls_run_concurrently() {
    let python = python(LONG, true);
    let outputs = block_on(join_all((0..64).map(|i| {
        let python = python.clone();
        async move { python.run(&format!("import time\ntime.sleep(0.01)\nprint({i})"), "").await.unwrap() }
    })));
    for (i, output) in outputs.iter().enumerate() {
        assert_eq!(text(output), (i.to_string().as_str(), true));
    }
    let sessions = block_on(join_all((0..32).map(|i| {
        let python = python.clone();
        async move {
            python.run_in_session(i, &format!("x = {i}"), "").await.unwrap();
            python.run_in_session(i, "print(x)", "").await.unwrap()
        }
    })));
    for (i, output) in sessions.iter().enumerate() {
        assert_eq!(text(output), (i.to_string().as_str(), true));
    }
}

#[test]
fn a_dropped_python_call_is_stopped_and_frees_its_slot() {
    let options = PythonOptions { timeout: LONG, pool: 1, ..PythonOptions::default() };
    let python = Python::new(options).unwrap();
    let start = Instant::now();
    for session in [None, Some(7)] {
        block_on(async {
            let endless = async {
                match session {
                    Some(session) => python.run_in_session(session, "while True: pass", "").await,
                    None => python.run("while True: pass", "").await,
                }
            };
            assert!(tokio::time::timeout(Duration::from_millis(300), endless).await.is_err());
        });
        assert_eq!(text(&run(&python, "print(6 * 7)")), ("42", true));
    }
    assert!(start.elapsed().as_secs_f64() < LONG);
}

#[test]
fn a_killed_python_server_is_replaced() {
    let limit = own_limit(1000);
    let python = python(f64::from(limit), true);
    let servers = processes_with_cpu_limit(limit + 1);
    assert!(!servers.is_empty());
    for server in servers {
        // SAFETY: a system call on a child process.
        unsafe { libc::kill(server, libc::SIGKILL) };
    }
    assert_eq!(text(&run(&python, "print(2)")), ("2", true));
    assert_eq!(text(&block_on(python.run_in_session(1, "print(3)", "")).unwrap()), ("3", true));
}

#[test]
fn no_python_processes_or_files_are_left_over() {
    let limit = own_limit(40_000);
    let python = python(f64::from(limit), true);
    block_on(python.run_in_session(1, "open('f', 'w').write('x')", "")).unwrap();
    assert!(!processes_with_cpu_limit(limit + 1).is_empty());
    drop(python);
    let start = Instant::now();
    // The innermost processes die shortly after their parents.
    while !processes_with_cpu_limit(limit + 1).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "processes are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Files and directories that make scratch directories hard to delete.
const LEFTOVERS: [&str; 5] = [
    "import os\nos.makedirs('a/b')\nos.mkdir('a/b/locked', 0)\nos.mkdir('a/locked', 0)\nos.mkdir('locked', 0)",
    "import os\nfor name in ['r1-1', '0', '1', '2', '3', 'a', '\\udcff', 'x' * 255]:\n  os.makedirs(name + '/r1-1/0/1/2')",
    // More than a program may have with namespaces; without them there is no such limit.
    "import os\nfor i in range(5000):\n  try: open(str(i), 'w').close()\n  except OSError: break",
    "import os\nfor i in range(5000):\n  try: os.mkdir('d'); os.chdir('d')\n  except OSError: break",
    "import os\nos.umask(0o777)\nopen('f', 'w').close()\nos.mkdir('p')\nos.symlink('p', 'link')",
];

#[test]
fn files_left_by_a_program_do_not_break_the_next_call() {
    for namespaces in [true, false] {
        let options = PythonOptions { timeout: LONG, namespaces, pool: 2, max_sessions: 2, ..PythonOptions::default() };
        let python = Python::new(options).unwrap();
        // Twice for each of the two interpreters, which take turns.
        for round in 0..4 {
            for code in LEFTOVERS {
                run(&python, code);
                let output = run(&python, "import os\nopen('f', 'w').write('x' * 1000)\nos.listdir('.')");
                assert_eq!(text(&output), ("['f']", true), "round {round}, namespaces {namespaces}: {code}");
            }
        }
    }
}

#[test]
fn scratch_space_is_limited_per_program() {
    let options = PythonOptions { timeout: LONG, pool: 2, disk_mb: 4, ..PythonOptions::default() };
    let python = Python::new(options).unwrap();
    // Unnamed and deleted files count as long as they are open.
    let hidden = "import os\nkept = []\ntry:\n  while True:\n    fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)\n    kept.append(fd)\n    for _ in range(4): os.write(fd, bytes(1 << 20))\nexcept OSError as error: print(error.errno)";
    let removed = "import os\nkept = []\ntry:\n  while True:\n    kept.append(open('f', 'wb', 0)); os.remove('f')\n    for _ in range(4): kept[-1].write(bytes(1 << 20))\nexcept OSError as error: print(error.errno)";
    let whole = "open('f', 'wb').write(bytes(3 << 20))";
    for session in 0..24 {
        let code = if session % 2 == 0 { hidden } else { removed };
        let output = block_on(python.run_in_session(session, code, "")).unwrap();
        assert_eq!(text(&output), ("28", true), "no space is left for session {session} alone");
        assert_eq!(text(&run(&python, whole)), ("3145728", true), "a neighbour of {session} sessions has its space");
    }
}

#[test]
fn threads_are_limited_per_program() {
    let options = PythonOptions { timeout: LONG, pool: 2, ..PythonOptions::default() };
    let python = Python::new(options).unwrap();
    let hoard = "import threading, time\nthreading.stack_size(1 << 20)\nn = 0\ntry:\n  while n < 1000:\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n    n += 1\nexcept RuntimeError: pass\nprint(n < 100)";
    for session in 0..16 {
        assert_eq!(text(&block_on(python.run_in_session(session, hoard, "")).unwrap()), ("True", true));
    }
    let modest = "import threading\nthreads = [threading.Thread(target=int) for _ in range(16)]\nfor thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint('joined')";
    assert_eq!(text(&run(&python, modest)), ("joined", true));
}

/// A time-out that differs from the time-outs of concurrent tests.
fn own_limit(base: u32) -> u32 {
    base + std::process::id() % 30_000
}

/// The interpreters of one test, identified by the CPU limit on their command line.
fn processes_with_cpu_limit(seconds: u32) -> Vec<i32> {
    let mark = format!("\"cpu\":{seconds},");
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    })
    .collect()
}

/// The expected result of an attack.
enum Outcome {
    /// Fails with this message.
    Fails(&'static str),
    /// Succeeds with this output.
    Prints(&'static str),
    /// Is stopped at the time limit.
    TimesOut,
    /// Any result, as long as the next program runs.
    Survives,
}
use Outcome::{Fails, Prints, Survives, TimesOut};

/// For programs that print what they could access.
const TRY: &str = r"
import os, sys, ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        result = action()
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        return
    print('could', name, result)
def syscall(name, *arguments):
    if libc.syscall(*arguments) != -1:
        print('could', name)
    elif ctypes.get_errno() != errno.EPERM:
        print('could ask for', name, ctypes.get_errno())
";

const HOSTILE: &[(&str, &str, Outcome)] = &[
    ("endless loop", "while True: pass", TimesOut),
    (
        "loop that catches everything",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        TimesOut,
    ),
    ("loop in C", "sum(range(10**12))", TimesOut),
    ("catastrophic regex", "import re\nre.match('(a+)+$', 'a' * 50 + 'b')", TimesOut),
    ("sleep", "import time\nprint('zzz')\ntime.sleep(1000)", TimesOut),
    ("big power", "9 ** 9 ** 9", TimesOut),
    ("endless repr", "class A:\n  def __repr__(self):\n    while True: pass\nA()", TimesOut),
    (
        "thread that never ends",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        TimesOut,
    ),
    ("endless sorting key", "sorted(range(10), key=lambda x: [0 for _ in iter(int, 1)])", TimesOut),
    ("processor time", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", Survives),
    ("reading the password file", "open('/etc/passwd').read()", Fails("Error: [Errno")),
    ("reading the canary", "open(canary).read()", Fails("Error: [Errno")),
    ("reading it through a link", "import os\nos.symlink(canary, 'link')\nopen('link').read()", Fails("Error: [Errno")),
    (
        "reading it through a hard link",
        "import os\nos.link(canary, 'link')\nopen('link').read()",
        Fails("Error: [Errno"),
    ),
    ("climbing out", "open('../' * 20 + canary[1:]).read()", Fails("Error: [Errno")),
    ("writing it", "open(canary, 'a').write('x')", Fails("Error: [Errno")),
    ("truncating it", "import os\nos.truncate(canary, 0)", Fails("Error: [Errno")),
    ("removing it", "import os\nos.remove(canary)", Fails("Error: [Errno")),
    ("renaming it", "import os\nos.rename(canary, 'mine')", Fails("Error: [Errno")),
    ("changing its mode", "import os\nos.chmod(canary, 0o777)", Fails("Error: [Errno")),
    ("changing its owner", "import os\nos.chown(canary, 1, 1)", Fails("Error: [Errno")),
    ("changing its times", "import os\nos.utime(canary)", Fails("Error: [Errno")),
    (
        "places",
        "for p in ['/', '/root', '/home', '/tmp', '/var', '/proc', '/proc/self', '/proc/1', '/sys', '/etc', '/dev', '..']:\n  attempt('list ' + p, lambda: os.listdir(p))\nfor p in ['/proc/1/environ', '/proc/self/environ', '/proc/%d/maps' % os.getppid(), '/proc/self/mem', '/etc/shadow', '/etc/hostname', '/dev/mem', '/dev/vda', '/dev/tty', '/proc/meminfo']:\n  attempt('open ' + p, lambda: open(p, 'rb').read(1))\nfor p in ['/', '/tmp', '/dev/shm', '/var/tmp', os.path.dirname(os.__file__), '..']:\n  attempt('write ' + p, lambda: open(p + '/evil', 'w'))",
        Prints(""),
    ),
    ("own process directory", "open('/proc/self/status').read()", Fails("Error: [Errno")),
    ("deleting the library", "import shutil, os\nshutil.rmtree(os.path.dirname(os.__file__))", Fails("Error: [Errno")),
    ("network", "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)", Fails("Error: [Errno")),
    ("local address", "import socket\nsocket.socket().connect(('127.0.0.1', 22))", Fails("PermissionError")),
    ("local socket", "import socket\nsocket.socket(socket.AF_UNIX)", Fails("PermissionError")),
    (
        "netlink and packets",
        "import socket\nfor f in range(50):\n  if f != 1: attempt(f, lambda: socket.socket(f, socket.SOCK_RAW))",
        Prints(""),
    ),
    ("name look-up", "import socket\nsocket.gethostbyname('example.com')", Fails("rror")),
    (
        "a way out of a socket pair",
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nattempt('sendto', lambda: a.sendto(b'x', '/dev/log'))\nattempt('connect', lambda: a.connect('/dev/log'))\nattempt('bind', lambda: a.bind('s'))\nattempt('sendmsg', lambda: socket.send_fds(a, [b'x'], [0]))\na.send(b'ok')\nprint(b.recv(2))",
        Prints("b'ok'"),
    ),
    ("shell", "import os\nprint(os.system('id'), os.popen)", Survives),
    ("subprocess", "import subprocess\nsubprocess.run(['id'])", Fails("Error")),
    ("exec", "import os\nos.execv('/bin/sh', ['sh', '-c', 'id'])", Fails("Error: [Errno")),
    (
        "exec of Python",
        "import os, sys\nos.execv(sys.executable, ['python3', '-c', 'print(1)'])",
        Fails("Error: [Errno"),
    ),
    ("fork", "import os\nos.fork()", Fails("Error: [Errno")),
    (
        "fork bomb",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError as e: last = e; break\nprint(type(last).__name__)",
        Survives,
    ),
    ("processes", "import multiprocessing\np = multiprocessing.Process(target=print)\np.start()", Fails("Error")),
    (
        "thread bomb",
        "import threading, time\nn = 0\ntry:\n  while n < 2000:\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n    n += 1\nexcept RuntimeError: pass\nprint(3 < n < 2000)",
        Prints("True"),
    ),
    (
        "bomb of small threads",
        "import threading, time\nthreading.stack_size(32768)\nn = 0\ntry:\n  while n < 2000:\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n    n += 1\nexcept RuntimeError: pass\nprint(n < 2000)",
        Prints("True"),
    ),
    ("killing the parent", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", Fails("PermissionError")),
    ("killing all processes", "import os, signal\nos.kill(-1, signal.SIGKILL)", Fails("PermissionError")),
    ("killing its group", "import os, signal\nos.killpg(0, signal.SIGKILL)", Fails("PermissionError")),
    ("stopping itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", Fails("PermissionError")),
    ("leaving its group", "import os\nos.setsid()", Fails("PermissionError")),
    (
        "other system calls",
        "if sys.maxsize > 2**32 and os.uname().machine == 'x86_64':\n  for name, n in dict(ptrace=101, process_vm_readv=310, process_vm_writev=311, unshare=272, setns=308, mount=165, umount=166, chroot=161, pivot_root=155, bpf=321, perf_event_open=298, userfaultfd=323, io_uring_setup=425, keyctl=250, add_key=248, memfd_create=319, shmget=29, semget=64, msgget=68, mq_open=240, tkill=200, tgkill=234, pidfd_open=434, pidfd_send_signal=424, pidfd_getfd=438, rt_sigqueueinfo=129, prctl=157, seccomp=317, setuid=105, setgid=106, setgroups=116, capset=126, personality=135, sethostname=170, reboot=169, kexec_load=246, init_module=175, swapon=167, settimeofday=164, clock_settime=227, quotactl=179, acct=163, chmod=90, fchmod=91, chown=92, setxattr=188, mknod=133, fanotify_init=300, inotify_init1=294, open_by_handle_at=304, name_to_handle_at=303, sched_setaffinity=203, setpriority=141, ioprio_set=251, splice=275, vmsplice=278, tee=276, io_setup=206, vfork=58, fork=57, execve=59, execveat=322, landlock_create_ruleset=444, move_mount=429, fsopen=430, open_tree=428, syslog=103, modify_ldt=154, iopl=172, mlockall=151, remap_file_pages=216, mbind=237, migrate_pages=256, nfsservctl=180, process_madvise=440, memfd_secret=447).items():\n    syscall(name, n, 0, 0, 0, 0, 0, 0)",
        Prints(""),
    ),
    (
        "system calls of another architecture",
        "import mmap\nif os.uname().machine != 'x86_64': sys.exit('killed by signal 31')\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\nprint(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())",
        Fails("killed by signal 31"),
    ),
    (
        "system calls with x32 numbers",
        "if os.uname().machine == 'x86_64': syscall('x32 socket', 0x40000000 + 41, 2, 1, 0)",
        Prints(""),
    ),
    (
        "terminal and descriptor control",
        "import fcntl\nattempt('TIOCSTI', lambda: fcntl.ioctl(0, 0x5412, b'x'))\nattempt('F_SETOWN', lambda: fcntl.fcntl(1, 8, os.getppid()))\nattempt('F_NOTIFY', lambda: fcntl.fcntl(1, 1026, 1))",
        Prints(""),
    ),
    (
        "shared memory",
        "from multiprocessing import shared_memory\nshared_memory.SharedMemory(create=True, size=10)",
        Fails("Error"),
    ),
    ("memory", "x = bytearray(10**10)", Fails("MemoryError")),
    ("memory bit by bit", "x = []\nwhile True: x.append(bytearray(10**6))", Fails("MemoryError")),
    ("memory in lists", "x = [0]\nwhile True: x += x", Fails("MemoryError")),
    ("memory in maps", "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 24))", Fails("rror")),
    (
        "raising limits",
        "import resource\nfor name in ['AS', 'FSIZE', 'NOFILE', 'CORE', 'CPU']:\n  n = getattr(resource, 'RLIMIT_' + name)\n  hard = resource.getrlimit(n)[1]\n  if hard != -1: attempt(name, lambda: resource.setrlimit(n, (hard + 1, hard + 1)))\n  else: print(name, 'has no limit')\nattempt('prlimit', lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))",
        Prints(""),
    ),
    ("output without end", "while True: print('x' * 10000)", Survives),
    ("output without line breaks", "import os\nwhile True: os.write(1, b'x' * 65536)", Survives),
    ("files without end", "x = []\nwhile True: x.append(open('/dev/null'))", Fails("Too many open files")),
    (
        "a file too large",
        "with open('f', 'wb') as f:\n  for _ in range(100): f.write(bytes(10**6))",
        Fails("File too large"),
    ),
    (
        "many large files",
        "import time\nfor i in range(10**6):\n  with open(f'f{i}', 'wb') as f:\n    for _ in range(15): f.write(bytes(10**6))",
        Survives,
    ),
    ("many files", "import os\nfor i in range(10**6): open(str(i), 'w').close()", Survives),
    (
        "files without permission to remove them",
        "import os\nos.makedirs('a/b/c')\nopen('a/b/f', 'w').close()\nos.mkdir('locked', 0)\nos.mkdir('half', 0o300)\nopen('half/f', 'w').close()",
        Survives,
    ),
    ("deep directories", "import os\nfor i in range(3000):\n  os.mkdir('d')\n  os.chdir('d')", Survives),
    ("recursion", "def f(): f()\nf()", Fails("RecursionError")),
    ("recursion without limit", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", Survives),
    (
        "recursion in C",
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n  def __getattr__(self, n): return getattr(self, n + 'x')\nA().a",
        Survives,
    ),
    ("crash", "import ctypes\nctypes.string_at(0)", Fails("SIGSEGV")),
    ("abort", "import os\nos.abort()", Fails("SystemError")),
    ("closing everything", "import os\nos.closerange(0, 1000)\nprint('gone')", Survives),
    ("closing everything and waiting", "import os, time\nos.closerange(0, 1000)\ntime.sleep(1000)", TimesOut),
    ("a false report", "import os\nos.write(200, b'D' + bytes(8) + bytes(16))\nos._exit(0)", Fails("damaged")),
    (
        "a report with a false length",
        "import os, time\nos.write(200, b'D\\xff\\xff\\xff\\xff' + bytes(4) + bytes(16))\ntime.sleep(1000)",
        Fails("damaged"),
    ),
    ("a report of no kind", "import os, time\nos.write(200, b'Z' * 5000)\ntime.sleep(1000)", Fails("damaged")),
    ("a report that never ends", "import os, time\nos.write(200, b'D\\xff\\0\\0\\0')\ntime.sleep(1000)", TimesOut),
    (
        "a false sandbox failure",
        "import os, time\nos.write(200, b'U\\x01\\0\\0\\0' + bytes(4) + bytes(16) + b'x')\ntime.sleep(1000)",
        Fails("damaged"),
    ),
    ("an early end", "import os\nos._exit(0)\nassert False", Fails("ended its own process")),
    ("an early exit", "raise SystemExit\nassert False", Prints("")),
    (
        "an early end after closing everything",
        "import os\nos.closerange(3, 1000)\nos._exit(0)",
        Fails("ended its own process"),
    ),
    (
        "noise on every descriptor",
        "import os\nfor fd in range(3, 1024):\n  try: os.write(fd, b'noise' * 100)\n  except OSError: pass",
        Survives,
    ),
    (
        "taking the command pipe",
        "import os, threading\ntaken = []\nthreading.Thread(target=lambda: taken.append(os.read(201, 100)), daemon=True).start()\nwhile not taken: pass",
        TimesOut,
    ),
    (
        "descriptors it was left",
        "def is_open(fd):\n  try: os.fstat(fd)\n  except OSError: return False\n  return True\nprint([fd for fd in range(4096) if is_open(fd)])",
        Prints("[0, 1, 2, 200, 201]"),
    ),
    (
        "memory of the server",
        "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'scratch' in o and 'seccomp' in o]\nprint(any('planted-' + 'secret' in str(v) for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values()) if isinstance(v, str)))",
        Prints("False"),
    ),
    (
        "breaking the interpreter",
        "import builtins, os, sys, threading\nfor n in list(vars(builtins)):\n  if n not in ('setattr', 'list', 'vars'): builtins.__dict__[n] = None\nos._exit = os.write = os.read = None\nsys.modules.clear()\nthreading.enumerate = None",
        Survives,
    ),
    ("breaking the streams", "import sys\nsys.stdout = None\nsys.stderr = 5\nsys.__stdout__.close()", Survives),
    (
        "a stream that raises",
        "import sys\nclass S:\n  def write(self, x): pass\n  def flush(self): raise KeyboardInterrupt\nsys.stdout = S()\nprint(1)",
        Survives,
    ),
    (
        "errors that raise",
        "class E(Exception):\n  def __str__(self): raise E\n  __repr__ = __str__\nraise E",
        Fails("E"),
    ),
    (
        "errors that can't be shown",
        "class M(type):\n  def __getattribute__(c, n): raise ValueError\nclass E(BaseException, metaclass=M): pass\nraise E",
        Survives,
    ),
    (
        "exit hooks",
        "import atexit, sys\natexit.register(lambda: [0 for _ in iter(int, 1)])\nclass A:\n  def __del__(self):\n    while True: pass\nsys.a = A()\nprint(1)",
        Prints("1"),
    ),
    (
        "signal handlers",
        "import signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: pass",
        TimesOut,
    ),
    ("an alarm", "import signal\nsignal.alarm(1)\nwhile True: pass", Survives),
    (
        "trace function",
        "import sys\nsys.settrace(lambda *a: [0 for x in iter(int, 1) if x])\ndef f(): pass\nf()",
        TimesOut,
    ),
    ("syntax bomb", "exec('(' * 100000)", Fails("Error")),
    ("compiler bomb", "exec('-' * 1000000 + '1')", Survives),
    ("literal bomb", "eval('[' * 90 + ']' * 90)\nx = (1,) * (1 << 24)\n[x] * 10 and None", Survives),
    ("interpreter's own limits", "import sys\nprint('9' * 10**6 > '1', int('9' * 10000) > 0)", Prints("True True")),
];

fn hostile(namespaces: bool) {
    let mut canary = tempfile::NamedTempFile::new().unwrap();
    canary.write_all(b"planted-secret").unwrap();
    let prelude = format!("{TRY}\ncanary = {:?}\n", canary.path().to_string_lossy());
    // Endless programs get a short time limit; others get a long one, for busy machines.
    let (patient, hasty) = (python(LONG, namespaces), python(SHORT, namespaces));
    let complaints = block_on(join_all(HOSTILE.iter().map(|(name, code, outcome)| {
        let python = if matches!(outcome, TimesOut | Survives) { &hasty } else { &patient };
        let prelude = &prelude;
        async move {
            let output = python.run(code, prelude).await.unwrap();
            let good = match outcome {
                Fails(expected) => !output.ok && output.text.contains(expected) && !output.timed_out,
                Prints(expected) => output.ok && output.text == *expected,
                TimesOut => {
                    !output.ok
                        && output.timed_out
                        && output.text.ends_with("TimeoutError: the program ran longer than 0.5 s")
                        && output.seconds < SHORT + 8.0
                }
                Survives => output.seconds < SHORT + 8.0,
            };
            let next = python.run("print(6 * 7)", "").await.unwrap();
            let good = good && !output.text.contains("planted") && text(&next) == ("42", true);
            (!good).then(|| format!("{name}: {output:?}, then {next:?}"))
        }
    })));
    let complaints: Vec<String> = complaints.into_iter().flatten().collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(std::fs::read_to_string(canary.path()).unwrap(), "planted-secret");
    if namespaces {
        // Not even its name is visible.
        let output =
            block_on(patient.run("import os\nos.path.exists(canary), os.path.exists('/etc/passwd')", &prelude))
                .unwrap();
        assert_eq!(text(&output), ("(False, False)", true));
    }
}

#[test]
fn hostile_programs_with_namespaces() {
    hostile(true);
}

#[test]
fn hostile_programs_without_namespaces() {
    hostile(false);
}

#[test]
fn output_before_a_python_time_out_is_shown() {
    let python = python(SHORT, true);
    let output = run(&python, "print('before')\nwhile True: pass");
    assert_eq!(output.text, "before\nTimeoutError: the program ran longer than 0.5 s");
    assert!(output.timed_out && !output.ok && output.seconds >= SHORT && output.seconds < SHORT + 8.0);
}

#[test]
fn an_interpreter_that_is_not_python_is_refused() {
    for (interpreter, expected) in
        [("/nonexistent/python3", "can't run"), ("/bin/true", "invalid description"), ("/bin/false", "failed")]
    {
        let options = PythonOptions { interpreter: interpreter.into(), ..PythonOptions::default() };
        let error = Python::new(options).unwrap_err();
        assert_eq!(error.kind, r1::Kind::Tool);
        assert!(error.message.contains(expected), "{error}");
    }
    let options = PythonOptions { preload: vec!["no_such_module".to_owned()], ..PythonOptions::default() };
    assert!(Python::new(options).unwrap_err().message.contains("no_such_module"));
}

#[test]
fn installed_packages_need_site_packages() {
    let python =
        |site_packages| Python::new(PythonOptions { site_packages, timeout: LONG, ..PythonOptions::default() });
    let code = "import sys\nprint([p for p in sys.path if p.endswith('-packages')] != [])\nimport pip";
    let output = run(&python(false).unwrap(), code);
    assert_eq!(text(&output), ("False\nModuleNotFoundError: No module named 'pip'", false));
    let output = run(&python(true).unwrap(), code);
    // Not every Python includes pip; it is enough that packages are searched.
    assert!(output.text.starts_with("True"), "{output:?}");
}

#[test]
#[ignore = "a measurement"]
fn python_call_round_trip_time() {
    for namespaces in [true, false] {
        let start = Instant::now();
        let python = python(LONG, namespaces);
        let started = start.elapsed().as_secs_f64() * 1e3;
        let mut times = Vec::new();
        for _ in 0..300 {
            let start = Instant::now();
            run(&python, "print(6 * 7)");
            times.push(start.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(5));
        }
        times.sort_by(f64::total_cmp);
        let start = Instant::now();
        block_on(join_all((0..500).map(|_| python.run("print(6 * 7)", ""))));
        let rate = 500.0 / start.elapsed().as_secs_f64();
        println!(
            "namespaces {namespaces}: start {started:.0} ms, median {:.2} ms, 90% {:.2} ms, {rate:.0} a second",
            times[150], times[270]
        );
    }
}
