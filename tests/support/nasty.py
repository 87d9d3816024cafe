"""Programs that do a judge harm: one entry each, with the status that they must end in and their limits."""

# ruff: noqa: E501 - most lines are whole programs

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent

from support.jobs import Ran

MIB = 1024 * 1024
WALL_SECONDS = 2
"""Wall time of programs that run until they are stopped."""

Check = Callable[[Ran], bool]


@dataclass(frozen=True)
class Nasty:
    """One program.

    Attributes:
        statuses: those that are right; more than one where the kernel decides which limit is met first.
        needs: protections without which it cannot be held.
        check: what else must be true of its reply.
    """

    name: str
    code: str
    statuses: tuple[str, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, object] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    check: Check = lambda _ran: True

    @property
    def wall_seconds(self) -> float:
        """Its wall time limit."""
        return self.limits.get("wall_time", 30)


def case(
    name: str,
    status: str,
    code: str,
    check: Check = lambda _ran: True,
    *,
    needs: str = "",
    stdin: bytes = b"",
    **limits: float,
) -> Nasty:
    """An entry; `status` and `needs` hold names separated by blanks."""
    fields = {"stdin": stdin} if stdin else {}
    return Nasty(name, dedent(code), tuple(status.split()), limits, fields, frozenset(needs.split()), check)


def endless(name: str, code: str, check: Check = lambda _ran: True, *, needs: str = "") -> Nasty:
    """A program that only the wall time limit ends."""
    return case(name, "TIMED_OUT", code, check, needs=needs, wall_time=WALL_SECONDS)


def _says(*words: str) -> Check:
    return lambda ran: all(word in ran.result.reason for word in words)


