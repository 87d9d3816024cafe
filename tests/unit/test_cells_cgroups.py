"""Control groups against directories that stand for the kernel's: what is written, what is read, what is removed."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sandbox_service.cells import cgroups
from sandbox_service.cells.cgroups import CgroupsV1, CgroupsV2, Group, GroupUsage
from sandbox_service.domain import DEFAULT_LIMITS, MIB

LIMITS = replace(DEFAULT_LIMITS, memory_bytes=100 * MIB, processes=10, cpu_time=timedelta(seconds=1))
ALL = frozenset({"memory", "pids", "cpu"})
KERNEL_FILES = (
    "cgroup.procs", "tasks", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max",
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_period_us", "cpu.cfs_quota_us",
)  # fmt: skip


@pytest.fixture
def kernel(monkeypatch):
    """Gives each new directory the files that the kernel puts there, and takes them away before the directory goes."""
    make, remove = os.mkdir, os.rmdir

    def mkdir(path, *args, **options):
        make(path, *args, **options)
        for name in KERNEL_FILES:
            Path(path, name).touch()

    def rmdir(path, **options):
        entrance = Path(path, "cgroup.procs")
        if entrance.exists() and entrance.read_text():
            raise OSError(16, "busy")
        for file in Path(path).iterdir():
            if file.is_file():
                file.unlink()
        remove(path, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "rmdir", rmdir)


@pytest.fixture
def v2(tmp_path, kernel):  # noqa: ARG001 - patches what the groups stand on
    parent = tmp_path / "codemend-1-1"
    parent.mkdir()
    return parent, CgroupsV2(parent, ALL)


@pytest.fixture
def v1(tmp_path, kernel):  # noqa: ARG001 - patches what the groups stand on
    parents = {name: tmp_path / name / "codemend-1-1" for name in ("memory", "pids", "cpu", "cpuacct")}
    for parent in parents.values():
        parent.mkdir(parents=True)
    return parents, CgroupsV1(parents)


def written(directory):
    return {path.name: path.read_text() for path in directory.iterdir() if path.read_text()}


def test_version_2_limits_memory_without_swap_processes_and_one_core(v2):
    parent, groups = v2
    group = groups.create("7", LIMITS)
    assert written(parent / "7") == {
        "memory.max": str(100 * MIB), "memory.swap.max": "0", "memory.oom.group": "0",
        "pids.max": "11", "cpu.max": "100000 100000",
    }  # fmt: skip
    assert len(group.descriptors) == 1
    group.close_descriptors()


def test_version_1_writes_each_limit_to_its_own_hierarchy(v1):
    parents, groups = v1
    group = groups.create("7", LIMITS)
    assert written(parents["memory"] / "7") == dict.fromkeys(
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), str(100 * MIB)
    )
    assert written(parents["pids"] / "7") == {"pids.max": "11"}
    assert written(parents["cpu"] / "7") == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}
    assert written(parents["cpuacct"] / "7") == {}
    assert len(group.descriptors) == 4
    assert groups.controllers == ALL
    group.close_descriptors()


def test_a_controller_that_is_not_there_is_not_written_to(v2, monkeypatch):
    parent, groups = v2
    monkeypatch.setattr(f"{__name__}.KERNEL_FILES", ("cgroup.procs", "pids.max"))
    group = groups.create("7", LIMITS)
    assert written(parent / "7") == {"pids.max": "11"}
    group.close_descriptors()


def test_other_limits_are_written_later_and_the_same_ones_are_not(v1):
    parents, groups = v1
    group = groups.create("7", LIMITS)
    for place in (parents["pids"] / "7" / "pids.max", parents["cpu"] / "7" / "cpu.cfs_quota_us"):
        place.write_text("9")
    group.limit(replace(LIMITS, memory_bytes=200 * MIB))
    assert written(parents["memory"] / "7") == dict.fromkeys(
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), str(200 * MIB)
    )
    assert written(parents["pids"] / "7") == {"pids.max": "9"}
    group.limit(replace(LIMITS, processes=3))
    assert written(parents["pids"] / "7") == {"pids.max": "4"}
    assert written(parents["cpu"] / "7") == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "9"}
    group.close_descriptors()


@pytest.mark.parametrize(
    ("memory_bytes", "first"), [(200 * MIB, "memory.memsw.limit_in_bytes"), (50 * MIB, "memory.limit_in_bytes")]
)
def test_memory_alone_never_has_a_higher_limit_than_memory_with_swap(v1, monkeypatch, memory_bytes, first):
    _parents, groups = v1
    order = []
    monkeypatch.setattr(cgroups, "_write", lambda path, _value: order.append(Path(path).name))
    group = groups.create("7", LIMITS)
    group.limit(replace(LIMITS, memory_bytes=memory_bytes))
    written_to_memory = [name for name in order if name.startswith("memory.")]
    assert written_to_memory[0] == "memory.limit_in_bytes"  # from no limit at all
    assert written_to_memory[2] == first
    assert len(written_to_memory) == 4
    group.close_descriptors()


def test_a_group_that_cannot_be_made_leaves_nothing(v1):
    parents, groups = v1
    (parents["cpuacct"] / "7").mkdir()
    with pytest.raises(FileExistsError):
        groups.create("7", LIMITS)
    assert not any((parents[name] / "7").exists() for name in ("memory", "pids", "cpu"))


def test_the_first_process_joins_by_the_descriptor(v2):
    parent, groups = v2
    group = groups.create("7", LIMITS)
    os.write(group.descriptors[0], b"0")
    assert (parent / "7" / "cgroup.procs").read_text() == "0"
    group.close_descriptors()
    assert group.descriptors == []


def test_usage_of_version_2_is_read(v2):
    parent, groups = v2
    group = groups.create("7", LIMITS)
    assert group.counts_cpu
    assert group.usage() == GroupUsage()
    for name, text in {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\nnr_periods 3\n",
        "memory.peak": "4096\n",
        "memory.events": "low 0\nmax 5\noom 2\noom_kill 1\n",
        "pids.events": "max 3\n",
    }.items():
        (parent / "7" / name).write_text(text)
    assert group.usage() == GroupUsage(1.5, 4096, 1, 3)
    group.close_descriptors()


def test_usage_of_version_1_is_read(v1):
    parents, groups = v1
    group = groups.create("7", LIMITS)
    assert group.usage() == GroupUsage()
    for controller, name, text in [
        ("cpuacct", "cpuacct.usage", "1500000000\n"),
        ("memory", "memory.max_usage_in_bytes", "4096\n"),
        ("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("pids", "pids.events", "max 3\n"),
    ]:
        (parents[controller] / "7" / name).write_text(text)
    assert group.usage() == GroupUsage(1.5, 4096, 2, 3)
    group.close_descriptors()


@pytest.mark.parametrize("text", ["", "max", "oom_kill", "oom_kill x", "\n\n", "a b c\n"])
def test_usage_that_cannot_be_read_is_zero(v2, text):
    parent, groups = v2
    group = groups.create("7", LIMITS)
    for name in ("cpu.stat", "memory.peak", "memory.events", "pids.events"):
        (parent / "7" / name).write_text(text)
    assert group.usage() == GroupUsage()
    group.close_descriptors()


def test_processor_time_is_not_counted_where_its_hierarchy_is_not_there(tmp_path):
    assert not Group({"pids": tmp_path}, version=1).counts_cpu


def test_a_group_is_removed_once_it_is_empty(v2):
    parent, groups = v2
    group = groups.create("7", LIMITS)
    (parent / "7" / "cgroup.procs").write_text("123")
    assert not group.remove()
    assert (parent / "7").exists()
    (parent / "7" / "cgroup.procs").write_text("")
    assert group.remove()
    assert not (parent / "7").exists()
    assert group.remove()  # once more is no error


def test_a_group_is_removed_from_every_hierarchy(v1):
    parents, groups = v1
    group = groups.create("7", LIMITS)
    assert group.remove()
    assert not any((parent / "7").exists() for parent in parents.values())
    groups.close()
    assert not any(parent.exists() for parent in parents.values())


def test_leftovers_of_dead_services_go_and_those_of_living_ones_stay(tmp_path, kernel):  # noqa: ARG001 - see above
    own = f"codemend-{os.getpid()}-{cgroups._start_time(os.getpid())}"
    reused = f"codemend-{os.getpid()}-1"  # the pid lives, but it is another process
    for name in (own, reused, "codemend-4194304999-5", "someone-else"):
        (tmp_path / name / "3").mkdir(parents=True)
    cgroups._remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([own, "someone-else"])


def test_leftovers_that_do_not_go_do_not_hold_a_start_for_long(tmp_path, kernel, monkeypatch):  # noqa: ARG001 - see above
    monkeypatch.setattr(cgroups, "_REMOVE_DEADLINE_S", 0.05)
    stuck = tmp_path / "codemend-4194304999-5"
    stuck.mkdir()
    (stuck / "cgroup.procs").write_text("1")
    cgroups._remove_leftovers(tmp_path)
    assert stuck.exists()


def test_a_process_has_a_start_time_and_one_that_is_not_there_has_none():
    assert cgroups._start_time(os.getpid()).isdigit()
    assert cgroups._start_time(4194304999) == ""
