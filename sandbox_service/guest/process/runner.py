"""Runs the test files of another language one after the other, each in a process of its own, and reports for them.

The language brings a command that runs one file and reports its tests in frames over descriptor 3, each with the key
that it reads from descriptor 4. What goes on to the service comes from here: whether a file's process ended by itself,
and whether it said so, is seen from outside of it; and no process of a test has the descriptor of the service's report.
"""

import contextlib
import fcntl
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sandbox_service.guest.confinement import rootfs, syscalls
from sandbox_service.guest.exchange import wire

_REPORT, _KEY = 3, 4
_KEY_BYTES = 16
_READ_BYTES = 64 * 1024
_ID_CHARS, _PATH_CHARS, _WHAT_CHARS = 1024, 1024, 512
_DETAILS_BYTES = 4 * 1024 * 1024
"""Once this much was reported, further tests report without traceback and output: a reply could not hold them."""
_FAILED = ("FAILED", "ERROR", "XPASSED", "UNFINISHED")
_NOT_THERE = 4
"""Exit code where a test was asked for that no file has, as pytest has it."""
_TEST_FIELDS = ("outcome", "duration", "failure", "stdout", "stderr")


@dataclass(slots=True)
class _File:
    """What was seen of one test file.

    Attributes:
        path: relative to the tests.
        key: what its frames must carry.
        failed: whether one of its tests did, and was asked for.
        any_failed: whether one of its tests did.
        done: the last frame of a process that came to its end: how many tests it reported, and what it found patched.
        left: the last frame of a process that called for its own end before that: names of tests that did not report.
        uncaught: the last exception that nothing caught; a test may answer for it.
        broken: what was wrong with its frames.
        reported: number of its frames of kind "test".
        running: names of tests that began and did not report.
    """

    path: str
    key: str
    failed: bool = False
    any_failed: bool = False
    done: dict[str, Any] | None = None
    left: dict[str, Any] | None = None
    uncaught: dict[str, Any] | None = None
    broken: str = ""
    reported: int = 0
    running: dict[str, None] = field(default_factory=dict)


def run(start: dict[str, Any], environment: dict[str, str], report: int) -> NoReturn:
    """Runs the files, reports, and ends this process as the tests ended.

    Args:
        start: `argv` (the command, without the file), `test_files`, `select`, and `reason`: why the code under test
            runs in the tests' own processes.
        environment: variables of the command.
        report: descriptor of the report to the service.
    """
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # the tests' processes have the same user: they cannot look in here
    runner = _Runner(start, environment, report)
    runner.tell_plan(start["reason"])
    for path in start["test_files"]:
        status = runner.run_file(path)
        if os.WIFSIGNALED(status):
            _end_by(os.WTERMSIG(status))
    os._exit(runner.finish())


