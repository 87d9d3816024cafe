"""What a whole set of files must keep to, whoever it comes from: its size, and no path that is a file and a folder."""

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from orchestrator.workflows.sandbox import File

MOST_FILES, MOST_BYTES = 64, 1024 * 1024  # of a whole solution, as of a request's files: a result fits one message


def size_of(files: Iterable[File]) -> int:
    """Bytes of all contents."""
    return sum(len(file.content) for file in files)


def clash(paths: Collection[str]) -> str:
    """A path that is both a file and the folder of another; empty where there is none."""
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return min(folders.intersection(paths), default="")


def edit_fault(below: Collection[File], whole: Collection[File]) -> str:
    """What is wrong with the files that an edit makes of a draft's; empty where nothing is.

    Replies laid over given files may make a draft of more than `MOST_FILES`: an edit may change those.
    """
    if len(whole) > max(MOST_FILES, len(below)):
        return f"make {len(whole)} files of the draft, and at most {MOST_FILES} are allowed"
    if (size := size_of(whole)) > MOST_BYTES:
        return f"make {size} bytes of the draft, and at most {MOST_BYTES} are allowed"
    if path := clash({file.path for file in whole}):
        return f"make {path[:80]!r} both a file and a folder of the draft"
    return ""
