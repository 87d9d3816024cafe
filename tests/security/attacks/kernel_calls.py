"""Attacks by system calls that no job needs: one attack each, since a forbidden call ends its job."""

# ruff: noqa: E501 - most lines are whole programs

from functools import partial

from security.attacks.base import probe

_call = partial(probe, "kernel calls")
_PERSONALITY_ADDR_COMPAT = 0x0200000

ATTACKS = [
    _call("bpf_program", "attempt('load', call, 321, 5, struct.pack('=IIQQIIQII', 1, 2, 0, 0, 0, 0, 0, 0, 0) + bytes(80), 128)", "EINVAL"),
    _call("bpf_map", "attempt('map', call, 321, 0, struct.pack('=IIIII', 1, 4, 4, 1, 0) + bytes(108), 128)", "EINVAL"),
    _call("add_key", "attempt('add', call, 248, b'user', b'codemend', b'secret', 6, -4)", "EDQUOT"),
    _call("request_key", "attempt('request', call, 249, b'user', b'codemend', None, -4)", "ENOKEY"),
    _call("keyctl", "attempt('session', call, 250, 1, None)\nattempt('user keyring', call, 250, 0, -4, 1)"),
    _call("userfaultfd", "attempt('open', call, 323, 1)\nattempt('device', os.open, '/dev/userfaultfd', os.O_RDWR)"),
    _call("io_uring", "attempt('set up', call, 425, 4, bytes(120))"),
    _call("perf_event_open", "attempt('open', call, 298, struct.pack('=IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)"),
    _call("init_module", "attempt('init', call, 175, b'none', 4, b'')\nattempt('file', lambda: call(313, os.open('main.py', os.O_RDONLY), b'', 0))"),
    _call("delete_module", "attempt('delete', call, 176, b'no_such_module', 2048)"),
    _call("kexec", "attempt('load', call, 246, 0, 0, None, 0)\nattempt('file', call, 320, -1, -1, 0, None, 0)"),
    _call("reboot", "attempt('reboot', call, 169, 0, 0, 0, None)"),  # the kernel asks for the power first, and these numbers are no order
    _call("swap", "attempt('on', call, 'swapon', b'/work/none', 0)\nattempt('off', call, 'swapoff', b'/work/none')"),
    _call("set_the_clock", "attempt('set', time.clock_settime, time.CLOCK_REALTIME, time.time())"),
    _call("adjust_the_clock", "attempt('adjust', call, 159, struct.pack('=QqqqqQ', 0x4000, 10000, 0, 0, 0, 0) + bytes(160))\nattempt('zone', call, 164, None, struct.pack('=ii', 0, 0))", "EINVAL"),
    _call("host_name", "attempt('host', socket.sethostname, 'mine')\nattempt('domain', call, 'setdomainname', b'mine', 4)"),
    _call("ports_of_the_machine", "attempt('ioperm', call, 173, 0x80, 1, 1)\nattempt('iopl', call, 172, 3)"),
    _call("quotas", "attempt('quota', call, 179, 0x800007 << 8, b'/dev/vda', 0, bytes(64))", "EINVAL"),
    _call("open_by_handle", """
        handle = struct.pack('=Ii', 8, 1) + bytes(8)
        attempt('open', call, 304, os.open('/', os.O_RDONLY), handle, 0)""", "EBADF", "EINVAL", "ESTALE"),
    _call("name_to_handle", """
        handle, mount = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128)), ctypes.c_int()
        def by_handle():
            call(303, -100, b'/usr/bin', handle, ctypes.byref(mount), 0)
            return call(304, os.open('/usr', os.O_RDONLY), handle, 0)
        attempt('both', by_handle)""", "EBADF", "EINVAL", "ESTALE", "EOPNOTSUPP", "EOVERFLOW"),
    _call("watch_every_file", "attempt('fanotify', call, 300, 4, 0)\nattempt('reports', call, 300, 0x200, 0)", "EINVAL"),
    _call("account_processes", "attempt('acct', call, 163, b'/work/accounts')"),
    _call("kernel_log", "attempt('read', call, 103, 3, ctypes.create_string_buffer(256), 256)\nattempt('size', call, 103, 10, None, 0)"),
    _call("hang_up_the_terminal", "attempt('vhangup', call, 153)"),
    _call("local_descriptor_table", """
        entry = struct.pack('=IIII', 0, 0, 0xFFFFF, 0b1010001)
        attempt('write', call, 154, 1, ctypes.create_string_buffer(entry), 16)""", "EINVAL"),
    _call("personality", f"attempt('personality', call, 135, {_PERSONALITY_ADDR_COMPAT})", "EINVAL"),
    _call("old_system_information", "attempt('sysfs', call, 139, 3, 0, 0)\nattempt('ustat', call, 136, 0, bytes(64))", "EINVAL"),
    _call("numa_policy", "attempt('move', call, 256, 0, 8, bytes(8), bytes(8))\nattempt('home', call, 450, 0, 0, 0, 0)", "EINVAL", "GOT 0"),
    _call("splice_of_own_pages", """
        ends = os.pipe()
        page = ctypes.create_string_buffer(4096)
        attempt('vmsplice', call, 278, ends[1], struct.pack('PN', ctypes.addressof(page), 4096), 1, 0)"""),
    _call("secret_memory", "attempt('memfd_secret', call, 447, 0)"),
    _call("remap_file_pages", "attempt('remap', call, 216, 0, 4096, 0, 0, 0)", "EINVAL"),
    _call("lease_on_a_system_file", """
        import fcntl
        attempt('lease', lambda: fcntl.fcntl(os.open('/usr/bin/env', os.O_RDONLY), 1024, 0))
        attempt('libc', lambda: fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), 1024, 0))""", "EAGAIN", "EINVAL"),
    _call("type_into_the_terminal", """
        import fcntl
        for name, number in dict(TIOCSTI=0x5412, TIOCLINUX=0x541C, TIOCSCTTY=0x540E, TIOCCONS=0x541D).items():
            for stream in 0, 1, 2: attempt(f'{name} {stream}', fcntl.ioctl, stream, number, b'x')""", "ENOTTY", "EIO", "EINVAL"),
    _call("devices_of_file_systems", """
        import fcntl
        for name, number in dict(FIFREEZE=0xC0045877, FITHAW=0xC0045878, FITRIM=0xC0185879, FS_IOC_SETFLAGS=0x40086602, EXT4_RESIZE=0x40086610).items():
            for place in '/', '/usr', '/etc': attempt(f'{name} {place}', lambda: fcntl.ioctl(os.open(place, os.O_RDONLY), number, bytes(24)))""", "ENOTTY", "EOPNOTSUPP", "EINVAL"),
    _call("cgroup_of_its_own", """
        for path in '/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/release_agent', '/sys/fs/cgroup/unified/cgroup.procs':
            attempt(path, os.open, path, os.O_WRONLY)
        attempt('directory', os.mkdir, '/sys/fs/cgroup/mine')
        attempt('mount', call, 'mount', b'cgroup', b'/tmp', b'cgroup', 0, b'memory')""", "EINVAL"),
    _call("unknown_system_calls", "for number in range(470, 520): attempt(str(number), call, number, 0, 0, 0, 0)", "EINVAL", "EFAULT", "EBADF"),
]  # fmt: skip
