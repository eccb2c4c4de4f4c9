# The server interpreter and the children it forks. Runs inside the confinement of
# src/tools/sandbox.
#
# The server never receives programs: it reads 13-byte orders (op, id, argument) from its control
# socket, forks, signals and reaps. A child confines itself further, then runs programs from its
# command pipe. Everything after the first program byte counts as hostile, so a forked child keeps
# only its three pipes. Python 3.8 or later.

import __future__, ast, ctypes, gc, io, json, linecache, os, random, resource, select, signal, socket, stat, struct, sys
import threading, time, traceback, types
import bisect, builtins, collections, datetime, decimal, fractions, functools, heapq, itertools, math, re, statistics, string

ORDER = struct.Struct("<cQi")
REPORT, COMMAND = 200, 201  # above the number of files that a program may open
SETUP_FAILED = 125
MAX_FILES = 4096
NONCE = 16  # bytes behind each command, which authenticate the report on it
LOST = 8  # scratch directories that may fail to be emptied before the server gives up
THREADS = 64  # of one child
FUTURE = functools.reduce(lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0)


def server(config):
    libc = ctypes.CDLL(None, use_errno=True)
    if config["namespaces"]:
        enter_process_namespace(libc)
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if config["plots"]:
        os.environ.update(MPLBACKEND="Agg", MPLCONFIGDIR=os.getcwd())
    for name in config["preload"]:
        __import__(name)
    config["show"] = capture_plots() if config["plots"] else None
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Collected and frozen once, so that children don't copy every page in their first collection.
    gc.collect()
    gc.freeze()

    me = os.getpid()
    children = {}  # process id -> id
    processes = {}  # id -> process id
    full = set()  # ids of those killed for what they wrote
    waiting = {}  # id -> descriptors, of children for which no scratch directory is free yet
    rooms = Rooms(config)
    config["own_users"] = config["namespaces"] and can_have_own_users(libc)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)

    def notify(op, number, argument):
        control.sendall(ORDER.pack(op, number, argument))

    def reap():
        while children:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            number = children.pop(process, None)
            if number is not None:
                del processes[number]
                rooms.give_back(number)
                notify(b"D" if number in full else b"X", number, status)
                full.discard(number)

    def start():
        for number in list(waiting):
            room = rooms.take(number)
            if room is None:
                return
            fds = waiting.pop(number)
            try:
                process = os.fork()
            except OSError as error:
                process = None
                rooms.give_back(number)
                notify(b"N", number, error.errno)
            if process == 0:
                child(config, libc, me, room, *fds)
            if process is not None:
                children[process] = number
                processes[number] = process
            for fd in fds:
                os.close(fd)

    notify(b"R", 0, 0)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if wake in ready:
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass
            reap()
            start()
        if control.fileno() not in ready:
            continue
        order, ancillary, _, _ = control.recvmsg(ORDER.size, socket.CMSG_SPACE(3 * 4))
        fds = []
        for _, _, data in ancillary:
            fds.extend(struct.unpack("=%di" % (len(data) // 4), data[: len(data) // 4 * 4]))
        while 0 < len(order) < ORDER.size:
            piece = control.recv(ORDER.size - len(order))
            order = order + piece if piece else b""
        if not order:
            return  # the host is gone
        op, number, argument = ORDER.unpack(order)
        if op == b"F":
            waiting[number] = fds
            start()
        elif op == b"S" and number in waiting:
            for fd in waiting.pop(number):
                os.close(fd)
            notify(b"N", number, 0)
        elif op == b"S" and number in processes:
            os.kill(processes[number], argument)
        elif op == b"C" and number in processes and not config["rooms"]:
            if is_full(rooms.path(number), config["disk"]):
                full.add(number)
                os.kill(processes[number], signal.SIGKILL)


def enter_process_namespace(libc):
    """Continues as the first process of the new namespace; all others in it end with it."""
    process = os.fork()
    if process == 0:
        if libc.prctl(1, signal.SIGKILL, 0, 0, 0) < 0:
            os._exit(SETUP_FAILED)
        return
    os.closerange(0, 1024)
    os.waitpid(process, 0)
    os._exit(SETUP_FAILED)


def can_have_own_users(libc):
    """Whether each child can have a user namespace, which counts threads separately since Linux 5.14."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release < (5, 14):
        return False
    process = os.fork()
    if process == 0:
        os._exit(0 if libc.unshare(CLONE_NEWUSER) == 0 else 1)
    return os.waitpid(process, 0)[1] == 0


CLONE_NEWUSER = 0x10000000


class Rooms:
    """Scratch directories of children. With namespaces there is a fixed number, each a separate file system, which
    is emptied and reused; without, each child gets a new directory."""

    def __init__(self, config):
        self.base, self.count, self.writable = config["scratch"], config["rooms"], config["disk"] > 0
        self.free = collections.deque(range(self.count))
        self.used = {}  # id of the child -> room
        self.lost = 0

    def path(self, number):
        return os.path.join(self.base, str(self.used[number]))

    def take(self, number):
        """A free directory for a child; None if all are in use."""
        if not self.writable:
            return self.base
        if not self.count:
            self.used[number] = number
            os.mkdir(self.path(number), 0o700)
        elif self.free:
            self.used[number] = self.free.popleft()
        else:
            return None
        return self.path(number)

    def give_back(self, number):
        if number not in self.used:
            return
        path, room = self.path(number), self.used.pop(number)
        try:
            clear(path)
            if self.count:
                self.free.append(room)
            else:
                os.rmdir(path)
        except OSError:
            # It is not reused. The host starts a new server when this one ends, and removes the
            # directories.
            self.lost += 1
            if self.lost >= min(LOST, self.count or LOST):
                os._exit(SETUP_FAILED)


def clear(path):
    """Empties a scratch directory with any content: deep trees are flattened, not descended. Its program has
    ended."""
    number = 0
    while True:
        found = os.listdir(path)
        if not found:
            return
        taken = set(found)
        for name in found:
            outer = os.path.join(path, name)
            if not is_directory(outer):
                os.unlink(outer)
                continue
            os.chmod(outer, 0o700)
            for below in os.listdir(outer):
                inner = os.path.join(outer, below)
                if not is_directory(inner):
                    os.unlink(inner)
                    continue
                os.chmod(inner, 0o700)  # only a directory that may be written can be moved
                while "%x" % number in taken:
                    number += 1
                taken.add("%x" % number)
                os.rename(inner, os.path.join(path, "%x" % number))
            os.rmdir(outer)


def is_directory(path):
    return stat.S_ISDIR(os.lstat(path).st_mode)


def is_full(path, limit):
    """Whether a scratch directory exceeds its limit, or can't be counted."""
    size = count = 0
    directories = [path]
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    size += found.st_blocks * 512
                    count += 1
                    if size > limit or count > MAX_FILES:
                        return True
                    if stat.S_ISDIR(found.st_mode):
                        directories.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def child(config, libc, parent, scratch, out, report, command, _exit=os._exit):
    """Never returns or raises into the server's loop, even if a program damages the interpreter."""
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(report, REPORT)
        os.dup2(command, COMMAND)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.closerange(3, REPORT)
        os.closerange(COMMAND + 1, 1024)
        try:
            confine(config, libc, parent, scratch)
        except BaseException as error:
            send(b"U", "%s: %s" % (type(error).__name__, error), bytes(NONCE))
            os._exit(SETUP_FAILED)
        serve(config, scratch)
    finally:
        _exit(125)


def confine(config, libc, parent, scratch):
    def check(result, what):
        if result < 0:
            raise OSError(ctypes.get_errno(), what)
        return result

    # A separate session is a separate scheduling group if the kernel groups by session: many
    # threads then get no more processor time than one.
    os.setsid()
    if config["own_users"]:
        # A separate user namespace counts threads separately. Its privileges are all dropped.
        check(libc.unshare(CLONE_NEWUSER), "unshare")
        header = struct.pack("=Ii", 0x20080522, 0)
        check(libc.capset(header, bytes(24)), "capset")
        resource.setrlimit(resource.RLIMIT_NPROC, (THREADS, THREADS))
    # Dies with the server, also if the server died before this line.
    check(libc.prctl(1, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(SETUP_FAILED)
    os.chdir(scratch)
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    # Denies files of other children: a second landlock layer that allows only this scratch
    # directory. It allows many reads, because the server's layer is still in force.
    landlock = config["landlock"]
    if landlock:
        attribute = struct.pack("=Q", landlock["handled"])
        ruleset = check(libc.syscall(444, attribute, ctypes.c_size_t(len(attribute)), 0), "landlock_create_ruleset")
        rules = [(path, landlock["read"]) for path in landlock["paths"]]
        if config["disk"]:
            rules.append((scratch, landlock["write"]))
        for path, access in rules:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", access, fd)
            check(libc.syscall(445, ruleset, 1, rule, 0), "landlock_add_rule")
            os.close(fd)
        check(libc.syscall(446, ruleset, 0), "landlock_restrict_self")
        os.close(ruleset)
    for name, value in config["rlimits"].items():
        if name == "NPROC" and config["own_users"]:
            continue
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    # Last, since it forbids most of the above: no processes, no signals, no sockets.
    code = ctypes.create_string_buffer(bytes.fromhex(config["seccomp"]))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
    check(libc.prctl(22, 2, header, 0, 0), "seccomp")


def send(kind, text, nonce, files=b"", _write=os.write):
    data = text.encode("utf-8", "backslashreplace")[:MAX_REPORT]
    data = kind + len(data).to_bytes(4, "little") + len(files).to_bytes(4, "little") + nonce + data + files
    while data:
        data = data[_write(REPORT, data) :]


def receive(size, _read=os.read, _exit=os._exit):
    pieces = []
    while size:
        piece = _read(COMMAND, min(size, 1 << 20))
        if not piece:
            _exit(0)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def serve(config, scratch):
    """Runs programs until the host closes the command pipe; the first one in a new `__main__`."""
    # A program may change any module. Functions used after it are saved here.
    exit_, join, enumerate_, current = os._exit, threading.Thread.join, threading.enumerate, threading.current_thread
    sys.argv = [""]
    # Files of the tool can be imported, after modules of the interpreter.
    sys.path.append(scratch)
    sys.path_importer_cache.clear()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = sys.__stdout__ = writer(1)
    sys.stderr = sys.__stderr__ = writer(2)
    stdout, stderr = sys.stdout, sys.stderr
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    # The first program of a process copies the pages that it touches. This one does so before any
    # call waits.
    quietly("def f(x):\n  return [x]\nfor i in range(2): print(f(i), str(i))\n{i}", {}, config)
    module = types.ModuleType("__main__")
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    # Names that `site` defines, which is not imported.
    builtins.exit = builtins.quit = leave
    random.seed(0)
    send(b"R", "", bytes(NONCE))
    while True:
        mode, prelude_size, code_size, files_size = struct.unpack("<cIII", receive(13))
        prelude = receive(prelude_size).decode()
        code = receive(code_size).decode()
        given = receive(files_size)
        seconds = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + config["cpu"])
        hard = seconds if mode == b"O" else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
        kind, text, files = b"D", "", b""
        try:
            write_files(scratch, given)
            before = list_files(scratch) if config["keep_files"] else None
            if prelude:
                kind, text = quietly(prelude, module.__dict__, config)
            if kind == b"D":
                kind, text = run(code, "<program>", module.__dict__, config)
            for thread in enumerate_():
                if thread is not current() and not thread.daemon:
                    join(thread)
            if config["show"] is not None:
                config["show"]()
            if before is not None:
                files = new_files(scratch, before, config["files_bytes"])
        except BaseException as error:  # raised by an overridden hook, or by memory that is gone
            kind, text = b"E", "%s: the interpreter was damaged by the program" % type(error).__name__
        for stream in {sys.stdout, stdout, stderr}:
            try:
                stream.flush()
            except BaseException:
                pass
        try:
            # The nonce stays in the pipe while the program runs: no object of the interpreter
            # contains it.
            send(kind, text, receive(NONCE), files)
        except BaseException:
            exit_(SETUP_FAILED)


def leave(code=None):
    """`exit` and `quit`."""
    raise SystemExit(code)


def writer(fd):
    # Line by line, so that output before a time-out or a crash is not lost.
    raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def quietly(prelude, namespace, config):
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1)
    try:
        os.dup2(0, 1)  # /dev/null
        os.dup2(0, 2)
        kind, text = run(prelude, "<prelude>", namespace, config)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.dup2(saved, 1)
        os.dup2(saved, 2)
        os.close(saved)
    return (kind, "") if kind == b"D" else (kind, "prelude: " + text)


def run(code, name, namespace, config):
    """Runs a program; returns b"D" and the last expression's value, or b"E" and the error."""
    # For tracebacks.
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    at_end = False
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body else None
        first = compile(tree, name, "exec")
        flags = first.co_flags & FUTURE
        if isinstance(last, ast.Expr):
            last = compile(ast.Expression(last.value), name, "eval", flags)
        elif last is not None:
            last = compile(ast.Module([last], []), name, "exec", flags)
        exec(first, namespace)
        at_end = True
        value = None if last is None else eval(last, namespace)
        if value is not None and name == "<program>" and config["last_value"] != "never":
            return b"D", repr(value)
        return b"D", ""
    except SystemExit as error:
        if error.code is not None and error.code != 0:
            return b"E", "SystemExit: %s" % (error.code,)
        # Exit code 0 is a success, as in a separate process. After a prelude that exits early the
        # program, such as its tests, would not run.
        return (b"D", "") if at_end or name == "<program>" else (b"E", "SystemExit: the program exited before its last statement")
    except BaseException as error:
        return b"E", describe(error, name, config)


def describe(error, name, config):
    try:
        if config["traceback"] == "full":
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != name:
                trace = trace.tb_next
            return "".join(traceback.format_exception(type(error), error, trace)).rstrip("\n")
        if isinstance(error, SyntaxError):
            text = "%s: %s" % (type(error).__name__, error.msg)
            return text if error.lineno is None else "%s (line %d)" % (text, error.lineno)
        return "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    except BaseException:
        return type(error).__name__


if __name__ == "__main__":
    config = json.loads(sys.argv[1])
    MAX_REPORT = config["max_report"]
    sys.path = config["path"]
    server(config)