TIME = [
    endless("endless_loop", "while True: pass", _says("2 s of wall time")),
    endless("sleep", "import time; time.sleep(60)"),
    endless("stops_itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    endless("waits_for_a_stopped_child", "import os, signal\nif not (pid := os.fork()): os.kill(os.getpid(), 19)\nos.wait()"),
    endless("ignores_all_signals", """\
        import signal, time
        for number in set(signal.Signals) - {9, 19}:
            signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(1)"""),
    endless("catches_everything", """\
        import time
        while True:
            try: time.sleep(1)
            except BaseException: pass"""),
    case("cpu_in_one_process", "CPU_LIMIT", "while True: pass", _says("1 s of processor time"), cpu_time=1, wall_time=10),
    case("cpu_in_children", "CPU_LIMIT", """\
        import os
        for _ in range(4):
            if not os.fork():
                while True: pass
        os.wait()""", _says("1 s of processor time"), needs="cpu_cgroup", cpu_time=1, wall_time=10),
]  # fmt: skip

PROCESSES = [
    case("daemon", "SUCCEEDED", """\
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                for n in range(10**6):
                    for place in '/work', '/tmp', '/dev/shm':
                        open(f'{place}/late-{n % 100}', 'w').write('x')
                    print('late', flush=True)
            os._exit(0)
        time.sleep(0.3)
        print('parent ends', flush=True)
        os._exit(0)""", lambda ran: ran.wall_seconds < 1.5, wall_time=10),
    case("daemon_that_closed_everything", "SUCCEEDED", """\
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 100)
                time.sleep(60)
            os._exit(0)""", lambda ran: ran.wall_seconds < 1, wall_time=10),
    case("child_that_holds_stdout", "FAILED", """\
        import subprocess, sys
        subprocess.Popen(['sleep', '60'], start_new_session=True)
        sys.exit(3)""", lambda ran: ran.wall_seconds < 1 and ran.result.exit_code == 3, wall_time=10),
    case("fork_bomb", "PROCESS_LIMIT", "import os\nwhile True: os.fork()", _says("64 processes"),
         needs="pids_cgroup", wall_time=10),
    endless("fork_bomb_that_ignores_errors", """\
        import os
        while True:
            try: os.fork()
            except OSError: pass""", _says("2 s of wall time", "limit of 64 processes"), needs="pids_cgroup"),
    case("threads_without_end", "PROCESS_LIMIT", """\
        import threading
        while True: threading.Thread(target=threading.Event().wait, daemon=True).start()""",
         needs="pids_cgroup", wall_time=10),
    case("zombies", "SUCCEEDED", """\
        import os, time
        for _ in range(50):
            if not os.fork(): os._exit(0)
        time.sleep(0.2)""", wall_time=10),
    case("kills_everybody", "SUCCEEDED", """\
        import os, time
        for _ in range(3):
            if not os.fork(): time.sleep(60)
        time.sleep(0.1)
        os.kill(-1, 9)
        try: os.kill(1, 9)
        except PermissionError: pass
        print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)])""",
         lambda ran: ran.out == b"[-9, -9, -9]\n", wall_time=10),
    case("exits_while_children_run", "FAILED", """\
        import os
        for _ in range(30):
            if not os.fork():
                while True: pass
        os._exit(7)""", lambda ran: ran.result.exit_code == 7, wall_time=10),
]  # fmt: skip

MEMORY = [
    case("four_gigabytes", "MEMORY_LIMIT", "x = b'x' * (4 << 30)", _says(str(512 * MIB))),
    case("grows_without_end", "MEMORY_LIMIT", "x = []\nwhile True: x.append(b'x' * 1048576)"),
    case("child_takes_it", "MEMORY_LIMIT", """\
        import os, sys
        if not os.fork():
            x = b'x' * (4 << 30)
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)""", needs="memory_cgroup"),
    case("children_take_it_together", "MEMORY_LIMIT", """\
        import os, sys, time
        for _ in range(8):
            if not os.fork():
                x = b'x' * (100 << 20)
                time.sleep(60)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)""", needs="memory_cgroup", wall_time=20),
    case("memory_files", "MEMORY_LIMIT", """\
        import os
        files = [os.memfd_create('x') for _ in range(8)]
        for fd in files:
            for _ in range(60): os.write(fd, b'x' * 1048576)""", needs="memory_cgroup", memory_bytes=128 * MIB),
    case("workspace_counts_as_memory", "MEMORY_LIMIT", """\
        with open('big', 'wb') as f:
            for _ in range(500): f.write(b'x' * 1048576)""",
         needs="memory_cgroup", memory_bytes=128 * MIB, disk_bytes=1024 * MIB, file_bytes=1024 * MIB),
]  # fmt: skip

DISK = [
    case("fills_the_disk", "DISK_LIMIT", """\
        for n in range(10_000):
            with open(f'file-{n}', 'wb') as f: f.write(b'x' * 1048576)""", _says(str(128 * MIB))),
    case("fills_shared_memory", "DISK_LIMIT", """\
        for n in range(10_000):
            with open(f'/dev/shm/file-{n}', 'wb') as f: f.write(b'x' * 1048576)"""),
    case("one_file_to_its_limit", "DISK_LIMIT", """\
        with open('big', 'wb') as f:
            for _ in range(10_000): f.write(b'x' * 1048576)""", _says(str(64 * MIB))),
    case("ten_thousand_files", "SUCCEEDED", "for n in range(10_000): open(f'file-{n}', 'w').write('x')"),
    case("forty_thousand_files", "DISK_LIMIT", "for n in range(40_000): open(f'file-{n}', 'w').close()"),
    case("deep_directories", "SUCCEEDED", """\
        import os
        for _ in range(3000):
            os.mkdir('d')
            os.chdir('d')"""),
    case("a_thousand_open_files", "FAILED", "files = [open('/dev/null') for _ in range(1000)]",
         lambda ran: "Too many open files" in ran.err),
]  # fmt: skip

ENDINGS = [
    *[case(f"exit_{code}", "FAILED" if code else "SUCCEEDED", f"import sys; sys.exit({code})",
           lambda ran, code=code: ran.result.exit_code == code) for code in (0, 1, 2, 125, 127, 137, 255)],
    *[case(f"killed_by_{name}", "SIGNALED", f"import os, signal; os.kill(os.getpid(), signal.{name})",
           lambda ran, name=name: name in ran.result.reason and not ran.result.HasField("exit_code"))
      for name in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGHUP", "SIGUSR1", "SIGALRM")],
    case("segmentation_fault", "SIGNALED", "import ctypes; ctypes.string_at(0)", lambda ran: ran.result.signal == 11),
    case("closes_its_output", "FAILED", "import os, time\nos.close(1); os.close(2)\ntime.sleep(0.3)\nos._exit(3)",
         lambda ran: ran.result.exit_code == 3 and ran.wall_seconds >= 0.3),
    case("reads_input_that_is_not_there", "SUCCEEDED", "import sys; print([sys.stdin.read()])",
         lambda ran: ran.out == b"['']\n"),
    case("reads_its_input", "SUCCEEDED", "import sys; print(len(sys.stdin.buffer.read()))",
         lambda ran: ran.out == b"1000000\n", stdin=b"\xff" * 1_000_000),
    case("does_not_read_its_input", "SUCCEEDED", "print(1)", stdin=b"x" * 1_000_000),
]  # fmt: skip

ALL = [*TIME, *PROCESSES, *MEMORY, *DISK, *ENDINGS]
