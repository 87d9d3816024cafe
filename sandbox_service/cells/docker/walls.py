"""Which protections a docker cell has: what the engine was told, what its runtime makes of it, what is not there."""

from collections.abc import Mapping

from sandbox_service.cells.protections import NAMES
from sandbox_service.domain import Protection

_SHARED = {
    "mount_namespace": "the container's",
    "pid_namespace": "the container's; what a job started is ended by its process 1, or with the container",
    "network_namespace": "the container's, with no network but loopback",
    "ipc_namespace": "the container's",
    "uts_namespace": "the container's",
    "read_only_root": "read-only for the container; writable are only /work, /tmp, /var/tmp, /dev/shm and the home",
    "no_capabilities": "all dropped by the engine",
    "no_new_privs": "set by the engine",
    "rlimits": "processor time, file size, open files, processes, locked memory, no core files",
    "own_uid": "no user of the host, nor the one that holds the trusted tests and the channel to the service",
    "memory_cgroup": "the guest ends a job over its limit; the engine's limit for the container lies above it",
    "pids_cgroup": "an rlimit in the container, and the engine's limit above it",
    "cpu_cgroup": "the guest ends a job over its limit; the engine limits the container's share",
}
_ABSENT = {
    "user_namespace": "containers of this runtime have the host's",
    "cgroup_namespace": "containers of this runtime have the host's",
    "hidden_processes": "/proc is the container's own, and shows the guest's two processes too",
    "seccomp": "this runtime takes no filter of system calls; the runtime's own stays",
    "landlock": "this runtime has no Landlock",
}
_SANDBOXED = {
    "user_namespace": "gVisor's own kernel: its users are none of the host's",
    "cgroup_namespace": "gVisor's own kernel: it shows none of the host's groups",
}
KERNEL = "own_kernel"
"""Name of the protection that the runtime itself is."""
DOCKER_NAMES: tuple[str, ...] = (*NAMES, KERNEL)


def docker_protections(runtime: str, found: Mapping[str, str], *, is_plain: bool) -> tuple[Protection, ...]:
    """Every protection.

    Args:
        runtime: the engine's runtime.
        found: what the guest found in a container: name -> how.
        is_plain: the runtime shares the host's kernel.
    """
    in_force = {**_SHARED, **({} if is_plain else _SANDBOXED), **found}
    kernel = (
        f"runtime {runtime}: containers share the host's kernel"
        if is_plain
        else f"runtime {runtime}: jobs' system calls are answered by a kernel of the container's own"
    )
    walls = [
        Protection(name, name in in_force, in_force.get(name) or _ABSENT.get(name, "containers do not have it"))
        for name in NAMES
    ]
    return (*walls, Protection(KERNEL, not is_plain, kernel))
