"""What users of such systems suffer from, as programs: one entry each, with the one status that it has on every kind.

The ids are those of the project's list of known faults, section S; rows that need more than one program are tests of
their own in `test_known_faults`.
"""

# ruff: noqa: E501 - most lines are whole programs

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent

from support.jobs import Ran

MIB = 1024 * 1024
Check = Callable[[Ran], bool]


@dataclass(frozen=True)
class Fault:
    """One program.

    Attributes:
        row: id in the list.
        status: how it ends, on every kind of cell.
        check: what else must be true of its reply.
        within: seconds that the call may take.
    """

    row: str
    name: str
    status: str
    code: str
    check: Check = lambda _ran: True
    limits: Mapping[str, float] = field(default_factory=dict)
    within: float = 8
    stdin: bytes = b""
    collect: tuple[str, ...] = ()


def _fault(row: str, name: str, status: str, code: str, check: Check = lambda _ran: True, *, within: float = 8,
           stdin: bytes = b"", collect: tuple[str, ...] = (), **limits: float) -> Fault:  # fmt: skip
    return Fault(row, name, status, dedent(code), check, {"wall_time": 10, **limits}, within, stdin, collect)


def _total(ran: Ran) -> int:
    return sum(len(kept.head) + len(kept.tail) + kept.dropped_bytes for kept in (ran.result.stdout, ran.result.stderr))


_EVERY_BYTE = bytes(range(256)) + b"\xff\xfe\xed\xa0\x80"

