"""Runs pytest in a job's process and reports each test over a pipe as it ends, in frames and not in text to parse.

Fields are cut here to the sizes that the contract states, so that a test that prints a gigabyte costs the service
nothing.
"""

import os
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import pytest
from _pytest._io.saferepr import saferepr

from sandbox_service.guest import program, rootfs, wire

MESSAGE_CHARS, TRACEBACK_CHARS, REPR_CHARS, CAPTURED_CHARS, ID_CHARS = 4096, 16384, 1024, 8192, 1024
_LEFT_OUT = (
    "cacheprovider", "doctest", "faulthandler", "pastebin", "setuponly", "setupplan",
    "stepwise", "terminalprogress", "threadexception", "unraisableexception",
)  # fmt: skip
"""Plugins that only a person at a terminal, or a build server's files, have a use for; each costs start-up time."""
_GIVING_UP = (unittest.SkipTest, pytest.skip.Exception, pytest.xfail.Exception)
_LONGEST_CHAIN = 16
_DETAILS_BYTES = 4 * 1024 * 1024
_PASSED_DETAILS_BYTES = 1024 * 1024
"""Once this much was reported, further tests report without traceback and output: a reply could not hold them."""


_OPTIONS = [
    "--import-mode=importlib", f"--rootdir={rootfs.TESTS}", f"--confcutdir={rootfs.TESTS}",
    *(part for name in _LEFT_OUT for part in ("-p", f"no:{name}")),
]  # fmt: skip


def session(wait: Callable[[], NoReturn]) -> NoReturn:
    """Starts a pytest session and stops in it before anything is collected; each job goes on from there as a fork.

    What a session does until then (plugins, options, fixtures of pytest's own) is the same for every job, and takes
    longer than most jobs' tests. A job whose tests bring a configuration of their own gets a session of its own.

    Args:
        wait: waits for jobs, and raises `program.Become` in each job's process.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    reporter = Reporter(wait)
    reporter.close(int(pytest.main([*_OPTIONS, "--capture=no", "-p", "no:terminal", rootfs.TESTS], plugins=[reporter])))


Compared = tuple[str, dict[str, str]]
"""`file:line` of an assertion, and the sides that it compared."""


class Reporter:
    """The plugin. Frames: `session`, `collected`, `collect_error`, `begin` and `test` for each test, `end`."""

    def __init__(self, wait: Callable[[], NoReturn] | None = None, descriptor: int = -1) -> None:
        self._wait = wait
        self._descriptor = descriptor
        self._comparison: Compared | None = None
        self._failures: dict[str, dict[str, Any]] = {}
        self._tests: dict[str, dict[str, Any]] = {}
        self._sent = {True: 0, False: 0}
        self.began = time.monotonic()

    def send(self, **message: object) -> None:
        """Writes one frame; blocks while the pipe is full, which costs the job's own wall time."""
        passed = message.get("outcome") == "PASSED"
        if self._sent[passed] > (_PASSED_DETAILS_BYTES if passed else _DETAILS_BYTES):
            message = _without_details(message)
        data = memoryview(wire.frame(message))
        self._sent[passed] += len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self, exit_code: int) -> NoReturn:
        """Reports the end and ends the process."""
        self.send(kind="end", exit_code=exit_code, duration=time.monotonic() - self.began)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(exit_code)

    def pytest_configure(self, config: pytest.Config) -> None:
        """Short tracebacks: the plugin that has the option for them writes to terminals, and is left out."""
        config.option.tbstyle = "short"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Waits for a job and becomes it; the collection that follows is the job's."""
        if self._wait is not None:
            try:
                self._wait()
            except program.Become as job:
                start, self._descriptor = job.start, job.report
            self._take_up(session.config, start["select"], own_session=start["own_session"])
        self.send(kind="session", framework=f"pytest {pytest.__version__}")

    def _take_up(self, config: pytest.Config, select: list[str], *, own_session: bool) -> None:
        self.began = time.monotonic()
        tempfile.tempdir = None
        sys.path[:0] = [rootfs.TESTS, rootfs.WORK]
        arguments = [f"{rootfs.TESTS}/{node_id}" for node_id in select] or [rootfs.TESTS]
        if own_session:
            reporter = Reporter(descriptor=self._descriptor)
            options = [*_OPTIONS, "--capture=fd", "-q", "--color=no", "--no-summary"]
            reporter.close(int(pytest.main([*options, *arguments], plugins=[reporter])))
        config.args = arguments
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture._method = "fd"  # noqa: SLF001 - started without capture, since a fork must not share its files
        capture.start_global_capturing()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tells how many tests must report."""
        self.send(kind="collected", count=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tells what could not be collected."""
        failure = self._failures.pop(report.nodeid, None)
        if report.failed and failure is None:
            failure = _plain_failure(str(report.longrepr))
        if failure is not None:
            self._tell_collect_error(report.nodeid, failure)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Keeps the exception itself, which the finished report no longer has; tells of one that ends the session."""
        try:
            report = yield
        except BaseException as ending:
            info = pytest.ExceptionInfo.from_exception(ending)
            self._tell_collect_error(collector.nodeid, _failure(info, str(info.getrepr(style="short")), None))
            raise
        call = getattr(report, "call", None)
        error = call.excinfo.value if call is not None and call.excinfo is not None else None
        if error is not None and (report.failed or _comes_out_of_the_code(error)):
            real = pytest.ExceptionInfo.from_exception(error.__cause__ or error)
            self._failures[report.nodeid] = _failure(real, report.longreprtext or str(report.longrepr), None)
        return report

    def _tell_collect_error(self, node_id: str, failure: dict[str, Any]) -> None:
        self.send(kind="collect_error", path=_cut(node_id, ID_CHARS), failure=failure)

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        """Remembers the two sides of the comparison that is failing just now; leaves the text to pytest."""
        sides = {"operator": op, "left": saferepr(left, REPR_CHARS), "right": saferepr(right, REPR_CHARS)}
        self._comparison = (_line_of_caller(), sides)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tells which test is running, so that one which never ends has a name."""
        self._comparison = None
        self._tests[nodeid] = {"outcome": "PASSED", "duration": 0.0, "by_tests": True}
        self.send(kind="begin", id=_cut(nodeid, ID_CHARS))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keeps the exception itself, which the finished report no longer has."""
        error = call.excinfo.value if call.excinfo is not None else None  # before pytest makes a skip of its own of it
        report = yield
        test = self._tests.setdefault(item.nodeid, {"outcome": "PASSED", "duration": 0.0})
        if isinstance(error, _GIVING_UP) and _comes_out_of_the_code(error):
            test["by_tests"] = False
        if report.failed and call.excinfo is not None:
            self._failures.setdefault(item.nodeid, _failure(call.excinfo, report.longreprtext, self._comparison))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Folds set-up, call (with its subtests) and tear-down into one entry."""
        test = self._tests.setdefault(report.nodeid, {"outcome": "PASSED", "duration": 0.0})
        test["duration"] += report.duration
        outcome = _outcome(report)
        if outcome != "PASSED" and test["outcome"] in ("PASSED", "XPASSED"):
            test["outcome"] = outcome
        if outcome in ("SKIPPED", "XFAILED") and "failure" not in test:
            test["failure"] = _plain_failure(_reason(report))
        if report.when == "teardown":
            test["stdout"], test["stderr"] = report.capstdout[-CAPTURED_CHARS:], report.capstderr[-CAPTURED_CHARS:]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Sends the test's entry."""
        test = self._tests.pop(nodeid, None)
        failure = self._failures.pop(nodeid, None)
        if test is not None:
            if failure and test["outcome"] in ("FAILED", "ERROR"):
                test["failure"] = failure
            self.send(kind="test", id=_cut(nodeid, ID_CHARS), **test)


