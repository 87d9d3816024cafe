"""Reading what the probing program met in a cell: each wall that is missing is named, and no other."""

import hashlib
import os
from pathlib import Path

import pytest

from sandbox_service.cells.walls_met import judged
from sandbox_service.domain import DEFAULT_LIMITS

OWN = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("ipc", "pid")}


def met(**changed: object) -> dict[str, object]:
    """What a cell with every wall looks like from inside."""
    return {
        "namespaces": {name: f"{name}:[1]" for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")},
        "outer_uid": 790_000_001,
        "capabilities": dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0),
        "no_new_privs": 1,
        "rlimits": {"CORE": 1, "NOFILE": DEFAULT_LIMITS.open_files},
        "others": [],
        "environments": [],
        "writes": {"/written": "EROFS", "/etc/passwd": "EACCES"},
        "own_places": {"/work": "done", "/tmp": "done"},
        "reads": {"/etc/shadow": "ENOENT", "/proc/kcore": "EACCES"},
        "kernel": {"kallsyms": "empty", "keys": "ENOENT"},
        "network": {"the host's loopback": "ECONNREFUSED", "169.254.169.254": "ENETUNREACH"},
        "landlock": "EACCES",
        "came": False,
    } | changed


def wrong(**changed: object) -> dict[str, str]:
    return {name: text for name, text in judged(met(**changed)) if text}


def test_a_cell_with_every_wall_is_right():
    assert wrong() == {}


@pytest.mark.parametrize(
    ("wall", "changed", "told"),
    [
        ("own_uid", {"outer_uid": 0}, "seen was 0"),
        ("own_uid", {"outer_uid": os.geteuid()}, "user id"),
        ("no_capabilities", {"capabilities": {"CapEff": 1, "CapBnd": 0}}, "CapEff"),
        ("no_new_privs", {"no_new_privs": 0}, "unset"),
        ("rlimits", {"rlimits": {"CORE": -1, "NOFILE": 256}}, "core"),
        ("rlimits", {"rlimits": {"CORE": 1, "NOFILE": 1 << 20}}, "1048576"),
        ("hidden_processes", {"others": [7]}, "process 7"),
        ("read_only_root", {"writes": {"/written": "done"}}, "/written"),
        ("read_only_root", {"own_places": {"/work": "EROFS"}}, "/work: EROFS"),
        ("mount_namespace", {"reads": {"/etc/shadow": "done"}}, "/etc/shadow"),
        ("masked_kernel_files", {"kernel": {"kallsyms": "done"}}, "kallsyms"),
        ("network_namespace", {"network": {"169.254.169.254": "done"}}, "169.254.169.254"),
        ("network_namespace", {"came": True}, "listener"),
        ("landlock", {"landlock": "done"}, "comm"),
        ("ipc_namespace", {"namespaces": {"ipc": OWN["ipc"]}}, "in the service's"),
        ("pid_namespace", {"namespaces": {"pid": OWN["pid"]}}, "in the service's"),
    ],
)  # fmt: skip
def test_a_missing_wall_is_named_and_no_other(wall, changed, told):
    found = wrong(**changed)
    assert set(found) == {wall}
    assert told in found[wall]


def test_a_namespace_that_cannot_be_told_is_not_judged():
    assert wrong(namespaces={}) == {}


def test_the_service_s_environment_must_not_be_seen(monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    seen = hashlib.sha256(b"DATABASE_PASSWORD=hunter2").hexdigest()
    assert set(wrong(environments=[seen])) == {"mount_namespace"}


def test_a_variable_that_every_cell_has_may_be_the_same(monkeypatch):
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert wrong(environments=[hashlib.sha256(b"LANG=C.UTF-8").hexdigest()]) == {}
