"""The other side of the comparison: the same interpreter started anew for every job, with nothing around it."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON = getattr(sys, "_base_executable", sys.executable)
JOB_SECONDS = 60


class BareRuns:
    """Both jobs as plain subprocesses, in a folder with the files of the tests and a copy of pytest and its needs.

    The copy is the only place for packages (`-S` leaves out the interpreter's own), so that no plugin that happens to
    be installed slows the bare side.
    """

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self._work, packages = folder / "work", folder / "packages"
        self._work.mkdir()
        packages.mkdir()
        for path, content in files.items():
            (self._work / path).write_text(content)
        _copy_distribution("pytest", packages)
        self._plain = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder)}
        self._with_pytest = {**self._plain, "PYTHONPATH": str(packages)}

    def execute(self) -> None:
        """`python -c 'print(1+1)'`."""
        ran = self._run([PYTHON, "-c", "print(1+1)"], self._plain)
        if ran.stdout != b"2\n":
            raise RuntimeError(f"the bare program printed {ran.stdout!r}: {ran.stderr.decode()}")

    def tests(self) -> None:
        """`python -m pytest -q`."""
        ran = self._run([PYTHON, "-S", "-m", "pytest", "-q"], self._with_pytest)
        if ran.returncode != 0 or b"2 passed" not in ran.stdout:
            raise RuntimeError(f"bare pytest ended with {ran.returncode}: {ran.stdout.decode()} {ran.stderr.decode()}")

    def _run(self, argv: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            argv,
            cwd=self._work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=JOB_SECONDS,
            check=False,
        )


def _copy_distribution(name: str, target: Path, seen: set[str] | None = None) -> None:
    """Copies a distribution and everything that it needs; what is not installed is needed on other systems only."""
    seen = set() if seen is None else seen
    if name in seen:
        return
    seen.add(name)
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
        source = Path(str(distribution.locate_file(top)))
        if source.is_dir():
            shutil.copytree(source, target / top, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy2(source, target / top)
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            _copy_distribution(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0], target, seen)