def _comes_out_of_the_code(error: BaseException) -> bool:
    """Whether a frame of the code under test had a part in an exception, or in one that it was raised for."""
    current: BaseException | None = error
    for _link in range(_LONGEST_CHAIN):
        if current is None:
            return False
        trace = current.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.startswith(f"{rootfs.WORK}/"):
                return True
            trace = trace.tb_next
        current = current.__cause__ or current.__context__
    return False


def _outcome(report: pytest.TestReport) -> str:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        return "FAILED" if report.when == "call" else "ERROR"
    if report.skipped:
        return "XFAILED" if expected_to_fail else "SKIPPED"
    return "XPASSED" if expected_to_fail and report.when == "call" else "PASSED"


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _failure(info: pytest.ExceptionInfo[BaseException], text: str, compared: Compared | None) -> dict[str, Any]:
    location = ""
    for entry in info.traceback:
        location = _line(str(entry.path), entry.lineno + 1) or location
    if isinstance(info.value, SyntaxError) and info.value.filename:
        location = f"{os.path.basename(info.value.filename)}:{info.value.lineno}"
    return {
        "type": info.typename,
        "message": _cut(_text(info.value), MESSAGE_CHARS),
        "location": location,
        "traceback": _cut(text, TRACEBACK_CHARS),
        "comparison": compared[1] if compared and compared[0] == location and _is_assertion(info.value) else None,
    }


def _is_assertion(error: BaseException) -> bool:
    return isinstance(error, AssertionError)


def _line(path: str, number: int) -> str:
    """`file:line` where the file is one of the job's, else ""."""
    for root in (rootfs.WORK, rootfs.TESTS):
        if path.startswith(f"{root}/"):
            return f"{path[len(root) + 1 :]}:{number}"
    return ""


def _line_of_caller() -> str:
    """The innermost line of the job's own that is running."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cheap way; traceback.walk_stack is the same
    while frame is not None:
        if line := _line(frame.f_code.co_filename, frame.f_lineno):
            return line
        frame = frame.f_back
    return ""


def _plain_failure(message: str) -> dict[str, Any]:
    return {"type": "", "message": _cut(message, MESSAGE_CHARS), "location": "", "traceback": "", "comparison": None}


def _without_details(message: dict[str, object]) -> dict[str, object]:
    bare = {**message, "stdout": "", "stderr": ""}
    failure = message.get("failure")
    if isinstance(failure, dict):
        bare["failure"] = _plain_failure(failure["message"][:256]) | {"type": failure["type"]}
    return bare


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<{type(error).__name__} whose text raises {type(broken).__name__}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
