"""Files on their way into a session and out of it, as the parts of the sandbox contract's two streams."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from codemend.sandbox.v1 import sandbox_pb2, sessions_pb2

from orchestrator.cli import client
from orchestrator.cli.inputs import SourceFile

MAX_FILES = 100_000
MAX_UPLOAD_BYTES = 1024 * 1024 * 1024  # read before it is sent; the session's own limit is the server's to hold
_CHUNK_BYTES = 256 * 1024
_TIMEOUT = timedelta(minutes=10)


async def upload(stub: client.SandboxStub, session: str, files: Sequence[SourceFile], *, replace: bool) -> None:
    """Writes files into a session, all or none.

    Raises:
        AioRpcError: as the service says.
    """
    start = sessions_pb2.UploadStart(session=session, format=sessions_pb2.TRANSFER_FORMAT_FILES, replace=replace)
    await stub.UploadFiles(_parts(start, files), timeout=_TIMEOUT.total_seconds())


def _parts(start: sessions_pb2.UploadStart, files: Sequence[SourceFile]) -> Iterator[sessions_pb2.UploadFilesRequest]:
    yield sessions_pb2.UploadFilesRequest(start=start)
    for file in files:
        header = sessions_pb2.FileHeader(path=file.path, executable=file.executable, size=len(file.content))
        yield sessions_pb2.UploadFilesRequest(file=header)
        for at in range(0, len(file.content), _CHUNK_BYTES):
            yield sessions_pb2.UploadFilesRequest(chunk=file.content[at : at + _CHUNK_BYTES])


async def download(
    stub: client.SandboxStub, session: str, patterns: Sequence[str]
) -> tuple[list[sandbox_pb2.File], Sequence[str]]:
    """Files of a session, and the paths that matched and were left out.

    Raises:
        AioRpcError: as the service says.
        ServiceFault: the stream has no end.
    """
    request = sessions_pb2.DownloadFilesRequest(
        session=session, patterns=patterns, format=sessions_pb2.TRANSFER_FORMAT_FILES
    )
    files: list[sandbox_pb2.File] = []
    content = bytearray()
    async for message in stub.DownloadFiles(request, timeout=_TIMEOUT.total_seconds()):
        part = message.WhichOneof("part")
        if part == "chunk":
            content += message.chunk
            continue
        if files:
            files[-1].content = bytes(content)
        content = bytearray()
        if part == "end":
            return files, message.end.left_out
        files.append(sandbox_pb2.File(path=message.file.path, executable=message.file.executable))
    raise client.incomplete(client.SANDBOX_SERVICE)
