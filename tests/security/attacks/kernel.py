"""Attacks on the walls themselves: mounts, namespaces, roots, other processes, identity."""

# ruff: noqa: E501 - most lines are whole programs

from functools import partial

from security.attacks.base import Attack, ends, harm, probe

_GROUP = "kernel"
_kernel = partial(probe, _GROUP)
_NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x80,
}
_INVALID = ("EINVAL", "EUSERS", "ENOSPC", "EOPNOTSUPP")
_IN_USER_NAMESPACE = """
        def enter():
            call('unshare', 0x10000000)
            for name, text in ('setgroups', 'deny'), ('uid_map', f'0 {os.getuid()} 1'), ('gid_map', f'0 {os.getgid()} 1'):
                try: open(f'/proc/self/{name}', 'w').write(text)
                except OSError: pass
            return 'entered'
        try: enter(); found['namespace'] = 'nothing'
        except OSError as error: found['namespace'] = errno.errorcode[error.errno]
"""


def _int80(name: str, code: int, *arguments: int) -> Attack:
    """A system call by the 32-bit door: machine code that puts the numbers into registers and traps."""
    registers = zip((0xB8, 0xBB, 0xB9, 0xBA, 0xBE), (code, *arguments), strict=False)
    machine = (
        b"\x53"
        + b"".join(bytes([register]) + value.to_bytes(4, "little") for register, value in registers)
        + b"\xcd\x80\x5b\xc3"
    )
    return harm(_GROUP, name, f"""
        import mmap
        page = mmap.mmap(-1, 4096, prot=7); page.write({machine!r})
        run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        result = run()
        print(result); sys.exit(0 if result >= 0 else 9)""",
        ends("FAILED", "SIGNALED", check=lambda seen: seen.result.exit_code == 9 or seen.status == "SIGNALED"))  # fmt: skip


