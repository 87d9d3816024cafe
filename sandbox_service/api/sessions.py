"""The servicer's part for sessions: their life, files in and out, and what has changed in them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from os import fsdecode
from typing import Any

from codemend.sandbox.v1 import sandbox_pb2_grpc as pb_grpc
from codemend.sandbox.v1 import sessions_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from sandbox_service import diffs
from sandbox_service.api import uploads
from sandbox_service.api.downloads import Messages, messages
from sandbox_service.api.once import Context, KeyedCalls, Time
from sandbox_service.api.streams import StreamPlaces
from sandbox_service.domain import EntryKind
from sandbox_service.errors import InvalidJob, UploadStalled
from sandbox_service.guest.exchange.collect import matches
from sandbox_service.sessions import Capacity, SessionState, SessionStore, Terms
from sandbox_service.tenants import tenant_of
from sandbox_service.threads import TenantThreads
from sandbox_service.translation import time_from
from sandbox_service.validation import Violations, check_patterns
from sandbox_service.workspace import show

CHANGES_BYTES = 1536 * 1024
"""Of the list of changes in one reply; beside the diff it fits into a message."""
PATTERN_STEPS = 20_000_000
"""Parts of paths held against parts of patterns in one call: about five seconds, at worst."""
_BATCH = 64
"""Messages of a download that are made in one go in a thread: small files cost no switch each."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What a session gets where its request sets nothing, the most it may ask for, and what all may take."""

    defaults: Terms
    maximums: Terms
    capacity: Capacity


