"""Writes the files that a run delivers into a directory of the caller's, and nowhere else."""

import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli.errors import UsageFault


def prepare(directory: Path, option: str = "--out") -> None:
    """Makes the directory and tries that it can be written to, before anything is spent on what will be written.

    Raises:
        UsageFault: it cannot be made or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise _unwritable(option, directory, error.strerror or error) from error


def _unwritable(option: str, directory: Path, reason: object) -> UsageFault:
    return UsageFault(option, f"cannot write below {str(directory)!r}: {reason}")


def write_files(directory: Path, files: Iterable[sandbox_pb2.File], option: str = "--out") -> list[Path]:
    """Writes each file below `directory`, over a file of the same name; returns their paths.

    A path that leads out of the directory, by its own parts or through a link that lies there, is refused before
    anything is written.

    Raises:
        UsageFault: a path leads out, or something cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        root = directory.resolve()
        targets = [(_beneath(option, root, file.path), file) for file in files]
        for target, file in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            if file.executable:
                target.chmod(0o755)
    except (OSError, RuntimeError) as error:  # the latter for links that go in a circle
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _unwritable(option, directory, reason) from error
    return [target for target, _ in targets]


def _beneath(option: str, root: Path, path: str) -> Path:
    parts = PurePosixPath(path)
    if parts.parts and not parts.is_absolute() and ".." not in parts.parts and "\0" not in path:
        target = root / parts
        if target.resolve().is_relative_to(root) and not target.is_symlink():
            return target
    raise UsageFault(option, f"the delivered path {path!r} leads out of the directory")
