"""Runs functions of the user's files for python_server.py, one call after the other in the main
thread, so that signal handlers and timers work (math_verify and others use them).

The protocol has descriptors of its own. What a call prints is part of its answer; what is printed
between calls, and by other programs, goes to standard error.
"""

import asyncio
import faulthandler
import inspect
import io
import json
import linecache
import math
import numbers
import os
import sys
import types

# Characters of the printed text that a call keeps.
PRINTED = 16384
# Lines of a traceback in a message.
FRAMES = 3
SHAPES = ("string indices must be", "expected string or bytes-like", "'list' object has no attribute",
          "'str' object has no attribute", "must be str, not list")


class Failed(Exception):
    """An error with a hint for the author of the recipe."""

    def __init__(self, message, hint=None):
        super().__init__(message)
        self.hint = hint


class Output(io.TextIOBase):
    """Standard output and error: the text of the current call."""

    def __init__(self):
        self.kept, self.dropped, self.active = [], 0, False
        self.size = 0

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return 2

    def write(self, text):
        if not self.active:
            os.write(2, text.encode("utf-8", "replace"))
        elif self.size < PRINTED:
            self.kept.append(text[:PRINTED - self.size])
            self.size += len(text)
        else:
            self.dropped += len(text)
        return len(text)

    def begin(self):
        self.kept, self.dropped, self.size, self.active = [], 0, 0, True

    def end(self):
        self.active = False
        text = "".join(self.kept)
        over = self.dropped + max(0, self.size - PRINTED)
        return text + ("\n… (%d more characters)" % over if over else "")


def shown(path):
    """A path as in messages: relative to the script's directory, or the name of the file."""
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative


def described(error):
    """Type, text and the last lines of the traceback that are not of this file."""
    lines = ["%s: %s" % (type(error).__name__, error)]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append("  %s:%s: %s" % (shown(error.filename), error.lineno, (error.text or "").strip()))
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals is not globals() and not code.co_filename.startswith("<frozen "):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    # The user's lines, and the innermost line, which may be in a library.
    own = [frame for frame in frames if "site-packages" not in frame[0] and not os.path.relpath(frame[0]).startswith("..")]
    kept = own[-FRAMES:]
    if frames and frames[-1:] != kept[-1:]:
        kept.append(frames[-1])
    for path, line, name in kept:
        source = linecache.getline(path, line).strip()[:120]
        lines.append("  %s:%d in %s%s" % (shown(path), line, name, ": " + source if source else ""))
    return "\n".join([lines[0][:1000]] + lines[1:])


def number(value, of):
    """A finite number, or None."""
    if hasattr(value, "item"):
        # A scalar of numpy or torch.
        try:
            value = value.item()
        except Exception:
            raise Failed("`%s` returned a %s of several numbers, where one is needed" % (of, type(value).__name__))
    return float(value) if isinstance(value, numbers.Real) else None


def plain(value):
    """A value as JSON: numpy's types as Python's, numbers that are not finite and others as text."""
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
        return plain(value.tolist())
    return str(value)


def verl(name, result):
    """The score and the other fields of a result of verl's compute_score."""
    fields = {}
    if isinstance(result, dict):
        if "score" not in result:
            raise Failed("`%s` returned a dict without `score`: it has %s" % (name, ", ".join(map(repr, result)) or "no fields"))
        fields = {str(key): value for key, value in result.items() if key != "score"}
        result = result["score"]
    score = number(result, name)
    if score is None or not math.isfinite(score):
        raise Failed("`%s` returned the score %s" % (name, repr(result)[:200]),
                     "it must return a finite number, or a dict with `score`")
    known, texts = {}, {}
    for key, value in fields.items():
        value = plain(value)
        if isinstance(value, (bool, int, float)):
            known[key] = float(value)
        elif value is not None:
            texts[key] = value
    if texts:
        print(" ".join("%s=%s" % (key, json.dumps(text, ensure_ascii=False)) for key, text in texts.items()))
    return {"score": score, "fields": known}


