"""What pytest's reports and exceptions become in the frames of a report. Nothing here sends or keeps anything.

Fields are cut here to the sizes that the contract states, so that a test that prints a gigabyte costs the service
nothing.
"""

import linecache
import os
import re
import sys
import types
from typing import Any

import pytest

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue import judge, opaque, rebuilding

MESSAGE_CHARS, TRACEBACK_CHARS, REPR_CHARS, CAPTURED_CHARS, ID_CHARS = 4096, 16384, 1024, 8192, 1024
Compared = tuple[str, dict[str, str]]
"""`file:line` of an assertion, and the sides that it compared."""
_LONGEST_CHAIN = 16
_OWN = (vars(judge), vars(opaque), vars(rebuilding))
_GIVES_UP = re.compile("skip|xfail", re.IGNORECASE)
_NO_PARAMETERS = "got empty parameter set"
"""Of a skip that pytest makes by itself: the code under test may have given the parameters."""
_IMPORT_MACHINERY = re.compile(r"^<frozen importlib\.[^\n]*\n    \?\?\?\n", re.MULTILINE)
"""Lines of a traceback that python leaves out itself, but for modules that are found in ways of one's own."""


def comes_out_of_the_code(error: BaseException) -> bool:
    """Whether a frame of the code under test had a part in an exception, or in one that it was raised for."""
    current: BaseException | None = error
    for _link in range(_LONGEST_CHAIN):
        if current is None:
            return False
        trace = current.__traceback__
        while trace is not None:
            path = trace.tb_frame.f_code.co_filename
            if path.startswith(f"{rootfs.WORK}/") and not _is_own(trace.tb_frame):
                return True
            trace = trace.tb_next
        current = current.__cause__ or current.__context__
    return False


def gives_up_in_tests(error: BaseException) -> bool:
    """Whether a skip, or an expected failure, is the tests' own doing: a mark, or a line that says so."""
    if comes_out_of_the_code(error) or str(error).startswith(_NO_PARAMETERS):
        return False
    line, trace = None, error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if path.startswith(f"{rootfs.TESTS}/"):
            line = linecache.getline(path, trace.tb_lineno)
        trace = trace.tb_next
    return line is None or _GIVES_UP.search(line) is not None


def outcome(report: pytest.TestReport) -> str:
    """The contract's word for one phase of a test."""
    expected_to_fail = hasattr(report, "wasxfail")
    if report.failed:
        return "FAILED" if report.when == "call" else "ERROR"
    if report.skipped:
        return "XFAILED" if expected_to_fail else "SKIPPED"
    return "XPASSED" if expected_to_fail and report.when == "call" else "PASSED"


def reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, or was expected to fail."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def failure(info: pytest.ExceptionInfo[BaseException], text: str, compared: Compared | None) -> dict[str, Any]:
    """A failure as a frame holds it, with the comparison where it is this failure's own."""
    location = ""
    for entry in info.traceback:
        if _is_own(entry.frame.raw):
            continue
        location = _line(str(entry.path), entry.lineno + 1) or location
    if isinstance(info.value, SyntaxError) and info.value.filename:
        location = f"{os.path.basename(info.value.filename)}:{info.value.lineno}"
    return {
        "type": info.typename,
        "message": cut(_text(info.value), MESSAGE_CHARS),
        "location": location,
        "traceback": cut(_IMPORT_MACHINERY.sub("", text), TRACEBACK_CHARS),
        "comparison": compared[1] if compared and compared[0] == location and _is_assertion(info.value) else None,
    }


def _is_own(frame: types.FrameType) -> bool:
    """Whether a frame is of the judge's own modules: they may lie anywhere on the service's machine."""
    return any(frame.f_globals is names for names in _OWN)


def _is_assertion(error: BaseException) -> bool:
    return isinstance(error, AssertionError)


def _line(path: str, number: int) -> str:
    """`file:line` where the file is one of the job's, else ""."""
    for root in (rootfs.WORK, rootfs.TESTS):
        if path.startswith(f"{root}/"):
            return f"{path[len(root) + 1 :]}:{number}"
    return ""


def line_of_caller() -> str:
    """The innermost line of the job's own that is running."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cheap way; traceback.walk_stack is the same
    while frame is not None:
        if line := _line(frame.f_code.co_filename, frame.f_lineno):
            return line
        frame = frame.f_back
    return ""


def plain_failure(message: str) -> dict[str, Any]:
    """A failure of which there is a sentence alone."""
    return {"type": "", "message": cut(message, MESSAGE_CHARS), "location": "", "traceback": "", "comparison": None}


def without_details(message: dict[str, Any]) -> dict[str, Any]:
    """A test's frame without what makes it large."""
    bare = {**message, "stdout": "", "stderr": ""}
    told = message.get("failure")
    if isinstance(told, dict):
        bare["failure"] = plain_failure(told["message"][:256]) | {"type": told["type"]}
    return bare


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<{type(error).__name__} whose text raises {type(broken).__name__}>"


def cut(text: str, limit: int) -> str:
    """The text, at most `limit` characters of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
