"""The sandbox service inside a gVisor pod, as Kubernetes runs it: root with SYS_ADMIN in the pod, none of it outside.

Its Debian is the base of the sandbox's images, unpacked once into the user's cache; the checkout and the packages that
the tests run with are mounted into it. The container engine only keeps that base: `runsc` runs the bundle.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.footprint import Footprint

ROOT = Path(__file__).parents[2]
_BASE = "codemend-sandbox-base:bookworm"
_LOOK = "import json; from support.footprint import footprint; seen = footprint(1); print(json.dumps([seen.processes, "
_LOOK += "sorted(seen.groups), sorted(seen.mounts), sorted(seen.files)]))"
_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_ADMIN",
    )
]  # fmt: skip
"""What a container engine gives by default, and SYS_ADMIN."""
_START = "python3 -m support.canary /shared/canary & exec python3 -m sandbox_service --address unix:/shared/socket"
_STOP_SECONDS = 20


@dataclass(frozen=True)
class Pod:
    """One running pod.

    Attributes:
        shared: the folder that pod and host share: the service's socket, its ready file, the canaries' findings.
        process: `runsc run`, which lives as long as the pod.
    """

    name: str
    shared: Path
    process: asyncio.subprocess.Process
    command: tuple[str, ...]

    def run(self, *argv: str) -> str:
        """Runs a program in the pod and returns what it printed."""
        done = subprocess.run(
            [*self.command, "exec", self.name, *argv], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def footprint(self) -> Footprint:
        """What the service has inside the pod."""
        processes, groups, mounts, files = json.loads(self.run("/usr/bin/python3", "-c", _LOOK))
        return Footprint({int(pid): name for pid, name in processes.items()}, *map(frozenset, (groups, mounts, files)))

    async def kill(self) -> None:
        """Ends the service, process 1 of the pod, with SIGKILL."""
        await asyncio.to_thread(_quietly, [*self.command, "kill", self.name, "KILL"])
        await asyncio.wait_for(self.process.wait(), _STOP_SECONDS)

    def traces(self) -> dict[str, list[str]]:
        """What there is of the pod on this machine: processes that name it, and mounts of its folders."""
        lines = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines[path.parts[2]] = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found = {
            "processes": [f"{pid} {line[:80]}" for pid, line in lines.items() if self.name in line],
            "mounts": [line for line in mounts if str(self.shared.parent) in line],
        }
        return {kind: things for kind, things in found.items() if things}


def lacking() -> str:
    """What this machine lacks for a pod; empty: nothing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if os.geteuid() != 0:
        return "root, to run a gVisor pod"
    for tool in ("runsc", "mmdebstrap", "docker"):
        if not shutil.which(tool):
            return f"{tool} (package of the same name)"
    return "" if version == "3.11" else f"python 3.11, the one of the pod; this is {version}"


@asynccontextmanager
async def running_pod(settings: Mapping[str, str]) -> AsyncIterator[Pod]:
    """Starts a pod that runs the service with these variables, and removes it at the end."""
    tree = await asyncio.to_thread(debian)
    with tempfile.TemporaryDirectory(prefix="codemend-pod-") as place:
        folder, name = Path(place), f"codemend-{secrets.token_hex(6)}"
        shared = folder / "shared"
        for path in (folder / "bundle", folder / "state", shared, shared / "canary"):
            path.mkdir()
        (folder / "bundle" / "config.json").write_text(json.dumps(_bundle(tree, shared, settings)))
        command = ("runsc", "--network=none", "--host-uds=create", f"--root={folder / 'state'}")
        with (shared / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, "run", "--bundle", str(folder / "bundle"), name,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        pod = Pod(name, shared, process, command)
        try:
            yield pod
        finally:
            await _remove(pod)


async def _remove(pod: Pod) -> None:
    for action in (["kill", pod.name, "TERM"], ["kill", pod.name, "KILL"]):
        if pod.process.returncode is None:
            await asyncio.to_thread(_quietly, [*pod.command, *action])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pod.process.wait(), _STOP_SECONDS)
    await asyncio.to_thread(_quietly, [*pod.command, "delete", "--force", pod.name])


def _quietly(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, timeout=60, check=False)


def debian() -> Path:
    """The tree of the pod: unpacked at the first time, then taken from the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codemend-tests"
    cache.mkdir(parents=True, exist_ok=True)
    _printed([str(ROOT / "deploy" / "docker" / "base"), "sandbox"])
    digest = _printed(["docker", "image", "inspect", "--format", "{{.Id}}", _BASE]).removeprefix("sha256:")
    tree = cache / f"debian-{digest[:12]}"
    if tree.is_dir():
        return tree
    making = Path(tempfile.mkdtemp(dir=cache))
    container = _printed(["docker", "create", _BASE, "true"])
    try:
        made = making / "tree"
        made.mkdir()
        _printed(["docker", "export", "--output", str(making / "tar"), container])
        _printed(["tar", "--extract", "--numeric-owner", "--directory", str(made), "--file", str(making / "tar")])
        for place in ("srv/codemend", "opt/site", "shared"):
            (made / place).mkdir(parents=True)
        with contextlib.suppress(OSError):  # another process was faster
            made.rename(tree)
    finally:
        _quietly(["docker", "rm", container])
        shutil.rmtree(making)
    return tree


def _printed(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def _bundle(tree: Path, shared: Path, settings: Mapping[str, str]) -> dict[str, object]:
    """The pod's OCI configuration."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": "/srv/codemend:/srv/codemend/protos:/srv/codemend/tests:/opt/site",
        "PYTHONDONTWRITEBYTECODE": "1",
        **settings,
    }
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        *(
            {"destination": inside, "type": "bind", "source": str(outside), "options": [mode, "rbind"]}
            for inside, outside, mode in (
                ("/srv/codemend", ROOT, "ro"), ("/opt/site", site, "ro"), ("/shared", shared, "rw"),
            )
        ),
    ]  # fmt: skip
    kinds = ("bounding", "effective", "permitted", "inheritable")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh", "-c", f"{_START} --ready-file /shared/address"],
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(kinds, _CAPABILITIES),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 65536, "soft": 65536}],
        },
        "root": {"path": str(tree), "readonly": True},
        "hostname": "pod",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
