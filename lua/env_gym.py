"""Serves Gymnasium environments to `require("@r1/env_gym")` (docs/guide/env_gym.md).

A process holds the environments of many trajectories. It reads a JSON object per line from standard
input and writes one per line to standard output:

    {"id": 1, "session": 7, "message": {"op": "step", "action": 2}}
    {"id": 1, "answer": {"observation": 4, "reward": 0.0, "terminated": false, "truncated": false}}
    {"id": 2, "error": "ValueError: ..."}
    {"session": 7, "end": true}                    the trajectory is over; there is no answer

The first message of the process is `open`, which imports gymnasium and makes an environment.

Fast operations run in the thread that reads, since handing one over to another thread takes longer
than a step of a small environment. An operation that takes longer than STUCK seconds loses that
role: a new thread reads on while it finishes. After an operation of more than SLOW seconds, the next
ones of its kind get threads of their own.

Only the standard library and gymnasium are needed.
"""

import collections
import json
import math
import os
import sys
import threading
import time
import traceback

SLOW = 0.005
STUCK = 0.02
# Number of operations that run in separate threads after a slow one, before one is tried in the
# reader again.
THREADED = 50
# Environments that hang after the end of their trajectories; with more, the process gives up.
HANGING = 64
# Environments that are kept for the next trajectories.
KEPT = 1024
# Numbers of a 32-bit array up to which they are written with their shortest digits.
SHORTEST = 4096
EXIT_HANGING = 3


class Refused(Exception):
    """An action that the action space does not contain. The policy reads the reason."""


class Failed(Exception):
    """An error with a hint for the author of the recipe."""

    def __init__(self, message, hint=None):
        super().__init__(message)
        self.hint = hint


class Interrupted(BaseException):
    """The trajectory ended while its environment was running."""


def plain(value):
    """A value as JSON: numpy's types as Python's, anything unknown as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        kind = getattr(value, "dtype", None)
        if kind is not None and kind.kind == "f" and kind.itemsize < 8 and value.size <= SHORTEST:
            # 0.1 instead of 0.10000000149011612.
            value = value.astype("U").astype("f8")
        return plain(value.tolist())
    return str(value)


def number_kind(value):
    return "true or false" if isinstance(value, bool) else json.dumps(value)[:80]


def array_of(space, value, at, what):
    """Nested lists as an array of the space's shape and type."""
    import numpy

    shape = tuple(space.shape)
    size = "a number" if shape == () else "a list of %s numbers" % " x ".join(map(str, shape))
    wanted = "%s must be %s%s, got %s" % (at, size, what, number_kind(value))
    try:
        array = numpy.array(value)
    except ValueError:
        raise Refused(wanted)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise Refused(wanted)
    if array.size and not numpy.isfinite(array).all():
        raise Refused(wanted)
    if numpy.dtype(space.dtype).kind in "iu" and (array != numpy.floor(array)).any():
        raise Refused(wanted + "; they must be whole numbers")
    cast = array.astype(space.dtype)
    if not space.contains(cast):
        raise Refused(wanted)
    return cast


