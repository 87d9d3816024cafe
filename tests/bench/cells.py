"""codemend's own contestants: real services on loopback, asked through gRPC with default limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from bench.bare import NotHereError
from bench.jobs import CODE, FILES, SCRIPT, TESTS, check
from bench.measure import Call, Contestant
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2 as sessions_pb
from codemend.sandbox.v1 import verdicts_pb2 as verdicts_pb
from support.jobs import Sandbox, client, files
from support.sandbox import sandbox_process

PROCESS, SEPARATE, IN_SESSION = (
    "codemend, process cell",
    "codemend, process cell, SEPARATE",
    "codemend, process session",
)
DOCKER, DOCKER_SESSION = "codemend, docker cell", "codemend, docker session"
_SHARED = verdicts_pb.TEST_ISOLATION_SHARED
_SEPARATE = verdicts_pb.TEST_ISOLATION_SEPARATE
_CALL_SECONDS = 60.0


@contextlib.asynccontextmanager
async def process_cells() -> AsyncIterator[tuple[list[Contestant], list[str]]]:
    """Scripts and tests in fresh process cells, tests with the code in a process of its own, and both in sessions.

    Gives the protections that are in force too.

    Raises:
        NotHereError: the service does not start.
    """
    async with _service() as sandbox, _sessions(sandbox, 16) as in_session:
        walls = "namespaces, seccomp, limits, …; fresh for each job"
        fresh = {SCRIPT: lambda: _script(sandbox), TESTS: lambda: _tests(sandbox, _SHARED)}
        kept = {SCRIPT: in_session(_script), TESTS: in_session(_tests_in_session)}
        yield (
            [
                Contestant(PROCESS, walls, fresh),
                Contestant(
                    SEPARATE, f"{walls}; the code apart from its tests", {TESTS: lambda: _tests(sandbox, _SEPARATE)}
                ),
                Contestant(IN_SESSION, f"{walls}; the files are kept", kept),
            ],
            sorted(await sandbox.in_force()),
        )


@contextlib.asynccontextmanager
async def docker_cells(reuse: str) -> AsyncIterator[Contestant]:
    """Scripts and tests in docker cells with gVisor, by one of the service's policies of reuse.

    Raises:
        NotHereError: the service does not start.
    """
    variables = {"SANDBOX_CELL": "docker", "SANDBOX_DOCKER_RUNTIME": "runsc", "SANDBOX_DOCKER_REUSE": reuse}
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(_service(**variables))
        if reuse == "session":
            in_session = await stack.enter_async_context(_sessions(sandbox, 16))
            calls = {SCRIPT: in_session(_script), TESTS: in_session(_tests_in_session)}
            yield Contestant(DOCKER_SESSION, "gVisor; a container for each session", calls)
        else:
            fresh = {SCRIPT: lambda: _script(sandbox), TESTS: lambda: _tests(sandbox, _SHARED)}
            yield Contestant(DOCKER, "gVisor; a container for each job", fresh)


@contextlib.asynccontextmanager
async def _service(**variables: str) -> AsyncIterator[Sandbox]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            service = await stack.enter_async_context(sandbox_process(**variables))
        except AssertionError as error:
            raise NotHereError(f"the service does not start: {str(error)[-300:]}") from None
        yield await stack.enter_async_context(client(service.address, service.process.pid))


@contextlib.asynccontextmanager
async def _sessions(
    sandbox: Sandbox, count: int
) -> AsyncIterator[Callable[[Callable[[Sandbox, str], Awaitable[None]]], Call]]:
    """A job in whichever session is free: each runs one job at a time."""
    free: asyncio.LifoQueue[str] = asyncio.LifoQueue()
    for _ in range(count):
        made = await sandbox.stub.CreateSession(sessions_pb.CreateSessionRequest(), timeout=_CALL_SECONDS)
        free.put_nowait(made.session.id)

    def in_session(job: Callable[[Sandbox, str], Awaitable[None]]) -> Call:
        async def call() -> None:
            session = await free.get()
            try:
                await job(sandbox, session)
            finally:
                free.put_nowait(session)

        return call

    yield in_session


async def _script(sandbox: Sandbox, session: str = "") -> None:
    program = pb.Program(files=files({"main.py": CODE}), entry="main.py")
    reply = await sandbox.stub.Execute(pb.ExecuteRequest(program=program, session=session), timeout=_CALL_SECONDS)
    result = reply.result
    check(SCRIPT, result.exit_code, result.stdout.head.decode(), f"{result.reason} {result.stderr.head.decode()}")


async def _tests_in_session(sandbox: Sandbox, session: str) -> None:
    await _tests(sandbox, _SHARED, session)


async def _tests(sandbox: Sandbox, isolation: int, session: str = "") -> None:
    request = pb.RunTestsRequest(
        files=files({"solution.py": FILES["solution.py"]}),
        tests=files({"test_solution.py": FILES["test_solution.py"]}),
        isolation=isolation,
        session=session,
    )
    report = (await sandbox.stub.RunTests(request, timeout=_CALL_SECONDS)).report
    if report.integrity.isolation != isolation:
        raise RuntimeError(f"the tests ran with another isolation: {report.integrity.reason}")
    passed = report.outcome == pb.REPORT_OUTCOME_PASSED
    check(TESTS, 0 if passed else 1, f"{report.counts.passed} passed", report.reason)
