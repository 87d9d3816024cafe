"""Cases of a file that a service keeps for as long as it runs them, beside its own cases and in none's place."""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from codemend.orchestrator.v1 import regression_pb2 as pb

from orchestrator.cli import client
from orchestrator.cli.client import RUN_SERVICE, RegressionStub
from orchestrator.cli.suite_calls import PIECE_BYTES, SECONDS, send
from orchestrator.cli.suite_local import read_rows
from orchestrator.cli.terminal import complain
from orchestrator.runs.cases import line_of
from orchestrator.runs.store import CaseRow

_NAME_CHARS = 96  # of a name: what makes it one of its own comes after that


@asynccontextmanager
async def borrowed(stub: RegressionStub, file: Path, wanted: Sequence[str]) -> AsyncIterator[Mapping[str, str]]:
    """Has a service keep cases of a file for a while, under names that nobody else has; whatever happens, they go.

    Args:
        stub: of the service.
        file: of cases.
        wanted: names of those to take; none: all.

    Yields:
        their names in the file, by those that the service has them under.

    Raises:
        CliError: the file or a name is wrong, or the service fails.
    """
    token = secrets.token_hex(8)
    rows = {
        f"{row.name[:_NAME_CHARS].strip()}~{token}{index}": row for index, row in enumerate(read_rows(file, wanted))
    }
    try:
        await send(stub, _pieces(rows))
        yield {name: row.name for name, row in rows.items()}
    finally:
        await _give_back(stub, rows)


def _pieces(rows: Mapping[str, CaseRow]) -> Iterator[bytes]:
    for name, row in rows.items():
        line = line_of(name, row.body)
        yield from (line[at : at + PIECE_BYTES] for at in range(0, len(line), PIECE_BYTES))


async def _give_back(stub: RegressionStub, rows: Mapping[str, CaseRow]) -> None:
    """Deletes those that are there; what cannot be deleted is said, and takes no other error's place."""
    for name in rows:
        try:
            await stub.DeleteCase(pb.DeleteCaseRequest(case_id=name), timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                complain(f"cases such as {name!r} are left with it: {client.explained(error, RUN_SERVICE)}")
                return
