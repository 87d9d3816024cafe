"""Attacks that take processes, time, disk, output and descriptors without end, or that will not die."""

# ruff: noqa: E501 - most lines are whole programs

from functools import partial

from security.attacks.base import MIB, ends, harm

_GROUP = "resources"
_harm = partial(harm, _GROUP)
_TIMED = {"wall_time": 1}
_STOPPED = ends("TIMED_OUT", "CPU_LIMIT", within=8)
_BOMB_STOPPED = ends("TIMED_OUT", "CPU_LIMIT", within=8, also_on={"docker": "SIGNALED"})
"""A bomb in a container may also meet the container's own limit of processes, which takes gVisor's kernel and with it
the whole cell; no other kind of cell has a kernel of its own to lose."""
_ANY_END = ends("FAILED", "PROCESS_LIMIT", "TIMED_OUT", "SIGNALED", "MEMORY_LIMIT", "CPU_LIMIT", within=8)
_TRUTHFUL = ends("FAILED", "SIGNALED", "TIMED_OUT", within=14)
"""Of a program that exits with 7 after it has attacked its own cell: never a success."""
_FLOOD_BYTES = 1 * MIB


def _flooded(seen) -> bool:
    kept = [seen.result.stdout, seen.result.stderr]
    return sum(len(stream.head) + len(stream.tail) + stream.dropped_bytes for stream in kept) <= _FLOOD_BYTES


_FLOOD = ends("OUTPUT_LIMIT", check=_flooded)

