"""The servicer of RegressionService: reads a request, asks the parts that keep and run cases, writes the reply."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
from codemend.orchestrator.v1 import regression_pb2 as pb
from codemend.orchestrator.v1 import regression_pb2_grpc as pb_grpc
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.api.case_lines import MAXIMUM_CHUNK_BYTES, cut, read_row, reread
from orchestrator.api.checks import Checker, check_offered
from orchestrator.api.overrides import laid_over
from orchestrator.api.regression_messages import OUTCOMES, case_message, result_message
from orchestrator.api.run_service import tenant_of
from orchestrator.api.sandbox_messages import duration
from orchestrator.api.validation import MAXIMUM_ATTEMPTS, MAXIMUM_PAGE, TENANT_KEY, USUAL_PAGE
from orchestrator.errors import CaseNameTaken, InvalidRun, WrongState
from orchestrator.models import ModelSpec
from orchestrator.runs.assembly import RunParts
from orchestrator.runs.cases import CaseMaker, CaseResult, LivePlayer, ReplayPlayer, in_turn, line_of, wrong_name
from orchestrator.runs.store import CaseRow, CaseRows
from orchestrator.workflows import Outcome, RunOptions, RunSpec
from orchestrator.workflows.sandbox import Capabilities

Context = grpc.aio.ServicerContext[Any, Any]

MAXIMUM_CONCURRENCY = 64
USUAL_CONCURRENCY = 4
PIECE_BYTES = 1024 * 1024
_REPLAYS = 2  # one at work, and one that is read meanwhile: those that wait would only take room


class RegressionServicer(pb_grpc.RegressionServiceServicer):
    """The contract's RegressionService over the parts that serve runs.

    Args:
        parts: what serves runs.
        model: how the model is called that runs are made with.
        offered: tells what the sandbox offers; None where that is not known.
    """

    def __init__(
        self, parts: RunParts, model: ModelSpec, offered: Callable[[], Awaitable[Capabilities | None]]
    ) -> None:
        self._offered = offered
        self._cases = parts.cases
        self._manager = parts.manager
        self._maker = CaseMaker(parts, model)
        self._replacer = CaseMaker(replace(parts, cases=CaseRows(parts.database, replaces=True)), model)
        self._replayed = ReplayPlayer()
        # Parsing a long line would hold the event loop up, and of several at one time each might take a gigabyte.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codemend-imports")

    async def CreateCase(  # noqa: N802 - the contract's name
        self,
        request: pb.CreateCaseRequest,
        context: Context,
    ) -> pb.CreateCaseResponse:
        """Makes a case of a run."""
        check = Checker()
        tenant = check.tenant(TENANT_KEY, tenant_of(context))
        check.id("run_id", request.run_id)
        if fault := wrong_name(request.name):
            check.add("name", fault)
        expected = OUTCOMES.get(request.expected_outcome)
        if request.expected_outcome and expected in {None, Outcome.CANCELLED}:
            check.add("expected_outcome", f"{request.expected_outcome} is no outcome that a run comes to by itself")
        check.raise_if_any()
        maker = self._replacer if request.replace else self._maker
        try:
            row = await maker.make(tenant, request.run_id, request.name, expected)
        except InvalidRun as error:
            raise WrongState(f"{request.run_id} is too large for a case: {error}") from error
        return pb.CreateCaseResponse(case=case_message(row))

    async def ListCases(  # noqa: N802
        self,
        request: pb.ListCasesRequest,
        context: Context,
    ) -> pb.ListCasesResponse:
        """Cases in order of name."""
        check = Checker()
        tenant = check.tenant(TENANT_KEY, tenant_of(context))
        size = check.number("page_size", request.page_size, least=0, most=MAXIMUM_PAGE) or USUAL_PAGE
        if wrong_name(request.page_token):
            check.add("page_token", "is not the token of a page")
        check.raise_if_any()
        rows = await self._cases.list(tenant, request.page_token, size + 1)
        token = rows[size - 1].name if len(rows) > size else ""
        return pb.ListCasesResponse(cases=[case_message(row) for row in rows[:size]], next_page_token=token)

    async def DeleteCase(  # noqa: N802
        self,
        request: pb.DeleteCaseRequest,
        context: Context,
    ) -> pb.DeleteCaseResponse:
        """Deletes a case."""
        check = Checker()
        tenant = check.tenant(TENANT_KEY, tenant_of(context))
        check.id("case_id", request.case_id)
        check.raise_if_any()
        await self._cases.delete(tenant, request.case_id)
        return pb.DeleteCaseResponse()

    async def ExportCases(  # noqa: N802
        self,
        request: pb.ExportCasesRequest,
        context: Context,
    ) -> AsyncIterator[pb.ExportCasesResponse]:
        """Cases as lines of JSON."""
        check = Checker()
        tenant = check.tenant(TENANT_KEY, tenant_of(context))
        _check_ids(request.case_ids, check)
        check.raise_if_any()
        for case_id in await self._chosen(tenant, request.case_ids):
            row = await self._cases.get(tenant, case_id)
            line = line_of(row.name, row.body)
            for start in range(0, len(line), PIECE_BYTES):
                yield pb.ExportCasesResponse(json_lines=line[start : start + PIECE_BYTES])

    async def ImportCases(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.ImportCasesRequest],
        context: Context,
    ) -> pb.ImportCasesResponse:
        """Adds cases from lines of JSON, all or none."""
        tenant = _tenant(context)
        rows: dict[str, CaseRow] = {}
        loop = asyncio.get_running_loop()
        async for at, raw in cut(_chunks(request_iterator), "json_lines"):
            row = await loop.run_in_executor(self._reader, read_row, at, raw, tenant)
            known = rows.setdefault(row.name, row)
            if known.digest != row.digest:
                raise CaseNameTaken(f"{at}: a line before it has another case of the name {row.name!r}")
        added = await self._cases.add(list(rows.values()))
        return pb.ImportCasesResponse(cases=[case_message(row) for row in added])

    async def RunSuite(  # noqa: N802
        self,
        request: pb.RunSuiteRequest,
        context: Context,
    ) -> AsyncIterator[pb.RunSuiteResponse]:
        """Runs cases; whoever leaves ends those at work."""
        check = Checker()
        tenant = check.tenant(TENANT_KEY, tenant_of(context))
        many = check.number("concurrency", request.concurrency, least=0, most=MAXIMUM_CONCURRENCY) or USUAL_CONCURRENCY
        if request.mode not in pb.SuiteMode.values():
            check.add("mode", f"{request.mode} is no mode")
        _check_ids(request.case_ids, check)
        check_options(request.options, check)
        check.raise_if_any()
        started = time.monotonic()
        chosen = await self._chosen(tenant, request.case_ids)
        if request.mode != pb.SUITE_MODE_LIVE:
            many = min(many, _REPLAYS)
        work = self._work(tenant, request)
        total = passed = 0
        async with aclosing(in_turn(chosen, work, many)) as results:
            async for result in results:
                total, passed = total + 1, passed + result.passed
                yield pb.RunSuiteResponse(case_result=result_message(result))
        took = duration(timedelta(seconds=time.monotonic() - started))
        report = pb.SuiteReport(total=total, passed=passed, flipped=total - passed, duration=took)
        yield pb.RunSuiteResponse(report=report)

    def _work(self, tenant: str, request: pb.RunSuiteRequest) -> Callable[[str], Awaitable[CaseResult]]:
        is_live = request.mode == pb.SUITE_MODE_LIVE
        play = LivePlayer(self._manager, f"suite_{secrets.token_hex(8)}", self._check) if is_live else self._replayed

        async def work(case_id: str) -> CaseResult:
            row = await self._cases.get(tenant, case_id)
            return await play(row, lambda options: changed(options, request.options))

        return work

    async def _check(self, spec: RunSpec) -> None:
        """Refuses what CreateRun would refuse: a case may be older than today's limits, or made elsewhere."""
        reread(spec)
        if (offered := await self._offered()) is not None:
            check_offered(spec, offered)

    async def _chosen(self, tenant: str, wanted: Sequence[str]) -> Sequence[str]:
        """Ids of the cases named, or of all. Raises CaseNotFound before anything is done."""
        if wanted:
            found = [(await self._cases.get(tenant, case_id)).case_id for case_id in dict.fromkeys(wanted)]
            return list(dict.fromkeys(found))
        ids: list[str] = []
        after = ""
        while rows := await self._cases.list(tenant, after, MAXIMUM_PAGE):
            ids += [row.case_id for row in rows]
            after = rows[-1].name
        return ids