FAULTS = [
    _fault("S1", "a daemon in a session of its own outlives its parent", "SUCCEEDED", """
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                while True: print('late', flush=True); time.sleep(0.01)
            os._exit(0)
        time.sleep(0.2); os._exit(0)""", within=4),
    _fault("S2", "a grandchild holds the output, and the program has printed 300 kB", "SUCCEEDED", """
        import subprocess
        print('x' * 299_999, flush=True); subprocess.Popen(['sleep', '1000'], start_new_session=True)""",
           lambda ran: _total(ran) == 300_000, within=4),
    _fault("S4", "a fork bomb", "PROCESS_LIMIT", """
        import os, time
        try:
            while True:
                if not os.fork(): time.sleep(60)
        except OSError: time.sleep(1); raise"""),
    _fault("S5", "a flood of 64 MiB", "OUTPUT_LIMIT", "import os\nfor _ in range(64): os.write(1, b'x' * 1048576)",
           lambda ran: _total(ran) == MIB, output_bytes=MIB),
    _fault("S6", "more output than is kept", "SUCCEEDED", "import os\nfor n in range(3000): os.write(1, b'%07d\\n' % n * 250)",
           lambda ran: _total(ran) == 6_000_000 and ran.result.stdout.tail.endswith(b"0002999\n") and ran.result.stdout.dropped_bytes > 0),
    _fault("S7", "bytes that are no text", "SUCCEEDED", f"import os\nos.write(1, {_EVERY_BYTE!r}); os.write(2, {_EVERY_BYTE[::-1]!r})",
           lambda ran: (ran.result.stdout.head, ran.result.stderr.head) == (_EVERY_BYTE, _EVERY_BYTE[::-1])),
    _fault("S8", "a lone surrogate in the input", "SUCCEEDED", "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
           lambda ran: ran.out == b"\xed\xa0\x80", stdin=b"\xed\xa0\x80"),
    _fault("S8", "a lone surrogate printed", "SUCCEEDED", "print('\\udcff')", lambda ran: ran.out == b"\xff\n"),
    _fault("S9", "a memory limit raised by the program itself", "MEMORY_LIMIT", """
        import resource
        for kind in resource.RLIMIT_AS, resource.RLIMIT_DATA:
            try: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (ValueError, OSError): pass
        held = []
        while len(held) < 400: held.append(b'x' * 1048576)""", memory_bytes=128 * MIB),
    _fault("S10", "out of memory in the program", "MEMORY_LIMIT", "x = b'x' * (600 << 20)", lambda ran: str(128 * MIB) in ran.result.reason, memory_bytes=128 * MIB),
    _fault("S10", "out of memory in a child", "MEMORY_LIMIT", """
        import os, sys
        if not os.fork():
            x = b'x' * (600 << 20); os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)""", memory_bytes=128 * MIB),
    _fault("S10", "out of memory in children together", "MEMORY_LIMIT", """
        import os, sys, time
        for _ in range(8):
            if not os.fork():
                x = b'x' * (40 << 20); time.sleep(60)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) != 0)""", memory_bytes=128 * MIB),
    _fault("S11", "a small memory limit and an honest program", "SUCCEEDED", "import json, decimal, asyncio\nprint(sum(range(10)))",
           lambda ran: ran.out == b"45\n", memory_bytes=64 * MIB),
    _fault("S12", "numeric libraries with a thread for each processor", "SUCCEEDED",
           "import os\nprint([os.environ[name] for name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')])",
           lambda ran: ran.out == b"['1', '1', '1']\n"),
    _fault("S13", "threads and processes by whatever call libc takes", "SUCCEEDED", """
        import subprocess, threading
        threads = [threading.Thread(target=print, args=(n,)) for n in range(10)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(subprocess.run(['echo', 'child'], stdout=-1).stdout)""", lambda ran: b"child" in ran.out),
    _fault("S14", "shared memory and locks between processes", "SUCCEEDED", """
        import multiprocessing, os
        def work(n): return n * n
        with multiprocessing.get_context('fork').Pool(2) as pool: print(sum(pool.map(work, range(5))))
        print(os.listdir('/dev/shm'))""", lambda ran: ran.out == b"30\n[]\n"),
    _fault("S15", "a home that can be written, and a display that is not there", "SUCCEEDED", """
        import os, pathlib
        (pathlib.Path.home() / '.cache').mkdir(); (pathlib.Path.home() / '.cache' / 'x').write_text('x')
        print(os.environ['MPLBACKEND'])""", lambda ran: ran.out == b"Agg\n"),
    _fault("S16", "links where files are brought back from", "SUCCEEDED", """
        import os
        os.symlink('/etc/passwd', 'a.txt'); os.symlink('/etc', 'b'); os.mkfifo('c.txt'); open('d.txt', 'w').write('mine')""",
           lambda ran: [(file.path, file.content) for file in ran.result.files] == [("d.txt", b"mine")], collect=("**",)),
    _fault("S17", "network", "FAILED", "import socket\nsocket.create_connection(('1.1.1.1', 53), 3)",
           lambda ran: any(word in ran.err for word in ("unreachable", "refused", "No route"))),
    _fault("S24", "an end that says nothing", "SIGNALED", "import os\nos.kill(os.getpid(), 9)", lambda ran: not ran.result.HasField("exit_code") and ran.result.signal == 9),
    _fault("S27", "text that a shell would read", "SUCCEEDED", "print(r'''`id` $(id) && ; | > x \\ ' \" ''')\nimport os; print(os.listdir('.'))",
           lambda ran: b"['main.py']" in ran.out),
    _fault("S31", "keys of the kernel", "VIOLATION", "import ctypes\nctypes.CDLL(None).syscall(250, 0, -3, 0)"),
    _fault("S31", "io_uring and sockets of the virtual machine", "SUCCEEDED", """
        import ctypes, socket
        print(ctypes.CDLL(None).syscall(425, 4, bytes(120)))
        try: socket.socket(40, socket.SOCK_STREAM)
        except OSError: print('refused')""", lambda ran: ran.out == b"-1\nrefused\n"),
    _fault("S31", "a lease on a file that others read", "SUCCEEDED", """
        import fcntl, os
        try: fcntl.fcntl(os.open('/usr/bin/env', os.O_RDONLY), 1024, 0)
        except OSError: print('refused')""", lambda ran: ran.out == b"refused\n"),
    _fault("S32", "a program that never ends", "TIMED_OUT", "while True: pass", lambda ran: "1 s of wall time" in ran.result.reason, wall_time=1),
    _fault("S32", "a program that never ends and ignores signals", "TIMED_OUT", """
        import signal, time
        for number in set(signal.Signals) - {9, 19}: signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(1)""", wall_time=1),
    _fault("S32", "processor time", "CPU_LIMIT", "while True: pass", lambda ran: "1 s of processor time" in ran.result.reason, cpu_time=1),
    _fault("S32", "too large a file", "DISK_LIMIT", "open('big', 'wb').write(b'x' * (100 << 20))", file_bytes=8 * MIB),
    _fault("S32", "a full disk", "DISK_LIMIT", "for n in range(100): open(f'f{n}', 'wb').write(b'x' * 1048576)", disk_bytes=16 * MIB),
    _fault("S32", "too many files", "DISK_LIMIT", "for n in range(60_000): open(f'f{n}', 'w').close()", within=14),
]  # fmt: skip