def trl(name, result, count):
    """The rewards of a reward function of TRL: None, and NaN, where it is not applicable."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise Failed("`%s` returned a %s" % (name, type(result).__name__), "it must return a list with a reward per completion")
    if len(result) != count:
        raise Failed("`%s` returned %d rewards for %d completions" % (name, len(result), count))
    rewards = []
    for value in result:
        reward = number(value, name)
        if value is not None and reward is None:
            raise Failed("`%s` returned the reward %s" % (name, repr(value)[:200]), "a reward is a number, or None")
        if reward is not None and math.isinf(reward):
            raise Failed("`%s` returned the reward %s" % (name, reward))
        rewards.append(None if reward is None or math.isnan(reward) else reward)
    return rewards


class Worker:
    def __init__(self, output):
        self.output = output
        self.modules, self.parameters = [], {}
        self.max_bytes, self.loop = 1 << 20, None

    def load(self, message):
        """Runs the files, in the version that r1 has read."""
        self.max_bytes = message["max_bytes"]
        for file in message["files"]:
            path = os.path.abspath(file["path"])
            folder, name = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
            if folder not in sys.path:
                sys.path.insert(0, folder)
            if name in sys.modules or name in getattr(sys, "stdlib_module_names", ()):
                name = "r1_" + name
            module = types.ModuleType(name)
            module.__file__ = path
            sys.modules[name] = module
            text = file["text"]
            linecache.cache[path] = (len(text), None, text.splitlines(True), path)
            try:
                exec(compile(text, path, "exec"), module.__dict__)
            except BaseException as error:
                hint = None
                if isinstance(error, ModuleNotFoundError) and error.name:
                    hint = "%s -m pip install the package of `%s`; `python` of require(\"@r1/python\") names another " \
                           "interpreter, such as \".venv/bin/python\"" % (sys.executable, error.name.split(".")[0])
                elif "relative import" in str(error):
                    hint = "the file is no part of a package, and its directory is on sys.path: `import helper` in " \
                           "place of `from . import helper`"
                raise Failed("%s can't be imported: %s" % (file["path"], described(error)), hint)
            self.modules.append((file["path"], module))
        return {}

    def function(self, name):
        for _, module in self.modules:
            found = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                if not callable(found):
                    raise Failed("`%s` is a %s, not a function" % (name, type(found).__name__))
                return found
        raise Failed("%s has no function `%s`" % (" and ".join(path for path, _ in self.modules), name))

    def accepted(self, name, function, given):
        """The arguments that the function takes; all of them if it takes any."""
        if name not in self.parameters:
            try:
                self.parameters[name] = inspect.signature(function).parameters
            except (TypeError, ValueError):
                self.parameters[name] = None
        parameters = self.parameters[name]
        if parameters is None:
            return [], given
        kinds = [parameter.kind for parameter in parameters.values()]
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        first, named = [], dict(given) if takes_any else {}
        for key, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if key not in given:
                if parameter.default is parameter.empty:
                    raise Failed("`%s` needs the argument `%s`, and there are only %s" % (
                        name, key, ", ".join("`%s`" % known for known in sorted(given))),
                        "a column of the row is an argument; `kwargs` passes others")
            elif parameter.kind == parameter.POSITIONAL_ONLY:
                first.append(given[key])
                named.pop(key, None)
            else:
                named[key] = given[key]
        return first, named

    def call(self, message):
        name, style, given = message["function"], message.get("style"), message.get("kwargs") or {}
        function, first = self.function(name), message.get("args") or []
        fields, metrics = {}, {}
        if style == "trl":
            row = message.get("row") or {}
            given.update((key, [value]) for key, value in row.items() if key not in ("prompt", "completion"))
            given.update(message["batch"])
            # Arguments of newer versions of TRL, for the log and the metrics of its run.
            given["log_extra"] = lambda column, values: print("%s: %s" % (column, plain(values)))
            given["log_metric"] = lambda metric, value: metrics.__setitem__(str(metric), number(value, name))
        if style in ("verl", "trl"):
            first, given = self.accepted(name, function, given)
        try:
            result = function(*first, **given)
            if inspect.isawaitable(result):
                self.loop = self.loop or asyncio.new_event_loop()
                result = self.loop.run_until_complete(result)
        except Failed:
            raise
        except BaseException as error:
            text = described(error)
            if style == "tool" and isinstance(error, Exception):
                # The policy reads the first line, the log has the others.
                print(text)
                return {"failed": text.split("\n")[0]}
            raise Failed(text, self.hint(message, text))
        if style == "verl":
            return verl(name, result)
        if style == "trl":
            rewards = trl(name, result, len(message["batch"]["completions"]))
            known = {key: value for key, value in metrics.items() if value is not None and math.isfinite(value)}
            return {"rewards": rewards, "fields": known}
        if style == "tool":
            return {"text": result if isinstance(result, str) else json.dumps(plain(result), ensure_ascii=False)}
        return {"value": plain(result)}

    def hint(self, message, text):
        """What to change where a function meets the other form of completions."""
        if message.get("style") != "trl" or not any(shape in text for shape in SHAPES):
            return None
        if isinstance(message["batch"]["completions"][0], str):
            return "the completions are texts, as in TRL where `prompt` is a text: `conversational = true` passes lists of messages"
        return "the completions are lists of messages, as in TRL where `prompt` is one: `conversational = false` passes texts"

    def answer(self, message):
        """The answer of a message as a line."""
        try:
            if "files" in message:
                answer = {"answer": self.load(message)}
            else:
                self.output.begin()
                try:
                    result = self.call(message)
                except Failed as error:
                    said = self.output.end().strip()
                    said = "\nprinted: " + said[-500:] if said else ""
                    raise Failed(str(error) + said, error.hint)
                answer = {"answer": dict(result, printed=self.output.end())}
        except Failed as error:
            answer = {"error": str(error), "hint": error.hint}
        line = json.dumps(answer).encode()
        if len(line) > self.max_bytes:
            line = json.dumps({"error": "the result has %d bytes, more than max_bytes = %d" % (len(line), self.max_bytes)}).encode()
        return line + b"\n"


def main():
    source, sink = os.dup(0), os.dup(1)
    # The user's functions read and print: those streams are not the protocol's.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    faulthandler.enable(file=os.fdopen(os.dup(2), "w"))
    output = Output()
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), output, output
    # A module that is imported as a script would run its example.
    sys.argv = [""]
    worker = Worker(output)
    for line in os.fdopen(source, "rb"):
        data = memoryview(worker.answer(json.loads(line)))
        while data:
            data = data[os.write(sink, data):]


if __name__ == "__main__":
    main()
