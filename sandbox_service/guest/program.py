"""Process 2 of a job: becomes the program.

A python program runs in this forked interpreter, which has started already; anything else is exec'ed.

What is run must not see the difference to `python file.py`: `__main__`, `sys.argv`, `sys.path`, the standard streams,
tracebacks, exit codes, atexit handlers and the interpreter's own end are the same.
"""

import atexit
import builtins
import contextlib
import ctypes
import importlib.machinery
import io
import json
import os
import signal
import socket
import sys
import time
import types
from typing import Any, NoReturn

from sandbox_service.guest import rootfs, walls

_LONG_LIMIT = 2**63
_DESCRIPTORS = 256
"""Above all that a template or a job's set-up ever has open."""
_NOT_FOUND, _NOT_EXECUTABLE, _NOT_SET_UP = 127, 126, 125
"""Exit codes as shells and container engines use them: no such program, not executable, the cell failed."""


class Become(BaseException):
    """Raised in a job's own process once it is confined: whoever waits for jobs carries on as this one.

    Attributes:
        start: the job's `start` entry.
        report: descriptor to report tests to; -1: none.
    """

    def __init__(self, start: dict[str, Any], report: int) -> None:
        super().__init__()
        self.start, self.report = start, report


def main(
    job: dict[str, Any], fds: dict[str, int], control: socket.socket, have: frozenset[str], kept: frozenset[int]
) -> NoReturn:
    """Confines this process, and executes the job's program or raises `Become`. Never returns.

    Args:
        job: the job's header.
        fds: descriptors for the standard streams, and for the report of a test run.
        control: to tell the service where the cell fails; the program never has it.
        have: names of the namespaces that can be had here.
        kept: descriptors that the template itself needs.
    """
    try:
        walls.confine(job, have)
        os.chdir(rootfs.WORK)
        environment = _environment(job["env"])
    except BaseException as error:
        text = f"confine: {type(error).__name__}: {error}"[:2000]
        control.send(json.dumps({"fault": text, "unconfined": True}).encode())
        os._exit(_NOT_SET_UP)
    control.detach()  # closed with the others
    report = _descriptors(fds, kept)
    start = job["start"]
    if start["kind"] == "exec":
        _execute(start["argv"], environment)
    if start["kind"] == "script" and _needs_fresh_interpreter(start["path"], job["env"]):
        _execute([f"{rootfs.BIN}/python", "-u", f"{rootfs.WORK}/{start['path']}", *start["args"]], environment)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.path[:0] = [path for path in job["env"].get("PYTHONPATH", "").split(":") if path]
    _streams()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox_service"]:
        del sys.modules[name]  # no program can import it; what runs of it keeps its own references
    raise Become(start, report)


def _needs_fresh_interpreter(path: str, env: dict[str, str]) -> bool:
    """Whether this interpreter, which has started already, would run a program in another way than a new one.

    It would where a variable steers the interpreter's start, or where a file beside the program has the name of a
    module that is loaded here.
    """
    if any(name.startswith("PYTHON") and name != "PYTHONPATH" for name in env):
        return True
    folder = os.path.dirname(f"{rootfs.WORK}/{path}")
    beside = {entry.partition(".")[0] for entry in os.listdir(folder)} - {"__main__"}
    return any(name in sys.modules for name in beside)


def _descriptors(fds: dict[str, int], kept: frozenset[int]) -> int:
    """Puts the standard streams in place and closes all but them, `kept` and the report's; returns that (or -1)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(fds[name], number)
    report = fds.get("report", -1)
    if report >= 0:
        os.set_inheritable(report, False)  # noqa: FBT003 - the os API's own signature
    for number in range(3, _DESCRIPTORS):
        if number != report and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)
    return report


def _environment(given: dict[str, str]) -> dict[str, str]:
    """The cell's own variables (writable places, no bytecode files, one thread for numeric libraries) and the job's.

    A cell has one core, and libraries that count the machine's start more threads than its process limit allows.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    return {
        "PATH": f"{rootfs.BIN}:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": rootfs.HOME,
        "USER": "job",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - inside the cell
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        **threads,
        **given,
        "PYTHONPATH": ":".join(path for path in (given.get("PYTHONPATH", ""), rootfs.PACKAGES) if path),
    }


def _execute(argv: list[str], environment: dict[str, str]) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is what the contract promises
    except OSError as error:
        os.write(2, f"codemend: {argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _streams() -> None:
    """Fresh text streams, flushed at each line end: what a program printed before it was killed must not be lost."""
    for name, number, mode, errors in (
        ("stdin", 0, "r", "surrogateescape"),
        ("stdout", 1, "w", "surrogateescape"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedWriter(raw) if mode == "w" else io.BufferedReader(raw)
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, newline="\n", line_buffering=mode == "w")
        stream.__dict__["mode"] = mode  # which python sets on its own streams alone
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def script(path: str, arguments: list[str]) -> NoReturn:
    """Runs one python file as `__main__` and ends the interpreter the way that python does.

    That is: threads that are not daemons end, atexit handlers run, modules are torn down, streams are flushed.
    """
    full = f"{rootfs.WORK}/{path}"
    sys.argv = [full, *arguments]
    sys.orig_argv = [sys.executable, full, *arguments]
    sys.path.insert(0, os.path.dirname(full))
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", full)
    module.__dict__.update(__file__=full, __builtins__=builtins, __loader__=loader, __cached__=None, __annotations__={})
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(_compiled(full), module.__dict__)  # noqa: S102 - what a stranger wrote: the walls are around this process
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            _end_by_interrupt()
        status = 1
    del module
    ctypes.pythonapi.Py_Exit(ctypes.c_int(status))
    os._exit(status)


def _compiled(path: str) -> types.CodeType:
    with io.open_code(path) as stream:
        source = stream.read()
    if b"\0" in source:
        line = source[: source.index(b"\0")].count(b"\n") + 1
        raise SyntaxError("source code cannot contain null bytes", (path, line, 0, None))
    return compile(source, path, "exec", dont_inherit=True)


def _exit_status(code: object) -> int:
    """What `sys.exit(code)` ends a process with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -_LONG_LIMIT <= code < _LONG_LIMIT else 0xFF
    print(code, file=sys.stderr)
    return 1


def _end_by_interrupt() -> None:
    """Ends the way that python does when nobody caught ^C: by the signal itself, after the exit handlers."""
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter's own way to run them early
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
