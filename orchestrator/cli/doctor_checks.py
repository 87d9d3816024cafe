"""What `doctor` looks at: the machine, the sandbox with a real program in it, the model; and how to mend each."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path

from codemend.sandbox.v1 import sandbox_pb2

from orchestrator.cli import client, wording
from orchestrator.cli.errors import UsageFault
from orchestrator.cli.model import orchestrator_environment, read_settings
from orchestrator.cli.terminal import in_bytes, in_seconds

_ESSENTIAL = {"mount_namespace", "pid_namespace", "network_namespace", "no_new_privs"}
_NAMESPACES = (
    "run as root, or allow user namespaces: sysctl -w user.max_user_namespaces=10000 "
    "kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0 (those that this kernel knows)"
)
_CGROUPS = "run as root, or where a cgroup is delegated: systemd-run --user --scope -p Delegate=yes codemend …"
_REMEDIES = {"cgroup": _CGROUPS, "namespace": _NAMESPACES}
_CANARY = b"print(6 * 7)\n"
_LEAST_FREE_BYTES = 512 * 1024**2


class State(Enum):
    """How a finding stands."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def machine_checks(directories: Sequence[tuple[str, Path]]) -> list[Check]:
    """Versions, the kernel, and the directories that data goes to, given with their names."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "langgraph", "pytest"))
    checks = [
        Check("codemend", State.OK, f"{version('codemend')}, Python {platform.python_version()}, {packages}"),
        Check(
            "kernel",
            State.OK,
            f"{platform.system()} {platform.release()} {platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        ),
    ]
    if sys.platform != "linux":
        checks.append(
            Check(
                "system",
                State.FAILED,
                f"the sandbox needs Linux; this is {sys.platform}",
                "use a Linux machine or container",
            )
        )
    return checks + [_directory_check(name, path) for name, path in directories]


def _directory_check(name: str, path: Path) -> Check:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(
            name,
            State.FAILED,
            f"{path} cannot be written",
            f"make {there} writable, or choose another place by its setting",
        )
    free = shutil.disk_usage(there).free
    state = State.OK if free >= _LEAST_FREE_BYTES else State.WARNING
    return Check(name, state, f"{path}, {in_bytes(free)} free", "make room")


async def sandbox_checks(address: str) -> list[Check]:
    """Asks the sandbox what it offers, and has it run a program.

    Raises:
        CliError: it cannot be reached.
    """
    seconds = client.CALL_TIMEOUT.total_seconds()
    program = sandbox_pb2.Program(entry="canary.py", files=[sandbox_pb2.File(path="canary.py", content=_CANARY)])
    async with client.sandbox_stub(address) as stub:
        offered = await client.patiently(
            client.SANDBOX_SERVICE, lambda: stub.GetCapabilities(sandbox_pb2.GetCapabilitiesRequest(), timeout=seconds)
        )
        ran = await client.patiently(
            client.SANDBOX_SERVICE, lambda: stub.Execute(sandbox_pb2.ExecuteRequest(program=program), timeout=seconds)
        )
    return [
        _offer_check(offered),
        *_limit_checks(offered),
        _canary_check(ran.result),
        *map(_protection_check, offered.protections),
    ]


def _offer_check(offered: sandbox_pb2.GetCapabilitiesResponse) -> Check:
    languages = ", ".join(f"{name} {number}" for name, number in sorted(offered.language_versions.items()))
    load = f"{offered.concurrency} jobs at one time, {offered.queue_size} may wait"
    return Check(
        "service", State.OK, f"version {offered.version}, cells: {', '.join(offered.cells)}; {languages}; {load}"
    )


def _limit_checks(offered: sandbox_pb2.GetCapabilitiesResponse) -> Iterator[Check]:
    for name, limits in (("default limits", offered.default_limits), ("maximum limits", offered.maximum_limits)):
        wall, cpu = in_seconds(limits.wall_time.ToTimedelta()), in_seconds(limits.cpu_time.ToTimedelta())
        sizes = [
            f"{what} {in_bytes(count)}"
            for what, count in (
                ("memory", limits.memory_bytes),
                ("output", limits.output_bytes),
                ("disk", limits.disk_bytes),
            )
        ]
        yield Check(name, State.OK, f"wall {wall}, cpu {cpu}, {', '.join(sizes)}, {limits.processes} processes")


def _canary_check(result: sandbox_pb2.ExecutionResult) -> Check:
    said = result.stdout.head.decode("utf-8", "replace").strip()
    if result.status == sandbox_pb2.EXECUTION_STATUS_SUCCEEDED and said == "42":
        took = in_seconds(result.wall_time.ToTimedelta() + result.queue_time.ToTimedelta())
        return Check("program", State.OK, f"a program ran and printed what it should, in {took}")
    detail = " ".join([wording.execution_status(result.status), result.reason, *wording.output_tail(result.stderr)])
    return Check(
        "program",
        State.FAILED,
        f"a program that prints 42 ended as {detail}",
        "look into the service's log: codemend serve --sandbox",
    )


def _protection_check(protection: sandbox_pb2.Protection) -> Check:
    if protection.in_force:
        return Check(protection.name, State.OK, protection.detail or "in force")
    state = State.FAILED if protection.name in _ESSENTIAL else State.WARNING
    remedy = next((text for word, text in _REMEDIES.items() if word in protection.name), "")
    return Check(protection.name, state, f"not in force: {protection.detail}", remedy)


async def model_checks(model_url: str, model: str, embedded_model: str) -> list[Check]:
    """Whether the endpoint answers, or the embedded model's weights are there; starts and fetches nothing."""
    try:
        orchestrator_environment(model_url=model_url, model=model, embedded_model=embedded_model)
    except UsageFault as fault:
        return [Check("model", State.FAILED, str(fault), "mend CODEMEND_MODEL_URL and CODEMEND_MODEL_NAME")]
    # The gateway behind these takes a second to import, which only this command has to wait for.
    from orchestrator.cli.doctor_model import embedded_check, endpoint_check  # noqa: PLC0415 - see above

    settings = read_settings()
    if model_url:
        return [await endpoint_check(model_url, model, settings.api_key.get_secret_value())]
    return [embedded_check(embedded_model, settings.cache_dir)]