def _end_by(number: int) -> NoReturn:
    """Ends this process by the signal that ended a test's: the job ends as its tests did."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


class _Runner:
    """Sends the frames that `cells.report` reads."""

    def __init__(self, start: dict[str, Any], environment: dict[str, str], report: int) -> None:
        self._argv: list[str] = start["argv"]
        self._environment = environment
        self._report = report
        self._wanted: dict[str, bool] = dict.fromkeys(start["select"], False)
        self._began = time.monotonic()
        self._sent = 0
        self._expected = 0
        self._framework = ""
        self._failed = False
        self._wake = _wake_at_child_s_end()

    def tell_plan(self, reason: str) -> None:
        """Says how the tests run. Which there are is known when they have: this side does not read the language."""
        self._send(
            kind="plan",
            isolation="SHARED",
            reason=reason,
            refused="",
            open="tests get their names when they run",
            read_only=not os.access(rootfs.TESTS, os.W_OK),
        )

    def run_file(self, path: str) -> int:
        """Runs one file to its end and reports it. Returns the wait status of its process."""
        if self._wanted and not any(node_id.partition("::")[0] == path for node_id in self._wanted):
            return 0
        if path in self._wanted:
            self._wanted[path] = True
        file = _File(path, os.urandom(_KEY_BYTES).hex())
        ours, theirs = os.pipe()
        key, key_in = os.pipe()
        os.write(key_in, file.key.encode())
        os.close(key_in)
        pid = os.fork()
        if pid == 0:
            self._execute(path, theirs, key)
        os.close(theirs)
        os.close(key)
        status = self._follow(file, pid, ours)
        os.close(ours)
        if not os.WIFSIGNALED(status):
            self._conclude(file, os.WEXITSTATUS(status))
        return status

    def finish(self) -> int:
        """Reports the end. Returns the exit code."""
        self._send(kind="collected", count=self._expected)
        code = 1 if self._failed else 0
        if not all(self._wanted.values()):
            code = _NOT_THERE
        self._send(kind="end", exit_code=code, duration=time.monotonic() - self._began)
        return code

    def _execute(self, path: str, report: int, key: int) -> NoReturn:
        try:
            key = fcntl.fcntl(key, fcntl.F_DUPFD, 16)
            report = fcntl.fcntl(report, fcntl.F_DUPFD, 16)
            os.dup2(report, _REPORT)
            os.dup2(key, _KEY)
            os.closerange(_KEY + 1, 256)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execve(self._argv[0], [*self._argv, f"{rootfs.TESTS}/{path}"], self._environment)  # noqa: S606 - no shell
        except OSError as error:
            os.write(2, f"codemend: {self._argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127)

    def _follow(self, file: _File, pid: int, pipe: int) -> int:
        """Takes frames until the process is gone, whoever else holds its end of the pipe. Returns its wait status."""
        reader = wire.FrameReader()
        os.set_blocking(pipe, False)
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            woken = self._wake in [number for number, _event in poller.poll()]
            if woken:
                os.read(self._wake, _READ_BYTES)
            gone, status = os.waitpid(pid, os.WNOHANG)
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(pipe, _READ_BYTES):
                    self._feed(file, reader, chunk)
                if not gone and not woken:
                    poller.unregister(pipe)  # its last holder closed it
            if gone:
                return status

    def _feed(self, file: _File, reader: wire.FrameReader, chunk: bytes) -> None:
        if file.broken:
            return
        try:
            for message in reader.feed(chunk):
                self._take(file, message)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            file.broken = f"{type(error).__name__}: {error}"[:256]

    def _take(self, file: _File, message: dict[str, Any]) -> None:
        if message.pop("key", "") != file.key:
            raise ValueError("a frame without its key")
        match message["kind"]:
            case "session" if not self._framework:
                self._framework = message["framework"]
                self._send(kind="session", framework=self._framework)
            case "session":
                pass
            case "begin":
                self._begin(file, message["id"])
            case "test":
                self._test(file, message)
            case "done":
                file.done = message
            case "left":
                file.left = message
            case "uncaught":
                file.uncaught = message["failure"]
            case other:
                raise ValueError(f"unknown frame {other!r}"[:64])

    def _begin(self, file: _File, name: str) -> None:
        node_id = _node_id(file.path, name)
        if self._is_wanted(node_id):
            file.running[name] = None
            self._send(kind="begin", id=node_id)

    def _test(self, file: _File, message: dict[str, Any]) -> None:
        file.reported += 1
        file.any_failed = file.any_failed or message["outcome"] in _FAILED
        file.running.pop(message["id"], None)
        node_id = _node_id(file.path, message["id"])
        if not self._is_wanted(node_id):
            return
        self._expected += 1
        file.failed = file.failed or message["outcome"] in _FAILED
        fields = {name: message[name] for name in _TEST_FIELDS if name in message}
        self._send(kind="test", id=node_id, **fields, by_tests=True)

    def _is_wanted(self, node_id: str) -> bool:
        """Whether a test was asked for, by itself, by what it lies in or by its file."""
        if not self._wanted:
            return True
        found = False
        for wanted in self._wanted:
            if node_id == wanted or node_id.startswith((f"{wanted} > ", f"{wanted}::")):
                self._wanted[wanted] = found = True
        return found

    def _conclude(self, file: _File, code: int) -> None:
        """Says what became of a file whose process has ended by itself."""
        if file.broken:
            self._tell_tampering(file, f"something else than the reporter wrote to it ({file.broken})")
        elif file.done is not None and file.done["patched"]:
            names = ", ".join(map(str, file.done["patched"]))
            self._tell_tampering(file, f"what the test runner itself uses was replaced: {names}")
        elif file.done is not None and file.done["reported"] == file.reported:
            if code != 0 and not file.any_failed:
                failure = file.uncaught or _failure(f"its process ended with exit code {code} although no test failed")
                self._tell_error(file, failure)
        elif code != 0 and file.left is None and file.uncaught is not None:
            self._tell_error(file, file.uncaught)
        else:
            self._tell_early_end(file, code)
        self._failed = self._failed or file.failed

    def _tell_early_end(self, file: _File, code: int) -> None:
        """The tests that were still to report are unfinished; there is one at least, though its name is not known."""
        missing = dict(file.running)
        if file.left is not None:
            missing |= dict.fromkeys(map(str, file.left["missing"]))
        failure = _failure(f"the process of the tests ended before they had reported (exit code {code})")
        for name in missing or [""]:
            self._expected += 1
            node_id = _node_id(file.path, name) if name else file.path
            self._send(kind="expected", ids=[node_id])
            self._send(kind="test", id=node_id, outcome="UNFINISHED", duration=0.0, failure=failure)
        file.failed = True

    def _tell_tampering(self, file: _File, what: str) -> None:
        self._send(kind="tampered", what=f"{file.path}: {what}"[:_WHAT_CHARS])
        file.failed = True

    def _tell_error(self, file: _File, failure: dict[str, Any]) -> None:
        self._send(kind="collect_error", path=file.path[:_PATH_CHARS], failure=failure)
        file.failed = True

    def _send(self, **message: object) -> None:
        if message["kind"] == "test" and self._sent > _DETAILS_BYTES:
            message = _without_details(message)
        data = memoryview(wire.frame(message))
        self._sent += len(data)
        while data:
            data = data[os.write(self._report, data) :]


def _wake_at_child_s_end() -> int:
    """A descriptor that can be read from when a child has ended; not every kernel gives one for the child itself."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _node_id(path: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError("a test's name is no text")
    node_id = f"{path}::{name}"
    return node_id if len(node_id) <= _ID_CHARS else node_id[: _ID_CHARS - 1] + "…"


def _failure(message: str) -> dict[str, Any]:
    return {"type": "", "message": message, "location": "", "traceback": "", "comparison": None}


def _without_details(message: dict[str, object]) -> dict[str, object]:
    bare = {**message, "stdout": "", "stderr": ""}
    failure = message.get("failure")
    if isinstance(failure, dict):
        bare["failure"] = _failure(str(failure.get("message"))[:256]) | {"type": failure.get("type")}
    return bare