class SessionCalls(pb_grpc.SandboxServiceServicer):
    """The RPCs of sessions."""

    def __init__(self, sessions: SessionStore, rules: SessionRules, calls: KeyedCalls, streams: StreamPlaces) -> None:
        self._sessions = sessions
        self._session_terms = rules
        self._keyed = calls
        self._streams = streams
        self._threads = TenantThreads()

    @property
    def streams(self) -> int:
        """Streaming calls now."""
        return self._streams.held

    async def CreateSession(  # noqa: N802 - the contract's name
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        """Makes a session."""
        tenant, terms = tenant_of(context), _terms_from(request, self._session_terms)

        async def create(_time: Time) -> pb.CreateSessionResponse:
            return pb.CreateSessionResponse(session=_session_to(self._sessions.create(tenant, terms)))

        return await self._keyed.once("CreateSession", request, context, create)

    async def GetSession(  # noqa: N802 - the contract's name
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        """Tells the state of a session."""
        return pb.GetSessionResponse(session=_session_to(self._sessions.get(tenant_of(context), request.session)))

    async def DeleteSession(  # noqa: N802 - the contract's name
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        """Ends a session."""
        await self._sessions.delete(tenant_of(context), request.session)
        return pb.DeleteSessionResponse()

    async def UploadFiles(  # noqa: N802 - the contract's name
        self,
        request_iterator: Any,  # noqa: ANN401 - the stub's type is one of two iterators, told apart by nothing
        context: Context,
    ) -> pb.UploadFilesResponse:
        """Writes files into a session."""
        tenant = tenant_of(context)
        self._streams.take(tenant, context)
        parts: uploads.Parts = aiter(request_iterator)
        start = await uploads.start_of(parts)
        async with self._sessions.use(tenant, start.session) as hold:
            workspace, written = await uploads.receive(start, parts, hold, partial(self._threads.run, tenant))
            await _is_not_gone(context)
            hold.keep(workspace, snapshot=workspace)
        content = sum(len(entry.content) for entry in written if entry.kind is EntryKind.FILE)
        return pb.UploadFilesResponse(entries=len(written), content_bytes=content)

    async def DownloadFiles(  # noqa: N802 - the contract's name
        self, request: pb.DownloadFilesRequest, context: Context
    ) -> AsyncIterator[pb.DownloadFilesResponse]:
        """Reads files of a session, as they are when the call begins."""
        tenant = tenant_of(context)
        self._streams.take(tenant, context)
        is_wanted = _wanted(request.patterns)
        if request.format not in (pb.TRANSFER_FORMAT_FILES, pb.TRANSFER_FORMAT_TAR):
            raise InvalidJob(("format", "required: FILES or TAR"))
        async with self._sessions.use(tenant, request.session) as hold:
            workspace = hold.workspace
        as_archive = request.format == pb.TRANSFER_FORMAT_TAR
        source = messages(workspace, is_wanted, as_archive=as_archive)
        del workspace, hold  # what a slow reader keeps alive is the source
        while batch := await self._threads.run(tenant, _batch, source):
            for message in batch:
                yield message

    async def DiffSession(  # noqa: N802 - the contract's name
        self, request: pb.DiffSessionRequest, context: Context
    ) -> pb.DiffSessionResponse:
        """Tells what has changed since the last snapshot."""
        is_wanted = _wanted(request.patterns)
        tenant = tenant_of(context)
        async with self._sessions.use(tenant, request.session) as hold:
            found = await self._threads.run(tenant, diffs.difference, hold.snapshot, hold.workspace, is_wanted)
            if request.take_snapshot:
                hold.keep(hold.workspace, snapshot=hold.workspace)
        return _difference_to(found)


async def _is_not_gone(context: Context) -> None:
    """Makes sure that a stream which has ended was ended by its caller, and not by its cancellation.

    The parts of a cancelled call end as those of others do, a moment before the cancellation comes; but nothing can be
    sent to its caller any more.

    Raises:
        UploadStalled: the caller is gone.
    """
    try:
        await context.send_initial_metadata(())
    except Exception as error:
        raise UploadStalled("the caller left before its upload's end") from error


def _batch(source: Messages) -> list[pb.DownloadFilesResponse]:
    """The next messages, of few bytes together."""
    batch: list[pb.DownloadFilesResponse] = []
    size = 0
    for message in islice(source, _BATCH):
        batch.append(message)
        size += len(message.chunk)
        if size >= uploads.MAXIMUM_CHUNK_BYTES:
            break
    return batch


def _terms_from(request: pb.CreateSessionRequest, rules: SessionRules) -> Terms:
    found = Violations()
    given = {descriptor.name: value for descriptor, value in request.ListFields()}
    idle = _time(given, "idle_ttl", rules, found)
    ttl = _time(given, "ttl", rules, found)
    disk_bytes = request.disk_bytes if request.HasField("disk_bytes") else rules.defaults.disk_bytes
    if not 0 < disk_bytes <= rules.maximums.disk_bytes:
        found.add("disk_bytes", f"is {disk_bytes}; from 1 to {rules.maximums.disk_bytes}")
    found.raise_any()
    return Terms(idle, ttl, disk_bytes)


def _time(given: Mapping[str, Any], name: str, rules: SessionRules, found: Violations) -> timedelta:
    default: timedelta = getattr(rules.defaults, name)
    maximum: timedelta = getattr(rules.maximums, name)
    value = time_from(given[name]) if name in given else default
    if not timedelta() < value <= maximum:
        text = f"is {value.total_seconds():g} s; more than zero, at most {maximum.total_seconds():g} s"
        found.add(name, text)
    return value


def _wanted(patterns: Sequence[str]) -> Callable[[bytes], bool]:
    found = Violations()
    check_patterns(patterns, "patterns", found)
    found.raise_any()
    listed = list(patterns)
    if not listed:
        return lambda _: True
    parts = sum(1 + pattern.count("/") for pattern in listed)
    steps = PATTERN_STEPS

    def is_wanted(path: bytes) -> bool:
        nonlocal steps
        steps -= parts * (1 + path.count(b"/"))
        if steps < 0:
            raise InvalidJob(("patterns", "are too many, or have too many parts, for a workspace of so many paths"))
        return matches(fsdecode(path), listed)

    return is_wanted


def _session_to(state: SessionState) -> pb.Session:
    return pb.Session(
        id=state.id,
        create_time=_timestamp(state.create_time),
        expire_time=_timestamp(state.expire_time),
        end_time=_timestamp(state.end_time),
        disk_bytes=state.disk_bytes,
        used_bytes=state.used_bytes,
        entries=state.entries,
        jobs=state.jobs,
    )


def _timestamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def _difference_to(found: diffs.Difference) -> pb.DiffSessionResponse:
    message = pb.DiffSessionResponse(diff=found.diff)
    room = CHANGES_BYTES
    for change in found.changes:
        entry = pb.Change(
            path=show(change.path),
            kind=pb.ChangeKind.Value(f"CHANGE_KIND_{change.kind}"),
            old_bytes=change.old_bytes,
            new_bytes=change.new_bytes,
            in_diff=change.in_diff,
        )
        room -= entry.ByteSize() + 8
        if room < 0:
            break
        message.changes.append(entry)
    message.changes_left_out = found.left_out + len(found.changes) - len(message.changes)
    return message
