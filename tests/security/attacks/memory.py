"""Attacks that take memory in every way that a kernel knows. Each says how much it holds and stops by itself."""

# ruff: noqa: E501 - most lines are whole programs

from textwrap import dedent

from security.attacks.base import MIB, PRELUDE, Attack, holds_at_most

_GROUP = "memory"
_LIMIT = 128 * MIB
_GOAL_MIB = 320
"""What every program tries to hold: well over its limit, and harmless to the machine where nothing stops it."""

_HOLDING = f"""
GOAL = {_GOAL_MIB}
MIB = 1 << 20
block = b'x' * MIB
held = 0
import atexit
atexit.register(time.sleep, 1)
def holds(more):
    global held
    held += more
    os.write(1, b'held %d\\n' % held)
"""


def _takes(name: str, code: str) -> Attack:
    limits = {"wall_time": 8, "memory_bytes": _LIMIT, "disk_bytes": 160 * MIB, "file_bytes": 256 * MIB}
    return Attack(
        name, _GROUP, f"{PRELUDE}{_HOLDING}{dedent(code)}\nprint('done', flush=True)\n", holds_at_most(_LIMIT), limits
    )


ATTACKS = [
    _takes("private_pages", """
        import mmap
        kept = []
        for _ in range(GOAL):
            page = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); page.write(block); kept.append(page); holds(MIB)"""),
    _takes("shared_pages", """
        import mmap
        kept = []
        for _ in range(GOAL):
            page = mmap.mmap(-1, MIB); page.write(block); kept.append(page); holds(MIB)"""),
    _takes("the_heap", "kept = []\nfor _ in range(GOAL): kept.append(bytearray(block)); holds(MIB)"),
    _takes("one_large_block", "kept = block * GOAL\nholds(GOAL * MIB)"),
    _takes("many_children", """
        import select, signal
        ends = os.pipe()
        for _ in range(GOAL // 20):
            if not os.fork():
                mine = block * 20; os.write(ends[1], b'x'); signal.pause()
            if select.select([ends[0]], [], [], 0.5)[0]: os.read(ends[0], 1); holds(20 * MIB)
            while os.waitpid(-1, os.WNOHANG)[0]: held -= 20 * MIB"""),
    _takes("children_that_hide", """
        import select, signal
        call('prctl', 4, 0, 0, 0, 0)
        ends = os.pipe()
        for _ in range(GOAL // 20):
            if not os.fork():
                mine = block * 20; os.write(ends[1], b'x'); signal.pause()
            if select.select([ends[0]], [], [], 0.5)[0]: os.read(ends[0], 1); holds(20 * MIB)
            while os.waitpid(-1, os.WNOHANG)[0]: held -= 20 * MIB"""),
    _takes("children_of_the_last_moment", """
        ends = os.pipe()
        for _ in range(GOAL // 80):
            if not os.fork():
                try: mine = block * 80
                except MemoryError: os._exit(1)
                os.write(ends[1], b'x'); time.sleep(5); os._exit(0)
        os.close(ends[1])
        while os.read(ends[0], 1): holds(80 * MIB); held < GOAL * MIB or os._exit(0)
        print('done', flush=True)"""),
    _takes("files_in_the_workspace", """
        for number in range(GOAL):
            with open(f'file-{number}', 'wb') as stream: stream.write(block)
            holds(MIB)"""),
    _takes("files_in_shared_memory", """
        for number in range(GOAL):
            with open(f'/dev/shm/file-{number}', 'wb') as stream: stream.write(block)
            holds(MIB)"""),
    _takes("files_in_every_place", """
        for number in range(GOAL):
            place = ('/work', '/tmp', '/var/tmp', '/dev/shm', '/home/job')[number % 5]
            with open(f'{place}/file-{number}', 'wb') as stream: stream.write(block)
            holds(MIB)"""),
    _takes("memory_files", """
        files = [os.memfd_create('x') for _ in range(16)]
        for number in range(GOAL): os.write(files[number % 16], block); holds(MIB)"""),
    _takes("deleted_files_that_are_open", """
        kept = []
        for number in range(min(GOAL, 180)):
            stream = open('file', 'wb', buffering=0); os.unlink('file'); stream.write(block); stream.write(block); kept.append(stream); holds(2 * MIB)"""),
    _takes("shared_memory_segments", """
        libc.shmat.restype = ctypes.c_void_p
        for number in range(GOAL // 8):
            segment = call('shmget', 0, 8 * MIB, 0o1600)
            address = libc.shmat(segment, None, 0)
            if address in (None, ctypes.c_void_p(-1).value): raise OSError(12, 'shmat')
            ctypes.memset(address, 1, 8 * MIB); libc.shmdt(ctypes.c_void_p(address)); holds(8 * MIB)"""),
    _takes("pipes", """
        import fcntl
        kept = []
        def fill():
            for _ in range(100):
                ends = os.pipe2(os.O_NONBLOCK)
                try: fcntl.fcntl(ends[1], 1031, MIB)
                except OSError: pass
                kept.append(ends)
                try:
                    while True: holds(os.write(ends[1], block))
                except BlockingIOError: pass
        fill()
        for _ in range(15):
            if not os.fork():
                try: fill()
                except OSError: pass
                time.sleep(2); os._exit(0)"""),
    _takes("buffers_of_sockets", """
        kept = []
        def fill():
            for _ in range(100):
                pair = socket.socketpair(); pair[0].setblocking(False); pair[0].setsockopt(1, 7, MIB); kept.append(pair)
                try:
                    while True: holds(pair[0].send(block))
                except BlockingIOError: pass
        fill()
        for _ in range(15):
            if not os.fork():
                try: fill()
                except OSError: pass
                time.sleep(2); os._exit(0)"""),
    _takes("larger_buffers_of_sockets", """
        size = ctypes.c_int(2 * MIB); kept = []
        for number in range(120):
            pair = socket.socketpair(); pair[0].setblocking(False); kept.append(pair)
            for end in pair:
                for level in 1, 1 | 1 << 32:
                    for option in 7, 8, 32, 33, 7 | 1 << 32, 8 | 1 << 32:
                        try: call(54, end.fileno(), level, option, ctypes.byref(size), 4)
                        except OSError: pass
            try:
                while True: holds(pair[0].send(block))
            except BlockingIOError: pass"""),
    _takes("message_queues", """
        import struct
        for number in range(2000):
            queue = call('msgget', 0, 0o1600)
            message = ctypes.create_string_buffer(struct.pack('q', 1) + b'x' * 8000)
            try:
                while True: call('msgsnd', queue, message, 8000, 0o4000); holds(8000)
            except BlockingIOError: pass"""),
    _takes("tables_of_pages", """
        import mmap
        kept = []
        for number in range(GOAL * MIB // 8192):
            area = mmap.mmap(-1, 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000); area[0] = 1; kept.append(area)
            if number % 128 == 127: holds(MIB)"""),
    _takes("locked_pages", """
        import mmap
        area = mmap.mmap(-1, GOAL * MIB); address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        call('mlock', address, GOAL * MIB); holds(GOAL * MIB)"""),
]  # fmt: skip