ATTACKS = [
    _kernel("mount_a_file_system", """
        for kind in 'tmpfs', 'proc', 'sysfs', 'overlay', 'cgroup2', 'debugfs', 'bpf', 'fuse', 'devpts':
            attempt(kind, call, 'mount', kind.encode(), b'/tmp', kind.encode(), 0, None)""", "EINVAL"),
    _kernel("mount_what_is_there_elsewhere", """
        for source in '/', '/usr', '/proc', '/dev', '/work': attempt(source, call, 'mount', source.encode(), b'/tmp', None, 4096 | 16384, None)""", "EINVAL"),
    _kernel("make_the_root_writable", """
        attempt('remount', call, 'mount', b'none', b'/', None, 32, None); attempt('bind', call, 'mount', b'none', b'/', None, 32 | 4096, None)
        attempt('move', call, 'mount', b'/proc', b'/tmp', None, 8192, None); attempt('shared', call, 'mount', b'none', b'/', None, 16384 | (1 << 20), None)""", "EINVAL"),
    _kernel("unmount", """
        for place in '/proc', '/dev/null', '/usr', '/work', '/': attempt(place, call, 'umount2', place.encode(), 2)""", "EINVAL"),
    _kernel("mounts_by_the_new_calls", """
        for name, number, args in (('fsopen', 430, (b'tmpfs', 0)), ('open_tree', 428, (-100, b'/', 1)), ('fspick', 433, (-100, b'/', 0)), ('move_mount', 429, (-100, b'/proc', -100, b'/tmp', 0)),
                                   ('mount_setattr', 442, (-100, b'/', 0, bytes(32), 32))):
            attempt(name, call, number, *args)""", "EINVAL"),
    *[_kernel(f"another_{name}_namespace", f"attempt('unshare', call, 'unshare', {flag})", *_INVALID) for name, flag in _NAMESPACES.items()],
    _kernel("a_user_namespace_and_a_mount_in_it", _IN_USER_NAMESPACE + "\n        attempt('mount', call, 'mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)\n        attempt('namespace of mounts', call, 'unshare', 0x20000)", *_INVALID),
    _kernel("a_user_namespace_and_root_in_it", _IN_USER_NAMESPACE + "\n        attempt('shadow', read, '/etc/shadow')\n        attempt('device', os.mknod, '/tmp/device', 0o20666, os.makedev(1, 1))\n        attempt('system', open, '/usr/bin/env', 'a')\n        attempt('network', call, 'unshare', 0x40000000)", *_INVALID, "ETXTBSY"),
    _kernel("a_user_namespace_by_clone", """
        def clone():
            pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)
            if pid == 0: os._exit(0)
            os.waitpid(pid, 0); return pid
        attempt('clone', clone)""", *_INVALID),
    _kernel("a_user_namespace_by_clone3", """
        def clone3():
            arguments = struct.pack('=11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
            pid = call(435, arguments, len(arguments))
            if pid == 0: os._exit(0)
            os.waitpid(pid, 0); return pid
        attempt('clone3', clone3)""", *_INVALID),
    _kernel("namespaces_of_process_1", """
        for name in 'mnt', 'pid', 'net', 'user', 'uts', 'ipc', 'cgroup': attempt(name, lambda: call('setns', os.open(f'/proc/1/ns/{name}', os.O_RDONLY), 0))""", "EINVAL"),
    _kernel("namespaces_of_process_1_by_its_descriptor", "attempt('setns', lambda: call('setns', os.pidfd_open(1), 0x20000 | 0x40000000))", "EINVAL"),
    _kernel("chroot", "attempt('chroot', os.chroot, '/tmp')"),
    _kernel("chroot_out_of_the_chroot", """
        def out():
            os.mkdir('/tmp/new'); os.chroot('/tmp/new')
            for _ in range(40): os.chdir('..')
            os.chroot('.'); return os.listdir('/')
        attempt('out', out)"""),
    _kernel("pivot_root", "os.mkdir('/tmp/old')\nattempt('pivot', call, 155, b'/tmp', b'/tmp/old')", "EINVAL"),
    _kernel("make_devices", """
        for name, mode, device in ('mem', 0o20666, (1, 1)), ('disk', 0o60666, (254, 0)), ('console', 0o20666, (5, 1)), ('fuse', 0o20666, (10, 229)):
            attempt(name, lambda: (os.mknod(f'/tmp/{name}', mode, os.makedev(*device)), os.open(f'/tmp/{name}', os.O_RDWR)))""", "EINVAL"),
    _kernel("become_root", """
        for name, function, args in (('setuid', os.setuid, (0,)), ('setresuid', os.setresuid, (0, 0, 0)), ('setgid', os.setgid, (0,)), ('setresgid', os.setresgid, (0, 0, 0)),
                                     ('setgroups', os.setgroups, ([0],)), ('chown', os.chown, ('main.py', 0, 0)), ('another', os.setuid, (790000001,))):
            attempt(name, function, *args)""", "EINVAL"),
    _kernel("take_capabilities_back", """
        for effective in 0x200000, 0xFFFFFFFF:
            attempt(f'capset {effective:x}', call, 126, struct.pack('=Ii', 0x20080522, 0), struct.pack('=6I', effective, effective, effective, 0, 0, 0))
        attempt('ambient', call, 'prctl', 47, 2, 21, 0, 0)
        attempt('secure bits', call, 'prctl', 28, 0x10, 0, 0, 0)
        attempt('new privileges', lambda: None if call('prctl', 39, 0, 0, 0, 0) == 1 else 'they may come')""", "GOT None", "EINVAL"),
    _kernel("file_capabilities", """
        open('tool', 'w').write('#!/bin/sh\\n'); os.chmod('tool', 0o6755)
        attempt('capability', os.setxattr, 'tool', 'security.capability', struct.pack('=5I', 0x02000001, 0x200000, 0, 0, 0))
        attempt('trusted', os.setxattr, 'tool', 'trusted.x', b'x')""", "EOPNOTSUPP", "EINVAL"),
    _kernel("trace_process_1", "attempt('attach', call, 'ptrace', 16, 1, 0, 0)"),
    _kernel("seize_process_1", "attempt('seize', call, 'ptrace', 0x4206, 1, 0, 0)", "EIO"),
    _kernel("trace_every_other_process", """
        for pid in range(1, 300):
            if pid != os.getpid(): attempt('attach', call, 'ptrace', 16, pid, 0, 0)
            if found['attach'].startswith('GOT'): break"""),
    _kernel("descriptors_of_process_1_by_pidfd", """
        handle = None
        try: handle = os.pidfd_open(1)
        except OSError as error: found['open'] = errno.errorcode[error.errno]
        if handle is not None:
            for number in range(3, 20): attempt(str(number), call, 438, handle, number, 0)""", "EBADF"),
    _kernel("compare_with_process_1", "attempt('kcmp', call, 312, os.getpid(), 1, 0, 0, 0)", "EOPNOTSUPP"),
    _kernel("pages_of_process_1", "attempt('pages', call, 279, 1, 0, 0, 0, 0, 0)\nattempt('policy', call, 256, 1, 8, bytes(8), bytes(8))\nattempt('advice', lambda: call(440, os.pidfd_open(1), struct.pack('PN', 4096, 4096), 1, 21, 0))\nattempt('reap', lambda: call(448, os.pidfd_open(1), 0))", "EINVAL", "EFAULT"),
    harm(_GROUP, "starve_process_1_of_time", """
        for change in (lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), lambda: call(144, 1, 5, struct.pack('i', 0)), lambda: call(251, 1, 1, 3 << 13), lambda: os.sched_setaffinity(1, {0})):
            try: change()
            except OSError: pass
        sys.exit(7)""", ends("FAILED", check=lambda seen: seen.result.exit_code == 7)),
    _kernel("more_time_than_others", """
        attempt('nice', os.setpriority, os.PRIO_PROCESS, 0, -5); attempt('fifo', os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))
        attempt('round robin', os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)); attempt('io', call, 251, 1, 0, (1 << 13) | 0)
        attempt('deadline', call, 314, 0, struct.pack('=IIQiIQQQ', 48, 6, 0, 0, 0, 1000000, 2000000, 2000000), 0)""", "EINVAL"),
    _kernel("raise_its_own_limits", """
        import resource
        for name in 'NOFILE', 'NPROC', 'FSIZE', 'CPU', 'MEMLOCK', 'CORE', 'MSGQUEUE':
            attempt(name, resource.setrlimit, getattr(resource, 'RLIMIT_' + name), (1 << 40, 1 << 40))""", "ValueError"),
    _int80("unshare_by_the_32_bit_door", 310, 0x20000),
    _int80("keys_by_the_32_bit_door", 288, 0, 0xFFFFFFFD, 1),
    _int80("mount_by_the_32_bit_door", 21, 0, 0, 0, 0),
    harm(_GROUP, "unshare_by_the_x32_door", "call(0x40000000 | 272, 0x20000)", ends("FAILED", check=lambda seen: "OSError" in seen.err or "PermissionError" in seen.err)),
]  # fmt: skip
