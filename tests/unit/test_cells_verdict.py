"""What evidence means: every status of an execution; unknown is never a success."""

import signal
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.cells.verdict import Evidence, Kill, ending
from sandbox_service.domain import DEFAULT_LIMITS, Status

LIMITS = replace(DEFAULT_LIMITS, wall_time=timedelta(seconds=2), cpu_time=timedelta(seconds=1.5))


def exited(code):
    return code << 8


ENDINGS = [
    (Evidence(exited(0)), Status.SUCCEEDED, 0, None, ""),
    (Evidence(exited(1)), Status.FAILED, 1, None, "exit code 1"),
    (Evidence(exited(255)), Status.FAILED, 255, None, "exit code 255"),
    (Evidence(signal.SIGKILL), Status.SIGNALED, None, 9, "SIGKILL"),
    (Evidence(signal.SIGSEGV | 0x80), Status.SIGNALED, None, 11, "SIGSEGV"),  # with the bit of a core file
    (Evidence(50), Status.SIGNALED, None, 50, "50"),
    (Evidence(signal.SIGKILL, kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(None, kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(exited(0), kill=Kill.WALL_TIME), Status.TIMED_OUT, None, 9, "2 s of wall time"),
    (Evidence(9, kill=Kill.CPU_TIME), Status.CPU_LIMIT, None, 9, "1.5 s of processor time"),
    (Evidence(9, kill=Kill.OUTPUT), Status.OUTPUT_LIMIT, None, 9, str(LIMITS.output_bytes)),
    (Evidence(9, kill=Kill.WALL_TIME, process_limit_hits=3), Status.TIMED_OUT, None, 9, "64 processes"),
    (Evidence(signal.SIGXCPU), Status.CPU_LIMIT, None, int(signal.SIGXCPU), "1.5 s"),
    (Evidence(signal.SIGXFSZ), Status.DISK_LIMIT, None, int(signal.SIGXFSZ), str(LIMITS.file_bytes)),
    (Evidence(exited(1), file_limit_met=True), Status.DISK_LIMIT, 1, None, str(LIMITS.file_bytes)),
    (Evidence(exited(1), disk_full=True), Status.DISK_LIMIT, 1, None, str(LIMITS.disk_bytes)),
    (Evidence(9, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, 9, str(LIMITS.memory_bytes)),
    (Evidence(exited(1), out_of_memory_kills=1), Status.MEMORY_LIMIT, 1, None, str(LIMITS.memory_bytes)),
    (Evidence(9, over_memory=True, over_disk=True), Status.MEMORY_LIMIT, None, 9, str(LIMITS.memory_bytes)),
    (Evidence(exited(0), over_memory=True), Status.MEMORY_LIMIT, 0, None, str(LIMITS.memory_bytes)),
    (Evidence(exited(0), over_disk=True), Status.DISK_LIMIT, 0, None, str(LIMITS.disk_bytes)),
    (Evidence(exited(1), memory_error=True), Status.MEMORY_LIMIT, 1, None, str(LIMITS.memory_bytes)),
    (Evidence(None, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, None, str(LIMITS.memory_bytes)),
    (Evidence(exited(1), process_limit_hits=1), Status.PROCESS_LIMIT, 1, None, "64 processes"),
    (Evidence(exited(1), process_limit_hits=1, disk_full=True), Status.DISK_LIMIT, 1, None, "disk"),
    (Evidence(9, process_limit_hits=1, out_of_memory_kills=1), Status.MEMORY_LIMIT, None, 9, "memory"),
    (Evidence(9, violation="bpf"), Status.VIOLATION, None, 9, "forbidden system call: bpf"),
    (Evidence(exited(0), violation="bpf", kill=Kill.WALL_TIME), Status.VIOLATION, None, None, "bpf"),
    (Evidence(None, violation="bpf", out_of_memory_kills=1), Status.VIOLATION, None, None, "bpf"),
    # a program that met a limit, went on and ended well has succeeded
    (Evidence(exited(0),
              out_of_memory_kills=1, process_limit_hits=1, disk_full=True, file_limit_met=True, memory_error=True),
     Status.SUCCEEDED, 0, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "status", "code", "number", "said"), ENDINGS)
def test_an_ending_is_what_its_evidence_says(evidence, status, code, number, said):
    found = ending(evidence, LIMITS)
    assert (found.status, found.exit_code, found.signal) == (status, code, number)
    assert said in found.reason
    assert bool(found.reason) == (status is not Status.SUCCEEDED)


def test_every_status_that_a_job_can_end_in_has_a_case():
    assert {status for _evidence, status, *_rest in ENDINGS} == set(Status) - {Status.CANCELLED}


def test_without_evidence_there_is_no_ending():
    assert ending(Evidence(None), LIMITS) is None


evidences = st.builds(
    Evidence,
    wait_status=st.none() | st.integers(0, 0xFFFF),
    kill=st.none() | st.sampled_from(Kill),
    out_of_memory_kills=st.integers(0, 3),
    process_limit_hits=st.integers(0, 3),
    disk_full=st.booleans(),
    file_limit_met=st.booleans(),
    memory_error=st.booleans(),
    over_memory=st.booleans(),
    over_disk=st.booleans(),
)


@given(evidences)
def test_only_a_program_that_ended_by_itself_with_zero_has_succeeded(evidence):
    found = ending(evidence, LIMITS)
    succeeded = found is not None and found.status is Status.SUCCEEDED
    over = evidence.over_memory or evidence.over_disk
    assert succeeded == (evidence.kill is None and evidence.wait_status == 0 and not over)


@given(evidences)
def test_an_ending_has_an_exit_code_or_a_signal_never_both_and_a_reason(evidence):
    found = ending(evidence, LIMITS)
    if found is not None:
        assert found.exit_code is None or found.signal is None
        assert found.status is Status.SUCCEEDED or found.reason
