"""Calls of RegressionService from a client's side: cases made, moved as lines of JSON, run, and kept anew."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import grpc
import typer
from codemend.orchestrator.v1 import regression_pb2 as pb
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.cli import client
from orchestrator.cli.client import RUN_SERVICE, RegressionStub
from orchestrator.cli.errors import ServiceFault, UsageFault
from orchestrator.cli.suite_view import SuiteView
from orchestrator.cli.terminal import complain, printable

NO_NAMES: Mapping[str, str] = MappingProxyType({})

SECONDS = client.CALL_TIMEOUT.total_seconds()
_MOVE_SECONDS = 600.0  # for 256 MiB of cases
PIECE_BYTES = 512 * 1024
_PAGE = 200


async def cases(stub: RegressionStub) -> AsyncIterator[pb.Case]:
    """All cases, in order of name. Raises CliError."""
    request = pb.ListCasesRequest(page_size=_PAGE)
    while True:
        answer = await client.patiently(RUN_SERVICE, lambda: stub.ListCases(request, timeout=SECONDS))
        for case in answer.cases:
            yield case
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


class Refused(ServiceFault):
    """No case can be made of a run."""


async def create(stub: RegressionStub, request: pb.CreateCaseRequest) -> pb.Case:
    """Keeps a run as a case. Raises CliError; Refused where no case can be made of it."""

    async def call() -> pb.Case:
        try:
            return (await stub.CreateCase(request, timeout=SECONDS)).case
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise Refused(str(client.explained(error, RUN_SERVICE))) from error
            raise

    return await client.patiently(RUN_SERVICE, call)


async def delete(stub: RegressionStub, case: str) -> None:
    """Deletes a case. Raises CliError."""
    try:
        await stub.DeleteCase(pb.DeleteCaseRequest(case_id=case), timeout=SECONDS)
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error


async def export(
    stub: RegressionStub, cases: Sequence[str], out: Path | None, names: Mapping[str, str] = NO_NAMES
) -> None:
    """Writes cases as lines of JSON; a file is there whole or not at all.

    Args:
        stub: of the service that has them.
        cases: which of them; none: all.
        out: the file; None: stdout.
        names: other names for some of them.

    Raises:
        CliError: the service fails, or the file cannot be written.
    """
    if out is None:
        await _write(stub, cases, typer.get_binary_stream("stdout"))
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("wb") as stream:
            await _write(stub, cases, stream)
        if names:
            part.write_bytes(b"".join(_renamed(line, names) for line in part.read_bytes().splitlines(keepends=True)))
        part.replace(out)
    except OSError as error:
        raise UsageFault("--out", f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _renamed(line: bytes, names: Mapping[str, str]) -> bytes:
    # As exported, the name is the last field; within a text, its quotes would be escaped.
    case, field, name = line.rstrip(b"}\n").rpartition(b',"name":')
    known = json.loads(name)
    return case + field + json.dumps(names.get(known, known)).encode() + b"}\n"


async def _write(stub: RegressionStub, cases: Sequence[str], stream: BinaryIO) -> None:
    call = stub.ExportCases(pb.ExportCasesRequest(case_ids=cases), timeout=_MOVE_SECONDS)
    try:
        async for answer in call:
            stream.write(answer.json_lines)
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error
    finally:
        call.cancel()
    stream.flush()


async def add(stub: RegressionStub, file: Path) -> Sequence[pb.Case]:
    """Adds the cases of a file; gives back those that were not there. Raises CliError."""
    try:
        with file.open("rb") as stream:
            return await send(stub, iter(lambda: stream.read(PIECE_BYTES), b""))
    except OSError as error:
        raise UsageFault("FILE", f"cannot read {str(file)!r}: {error.strerror or error}") from error


async def send(stub: RegressionStub, pieces: Iterable[bytes]) -> Sequence[pb.Case]:
    """Adds cases of lines in pieces of at most 1 MiB; gives back those that were not there. Raises CliError."""

    async def requests() -> AsyncIterator[pb.ImportCasesRequest]:
        for piece in pieces:
            yield pb.ImportCasesRequest(json_lines=piece)

    try:
        return (await stub.ImportCases(requests(), timeout=_MOVE_SECONDS)).cases
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error


async def run(
    stub: RegressionStub, request: pb.RunSuiteRequest, shown: SuiteView, names: Mapping[str, str] = NO_NAMES
) -> tuple[Sequence[pb.CaseResult], pb.SuiteReport]:
    """Runs a suite and shows each case as it ends.

    Args:
        stub: of the service.
        request: what to run.
        shown: shows it.
        names: under which names to show those that the service has under others.

    Returns:
        how the cases ended, with the names that the service has them under, and the sum.

    Raises:
        CliError: the service fails.
    """
    results: list[pb.CaseResult] = []
    call = stub.RunSuite(request)
    try:
        async for answer in call:
            if answer.HasField("report"):
                shown.end(answer.report)
                return results, answer.report
            results.append(answer.case_result)
            shown.case(_shown(answer.case_result, names))
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error
    finally:
        call.cancel()  # a stream that is merely dropped would live on at the server, and its runs with it
    raise client.incomplete(RUN_SERVICE)


def _shown(result: pb.CaseResult, names: Mapping[str, str]) -> pb.CaseResult:
    copy = pb.CaseResult()
    copy.CopyFrom(result)
    copy.case.name = names.get(result.case.name, result.case.name)
    return copy


async def keep(
    stub: RegressionStub, results: Sequence[pb.CaseResult], out: Path, names: Mapping[str, str] = NO_NAMES
) -> None:
    """Puts new runs in the place of the cases that they were made of, and writes the cases to a file.

    A case stays as it is where no run could be made of it, or no case can be made of its run: that is said.

    Args:
        stub: of the service that ran them.
        results: how they ended.
        out: the file.
        names: what the file calls those that the service has under other names.

    Raises:
        CliError: the service fails.
    """
    for result in results:
        if why := await _not_kept(stub, result):
            shown = printable(names.get(result.case.name, result.case.name))
            complain(f"{shown}: stays as it was recorded: {printable(why)}")
    kept = sorted((result.case.name for result in results), key=lambda name: names.get(name, name))
    await export(stub, kept, out, names)


async def _not_kept(stub: RegressionStub, result: pb.CaseResult) -> str:
    """Puts one new run in the place of its case; why not, where that cannot be, and else empty. Raises CliError."""
    if not result.run_id:
        return result.reason
    if result.outcome == runs_pb2.RUN_OUTCOME_CANCELLED:
        return "its run was cancelled"
    request = pb.CreateCaseRequest(run_id=result.run_id, name=result.case.name, replace=True)
    try:
        await create(stub, request)
    except Refused as error:
        return str(error)
    return ""
