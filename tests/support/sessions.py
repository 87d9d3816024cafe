"""Sessions as tests use them: uploads, jobs, downloads and diffs in one line each."""

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import grpc
from codemend.rpc import open_channel
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from codemend.sandbox.v1 import sessions_pb2 as sessions
from google.protobuf.duration_pb2 import Duration

from support.jobs import CALL_SECONDS, NO_FILES, Files, Ran, files

CHUNK_BYTES = 256 * 1024
FILES, TAR = sessions.TRANSFER_FORMAT_FILES, sessions.TRANSFER_FORMAT_TAR


def seconds(value: float) -> Duration:
    """A time as its message."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=value))
    return message


def chunks(data: bytes, size: int = CHUNK_BYTES) -> list[sessions.UploadFilesRequest]:
    """Bytes as parts of an upload."""
    return [sessions.UploadFilesRequest(chunk=data[at : at + size]) for at in range(0, len(data), size)]


def file_parts(contents: Files, executable: Sequence[str] = ()) -> list[sessions.UploadFilesRequest]:
    """Files as parts of an upload."""
    parts = []
    for path, content in contents.items():
        data = content.encode() if isinstance(content, str) else content
        header = sessions.FileHeader(path=path, size=len(data), executable=path in executable)
        parts += [sessions.UploadFilesRequest(file=header), *chunks(data)]
    return parts


def member(name: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member of an archive: `content`, or `type` and what belongs to it."""
    content = fields.pop("content", b"")
    assert isinstance(content, bytes)
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive of these members."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, format=form, errors="surrogateescape") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


@dataclass(frozen=True)
class Downloaded:
    """What a download brought: bytes by path (format FILES) or the archive, and the end."""

    files: Mapping[str, bytes]
    executable: frozenset[str]
    archive: bytes
    end: sessions.DownloadEnd


class Workbench:
    """One session of one tenant."""

    def __init__(self, stub: pb_grpc.SandboxServiceStub, session: sessions.Session, tenant: str) -> None:
        self.stub, self.session, self.id = stub, session, session.id
        self.metadata = (("x-codemend-tenant", tenant),) if tenant else ()

    async def state(self) -> sessions.Session:
        """How it is now."""
        request = sessions.GetSessionRequest(session=self.id)
        return (await self.stub.GetSession(request, timeout=CALL_SECONDS, metadata=self.metadata)).session

    async def delete(self) -> None:
        """Ends it."""
        request = sessions.DeleteSessionRequest(session=self.id)
        await self.stub.DeleteSession(request, timeout=CALL_SECONDS, metadata=self.metadata)

    async def send(
        self, parts: Iterable[sessions.UploadFilesRequest], form: int = FILES, *, replace: bool = False
    ) -> sessions.UploadFilesResponse:
        """Uploads parts as they are."""
        start = sessions.UploadStart(session=self.id, format=form, replace=replace)
        sent = [sessions.UploadFilesRequest(start=start), *parts]
        return await self.stub.UploadFiles(iter(sent), timeout=CALL_SECONDS, metadata=self.metadata)

    async def upload(
        self, contents: Files, executable: Sequence[str] = (), *, replace: bool = False
    ) -> sessions.UploadFilesResponse:
        """Uploads files."""
        return await self.send(file_parts(contents, executable), replace=replace)

    async def unpack(self, data: bytes, *, replace: bool = False) -> sessions.UploadFilesResponse:
        """Uploads an archive."""
        return await self.send(chunks(data), TAR, replace=replace)

    async def download(self, *patterns: str, form: int = FILES) -> Downloaded:
        """Brings files back."""
        request = sessions.DownloadFilesRequest(session=self.id, patterns=patterns, format=form)
        found: dict[str, bytearray] = {}
        executable, data, path, end = set(), bytearray(), "", None
        async for message in self.stub.DownloadFiles(request, timeout=CALL_SECONDS, metadata=self.metadata):
            match message.WhichOneof("part"):
                case "file":
                    path = message.file.path
                    found[path] = bytearray()
                    executable |= {path} if message.file.executable else set()
                case "chunk":
                    (data if form == TAR else found[path]).extend(message.chunk)
                case "end":
                    end = message.end
        assert end is not None, "the download has no end"
        contents = {name: bytes(content) for name, content in found.items()}
        return Downloaded(contents, frozenset(executable), bytes(data), end)

    async def diff(self, *patterns: str, take_snapshot: bool = False) -> sessions.DiffSessionResponse:
        """What has changed."""
        request = sessions.DiffSessionRequest(session=self.id, patterns=patterns, take_snapshot=take_snapshot)
        return await self.stub.DiffSession(request, timeout=CALL_SECONDS, metadata=self.metadata)

    def begin(self, code: str, within: float = CALL_SECONDS, more: Files = NO_FILES, **fields: object) -> asyncio.Task:
        """Starts a program that leaves no file of its own, without waiting for it."""
        return asyncio.ensure_future(self.python(code, within, more, **fields))

    async def python(self, code: str, within: float = CALL_SECONDS, more: Files = NO_FILES, **fields: object) -> Ran:
        """Runs code as `python -c` would: no file of its own comes into the workspace."""
        command = pb.Command(argv=["python", "-c", code])
        return await self.execute(pb.Program(command=command, files=files(more), **fields), within)

    async def run(self, entry: str, more: Files = NO_FILES, within: float = CALL_SECONDS, **fields: object) -> Ran:
        """Runs a file of the workspace or of the call."""
        return await self.execute(pb.Program(entry=entry, files=files(more), **fields), within)

    async def execute(self, program: pb.Program, within: float = CALL_SECONDS, key: str = "") -> Ran:
        """Runs a program in the session."""
        began = time.monotonic()
        request = pb.ExecuteRequest(program=program, session=self.id, idempotency_key=key)
        reply = await self.stub.Execute(request, timeout=within, metadata=self.metadata)
        return Ran(reply.result, time.monotonic() - began, reply.ByteSize())

    async def tests(self, tests: Files, code: Files = NO_FILES, **fields: object) -> pb.RunTestsResponse:
        """Runs tests in the session."""
        request = pb.RunTestsRequest(tests=files(tests), files=files(code), session=self.id, **fields)
        return await self.stub.RunTests(request, timeout=CALL_SECONDS, metadata=self.metadata)


class Sessions:
    """A client of a service that makes sessions."""

    def __init__(self, stub: pb_grpc.SandboxServiceStub) -> None:
        self.stub = stub

    async def create(self, tenant: str = "", **fields: object) -> Workbench:
        """A new session."""
        metadata = (("x-codemend-tenant", tenant),) if tenant else ()
        request = sessions.CreateSessionRequest(**fields)
        reply = await self.stub.CreateSession(request, timeout=CALL_SECONDS, metadata=metadata)
        return Workbench(self.stub, reply.session, tenant)

    @asynccontextmanager
    async def session(self, contents: Files = NO_FILES, tenant: str = "", **fields: object) -> AsyncIterator[Workbench]:
        """A session with these files, deleted at the end where it is still there."""
        made = await self.create(tenant, **fields)
        if contents:
            await made.upload(contents)
        try:
            yield made
        finally:
            try:
                await made.delete()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Sessions]:
    """A client of the service at `address`."""
    async with open_channel(address) as channel:
        yield Sessions(pb_grpc.SandboxServiceStub(channel))
