"""Runs pytest in a job's process and reports each test over a pipe as it ends, in frames and not in text to parse.

What the frames hold of an exception or a report is made in `outcomes`; what is settled before the run, in `planning`.
"""

import os
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from _pytest._io.saferepr import saferepr

from sandbox_service.guest.analysis import planning
from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue.channel import Channel
from sandbox_service.guest.dialogue.judge import Conversation, Finder
from sandbox_service.guest.exchange.sender import Send, sealed
from sandbox_service.guest.process import coverage, program
from sandbox_service.guest.testing import outcomes
from sandbox_service.guest.testing.canaries import Canary
from sandbox_service.guest.testing.guarding import Guard

_LEFT_OUT = (
    "cacheprovider", "doctest", "faulthandler", "pastebin", "setuponly", "setupplan",
    "stepwise", "terminalprogress", "threadexception", "unraisableexception",
)  # fmt: skip
"""Plugins that only a person at a terminal, or a build server's files, have a use for; each costs start-up time."""
_GIVING_UP = (unittest.SkipTest, pytest.skip.Exception, pytest.xfail.Exception)
_DETAILS_BYTES = 4 * 1024 * 1024
_PASSED_DETAILS_BYTES = 1024 * 1024
"""Once this much was reported, further tests report without traceback and output: a reply could not hold them."""
_NOT_THERE = int(pytest.ExitCode.USAGE_ERROR)
_REFUSED = 3
"""Exit code of a run that is ended before its first test: pytest's for a fault of its own."""

_OPTIONS = [
    "--import-mode=importlib", f"--rootdir={rootfs.TESTS}", f"--confcutdir={rootfs.TESTS}",
    *(part for name in _LEFT_OUT for part in ("-p", f"no:{name}")),
]  # fmt: skip


def session(wait: Callable[[Callable[[], None]], NoReturn]) -> NoReturn:
    """Starts a pytest session and stops in it before anything is collected; each job goes on from there as a fork.

    What a session does until then (plugins, options, fixtures of pytest's own) is the same for every job, and takes
    longer than most jobs' tests. A job whose tests bring a configuration of their own gets a session of its own.

    Args:
        wait: waits for jobs, and raises `program.Become` in each job's process; what it is given is done there before
            the job comes.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    reporter = Reporter(Guard(), wait)
    reporter.close(int(pytest.main([*_OPTIONS, "--capture=no", "-p", "no:terminal", rootfs.TESTS], plugins=[reporter])))


@dataclass(slots=True)
class _Run:
    """One job's run."""

    send: Send
    plan: planning.Plan
    conversation: Conversation | None = None
    measurement: coverage.Measurement | None = None

    def coverage(self) -> Iterable[dict[str, Any]]:
        """Frames of what was measured."""
        if self.measurement is not None:
            return self.measurement.collect()
        return self.conversation.coverage() if self.conversation is not None else ()