def check_options(message: runs_pb2.RunOptions, check: Checker) -> None:
    """Options of a suite; `check` takes what is wrong with them."""
    if message.interrupt_before or message.interrupt_after:
        check.add("options", "must have no breakpoints: nobody would go on with the runs")
    laid_over(RunOptions(max_attempts=MAXIMUM_ATTEMPTS), "options", message, check)  # each case has its own


def changed(options: RunOptions, message: runs_pb2.RunOptions) -> RunOptions:
    """A case's options with those of the suite. Raises InvalidRun where they do not fit together."""
    check = Checker()
    new = laid_over(options, "options", message, check)
    check.raise_if_any()
    return new


def _check_ids(case_ids: Sequence[str], check: Checker) -> None:
    for index, case_id in enumerate(case_ids):
        check.id(f"case_ids[{index}]", case_id, required=False)


def _tenant(context: Context) -> str:
    check = Checker()
    tenant = check.tenant(TENANT_KEY, tenant_of(context))
    check.raise_if_any()
    return tenant


async def _chunks(requests: AsyncIterator[pb.ImportCasesRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if len(request.json_lines) > MAXIMUM_CHUNK_BYTES:
            raise InvalidRun(("json_lines", f"must have at most {MAXIMUM_CHUNK_BYTES} bytes a message"))
        yield request.json_lines
