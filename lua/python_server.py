"""Calls Python functions for `require("@r1/python")` (docs/guide/python.md): the process that r1 starts.

It reads a JSON object per line from standard input and writes one per line to standard output:

    {"id": 1, "session": 7, "message": {"op": "call", "function": "compute_score", ...}}
    {"id": 1, "answer": {...}}
    {"id": 2, "error": "ValueError: ...", "hint": "..."}
    {"session": 7, "end": true}                    the caller no longer waits; there is no answer

The functions run in worker processes (python_worker.py), each in its main thread and one call after
the other. This process runs none of the user's code, so that a function that hangs or ends its
process costs one call: the worker is stopped and started again, and the other calls wait for it.

The first message is `open`: the workers import the user's files. Needs Python 3.8 and nothing else.
"""

import collections
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time

# Seconds between two looks at a worker that does not answer: a child of it may hold its pipe.
LOOK = 0.2
# Bytes of a worker's standard error that are kept for messages.
KEPT = 8192


class Failed(Exception):
    """A call without a result."""

    def __init__(self, message, hint=None):
        super().__init__(message)
        self.hint = hint


class Worker:
    """A process that runs calls. Used by one thread."""

    def __init__(self, options):
        self.options = options
        self.errors = collections.deque(maxlen=KEPT)
        self.rest = b""
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", options["worker"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=self.keep, args=(self.process.stderr,), daemon=True)
        self.reader.start()
        self.ask({"files": options["files"], "max_bytes": options["max_bytes"]}, options["start_timeout"], "the import")

    def keep(self, stream):
        """Keeps the end of standard error, and passes it on."""
        while True:
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                return
            self.errors.extend(piece)
            os.write(2, piece)

    def ask(self, message, limit, what):
        """Sends a message and waits for the answer."""
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self.ended(what)
        output, until = self.process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self.rest[-65536:]:
            left = until - time.monotonic()
            if left <= 0:
                self.stop()
                raise Failed("%s had no result within %g s, and the Python process was stopped" % (what, limit),
                             "`timeout` of require(\"@r1/python\") sets the limit of one call")
            if not select.select([output], [], [], min(left, LOOK))[0]:
                if self.process.poll() is not None:
                    raise self.ended(what)
                continue
            piece = os.read(output, 1 << 16)
            if not piece:
                raise self.ended(what)
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer.get("hint"))
        return answer["answer"]

    def ended(self, what):
        """Why the process has ended."""
        # An exit is reported as it was; a worker that closed its output is stopped.
        try:
            status = self.process.wait(LOOK)
        except subprocess.TimeoutExpired:
            status = self.stop()
        how = "exit code %d" % status
        if status < 0:
            try:
                how = signal.Signals(-status).name
            except ValueError:
                how = "signal %d" % -status
        # A child of the process may hold its standard error open.
        self.reader.join(LOOK)
        lines = bytes(self.errors).decode("utf-8", "replace").strip().splitlines()
        # faulthandler writes the kind of the error, and the innermost line first.
        fatal = [place for place, line in enumerate(lines) if line.startswith("Fatal Python error")]
        said = lines[-1:]
        if fatal:
            said = [lines[fatal[-1]]] + [line.strip() for line in lines[fatal[-1]:] if line.startswith("  File ")][:2]
        why = ": " + "; ".join(said) if said else ""
        return Failed("the Python process ended (%s) during %s, and is started again%s" % (how, what, why[:500]))

    def stop(self):
        self.process.kill()
        return self.process.wait()

    def is_running(self):
        return self.process.poll() is None


class Call:
    """A request, and whether somebody waits for it."""

    def __init__(self, request):
        self.number, self.session, self.message = request["id"], request.get("session"), request["message"]
        self.dropped = False


class Server:
    def __init__(self, sink):
        self.sink, self.writing = sink, threading.Lock()
        self.calls = queue.Queue()
        self.options, self.workers = {}, []

    def answer(self, number, answer):
        line = json.dumps(dict(answer, id=number)).encode() + b"\n"
        with self.writing:
            data = memoryview(line)
            while data:
                data = data[os.write(self.sink, data):]

    def open(self, call):
        """Starts the workers; the answer is an error if one can't import the files."""
        self.options = call.message
        started = queue.Queue()
        for place in range(self.options["processes"]):
            self.workers.append(None)
            threading.Thread(target=self.serve, args=(place, started), daemon=True).start()
        failed = [error for error in (started.get() for _ in self.workers) if error is not None]
        if failed:
            self.answer(call.number, {"error": str(failed[0]), "hint": failed[0].hint})
        else:
            self.answer(call.number, {"answer": {"python": sys.version.split()[0], "executable": sys.executable}})

    def start(self, place):
        try:
            self.workers[place] = Worker(self.options)
        except OSError as error:
            raise Failed("can't start %s: %s" % (sys.executable, error))

    def serve(self, place, started):
        """Runs calls, one after the other, in a worker."""
        try:
            self.start(place)
            started.put(None)
        except Failed as error:
            started.put(error)
        while True:
            call = self.calls.get()
            if call.dropped:
                continue
            try:
                if self.workers[place] is None or not self.workers[place].is_running():
                    self.start(place)
                what = "`%s`" % call.message.get("function")
                answer = {"answer": self.workers[place].ask(call.message, self.options["timeout"], what)}
            except Failed as error:
                answer = {"error": str(error), "hint": error.hint}
            if not call.dropped:
                self.answer(call.number, answer)

    def handle(self, line):
        request = json.loads(line)
        if not request.get("end"):
            call = Call(request)
            if call.message.get("op") == "open":
                threading.Thread(target=self.open, args=(call,), daemon=True).start()
            else:
                self.calls.put(call)
            return
        for call in list(self.calls.queue):
            if call.session == request.get("session"):
                call.dropped = True


def main():
    source, sink = os.dup(0), os.dup(1)
    # Workers inherit neither.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    server = Server(sink)
    for line in os.fdopen(source, "rb"):
        server.handle(line)
    # r1 has closed the connection.
    for worker in server.workers:
        if worker is not None:
            worker.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
