"""Takes a download apart: entries of a workspace become the messages of a stream, in order of path."""

from collections.abc import Callable, Generator, Iterator
from itertools import islice

from codemend.sandbox.v1 import sessions_pb2 as pb

from sandbox_service import archives
from sandbox_service.domain import Entry, EntryKind
from sandbox_service.replies import MAXIMUM_LEFT_OUT, shown_paths
from sandbox_service.workspace import Steps, Workspace, is_text

CHUNK_BYTES = 256 * 1024
Wanted = Callable[[bytes], bool]
Messages = Generator[pb.DownloadFilesResponse, None, None]


def messages(workspace: Workspace, is_wanted: Wanted, *, as_archive: bool) -> Messages:
    """The messages of a download, made one after the other as they are asked for.

    Args:
        workspace: what is sent.
        is_wanted: which paths of it.
        as_archive: as a tar archive, with directories and links; otherwise regular files alone.
    """
    wanted = [entry for path, entry in workspace.entries.items() if is_wanted(path)]
    steps = Steps()
    sent: list[Entry] = []
    left_out: list[Entry] = []
    for entry in wanted:
        (sent if _is_sent(entry, workspace, steps, as_archive=as_archive) else left_out).append(entry)
    if as_archive:
        for piece in archives.write(sent):
            yield pb.DownloadFilesResponse(chunk=piece)
    else:
        for entry in sent:
            yield from _file(entry)
    files = len([entry for entry in sent if entry.kind is EntryKind.FILE])
    named = (entry.path for entry in left_out if as_archive or entry.kind is not EntryKind.DIRECTORY)
    end = pb.DownloadEnd(files=files, left_out=shown_paths(islice(named, MAXIMUM_LEFT_OUT)))
    yield pb.DownloadFilesResponse(end=end)


def _is_sent(entry: Entry, workspace: Workspace, steps: Steps, *, as_archive: bool) -> bool:
    if not is_text(entry.path):
        return False
    if entry.kind is EntryKind.FILE:
        return True
    return as_archive and not (entry.kind is EntryKind.LINK and workspace.leads_out(entry.path, steps))


def _file(entry: Entry) -> Iterator[pb.DownloadFilesResponse]:
    header = pb.FileHeader(path=entry.path.decode(), executable=entry.executable, size=len(entry.content))
    yield pb.DownloadFilesResponse(file=header)
    for start in range(0, len(entry.content), CHUNK_BYTES):
        yield pb.DownloadFilesResponse(chunk=entry.content[start : start + CHUNK_BYTES])
