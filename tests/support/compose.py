"""deploy/compose.yaml on the real engine, under a project name of its own; everything is removed at the end.

Compose 2 does it all. Debian's compose 1.29 does not know `systempaths`, so beside it the engine's client starts the
sandbox, with the options that the file names.
"""

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address, ip_network
from pathlib import Path

import yaml

FILE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
SERVICES = ("orchestrator", "sandbox-service", "postgres")
START_SECONDS = 180


@dataclass(frozen=True)
class Deployment:
    """A deployment that was started."""

    project: str
    address: str
    env: dict[str, str]

    def container(self, service: str) -> str:
        """The name or id of the service's only container."""
        if service == "sandbox" and not _has_plugin():
            return f"{self.project}-sandbox"
        return self.compose("ps", "-q", service).strip()

    def compose(self, *arguments: str) -> str:
        """Runs compose and returns what it printed."""
        program = ["docker", "compose"] if _has_plugin() else ["docker-compose"]
        return _run([*program, "--project-name", self.project, "--file", str(FILE), *arguments], self.env)

    def log(self, service: str) -> str:
        """What the service's container wrote."""
        return _run(["docker", "logs", self.container(service)], self.env)

    def inside(self, service: str, source: str) -> subprocess.CompletedProcess[str]:
        """Runs Python source in a service's container."""
        command = ["docker", "exec", self.container(service), "python3", "-c", source]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    async def healthy(self, service: str) -> None:
        """Waits until the engine's health check of the service passes."""
        form = "{{.RestartCount}} {{.State.Status}} {{.State.Health.Status}}"
        look = ["docker", "inspect", "--format", form, self.container(service)]
        try:
            async with asyncio.timeout(START_SECONDS):
                while (seen := await asyncio.to_thread(_run, look)).split() != ["0", "running", "healthy"]:
                    assert "exited" not in seen, self.log(service)
                    assert seen.startswith("0 "), self.log(service)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{service} is {seen.strip()} after {START_SECONDS} s: {self.log(service)}") from None


def lacking() -> str:
    """What this machine lacks for a deployment; empty: nothing."""
    if not shutil.which("docker"):
        return "no container engine: .ci/engine sets it up"
    if not _has_plugin() and not shutil.which("docker-compose"):
        return "no compose: apt-get install --no-install-recommends docker-compose"
    images = [f"codemend-{name}:{version('codemend')}" for name in SERVICES]
    there = subprocess.run(["docker", "image", "inspect", *images], capture_output=True, timeout=30, check=False)
    return "" if there.returncode == 0 else "the images of the services are not built: make images"


def bridge_address() -> str:
    """This machine's address on the engine's own bridge, which every container with a way out can reach."""
    subnet = ip_network(
        _run(["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}"]).strip()
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as routed:  # engines do not always name their gateway
        routed.connect((str(subnet[-2]), 9))  # sends nothing
        address = routed.getsockname()[0]
    assert ip_address(address) in subnet, address
    return address


@asynccontextmanager
async def deployment(model_url: str) -> AsyncIterator[Deployment]:
    """Starts it, healthy, with this endpoint as its model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = {
        "CODEMEND_MODEL_URL": model_url,
        "CODEMEND_POSTGRES_PASSWORD": secrets.token_hex(12),
        "CODEMEND_PORT": str(port),
        "CODEMEND_VERSION": version("codemend"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CODEMEND_", "OPENAI_"))}
    made = Deployment(f"codemend-test-{secrets.token_hex(4)}", f"127.0.0.1:{port}", {**kept, **chosen})
    try:
        if _has_plugin():
            await asyncio.to_thread(made.compose, "up", "--detach")
        else:
            await asyncio.to_thread(made.compose, "up", "--detach", "--scale", "sandbox=0")
            await asyncio.to_thread(_start_sandbox, made)
        for service in ("postgres", "sandbox", "orchestrator"):
            await made.healthy(service)
        yield made
    finally:
        await asyncio.to_thread(_remove, made)


def _start_sandbox(made: Deployment) -> None:
    wanted = yaml.safe_load(FILE.read_text())["services"]["sandbox"]
    options = [f"--security-opt={option}" for option in wanted["security_opt"]]
    options += [f"--cap-drop={capability}" for capability in wanted["cap_drop"]]
    options += [f"--dns={server}" for server in wanted["dns"]]
    options += [f"--tmpfs={mount}" for mount in wanted["tmpfs"]]
    options += [f"--memory={wanted['mem_limit']}", f"--pids-limit={wanted['pids_limit']}"]
    if wanted["read_only"]:
        options.append("--read-only")
    network = [f"--network={made.project}_sandbox", "--network-alias=sandbox", f"--name={made.project}-sandbox"]
    image = f"codemend-sandbox-service:{made.env['CODEMEND_VERSION']}"
    _run(["docker", "run", "--detach", *network, *options, image], made.env)


def _remove(made: Deployment) -> None:
    if not _has_plugin():
        _quietly(["docker", "rm", "--force", f"{made.project}-sandbox"])
    made.compose("down", "--volumes", "--timeout", "20")


def _has_plugin() -> bool:
    """Whether the engine's client knows `docker compose`, which is Compose 2."""
    return _quietly(["docker", "compose", "version"]) == 0


def _quietly(command: Sequence[str]) -> int:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def _run(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout + (done.stderr if "logs" in command else "")
