"""Forbidden system calls end the job and are named; what honest programs try is refused without harm."""

import shutil
from dataclasses import replace
from textwrap import dedent

import pyseccomp
import pytest
from support import honest
from support.jobs import client, limits, outcome
from support.looking import seen
from support.sandbox import sandbox_process

from sandbox_service import cells
from sandbox_service.cells import ProcessCells, filters
from sandbox_service.cells.filters import VIOLATIONS
from sandbox_service.domain import DEFAULT_LIMITS, File, Program, Status

NATIVE = {
    name: number
    for names in VIOLATIONS.values()
    for name in names.split()
    if (number := pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)) >= 0
}
CALL = "import ctypes, os\ncall = ctypes.CDLL(None, use_errno=True).syscall\n"
QUIET = """
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
    return 'done'
"""


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
async def filtered(sandbox, require):
    require("seccomp" in await sandbox.in_force(), "a kernel with seccomp filters, and libseccomp")


def number(name: str) -> int:
    return pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)


@pytest.mark.parametrize("name", sorted(NATIVE))
async def test_a_forbidden_call_ends_the_job_and_is_named(sandbox, name):
    ran = await sandbox.python(f"{CALL}call({NATIVE[name]}, 0, 0, 0, 0, 0)\nprint('alive')")
    assert (ran.status, ran.out) == ("VIOLATION", b""), ran.told()
    assert ran.result.reason.endswith(f": {name}")
    assert ran.wall_seconds < 5


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])",
        "if os.fork() == 0: exec({code!r})",
        "import threading\nthreading.Thread(target=exec, args=({code!r},)).start()",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: exec({code!r})\n    os._exit(0)",
    ],
    ids=["exec'ed child", "forked child", "thread", "daemon"],
)
async def test_it_does_so_wherever_in_the_job_it_is_made(sandbox, code):
    forbidden = f"{CALL}call({number('bpf')}, 0, 0, 0)"
    ran = await sandbox.python(f"import os, time\n{code.format(code=forbidden)}\ntime.sleep(30)\nprint('alive')")
    assert (ran.status, ran.out) == ("VIOLATION", b""), ran.told()
    assert ran.result.reason.endswith(": bpf")
    assert ran.wall_seconds < 10


async def test_an_exec_ed_program_is_held_to_it_too(sandbox):
    ran = await sandbox.command("unshare", "--user", "true")
    assert (ran.status, ran.result.reason.rpartition(" ")[2]) == ("VIOLATION", "unshare"), ran.told()


async def test_what_was_printed_and_made_before_is_kept(sandbox):
    code = f"{CALL}open('made.txt', 'w').write('x')\nprint('before', flush=True)\ncall({number('ptrace')}, 0, 0, 0, 0)"
    ran = await sandbox.python(code, collect=["*.txt"])
    assert (ran.status, ran.out, [file.path for file in ran.result.files]) == ("VIOLATION", b"before\n", ["made.txt"])


async def test_a_limit_that_rings_later_does_not_hide_it(sandbox):
    code = f"{CALL}\nif os.fork() == 0: call({number('keyctl')}, 0)\nwhile True: pass"
    ran = await sandbox.python(code, limits=limits(wall_time=5))
    assert ran.status == "VIOLATION", ran.told()


async def test_a_test_run_with_one_is_no_pass(sandbox):
    tests = dedent(f"""
        {CALL.splitlines()[0]}
        def test_first(): pass
        def test_forbidden(): ctypes.CDLL(None).syscall({number("bpf")}, 0, 0, 0)
    """)
    reply = await sandbox.tests(tests)
    assert outcome(reply) == "ERROR"
    assert "forbidden system call" in reply.report.reason


@pytest.mark.parametrize("where", ["in a call", "at its import", "in a child"])
async def test_code_under_test_with_one_is_no_pass(sandbox, where):
    forbidden = f"ctypes.CDLL(None).syscall({number('bpf')}, 0, 0, 0)"
    solution = {
        "in a call": f"import ctypes\ndef answer():\n    {forbidden}\n    return 42",
        "at its import": f"import ctypes\n{forbidden}\ndef answer(): return 42",
        "in a child": f"import ctypes, os\ndef answer():\n    os.fork() or {forbidden}\n    os.wait()\n    return 42",
    }[where]
    reply = await sandbox.tests("from solution import answer\ndef test_it(): assert answer() == 42", solution)
    assert outcome(reply) == "ERROR"
    assert "forbidden system call" in reply.report.reason
    assert reply.execution.reason.endswith(": bpf")


async def test_the_next_job_is_none_the_worse(sandbox):
    for _ in range(20):
        assert (await sandbox.python(f"{CALL}call({number('mount')}, 0, 0, 0, 0, 0)")).status == "VIOLATION"
    assert (await sandbox.python("print('next')")).out == b"next\n"


I386 = bytes.fromhex("b814000000cd80c3")
"""mov eax, 20 (getpid); int 0x80; ret."""


