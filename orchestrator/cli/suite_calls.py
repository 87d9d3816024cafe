"""Calls of RegressionService from a client's side: cases made, moved as lines of JSON, run, and kept anew."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO

import grpc
import typer
from codemend.orchestrator.v1 import regression_pb2 as pb

from orchestrator.cli import client
from orchestrator.cli.client import RUN_SERVICE, RegressionStub
from orchestrator.cli.errors import CliError, UsageFault
from orchestrator.cli.suite_view import SuiteView

_SECONDS = client.CALL_TIMEOUT.total_seconds()
_MOVE_SECONDS = 600.0  # for 256 MiB of cases
_PIECE_BYTES = 512 * 1024
_PAGE = 200


async def cases(stub: RegressionStub) -> AsyncIterator[pb.Case]:
    """All cases, in order of name. Raises CliError."""
    request = pb.ListCasesRequest(page_size=_PAGE)
    while True:
        answer = await client.patiently(RUN_SERVICE, lambda: stub.ListCases(request, timeout=_SECONDS))
        for case in answer.cases:
            yield case
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


async def create(stub: RegressionStub, request: pb.CreateCaseRequest) -> pb.Case:
    """Keeps a run as a case. Raises CliError."""
    return (await client.patiently(RUN_SERVICE, lambda: stub.CreateCase(request, timeout=_SECONDS))).case


async def delete(stub: RegressionStub, case: str) -> None:
    """Deletes a case. Raises CliError."""
    try:
        await stub.DeleteCase(pb.DeleteCaseRequest(case_id=case), timeout=_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error


async def export(stub: RegressionStub, names: Sequence[str], out: Path | None) -> None:
    """Writes cases as lines of JSON; a file is there whole or not at all. Raises CliError."""
    if out is None:
        await _write(stub, names, typer.get_binary_stream("stdout"))
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("wb") as stream:
            await _write(stub, names, stream)
        part.replace(out)
    except OSError as error:
        raise UsageFault("--out", f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


async def _write(stub: RegressionStub, names: Sequence[str], stream: BinaryIO) -> None:
    call = stub.ExportCases(pb.ExportCasesRequest(case_ids=names), timeout=_MOVE_SECONDS)
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
            return (await stub.ImportCases(_pieces(stream), timeout=_MOVE_SECONDS)).cases
    except OSError as error:
        raise _unreadable(file, error) from error
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error


async def borrow(stub: RegressionStub, file: Path) -> Sequence[str]:
    """Adds the cases of a file; gives back the names of all that it holds. Raises CliError."""
    await add(stub, file)
    with file.open("rb") as stream:
        names = [json.loads(line)["name"] for line in stream if line.strip()]
    if not names:
        raise UsageFault("FILE", f"{str(file)!r} holds no case")
    return names


async def run(
    stub: RegressionStub, request: pb.RunSuiteRequest, shown: SuiteView
) -> tuple[Sequence[pb.CaseResult], pb.SuiteReport]:
    """Runs a suite and shows each case as it ends. Raises CliError."""
    results: list[pb.CaseResult] = []
    call = stub.RunSuite(request)
    try:
        async for answer in call:
            if answer.HasField("report"):
                shown.end(answer.report)
                return results, answer.report
            results.append(answer.case_result)
            shown.case(answer.case_result)
    except grpc.aio.AioRpcError as error:
        raise client.explained(error, RUN_SERVICE) from error
    finally:
        call.cancel()  # a stream that is merely dropped would live on at the server, and its runs with it
    raise client.incomplete(RUN_SERVICE)


async def keep(stub: RegressionStub, results: Sequence[pb.CaseResult], out: Path) -> None:
    """Puts new runs in the place of the cases that they were made of, and writes them to a file. Raises CliError."""
    names = sorted(result.case.name for result in results)
    for result in results:
        await delete(stub, result.case.case_id)
        await create(stub, pb.CreateCaseRequest(run_id=result.run_id, name=result.case.name))
    await export(stub, names, out)


def _unreadable(file: Path, error: OSError) -> CliError:
    return UsageFault("FILE", f"cannot read {str(file)!r}: {error.strerror or error}")


async def _pieces(stream: BinaryIO) -> AsyncIterator[pb.ImportCasesRequest]:
    while piece := stream.read(_PIECE_BYTES):
        yield pb.ImportCasesRequest(json_lines=piece)