def action_of(spaces, space, value, at="the action"):
    """A JSON value as an element of a space; `Refused` says what it must be."""
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start) + int(space.n) - 1
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not first <= value <= last:
            raise Refused("%s must be a whole number from %d to %d, got %s" % (at, first, last, number_kind(value)))
        return int(value)
    if isinstance(space, spaces.MultiDiscrete):
        return array_of(space, value, at, ", each from its start and below its size %s" % plain(space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return array_of(space, value, at, ", each 0 or 1")
    if isinstance(space, spaces.Box):
        low, high = plain(space.low.min()), plain(space.high.max())
        return array_of(space, value, at, " from %s to %s" % (low, high))
    if isinstance(space, spaces.Text):
        if not isinstance(value, str):
            raise Refused("%s must be text, got %s" % (at, number_kind(value)))
        if not space.contains(value):
            raise Refused("%s must be text of %d to %d characters, of: %s" % (
                at, space.min_length, space.max_length, "".join(sorted(space.character_set))))
        return value
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        if not isinstance(value, dict) or set(value) != set(names):
            raise Refused("%s must be an object with the fields %s, got %s" % (
                at, ", ".join(map(str, names)), number_kind(value)))
        return {name: action_of(spaces, own, value[name], "%s.%s" % (at, name)) for name, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise Refused("%s must be a list of %d values, got %s" % (at, len(space.spaces), number_kind(value)))
        pairs = enumerate(zip(space.spaces, value), 1)
        return tuple(action_of(spaces, own, item, "%s[%d]" % (at, place)) for place, (own, item) in pairs)
    raise Failed("the space %s is not supported" % space, "wrap the environment so that its actions are Discrete, "
                 "MultiDiscrete, MultiBinary, Box, Text, Dict or Tuple")


def where(error):
    """The last lines of a traceback that are of the environment, innermost last."""
    own, wrappers = where.__code__.co_filename, os.sep + os.path.join("gymnasium", "")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != own]
    frames = [frame for frame in frames if wrappers not in frame.filename] or frames
    lines = ["%s:%s in %s" % (os.path.basename(it.filename), it.lineno, it.name) for it in frames[-3:]]
    return " (%s)" % ", ".join(lines) if lines else ""


def described(error):
    return ("%s: %s" % (type(error).__name__, error))[:500] + where(error)


class Session:
    """A trajectory: its environment, and the thread that runs an operation of it."""

    __slots__ = ("env", "thread", "ended", "lock")

    def __init__(self):
        self.env = None
        self.thread = None
        self.ended = False
        self.lock = threading.Lock()


class Server:
    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.gymnasium = None
        self.options = {}
        self.sessions, self.kept = {}, []
        self.hanging = 0
        # Read and not handled yet; only the leader touches them.
        self.rest, self.lines = b"", collections.deque()
        # The thread that reads, and since when it has run an operation.
        self.leader, self.since = 0, None
        self.guard = threading.Lock()
        # Answers that are not written yet.
        self.answers, self.writing = [], threading.Lock()
        # Number of operations of each kind that still run in separate threads.
        self.threaded = collections.Counter()

    # Messages.

    def open(self, message):
        try:
            import gymnasium
        except ImportError as error:
            raise Failed("%s has no gymnasium: %s" % (sys.executable, error),
                         "%s -m pip install gymnasium" % sys.executable)
        self.gymnasium, self.options = gymnasium, message
        env = self.make()
        action_space, observation_space = env.action_space, env.observation_space
        self.check(action_space)
        self.kept.append(env)
        return {"gymnasium": gymnasium.__version__, "action_space": str(action_space)[:500],
                "observation_space": str(observation_space)[:500]}

    def check(self, space):
        spaces = self.gymnasium.spaces
        inner = []
        if isinstance(space, spaces.Dict):
            inner = space.spaces.values()
        elif isinstance(space, spaces.Tuple):
            inner = space.spaces
        for own in inner:
            self.check(own)
        if not inner:
            try:
                action_of(spaces, space, None)
            except Refused:
                pass

    def make(self):
        name, errors = self.options["env"], self.gymnasium.error
        try:
            return self.gymnasium.make(name, **self.options.get("kwargs", {}))
        except errors.DependencyNotInstalled as error:
            raise Failed("%s can't be made: %s" % (name, error), "install what it names with %s -m pip" % sys.executable)
        except errors.Error as error:
            raise Failed("%s can't be made: %s" % (name, error),
                         "\"MODULE:NAME\" imports the Python module that registers an environment")
        except ImportError as error:
            raise Failed("%s can't be made: %s" % (name, error),
                         "install the package with %s -m pip, or set PYTHONPATH in `env`" % sys.executable)

    def reset(self, session, message):
        if session.env is None:
            session.env = self.kept.pop() if self.kept else self.make()
        observation, info = session.env.reset(seed=message.get("seed"), options=message.get("options"))
        return self.shown(session.env, {"observation": observation, "info": info})

    def step(self, session, message):
        env = session.env
        if env is None:
            raise Failed("there is no environment of this trajectory: it was not reset here")
        spaces = self.gymnasium.spaces
        if "text" in message:
            action = message["text"]
            if not isinstance(env.action_space, spaces.Text):
                try:
                    action = json.loads(action)
                except ValueError:
                    action = action.strip()
        else:
            action = message.get("action")
        try:
            action = action_of(spaces, env.action_space, action)
        except Refused as refused:
            return {"refused": str(refused)}
        observation, reward, terminated, truncated, info = env.step(action)
        return self.shown(env, {"observation": observation, "reward": float(reward), "terminated": bool(terminated),
                                "truncated": bool(truncated), "info": info})

    def shown(self, env, answer):
        if env.render_mode == "ansi":
            answer["text"] = str(env.render())
        return answer

    # Operations.

    def run(self, number, name, session, message):
        """Runs an operation and gives its answer as a line; None if the trajectory has ended meanwhile."""
        op = message.get("op")
        session.thread = threading.get_ident()
        try:
            if op == "open":
                answer = self.open(message)
            elif op == "reset":
                answer = self.reset(session, message)
            elif op == "step":
                answer = self.step(session, message)
            else:
                raise Failed("unknown operation %r" % op)
            line = self.line(number, answer)
            session.thread = None
        except Interrupted:
            session.thread = None
            session.ended = True
        except Failed as error:
            line = self.failure(number, str(error), error.hint)
            session.thread = None
        except BaseException as error:
            line = self.failure(number, described(error))
            session.thread = None
            # Its state is unknown.
            self.discard(session)
        if session.ended:
            self.hanging -= 1
            self.discard(session)
            return None
        return line

    def line(self, number, answer):
        answer = {"id": number, "answer": answer}
        try:
            text = json.dumps(answer, allow_nan=False)
        except (TypeError, ValueError):
            text = json.dumps(plain(answer))
        most = self.options.get("max_bytes")
        if most and len(text) > most:
            return self.failure(number, "an answer of %d bytes is more than max_bytes = %d" % (len(text), most),
                                "wrap the environment so that its observations and `info` are smaller")
        return text.encode() + b"\n"

    def failure(self, number, message, hint=None):
        return json.dumps({"id": number, "error": message, "hint": hint}).encode() + b"\n"

    def discard(self, session):
        env, session.env = session.env, None
        if env is not None:
            threading.Thread(target=close, args=(env,), daemon=True).start()

    def end(self, name):
        session = self.sessions.pop(name, None)
        if session is None:
            return
        if session.thread is None:
            if session.env is not None and len(self.kept) < KEPT:
                self.kept.append(session.env)
            else:
                self.discard(session)
            return
        self.hanging += 1
        session.ended = True
        thread = session.thread
        if thread is not None:
            # Ends loops of Python code; a call that blocks ends when it returns.
            import ctypes

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))
        if self.hanging > HANGING:
            print("%d environments hang after the end of their trajectories" % self.hanging, file=sys.stderr, flush=True)
            os._exit(EXIT_HANGING)

    def handle(self, line):
        """Handles a line in this thread; false if another thread has become the leader meanwhile."""
        request = json.loads(line)
        name = request.get("session")
        if request.get("end"):
            self.end(name)
            return True
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = Session()
        number, message = request["id"], request["message"]
        op = message.get("op")
        if self.threaded[op] > 0 or session.lock.locked():
            self.threaded[op] -= 1
            threading.Thread(target=self.apart, args=(number, name, session, message), daemon=True).start()
            return True
        me = self.leader
        with session.lock:
            start = self.since = time.monotonic()
            answer = self.run(number, name, session, message)
            elapsed = time.monotonic() - start
        if answer is not None:
            self.answers.append(answer)
        if self.leader != me:
            # It was replaced while it ran. After the end of the trajectory it takes no lock, since
            # the interruption may still arrive.
            if answer is not None:
                self.flush()
            return False
        with self.guard:
            leads = self.leader == me
            if leads:
                self.since = None
        if elapsed > SLOW:
            self.threaded[op] = THREADED
        if not leads or elapsed > 0.001:
            self.flush()
        return leads

    def apart(self, number, name, session, message):
        """Runs an operation in a thread of its own."""
        with session.lock:
            start = time.monotonic()
            answer = None if session.ended else self.run(number, name, session, message)
            elapsed = time.monotonic() - start
        if answer is not None:
            if elapsed > SLOW:
                self.threaded[message.get("op")] = THREADED
            self.answers.append(answer)
            self.flush()

    # Threads.

    def flush(self):
        with self.writing:
            answers, self.answers = self.answers, []
            data = memoryview(b"".join(answers))
            while data:
                data = data[os.write(self.sink, data):]

    def lead(self):
        """Reads and handles lines until another thread has become the leader."""
        while True:
            while self.lines:
                if not self.handle(self.lines.popleft()):
                    return
            self.flush()
            piece = os.read(self.source, 1 << 16)
            if not piece:
                os._exit(0)
            *lines, self.rest = (self.rest + piece).split(b"\n")
            self.lines.extend(lines)

    def watch(self):
        """Makes another thread the leader when the leader's operation takes long."""
        while True:
            time.sleep(STUCK / 2)
            since = self.since
            if since is None or time.monotonic() - since < STUCK:
                continue
            with self.guard:
                if self.since != since:
                    continue
                self.since = None
                self.leader += 1
            self.flush()
            threading.Thread(target=self.lead, daemon=True).start()


def close(env):
    try:
        env.close()
    except BaseException:
        pass


def main():
    source, sink = os.dup(0), os.dup(1)
    # Environments print and read: those streams are not the protocol's.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = open(0, closefd=False), sys.stderr
    # Threads of environments must not stop the reader for long.
    sys.setswitchinterval(0.001)
    server = Server(source, sink)
    threading.Thread(target=server.watch, daemon=True).start()
    threading.Thread(target=server.lead, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