@pytest.mark.parametrize("abi", ["i386", "x32"])
async def test_calls_of_the_32_bit_abis_are_forbidden(sandbox, require, abi):
    require(pyseccomp.system_arch() == pyseccomp.Arch.X86_64, "an x86-64 machine")
    if abi == "x32":
        code = f"{CALL}call({0x40000000 | number('getpid')})"
    else:
        code = f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({I386!r})
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"""
    ran = await sandbox.python(f"{code}\nprint('alive')")
    assert ran.status == "VIOLATION", ran.told()
    assert ran.result.reason.endswith("getpid (of the 32-bit ABI)")


REFUSED = {
    "clone3": "ENOSYS",
    "io_uring_setup": "ENOSYS",
    "seccomp": "ENOSYS",
    "memfd_secret": "ENOSYS",
    "name_to_handle_at": "EOPNOTSUPP",
    "set_mempolicy": "EPERM",
}


@pytest.mark.parametrize(("name", "error"), REFUSED.items())
async def test_what_libraries_probe_is_refused_quietly(sandbox, name, error):
    found = await seen(sandbox, f"{QUIET}found['error'] = attempt(call, {number(name)}, 0, 0, 0)")
    assert found["error"] in {error, {"EOPNOTSUPP": "ENOTSUP"}.get(error)}


async def test_a_call_that_is_not_invented_yet_is_not_there(sandbox):
    assert await seen(sandbox, f"{QUIET}found['error'] = attempt(call, 4000, 0, 0)") == {"error": "ENOSYS"}


async def test_new_namespaces_by_clone_are_refused(sandbox):
    code = f"""{QUIET}
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    found[hex(flag)] = attempt(call, {number("clone")}, flag | 17, 0, 0, 0, 0)"""
    assert set((await seen(sandbox, code)).values()) == {"EPERM"}


async def test_only_sockets_of_the_usual_families_and_protocols_can_be_made(sandbox):
    code = """
for family in range(60):
    found[str(family)] = attempt(lambda: socket.socket(family, socket.SOCK_DGRAM).close())
found['sctp'] = attempt(socket.socket, 2, socket.SOCK_SEQPACKET)
found['mptcp'] = attempt(socket.socket, 2, socket.SOCK_STREAM, 262)
found['raw'] = attempt(socket.socket, 2, socket.SOCK_RAW, 1)
found['netfilter'] = attempt(socket.socket, 16, socket.SOCK_RAW, 12)
found['pair'] = attempt(socket.socketpair, 30)
"""
    found = await seen(sandbox, code)
    special = {name: found.pop(name) for name in ("sctp", "mptcp", "raw", "netfilter", "pair")}
    assert special == {
        "sctp": "ESOCKTNOSUPPORT", "mptcp": "ENOSYS", "raw": "EPERM", "netfilter": "EPROTONOSUPPORT",
        "pair": "EAFNOSUPPORT",
    }  # fmt: skip
    assert {int(family) for family, how in found.items() if how == "None"} == {1, 2, 10, 16}
    assert {how for how in found.values() if how != "None"} == {"EAFNOSUPPORT"}


async def test_limits_personality_and_leases_of_others_are_out_of_reach(sandbox):
    code = f"""{QUIET}
import fcntl, resource
found['prlimit on process 1'] = attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (1, 1))
found['own'] = attempt(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
found['personality'] = attempt(call, {number("personality")}, 8)
found['query'] = attempt(call, {number("personality")}, ctypes.c_ulong(0xFFFFFFFF))
found['lease'] = attempt(fcntl.fcntl, open('/work/x', 'w'), fcntl.F_SETLEASE, fcntl.F_WRLCK)
found['pipe'] = attempt(lambda: fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 4096))
found['sync'] = attempt(os.sync)"""
    assert await seen(sandbox, code) == {
        "prlimit on process 1": "EPERM", "own": "None", "personality": "ENOSYS", "query": "'done'", "lease": "EPERM",
        "pipe": "4096", "sync": "None",
    }  # fmt: skip


@pytest.mark.parametrize("name", honest.PYTHON)
async def test_honest_programs_notice_nothing(sandbox, name):
    ran = await sandbox.python(honest.PYTHON[name])
    assert (ran.status, ran.out) == ("SUCCEEDED", b"True\n"), ran.told()


@pytest.mark.parametrize("program", honest.COMMANDS)
async def test_neither_do_tools(sandbox, require, program):
    where = shutil.which(program)
    require(where and where.startswith("/usr/"), f"{program} below /usr")
    more = limits(memory_bytes=2 << 30, processes=128, wall_time=60, cpu_time=60)
    ran = await sandbox.command("sh", "-c", honest.COMMANDS[program], limits=more)
    assert (ran.status, ran.out.strip()) == ("SUCCEEDED", b"1"), ran.told()


@pytest.fixture(scope="module")
async def killing():
    """Cells whose filter kills, as on a kernel that has no listener."""
    with pytest.MonkeyPatch.context() as patched:
        built = replace(filters.build(), listening=b"")
        patched.setattr("sandbox_service.cells.filters.build", lambda **_: built)
        kind = ProcessCells()
        await kind.start()
        yield kind
        await kind.stop()


async def execution(kind: ProcessCells, code: str):
    program = Program(DEFAULT_LIMITS, files=(File("main.py", code.encode()),), entry="main.py")
    return (await kind.run(program)).result


async def test_where_the_kernel_has_no_listener_a_violation_has_no_name(killing):
    ended = await execution(killing, f"{CALL}call({number('bpf')}, 0, 0, 0)")
    assert ended.status is Status.VIOLATION
    assert "which one, this kernel does not say" in ended.reason
    assert await cells.prove(killing) == {}
    (told,) = (wall for wall in killing.protections() if wall.name == "seccomp")
    assert told.in_force
    assert "not named" in told.detail


async def test_there_a_child_is_killed_and_honest_programs_notice_nothing(killing):
    code = f"{CALL}\nif os.fork() == 0: call({number('bpf')}, 0, 0, 0)\nprint(os.WTERMSIG(os.wait()[1]) == 31)"
    for program in (code, *honest.PYTHON.values()):
        ended = await execution(killing, program)
        assert (ended.status, ended.stdout.head) == (Status.SUCCEEDED, b"True\n"), ended
