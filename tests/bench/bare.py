"""The jobs as processes that start anew each time: bare, behind bubblewrap, by `docker run` and by `docker exec`."""

import contextlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

from bench.jobs import CODE, FILES, JOB_SECONDS, PYTEST, PYTHON, SCRIPT, TESTS, check, plain_environment
from bench.measure import Blocking, Contestant

BARE, EXEC_RUNSC = "bare subprocess", "docker exec, runsc"
IMAGES = "codemend-sandbox"
ENGINE_SECONDS = 60


class NotHereError(Exception):
    """A contestant cannot take part on this machine; the text says why."""


class Workplace:
    """A folder with the files of both jobs, and a copy of pytest and all that it needs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work, self.packages = folder, folder / "work", folder / "packages"
        self.work.mkdir()
        self.packages.mkdir()
        for path, content in FILES.items():
            (self.work / path).write_text(content)
        (self.work / "pytest.ini").write_text("[pytest]\n")  # else pytest takes what lies above this folder
        _copy_distribution("pytest", self.packages)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a job needs."""
        return plain_environment(str(self.packages), str(self.folder))

    def argv(self, job: str) -> list[str]:
        """The bare command of a job."""
        return [PYTHON, "-c", CODE] if job == SCRIPT else [PYTHON, *PYTEST]

    def contestant(self, name: str, isolation: str, prefix: Sequence[str] = ()) -> Contestant:
        """Processes that are started by `prefix` followed by the bare command."""

        def make(job: str) -> Blocking:
            argv = [*prefix, *self.argv(job)]

            def call() -> None:
                ran = subprocess.run(
                    argv, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=JOB_SECONDS, check=False, text=True,
                )  # fmt: skip
                check(job, ran.returncode, ran.stdout, ran.stderr)

            return Blocking(call)

        return Contestant(name, isolation, {job: make(job) for job in (SCRIPT, TESTS)})


def bubblewrap(place: Workplace) -> Contestant:
    """Each job in fresh namespaces on a read-only root.

    Raises:
        NotHereError: it is not installed, or the kernel does not let it.
    """
    if not shutil.which("bwrap"):
        raise NotHereError("bwrap is not installed (Debian: apt-get install bubblewrap)")
    prefix = [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev",
        "--proc", "/proc", "--tmpfs", "/tmp", "--ro-bind", str(place.folder), str(place.folder),
        "--bind", str(place.work), str(place.work), "--chdir", str(place.work),
    ]  # fmt: skip
    if (ran := subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)).returncode:
        raise NotHereError(f"bwrap does not run here: {ran.stderr.strip()}")
    return place.contestant("bubblewrap", "namespaces; no seccomp, memory or process limit", prefix)


class Engine:
    """Containers by the docker client, with this machine's interpreter mounted, so that all run the same one."""

    def __init__(self, place: Workplace) -> None:
        """Looks at the engine.

        Raises:
            NotHereError: there is none, or it has no image to run.
        """
        self._place = place
        found = self._docker("info", "--format", "{{json .Runtimes}}", missing="no engine answers")
        self._runtimes = set(json.loads(found))
        images = self._docker("images", IMAGES, "--format", "{{.Repository}}:{{.Tag}}").split()
        if not images:
            raise NotHereError(f"the engine has no image {IMAGES} (make sandbox-image)")
        self._image = images[0]

    def run(self, runtime: str) -> Contestant:
        """A container for each job.

        Raises:
            NotHereError: the engine has no such runtime, or its containers do not run.
        """
        prefix = ["docker", "run", "--rm", *self._options(runtime)]
        self._try(runtime, [*prefix, *self._place.argv(SCRIPT)])
        return self._place.contestant(f"docker run, {runtime}", "a container for each job", prefix)

    @contextlib.contextmanager
    def exec(self, runtime: str) -> Iterator[Contestant]:
        """One container for all jobs.

        Raises:
            NotHereError: as `run`.
        """
        name = f"codemend-bench-{uuid4().hex[:8]}"
        self._try(runtime, ["docker", "run", "--detach", "--name", name, *self._options(runtime), "sleep", "infinity"])
        try:
            prefix = ["docker", "exec", name]
            self._try(runtime, [*prefix, *self._place.argv(SCRIPT)])
            yield self._place.contestant(f"docker exec, {runtime}", "one container for all jobs", prefix)
        finally:
            self._docker("rm", "--force", name)

    def _options(self, runtime: str) -> list[str]:
        variables = self._place.environment | {"HOME": "/tmp"}
        mounts = (
            dict.fromkeys((sys.base_prefix, str(self._place.folder)))
            if sys.base_prefix != "/usr"
            else [str(self._place.folder)]
        )
        return [
            "--runtime", runtime, "--user", "0", "--network", "none", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--pids-limit", "1024", "--memory", "512m", "--tmpfs", "/tmp",
            "--workdir", str(self._place.work),
            "--entrypoint", "", *(part for path in mounts for part in ("--volume", f"{path}:{path}:ro")),
            *(part for key, value in variables.items() for part in ("--env", f"{key}={value}")), self._image,
        ]  # fmt: skip

    def _try(self, runtime: str, argv: list[str]) -> None:
        if runtime not in self._runtimes:
            raise NotHereError(f"the engine has no runtime {runtime}")
        try:
            ran = subprocess.run(argv, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NotHereError(f"a container of {runtime} did not answer in {ENGINE_SECONDS} s") from None
        if ran.returncode:
            raise NotHereError(f"a container of {runtime} does not run: {ran.stderr.strip()[-200:]}")

    @staticmethod
    def _docker(*arguments: str, missing: str = "") -> str:
        try:
            ran = subprocess.run(
                ["docker", *arguments], capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotHereError(f"docker: {error}") from error
        if ran.returncode or (missing and not ran.stdout.strip()):
            raise NotHereError(f"{missing or arguments[0]}: {ran.stderr.strip()[-200:]}")
        return ran.stdout


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
