"""Files of the kernel and processes outside the job: masked, read-only, out of reach of signals; Landlock behind it."""

import pytest
from support.jobs import client
from support.looking import seen
from support.sandbox import sandbox_process

MASKED = (
    "cmdline",
    "config.gz",
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "locks",
    "modules",
    "timer_list",
)
NEEDED = (
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "self/status",
    "stat",
    "sys/kernel/pid_max",
    "uptime",
    "version",
)


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def test_files_about_the_whole_machine_are_empty(sandbox):
    code = f"for name in {MASKED}: found[name] = attempt(lambda: open(f'/proc/{{name}}', 'rb').read(16))"
    found = await seen(sandbox, code)
    assert set(found.values()) <= {"b''", "ENOENT", "EACCES", "EPERM", "FileNotFoundError", "PermissionError"}, found


async def test_files_that_programs_need_can_be_read(sandbox):
    code = f"for name in {NEEDED}: found[name] = len(open(f'/proc/{{name}}', 'rb').read(16)) > 0"
    assert set((await seen(sandbox, code)).values()) == {True}


async def test_the_masks_cannot_be_lifted(sandbox):
    code = """
found['unlink'] = attempt(os.unlink, '/proc/kallsyms')
found['rename'] = attempt(os.rename, '/proc/kallsyms', '/proc/x')
found['again'] = attempt(lambda: open('/proc/self/root/proc/kallsyms', 'rb').read(16))
found['by descriptor'] = attempt(lambda: open('kallsyms', 'rb', opener=lambda path, flags:
    os.open(path, flags, dir_fd=os.open('/proc', os.O_PATH))).read(16))
"""
    found = await seen(sandbox, code)
    assert (found.pop("again"), found.pop("by descriptor")) == ("b''", "b''")
    assert set(found.values()) <= {"EPERM", "EACCES", "EBUSY", "EXDEV", "EROFS", "ENOENT"}, found


SETTINGS = """
for path in ('sys/kernel/hostname', 'sys/kernel/shmmax', 'sys/net/ipv4/ip_forward', 'sys/user/max_user_namespaces',
             'sysrq-trigger', 'sys/vm/drop_caches', 'pressure/memory', 'irq/default_smp_affinity', 'self/comm',
             'self/oom_score_adj', 'self/uid_map', 'self/setgroups', 'self/attr/current', 'self/mem'):
    found[path] = attempt(lambda: os.close(os.open(f'/proc/{path}', os.O_WRONLY)))
"""


async def test_no_setting_below_proc_can_be_written(sandbox, require):
    require("landlock" in await sandbox.in_force(), "a kernel with Landlock")
    found = await seen(sandbox, SETTINGS)
    assert set(found.values()) <= {"EACCES", "EPERM", "EROFS", "ENOENT"}, found
    ran = await sandbox.command("sh", "-c", "echo x > /proc/self/comm")
    assert ran.status == "FAILED", ran.told()


async def test_signals_stay_inside_the_job(sandbox, require):
    require("landlock" in await sandbox.in_force(), "a kernel with Landlock")
    found = await seen(sandbox, "for number in (0, 9, 15, 19): found[str(number)] = attempt(os.kill, 1, number)")
    assert set(found.values()) == {"EPERM"}


async def test_devices_and_nodes_cannot_be_made_but_pipes_can(sandbox):
    code = """
found['character'] = attempt(os.mknod, '/work/a', 0o20600, os.makedev(1, 3))
found['block'] = attempt(os.mknod, '/work/b', 0o60600, os.makedev(7, 0))
found['pipe'] = attempt(os.mkfifo, '/work/c')
found['socket'] = attempt(socket.socket(socket.AF_UNIX).bind, '/work/d')
"""
    found = await seen(sandbox, code)
    assert {found.pop("pipe"), found.pop("socket")} == {"None"}
    assert set(found.values()) <= {"EPERM", "EACCES"}
