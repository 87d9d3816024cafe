"""A check script as a job of the sandbox, and what its end proves.

The check is run by a small program beside it (`check_driver`), which prints a token once the check has come to its own
end; an exit code of 0 without it is a failure.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as resources

from orchestrator.workflows.artifacts import overlay
from orchestrator.workflows.sandbox import Execution, ExecutionStatus, File, Output, ProgramJob
from orchestrator.workflows.spec import RunOptions

CHECK_PATH = "codemend_check.py"  # beside the solution; a file of this name among the candidate's gives way
DRIVER_PATH = "codemend_check_driver.py"  # likewise
_TOKEN_BYTES = 16
_NO_PROOF = "the program ended with exit code 0 before the check came to its end"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of a check: the job, and the token that only its proper end prints."""

    job: ProgramJob
    token: str

    def judged(self, execution: Execution) -> Execution:
        """The execution without the token; as failed where it ended well and the token is not its last line."""
        stdout, proven = _without(execution.stdout, f"\n{self.token}\n".encode())
        if proven:
            return replace(execution, stdout=stdout)
        if execution.status is ExecutionStatus.SUCCEEDED:
            return replace(execution, status=ExecutionStatus.FAILED, reason=_NO_PROOF)
        return execution


def check_run(files: Iterable[File], script: str, options: RunOptions) -> CheckRun:
    """The job that checks these files, with a token of its own."""
    ours = [File(CHECK_PATH, script.encode("utf-8", "replace")), File(DRIVER_PATH, _driver())]
    token = secrets.token_hex(_TOKEN_BYTES)
    return CheckRun(
        ProgramJob(overlay(files, ours), DRIVER_PATH, options.environment, options.limits, args=(CHECK_PATH, token)),
        token,
    )


@cache
def _driver() -> bytes:
    return resources("orchestrator.workflows").joinpath("check_driver.py").read_bytes()


def _without(stdout: Output, mark: bytes) -> tuple[Output, bool]:
    """The stream without the mark at its very end, and whether it was there."""
    end = stdout.tail if stdout.dropped_bytes else stdout.head + stdout.tail
    if not end.endswith(mark):
        return stdout, False
    left = end[: -len(mark)]
    return replace(stdout, tail=left) if stdout.dropped_bytes else Output(left), True
