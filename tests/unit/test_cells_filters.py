"""The filter of system calls as it is built: its lists, its size, its names."""

import re
from collections import Counter

import pyseccomp
import pytest

from sandbox_service.cells import filters

LISTS = [*filters.ALLOWED.values(), *filters.VIOLATIONS.values(), *filters.QUIET.values()]
INSTRUCTION_BYTES = 8
KERNEL_LIMIT = 4096
"""BPF_MAXINSNS."""


def test_no_call_is_in_two_lists():
    counted = Counter(name for names in LISTS for name in names.split())
    assert [name for name, times in counted.items() if times > 1] == []


@pytest.mark.parametrize("names", LISTS)
def test_names_are_sorted_and_well_formed(names):
    assert names.split() == sorted(names.split())
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names.split())


@pytest.mark.parametrize("memory_counted", [True, False])
def test_both_forms_are_programs_that_a_kernel_takes(memory_counted):
    built = filters.build(memory_counted=memory_counted)
    assert built.missing == ""
    for program in (built.listening, built.killing):
        assert len(program) % INSTRUCTION_BYTES == 0
        assert 0 < len(program) // INSTRUCTION_BYTES < KERNEL_LIMIT / 4
    assert built.listening != built.killing


DANGEROUS = """
bpf ptrace keyctl add_key request_key userfaultfd perf_event_open init_module kexec_load mount umount2 unshare setns
pivot_root chroot reboot swapon clock_settime sethostname quotactl open_by_handle_at fanotify_init acct syslog kcmp
pidfd_getfd vmsplice process_vm_readv io_uring_setup clone3
"""


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_what_breaks_out_of_namespaces_is_never_allowed(name):
    assert name not in " ".join(filters.ALLOWED.values()).split()


def test_calls_are_named_by_number_and_abi():
    native = pyseccomp.system_arch()
    assert filters.call_name(pyseccomp.resolve_syscall(native, "bpf"), native) == "bpf"
    assert filters.call_name(20, pyseccomp.Arch.X86) == "getpid (of the 32-bit ABI)"
    assert filters.call_name(0x40000000 | 39, pyseccomp.Arch.X86_64) == "getpid (of the 32-bit ABI)"


@pytest.mark.parametrize(("number", "architecture"), [(9999, pyseccomp.system_arch()), (-1, 0)])
def test_what_has_no_name_is_told_by_its_number(number, architecture):
    assert filters.call_name(number, architecture) == f"number {number}"


def test_without_the_binding_there_is_no_filter_but_advice(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyseccomp", None)
    built = filters.build()
    assert (built.listening, built.killing) == (b"", b"")
    assert "libseccomp2" in built.missing
    assert filters.call_name(321, 0) == "number 321"