ATTACKS = [
    _harm("fork_bomb", "while True: os.fork()", _ANY_END, **_TIMED),
    _harm("fork_bomb_that_goes_on", """
        while True:
            try: os.fork()
            except OSError: pass""", _BOMB_STOPPED, **_TIMED),
    _harm("fork_bomb_of_sessions", """
        while True:
            try:
                if not os.fork(): os.setsid()
            except OSError: pass""", _BOMB_STOPPED, **_TIMED),
    _harm("fork_bomb_of_programs", """
        while True:
            try: os.posix_spawn('/bin/sh', ['sh', '-c', 'while :; do sh -c : & done'], {})
            except OSError: pass""", _BOMB_STOPPED, **_TIMED),
    _harm("bomb_of_threads", """
        import threading
        while True: threading.Thread(target=threading.Event().wait, daemon=True).start()""", _ANY_END, **_TIMED),
    _harm("bomb_of_threads_that_goes_on", """
        import threading
        while True:
            try: threading.Thread(target=threading.Event().wait, daemon=True).start()
            except (RuntimeError, MemoryError): pass""", ends("TIMED_OUT", "CPU_LIMIT", "MEMORY_LIMIT", "SIGNALED", "FAILED", within=8), **_TIMED),
    _harm("zombies", """
        for _ in range(10_000):
            try:
                if not os.fork(): os._exit(0)
            except OSError: break
        time.sleep(0.1)""", ends("SUCCEEDED", within=8)),
    _harm("a_spinner", "while True: pass", ends("CPU_LIMIT", within=12), cpu_time=1, wall_time=10),
    _harm("spinners_in_children", """
        for _ in range(6):
            if not os.fork(): break
        while True: pass""", _STOPPED, cpu_time=1, wall_time=2),
    _harm("a_spinner_that_ignores_its_limit", """
        import signal
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        while True: pass""", ends("CPU_LIMIT", "TIMED_OUT", within=8), cpu_time=1, wall_time=5),
    _harm("spinners_that_take_turns", """
        while True:
            if pid := os.fork():
                os.waitpid(pid, 0); continue
            end = time.process_time() + 0.05
            while time.process_time() < end: pass
            os._exit(0)""", _STOPPED, cpu_time=1, wall_time=3),
    _harm("stops_itself", "import signal\nos.kill(os.getpid(), signal.SIGSTOP)", ends("TIMED_OUT"), **_TIMED),
    _harm("stops_everything", "import signal\nos.kill(-1, signal.SIGSTOP) if os.fork() else time.sleep(60)\nos.kill(os.getpid(), signal.SIGSTOP)", ends("TIMED_OUT"), **_TIMED),
    _harm("stops_process_1", """
        import signal
        for _ in range(50):
            try: os.kill(1, signal.SIGSTOP); os.kill(1, signal.SIGTSTP)
            except OSError: pass
        sys.exit(7)""", _TRUTHFUL),
    _harm("kills_process_1", """
        import signal
        for number in sorted(set(signal.Signals)):
            try: os.kill(1, number)
            except OSError: pass
        sys.exit(7)""", _TRUTHFUL),
    _harm("kills_everybody", "for _ in range(3): os.fork()\ntime.sleep(0.05)\nos.kill(-1, 9)\nsys.exit(7)", ends("FAILED", "SIGNALED")),
    _harm("ignores_every_signal", """
        import signal
        for number in set(signal.Signals) - {9, 19}: signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(1)""", ends("TIMED_OUT"), **_TIMED),
    _harm("a_daemon_that_sleeps", """
        if not os.fork():
            os.setsid()
            if not os.fork(): os.closerange(0, 100); time.sleep(1000)
            os._exit(0)
        os._exit(0)""", ends("SUCCEEDED", within=2)),
    _harm("a_daemon_that_holds_the_output", """
        import subprocess
        subprocess.Popen(['sleep', '1000'], start_new_session=True); sys.exit(3)""", ends("FAILED", within=2)),
    _harm("a_chain_of_daemons", """
        if not os.fork():
            while True:
                os.setsid() if os.getsid(0) != os.getpid() else None
                if os.fork(): os._exit(0)
        time.sleep(0.3); os._exit(0)""", ends("SUCCEEDED", within=3)),
    _harm("output_on_stdout", "block = b'x' * 65536\nwhile True: os.write(1, block)", _FLOOD, output_bytes=_FLOOD_BYTES),
    _harm("output_on_stderr", "block = b'x' * 65536\nwhile True: os.write(2, block)", _FLOOD, output_bytes=_FLOOD_BYTES),
    _harm("output_on_both", "block = b'x' * 4096\nwhile True: os.write(1, block); os.write(2, block)", _FLOOD, output_bytes=_FLOOD_BYTES),
    _harm("output_by_children", "for _ in range(4): os.fork()\nblock = b'x' * 4096\nwhile True: os.write(1, block); os.write(2, block)", _FLOOD, output_bytes=_FLOOD_BYTES),
    _harm("output_of_yes", "os.execvp('yes', ['yes'])", _FLOOD, output_bytes=_FLOOD_BYTES),
    _harm("output_one_byte_at_a_time", "while True: os.write(1, b'x')", ends("OUTPUT_LIMIT", "TIMED_OUT"), output_bytes=4096, wall_time=3),
    _harm("disk_by_files", """
        for number in range(10_000):
            with open(f'file-{number}', 'wb') as stream: stream.write(b'x' * 1048576)""", ends("DISK_LIMIT"), disk_bytes=16 * MIB),
    _harm("disk_by_one_file", """
        with open('big', 'wb') as stream:
            while True: stream.write(b'x' * 1048576)""", ends("DISK_LIMIT"), file_bytes=8 * MIB),
    _harm("disk_by_many_empty_files", "for number in range(200_000): open(f'/tmp/{number}', 'w').close()", ends("DISK_LIMIT", "TIMED_OUT", within=14), disk_bytes=16 * MIB),
    _harm("disk_by_directories", "for number in range(200_000): os.mkdir(f'/tmp/{number}')", ends("DISK_LIMIT", "FAILED", "TIMED_OUT", within=14), disk_bytes=16 * MIB),
    _harm("disk_by_a_sparse_file", "stream = open('sparse', 'wb')\nstream.truncate(1 << 40)\nstream.seek(1 << 40); stream.write(b'x'); stream.flush()", ends("DISK_LIMIT", "FAILED", "SIGNALED")),
    _harm("disk_by_fallocate", "os.posix_fallocate(os.open('big', os.O_CREAT | os.O_RDWR), 0, 1 << 33)", ends("DISK_LIMIT", "FAILED", "SIGNALED")),
    _harm("directories_without_bottom", """
        for _ in range(3000): os.mkdir('d'); os.chdir('d')""", ends("SUCCEEDED", "DISK_LIMIT", "FAILED", within=10)),
    _harm("descriptors_without_end", """
        kept = []
        while True: kept.append(os.open('/dev/null', os.O_RDONLY))""", ends("FAILED", check=lambda seen: "Too many open files" in seen.err)),
    _harm("descriptors_in_flight", """
        pairs = [socket.socketpair() for _ in range(60)]
        for left, _ in pairs: left.setblocking(False)
        sent = 0
        try:
            while sent < 200_000:
                for left, _ in pairs:
                    socket.send_fds(left, [b'x'], [0] * 200); sent += 200
        except OSError as error: print(sent, error)
        sys.exit(7)""", ends("FAILED", "PROCESS_LIMIT", within=8)),
    _harm("timers_without_end", """
        timer = ctypes.c_void_p()
        for number in range(1_000_000):
            if libc.timer_create(1, None, ctypes.byref(timer)) < 0: break
        print(number); sys.exit(7 if number < 500_000 else 0)""", ends("FAILED", "PROCESS_LIMIT", "TIMED_OUT", within=14), wall_time=4),
    _harm("signals_in_a_queue", """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [34])
        for number in range(1_000_000):
            if libc.sigqueue(os.getpid(), 34, 0) < 0: break
        print(number); sys.exit(7 if number < 500_000 else 0)""", ends("FAILED", "PROCESS_LIMIT", "TIMED_OUT", within=14), wall_time=4),
    _harm("watches_without_end", """
        watches = call('inotify_init1', 0); number = 0
        try:
            while number < 300_000:
                os.mkdir(f'/tmp/{number}'); call('inotify_add_watch', watches, f'/tmp/{number}'.encode(), 0x100); number += 1
        except OSError: pass
        sys.exit(7 if number < 300_000 else 0)""", ends("FAILED", "DISK_LIMIT", "TIMED_OUT", within=18), wall_time=5),
    _harm("an_exec_that_never_ends", "os.execv('/bin/sh', ['sh', '-c', 'exec sh -c \"$0\" \"$0\"', 'exec sh -c \"$0\" \"$0\"'])", _STOPPED, **_TIMED),
    _harm("a_core_dump", "import resource, signal\ntry: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))\nexcept ValueError: pass\nblock = b'x' * (32 << 20)\nos.kill(os.getpid(), signal.SIGSEGV)", ends("SIGNALED", within=3)),
    _harm("recursion_without_bottom", "sys.setrecursionlimit(1 << 30)\ndef f(): f()\nclass A:\n    def __repr__(self): return repr(self)\nctypes.CFUNCTYPE(None)\nimport threading\nthreading.stack_size(1 << 20)\nt = threading.Thread(target=lambda: repr(A())); t.start(); t.join(); sys.exit(7)", ends("FAILED", "SIGNALED", "MEMORY_LIMIT", "TIMED_OUT", within=14)),
    _harm("a_tree_of_symlinks", """
        for number in range(60): os.symlink(f'{number + 1}/{number + 1}', str(number))
        try: os.stat('0')
        except OSError as error: print(error)
        sys.exit(7)""", ends("FAILED")),
    _harm("starves_process_1_by_rlimits", """
        import resource
        for name in 'CPU', 'NOFILE', 'FSIZE', 'AS', 'NPROC', 'STACK':
            try: resource.prlimit(1, getattr(resource, 'RLIMIT_' + name), (0, 0))
            except OSError: pass
        time.sleep(0.05); sys.exit(7)""", ends("FAILED", "SIGNALED")),
]  # fmt: skip