class Reporter:
    """The plugin.

    Frames: `expected`, `plan`, `session`, `guard`, `collected`, `collect_error`, `collect_skip`, `begin` and `test` for
    each test, `canary`, `tampered`, `unplain`, `gone`, `coverage`, `end`.
    """

    def __init__(
        self, guard: Guard, wait: Callable[[Callable[[], None]], NoReturn] | None = None, run: _Run | None = None
    ) -> None:
        self._guard, self._wait, self._run = guard, wait, run
        self._comparison: outcomes.Compared | None = None
        self._failures: dict[str, dict[str, Any]] = {}
        self._tests: dict[str, dict[str, Any]] = {}
        self._sent = {True: 0, False: 0}
        self.began = time.monotonic()

    def send(self, **message: object) -> None:
        """Writes one frame."""
        passed = message.get("outcome") == "PASSED"
        if self._sent[passed] > (_PASSED_DETAILS_BYTES if passed else _DETAILS_BYTES):
            message = outcomes.without_details(message)
        if self._run is not None:
            self._sent[passed] += self._run.send(message)

    def close(self, exit_code: int) -> NoReturn:
        """Reports the end and ends the process."""
        run = self._run
        if run is not None and run.conversation is not None:
            self._tell_end_of(run.conversation)
        for frame in run.coverage() if run else ():
            self.send(**frame)
        if run is not None and run.conversation is not None:
            run.conversation.close()
        self._guard.end()
        self.send(kind="end", exit_code=exit_code, duration=time.monotonic() - self.began)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(exit_code)

    def _tell_end_of(self, conversation: Conversation) -> None:
        if conversation.unplain:
            self.send(kind="unplain", reason=conversation.unplain, first=False)
        if conversation.gone:
            self.send(kind="gone", why=conversation.gone)

    def pytest_configure(self, config: pytest.Config) -> None:
        """Short tracebacks: the plugin that has the option for them writes to terminals, and is left out."""
        config.option.tbstyle = "short"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Waits for a job and becomes it; the collection that follows is the job's."""
        if self._wait is not None:
            self._guard.prepare(session)
            try:
                self._wait(self._guard.warm)
            except program.Become as job:
                start, report, channel = job.start, job.report, job.channel
            self._take_up(session, start, report, channel)
        self.send(kind="session", framework=f"pytest {pytest.__version__}")
        if self._run is not None and self._run.conversation is not None:
            planning.keep_code_out()  # the tests' own configuration may have brought it in
        elif self._run is not None:
            self.send(kind="guard", canaries=self._guard.begin(session, self._run.plan, self._run.send))

    def _take_up(self, session: pytest.Session, start: dict[str, Any], report: int, channel: int) -> None:
        self.began = time.monotonic()
        tempfile.tempdir = None
        plan = planning.make(start)
        planning.see_tests(plan.isolation)
        self._run = run = _Run(sealed(report, start.pop("key", "")), plan)
        for frame in plan.frames():
            self.send(**frame)
        if plan.refused:
            self.close(_REFUSED)
        if not all(os.path.exists(f"{rootfs.TESTS}/{node_id.partition('::')[0]}") for node_id in start["select"]):
            self.close(_NOT_THERE)  # pytest would look for a configuration where it was started: beside the candidate
        if plan.isolation == planning.SEPARATE:
            run.conversation = Conversation(Channel(channel), self._give_up)
            run.conversation.covers = start["coverage"]
            sys.meta_path.insert(0, Finder(plan.modules, run.conversation))
        elif start["coverage"]:
            run.measurement = coverage.Measurement(rootfs.WORK)
            run.measurement.start()
        arguments = [f"{rootfs.TESTS}/{node_id}" for node_id in start["select"]] or [rootfs.TESTS]
        if start["own_session"]:
            reporter = Reporter(self._guard, run=run)
            options = [*_OPTIONS, "--capture=fd", "-q", "--color=no", "--no-summary"]
            reporter.close(int(pytest.main([*options, *arguments], plugins=[reporter])))
        session.config.args = arguments
        capture = session.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture._method = "fd"  # noqa: SLF001 - started without capture, since a fork must not share its files
        capture.start_global_capturing()

    def _give_up(self, reason: str) -> NoReturn:
        """The tests hand over what cannot cross, and nothing has been learned from the candidate yet."""
        self.send(kind="unplain", reason=reason, first=True)
        os._exit(_REFUSED)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tells how many tests must report."""
        self.send(kind="collected", count=len(session.items))
        self._guard.place(len(session.items))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Runs the canaries whose turn it is before a test."""
        for canary in self._guard.due():
            self._run_canary(canary)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Runs the canaries that come after the last test."""
        result = yield
        if session.items and not session.config.option.collectonly:
            for canary in self._guard.rest():
                self._run_canary(canary)
        return result

    def _run_canary(self, canary: Canary) -> None:
        """Through the same methods as a test, but for what is sent in the end."""
        node_id = canary.item.nodeid
        self._tests[node_id] = {"outcome": "PASSED", "duration": 0.0, "by_tests": True}
        for report in canary.run():
            self.pytest_runtest_logreport(report)
        self._guard.judge(canary, self._entry(node_id) or {"outcome": "MISSING"})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Looks whether a test is still the one that was written."""
        self._guard.look_at(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tells what could not be collected."""
        failure = self._failures.pop(report.nodeid, None)
        if report.failed and failure is None:
            failure = outcomes.plain_failure(str(report.longrepr))
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
            self._tell_collect_error(collector.nodeid, outcomes.failure(info, str(info.getrepr(style="short")), None))
            raise
        if report.skipped and not self._is_of_the_code(report):
            self.send(kind="collect_skip", path=outcomes.cut(collector.nodeid, outcomes.ID_CHARS))
        call = getattr(report, "call", None)
        error = call.excinfo.value if call is not None and call.excinfo is not None else None
        if error is not None and (report.failed or outcomes.comes_out_of_the_code(error)):
            real = pytest.ExceptionInfo.from_exception(error.__cause__ or error)
            self._failures[report.nodeid] = outcomes.failure(real, report.longreprtext or str(report.longrepr), None)
        return report

    def _is_of_the_code(self, report: pytest.CollectReport) -> bool:
        call = getattr(report, "call", None)
        return call is not None and call.excinfo is not None and outcomes.comes_out_of_the_code(call.excinfo.value)

    def _tell_collect_error(self, node_id: str, failure: dict[str, Any]) -> None:
        self.send(kind="collect_error", path=outcomes.cut(node_id, outcomes.ID_CHARS), failure=failure)

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        """Remembers the two sides of the comparison that is failing just now; leaves the text to pytest."""
        sides = {
            "operator": op,
            "left": saferepr(left, outcomes.REPR_CHARS),
            "right": saferepr(right, outcomes.REPR_CHARS),
        }
        self._comparison = (outcomes.line_of_caller(), sides)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tells which test is running, so that one which never ends has a name."""
        self._comparison = None
        self._tests[nodeid] = {"outcome": "PASSED", "duration": 0.0, "by_tests": True}
        self.send(kind="begin", id=outcomes.cut(nodeid, outcomes.ID_CHARS))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keeps the exception itself, which the finished report no longer has."""
        error = call.excinfo.value if call.excinfo is not None else None  # before pytest makes a skip of its own of it
        report = yield
        test = self._tests.setdefault(item.nodeid, {"outcome": "PASSED", "duration": 0.0})
        if isinstance(error, _GIVING_UP) and not outcomes.gives_up_in_tests(error):
            test["by_tests"] = False
        if report.failed and call.excinfo is not None:
            self._failures.setdefault(
                item.nodeid, outcomes.failure(call.excinfo, report.longreprtext, self._comparison)
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Folds set-up, call (with its subtests) and tear-down into one entry."""
        test = self._tests.setdefault(report.nodeid, {"outcome": "PASSED", "duration": 0.0})
        test["duration"] += report.duration
        outcome = outcomes.outcome(report)
        if outcome != "PASSED" and test["outcome"] in ("PASSED", "XPASSED"):
            test["outcome"] = outcome
        if outcome in ("SKIPPED", "XFAILED") and "failure" not in test:
            test["failure"] = outcomes.plain_failure(outcomes.reason(report))
        if report.when == "teardown":
            test["stdout"], test["stderr"] = (
                report.capstdout[-outcomes.CAPTURED_CHARS :],
                report.capstderr[-outcomes.CAPTURED_CHARS :],
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Sends the test's entry."""
        test = self._entry(nodeid)
        if test is not None:
            self.send(kind="test", id=outcomes.cut(nodeid, outcomes.ID_CHARS), **test)

    def _entry(self, node_id: str) -> dict[str, Any] | None:
        test = self._tests.pop(node_id, None)
        found = self._failures.pop(node_id, None)
        if test is not None and found and test["outcome"] in ("FAILED", "ERROR"):
            test["failure"] = found
        return test
