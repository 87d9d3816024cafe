"""Checks a task set without a model: every reference must pass its tests, and every buggy version must not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import client, wording
from orchestrator.cli.eval_loop import as_files
from orchestrator.cli.eval_tasks import Task
from orchestrator.cli.pool import in_parallel
from orchestrator.cli.test import run_tests


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the sandbox says about one version of one task.

    Attributes:
        outcome: of the report, such as "PASSED" or "TIMED_OUT".
        lines: what failed, for a person.
    """

    id: str
    outcome: str
    lines: list[str]

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.outcome == "PASSED"


async def check_versions(
    address: str, tasks: Sequence[Task], on_verdict: Callable[[Verdict], None], *, buggy: bool, concurrency: int | None
) -> None:
    """Tests the reference (or the buggy version) of each task, laid over its files.

    Args:
        address: of the sandbox service.
        tasks: what is checked.
        on_verdict: told of each verdict as it comes.
        buggy: take the buggy versions.
        concurrency: tasks at one time; None: as many as the sandbox runs.

    Raises:
        CliError: the sandbox refuses a task or cannot be reached.
    """
    async with client.sandbox_stub(address) as stub:

        async def check(task: Task) -> None:
            on_verdict(await _verdict(stub, task, task.buggy if buggy else task.reference))

        await in_parallel(tasks, check, at_once=concurrency or await _concurrency(stub))


async def _verdict(stub: client.SandboxStub, task: Task, version: dict[str, str]) -> Verdict:
    request = sandbox_pb2.RunTestsRequest(files=as_files({**task.files, **version}), tests=as_files(task.tests))
    report = (await run_tests(stub, request)).report
    lines = [report.reason, *wording.failures(report)] if report.reason else list(wording.failures(report))
    return Verdict(task.id, wording.report_outcome(report.outcome), lines)


async def _concurrency(stub: client.SandboxStub) -> int:
    seconds = client.CALL_TIMEOUT.total_seconds()
    offered = await client.patiently(
        client.SANDBOX_SERVICE, lambda: stub.GetCapabilities(sandbox_pb2.GetCapabilitiesRequest(), timeout=seconds)
    )
    return max(1, offered.concurrency)
