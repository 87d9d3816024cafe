"""The battery itself: its judges see what gets through, and the services that stand for the host's can be reached."""

import json
import socket
from datetime import timedelta

import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from support.kinds import KINDS, canaries
from support.waiting import until

from security.attacks.base import MIB, Seen, ends, holds_at_most, refused
from security.attacks.resources import ATTACKS as RESOURCES


def seen(
    status: str,
    *,
    found: dict[str, str] | None = None,
    out: str = "",
    err: str = "",
    seconds: float = 1,
    kind: str = "process",
) -> Seen:
    printed = f"{out}{json.dumps(found)}\n" if found is not None else out
    result = pb.ExecutionResult(
        status=pb.ExecutionStatus.Value(f"EXECUTION_STATUS_{status}"),
        stdout=pb.Output(head=printed.encode()),
        stderr=pb.Output(head=err.encode()),
    )
    result.wall_time.FromTimedelta(timedelta(seconds=seconds))
    return Seen(result, seconds, kind=kind)


@pytest.mark.parametrize(
    ("end", "contained"),
    [
        (seen("SUCCEEDED", found={"mount": "EPERM"}), True),
        (seen("VIOLATION"), True),
        (seen("SUCCEEDED", found={"mount": "GOT 0", "umount": "EPERM"}), False),
        (seen("SUCCEEDED", found={"mount": "EFAULT"}), False),
        (seen("SUCCEEDED"), False),
        (seen("FAILED", err="Traceback"), False),
        (seen("TIMED_OUT"), False),
    ],
)
def test_only_what_was_refused_or_is_a_violation_is_contained(end, contained):
    assert refused()(end).contained == contained


def test_what_an_attack_names_as_refusal_is_one():
    assert refused("EINVAL")(seen("SUCCEEDED", found={"mount": "EINVAL"})).contained
    assert not refused()(seen("SUCCEEDED", found={"mount": "EINVAL"})).contained


def test_an_end_must_have_its_status_come_in_time_and_pass_its_check():
    assert ends("TIMED_OUT", within=2)(seen("TIMED_OUT")).contained
    assert not ends("TIMED_OUT", within=2)(seen("SUCCEEDED")).contained
    assert not ends("TIMED_OUT", within=2)(seen("TIMED_OUT", seconds=3)).contained
    assert not ends("TIMED_OUT", check=lambda _seen: False)(seen("TIMED_OUT")).contained


@pytest.mark.parametrize("bomb", [a for a in RESOURCES if a.name.startswith("fork_bomb_")], ids=lambda bomb: bomb.name)
def test_only_a_container_may_be_lost_to_a_fork_bomb(bomb):
    ends_of = {kind: bomb.judge(seen("SIGNALED", kind=kind)).contained for kind in KINDS}
    assert ends_of == {kind: kind == "docker" for kind in KINDS}


@pytest.mark.parametrize(
    ("end", "contained"),
    [
        (seen("SUCCEEDED", out=f"held {10 * MIB}\ndone\n"), True),
        (seen("FAILED", out=f"held {90 * MIB}\n", err="MemoryError"), True),
        (seen("MEMORY_LIMIT", out=f"held {300 * MIB}\n"), True),
        (seen("SUCCEEDED", out=f"held {300 * MIB}\ndone\n"), False),
        (seen("SUCCEEDED"), False),
        (seen("SUCCEEDED", out="done\n"), False),
    ],
)
def test_a_program_may_not_keep_more_than_its_limit(end, contained):
    assert holds_at_most(100 * MIB)(end).contained == contained


async def test_whoever_comes_to_the_host_s_services_is_seen(tmp_path):
    async with canaries(tmp_path, "secret") as canary:
        socket.create_connection(("127.0.0.1", canary.told["port"])).close()
        for address in (f"\0{canary.told['abstract']}", canary.told["socket"]):
            with socket.socket(socket.AF_UNIX) as handle:
                handle.connect(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            handle.sendto(b"x", ("127.0.0.1", canary.told["datagrams"]))
        await until(lambda: sorted(canary.hits()) == ["abstract", "datagrams", "file", "tcp"])
