"""Process 2 of a job: becomes the program.

A python program runs in this forked interpreter, which has started already; anything else is exec'ed.

What is run must not see the difference to `python file.py`: `__main__`, `sys.argv`, `sys.path`, the standard streams,
tracebacks, exit codes, atexit handlers and the interpreter's own end are the same.
"""

import builtins
import ctypes
import io
import os
import signal
import sys
import types
from typing import Any, NoReturn

from sandbox_service.guest import rootfs, walls

_NOT_FOUND, _NOT_EXECUTABLE, _INTERRUPTED, _NOT_SET_UP = 127, 126, 130, 125
"""Exit codes as shells and container engines use them: no such program, not executable, ended by ^C, the cell itself
failed."""


def main(job: dict[str, Any], fds: dict[str, int], have: frozenset[str]) -> NoReturn:
    """Confines this process and runs the job's program in it. Never returns."""
    try:
        report = _descriptors(fds)
        walls.confine(job, have)
        os.chdir(rootfs.WORK)
        environment = {**_environment(), **job["env"]}
    except BaseException as error:
        os.write(2, f"codemend: the cell could not be set up: {type(error).__name__}: {error}\n".encode())
        os._exit(_NOT_SET_UP)
    if job["start"]["kind"] == "exec":
        _execute(job["start"]["argv"], environment)
    os.environ.update(environment)
    _streams()
    if job["start"]["kind"] == "script":
        _script(job["start"]["path"], job["start"]["args"])
    from sandbox_service.guest import reporter  # noqa: PLC0415 - needs pytest, which only the tests' template has

    reporter.main(report, job["start"]["select"])


def _descriptors(fds: dict[str, int]) -> int:
    """Puts the standard streams in place and closes everything else but the report's descriptor.

    Which is returned (3, or -1).
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(fds[name], number)
    keep = -1
    if "report" in fds:
        keep = 3
        if fds["report"] != keep:
            os.dup2(fds["report"], keep, inheritable=False)
    os.closerange(4 if keep == 3 else 3, 1024)  # noqa: PLR2004 - the template has no higher one
    return keep


def _environment() -> dict[str, str]:
    """The cell's own variables: one thread for numeric libraries (a cell has one core).

    No bytecode files, writable places.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    return {
        "PATH": f"{rootfs.BIN}:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": rootfs.HOME,
        "USER": "job",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - inside the cell
        "PYTHONPATH": rootfs.PACKAGES,
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        **threads,
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
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=mode == "w")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _script(path: str, arguments: list[str]) -> NoReturn:
    """Runs one python file as `__main__` and ends the interpreter the way that python does.

    Threads, atexit, finalization, flush.
    """
    full = f"{rootfs.WORK}/{path}"
    sys.argv = [full, *arguments]
    sys.orig_argv = [sys.executable, full, *arguments]
    sys.path.insert(0, os.path.dirname(full))
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=full, __builtins__=builtins)
    sys.modules["__main__"] = module
    status = 0
    try:
        with io.open_code(full) as stream:
            code = compile(stream.read(), full, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - running what a stranger wrote is the purpose; the walls are around this process
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    del module
    ctypes.pythonapi.Py_Exit(ctypes.c_int(status))
    os._exit(status)


def _exit_status(code: object) -> int:
    """What `sys.exit(code)` ends a process with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
