"""Process 2 of a job: becomes the program.

A python program runs in this forked interpreter, which has started already; anything else is exec'ed.

What is run must not see the difference to `python file.py`: `__main__`, `sys.argv`, `sys.path`, the standard streams,
tracebacks, exit codes, atexit handlers and the interpreter's own end are the same.
"""

import atexit
import builtins
import contextlib
import functools
import importlib.machinery
import io
import json
import os
import signal
import socket
import stat
import sys
import time
import types
from collections.abc import Iterable
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs, walls
from sandbox_service.guest.process import ending, preload, runner

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
        channel: descriptor of the channel between judge and candidate; -1: none.
    """

    def __init__(self, start: dict[str, Any], report: int, channel: int) -> None:
        super().__init__()
        self.start, self.report, self.channel = start, report, channel


def main(
    job: dict[str, Any], fds: dict[str, int], control: socket.socket, have: walls.Have, kept: frozenset[int]
) -> NoReturn:
    """Confines this process, and executes the job's program or raises `Become`. Never returns.

    Args:
        job: the job's header.
        fds: descriptors for the standard streams, for the report of a test run, and to hand process 1 the listener of
            the filter of system calls.
        control: to tell the service where the cell fails; the program never has it.
        have: what can be had here.
        kept: descriptors that the template itself needs.
    """
    try:
        walls.give_up(have)
        walls.restrict(have, socket.socket(fileno=fds["handover"]))
        walls.limit(job)
        os.chdir(rootfs.WORK)
        variables = environment(job["env"])
    except BaseException as error:
        report_unconfined(control, error)
    control.detach()  # closed with the others
    become(job, variables, fds, kept)


def report_unconfined(control: socket.socket, error: BaseException) -> NoReturn:
    """Tells the service that this process did not get all its walls, and ends it: nothing of a program has run."""
    text = f"confine: {type(error).__name__}: {error}"[:2000]
    control.send(json.dumps({"fault": text, "unconfined": True}).encode())
    os._exit(_NOT_SET_UP)


def become(
    job: dict[str, Any],
    variables: dict[str, str],
    fds: dict[str, int],
    kept: frozenset[int],
    *,
    has_streams: bool = False,
) -> NoReturn:
    """In a confined process: executes the job's program, or raises `Become`.

    Args:
        job: as for `main`.
        variables: all of the program's variables.
        fds: as for `main`.
        kept: as for `main`.
        has_streams: whether python's own streams are made already.
    """
    report, channel = _descriptors(fds, kept)
    start = job["start"]
    if start["kind"] == "exec":
        _execute(start["argv"], variables)
    if start["kind"] == "runner":
        runner.run(start, variables, report)
    preload.renew(entry["path"] for kind in ("workspace", "files", "tests") for entry in job.get(kind, ()))
    if start["kind"] == "script" and _needs_fresh_interpreter(start["path"], job["env"]):
        _execute([f"{rootfs.BIN}/python", "-u", f"{rootfs.WORK}/{start['path']}", *start["args"]], variables)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    sys.path[:0] = [path for path in job["env"].get("PYTHONPATH", "").split(":") if path]
    if not has_streams:
        make_streams()
    for name in own_modules():
        sys.modules.pop(name, None)  # no program can import it; what runs of it keeps its own references
    raise Become(start, report, channel)


@functools.cache
def own_modules() -> tuple[str, ...]:
    """Names of the modules of this package, found once: to go through all names in a fork copies the memory of each."""
    return tuple(name for name in sys.modules if name.partition(".")[0] == "sandbox_service")


def _open_descriptors() -> Iterable[int]:
    """All that may be open. A look into /proc is one call; closing what is not open is two hundred."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return range(_DESCRIPTORS)


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


def _descriptors(fds: dict[str, int], kept: frozenset[int]) -> tuple[int, int]:
    """Puts the standard streams in place and closes all but them, `kept`, the report's and the channel's.

    Returns:
        These two, -1 for each that is not there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(fds[name], number)
    if stat.S_ISCHR(os.fstat(0).st_mode):  # the host's /dev/null, which no job can open again by name
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    report, channel = fds.get("report", -1), fds.get("channel", -1)
    for number in (report, channel):
        if number >= 0:
            os.set_inheritable(number, False)  # noqa: FBT003 - the os API's own signature
    for number in _open_descriptors():
        if number not in (0, 1, 2, report, channel) and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)
    return report, channel


def environment(given: dict[str, str]) -> dict[str, str]:
    """The cell's own variables (writable places, no bytecode files, one thread for numeric libraries) and the job's.

    A cell has one core, and libraries that count the machine's start more threads than its process limit allows.
    """
    return {
        "PATH": f"{rootfs.BIN}:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": rootfs.HOME,
        "USER": "job",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - inside the cell
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        **dict.fromkeys(preload.THREAD_VARIABLES, "1"),
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


def make_streams() -> None:
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
    before = ending.loaded()
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
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(trace), trace
        del trace  # what its frames hold lives until the end, and not longer
        sys.excepthook(sys.last_type, sys.last_value, sys.last_traceback)
        if isinstance(error, KeyboardInterrupt):
            _end_by_interrupt()
        status = 1
    del module
    ending.end(status, before)


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
