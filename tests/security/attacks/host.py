"""Attacks on what belongs to the host, to the service and to other jobs: files, memory, descriptors, leftovers."""

# ruff: noqa: E501 - most lines are whole programs

from functools import partial
from textwrap import dedent

from security.attacks.base import EPILOGUE, PRELUDE, Attack, Finding, Seen, probe

_GROUP = "host files"
_host = partial(probe, _GROUP)


def _brings_only(*allowed: str):
    def judge(seen: Seen) -> Finding:
        brought = {file.path for file in seen.result.files}
        leaked = [file.path for file in seen.result.files if b"root:" in file.content]
        right = seen.status == "SUCCEEDED" and brought <= set(allowed) and not leaked and seen.seconds < 8
        return Finding(
            right, f"brought {sorted(brought)}, left out {sorted(seen.result.files_left_out)} ({seen.status})"
        )

    return judge


def _collected(name: str, code: str, *allowed: str) -> Attack:
    return Attack(
        name, _GROUP, f"{PRELUDE}\n{dedent(code)}{EPILOGUE}", _brings_only(*allowed), {"wall_time": 25}, ("**",)
    )


_SEARCH_PROCESSES = """
    def search(name, mark):
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try: content = read(f'/proc/{pid}/{name}', 1 << 20)
            except OSError: continue
            if mark in content: return f'in process {pid}'
        raise OSError(2, 'nothing')
"""

ATTACKS = [
    _host("shadow_and_sudoers", """
        for path in '/etc/shadow', '/etc/gshadow', '/etc/sudoers', '/etc/machine-id', '/etc/ssl/private', '/etc/ssh/ssh_host_rsa_key':
            attempt(path, read, path)"""),
    _host("homes", """
        def entries(path):
            names = [name for name in os.listdir(path) if not sys.base_prefix.startswith(os.path.join(path, name))]
            if not names: raise OSError(2, 'nothing')
            return names
        for path in '/root', '/root/.ssh', '/root/.bashrc', '/root/.gitconfig', '/home/user', '/home/debian':
            attempt(path, entries, path)"""),
    _host("a_file_of_the_host", "attempt('file', read, C['file'])\nattempt('folder', os.listdir, os.path.dirname(C['file']))"),
    _host("environment_of_the_service", _SEARCH_PROCESSES + "\n    attempt('secret', search, 'environ', C['secret'][::-1].encode())"),
    _host("command_lines_of_the_service", _SEARCH_PROCESSES + "\n    attempt('service', search, 'cmdline', b'--ready-file')\n    attempt('canary', search, 'cmdline', b'support.canary')"),
    _host("root_of_process_1", """
        for path in '/proc/1/root', '/proc/1/cwd', '/proc/1/root/etc', '/proc/1/task/1/root':
            attempt(path, os.listdir, path + '/')
        attempt('shadow', read, '/proc/1/root/etc/shadow')"""),
    _host("memory_of_process_1", """
        def peek(path):
            with open(path, 'rb', 0) as memory:
                memory.seek(int(open('/proc/1/maps').read().split('-')[0], 16)); return memory.read(16)
        attempt('mem', peek, '/proc/1/mem')
        attempt('task', peek, '/proc/1/task/1/mem')
        attempt('write', lambda: open('/proc/1/mem', 'r+b', 0))"""),
    _host("memory_of_process_1_by_process_vm_readv", """
        into, size = ctypes.create_string_buffer(8), 8
        local = struct.pack('PN', ctypes.addressof(into), size); remote = struct.pack('PN', 0x400000, size)
        attempt('readv', call, 310, 1, local, 1, remote, 1, 0)"""),
    _host("memory_of_process_1_by_process_vm_writev", """
        source = ctypes.create_string_buffer(8)
        local = struct.pack('PN', ctypes.addressof(source), 8); remote = struct.pack('PN', 0x400000, 8)
        attempt('writev', call, 311, 1, local, 1, remote, 1, 0)"""),
    _host("secret_of_the_service_in_inherited_memory", """
        marks = [C[name][::-1].encode() for name in ('secret', 'held', 'nowhere')]
        hits = dict.fromkeys(marks, 0)
        with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
            for line in maps:
                first, last = (int(part, 16) for part in line.split()[0].split('-'))
                if line.split()[1].startswith('r') and '[v' not in line:
                    try:
                        memory.seek(first); content = memory.read(last - first)
                    except (OSError, ValueError): continue
                    for mark in marks: hits[mark] += content.count(mark)
                    del content
        service, neighbour, nowhere = hits.values()
        found['service'] = 'nothing' if service == nowhere else 'GOT it'
        found['neighbour'] = 'nothing' if neighbour == nowhere else 'GOT it'""", neighbour=True),
    _host("workspace_of_a_neighbour", """
        def walk():
            for top in '/work', '/work/..', '/tmp', '/var', '/dev/shm', '/home', '/run', '/.job', '/srv', '/mnt', '/proc/1/root', '/proc/1/cwd':
                for folder, _, files in os.walk(top):
                    if C['neighbour'] in files: return folder
            raise OSError(2, 'nothing')
        attempt('walk', walk)
        for depth in range(1, 12): attempt(f'up {depth}', os.stat, '../' * depth + C['neighbour'])""", neighbour=True),
    _host("memory_and_environment_of_a_neighbour", _SEARCH_PROCESSES + """
    mark = C['held'][::-1].encode()
    attempt('environment', search, 'environ', mark)
    def others():
        seen = [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if pid not in (1, os.getpid()) and os.stat(f'/proc/{pid}').st_uid == os.getuid()]
        if not seen: raise OSError(2, 'nothing')
        return seen
    attempt('processes', others)""", neighbour=True),
    _host("kills_the_neighbour", """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        attempt('all', os.kill, -1, 15)
        for pid in [*range(2, os.getpid()), *range(os.getpid() + 1, 400)]:
            try: os.kill(pid, 9)
            except OSError as error: found[str(error.errno)] = errno.errorcode[error.errno]
            else: found[str(pid)] = 'GOT it'""", "GOT None", neighbour=True),
    _host("hard_links_to_system_files", """
        for source in '/etc/passwd', '/usr/bin/env', sys.executable, '/bin/sh', '/proc/self/exe':
            for place in '/work', '/tmp', '/dev/shm': attempt(f'{source} {place}', os.link, source, f'{place}/linked')""", "EMLINK", "EOPNOTSUPP"),
    _collected("symlinks_among_collected_files", """
        os.symlink('/etc/passwd', 'a.txt'); os.symlink('/etc', 'folder'); os.symlink('/proc/self/environ', 'b.txt')
        os.symlink(C['file'], 'c.txt'); os.mkdir('real'); os.symlink('../../etc/passwd', 'real/d.txt'); os.symlink('real', 'loop')
        open('kept.txt', 'w').write('mine')""", "kept.txt"),
    _collected("a_link_that_changes_while_it_is_collected", """
        open('kept.txt', 'w').write('mine')
        if not os.fork():
            os.setsid()
            while True:
                try:
                    os.symlink('/etc/passwd', 'x'); os.rename('x', 'race.txt')
                    open('y', 'w').close(); os.rename('y', 'race.txt')
                except OSError: pass
        time.sleep(0.2)""", "kept.txt", "race.txt", "x", "y"),
    _collected("devices_fifos_and_sockets_among_collected_files", """
        os.mkfifo('fifo')
        server = socket.socket(socket.AF_UNIX); server.bind('socket')
        open('kept.txt', 'w').write('mine')""", "kept.txt"),
    _collected("a_sparse_terabyte_among_collected_files", """
        try: os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 60 << 20)
        except OSError: pass
        open('kept.txt', 'w').write('mine')""", "kept.txt"),
    _host("names_that_climb_out_of_the_workspace", """
        for name in '../escaped', '/work/../escaped', '../../etc/escaped', '/escaped', '/../../escaped':
            attempt(name, lambda: open(name, 'w'))
        above = os.open('/', os.O_RDONLY)
        for _ in range(40): above = os.open('..', os.O_RDONLY, dir_fd=above)
        attempt('above the root', lambda: None if os.path.samestat(os.fstat(above), os.stat('/')) else os.listdir(above))""", "GOT None"),
    _host("descriptors_left_open", """
        import stat
        for number in range(3, 4096):
            try: info = os.fstat(number)
            except OSError: continue
            found[str(number)] = f'GOT {stat.filemode(info.st_mode)}'
        found['looked'] = 'nothing'"""),
    _host("descriptors_of_process_1", """
        import stat
        def valuable(path, flags):
            info = os.fstat(os.open(path, flags | os.O_NONBLOCK))
            if stat.S_ISCHR(info.st_mode): raise OSError(2, 'nothing')  # its /dev/null
            if info.st_uid == os.getuid(): raise OSError(2, 'nothing')  # its own places, whose files are being counted
            if info.st_dev == os.stat('/proc').st_dev and info.st_mode & 0o777 == 0o444: raise OSError(2, 'nothing')  # what all may read, looked at in this moment
            return info
        for number in range(64):
            for flags in os.O_RDONLY, os.O_WRONLY, os.O_RDWR: attempt(f'{number} {flags}', valuable, f'/proc/1/fd/{number}', flags)""", "EISDIR"),
    _host("sysfs", """
        for path in '/sys/class/dmi/id/product_name', '/sys/firmware/acpi/tables/FACP', '/sys/kernel/notes', '/sys/kernel/debug/sched', '/sys/block/vda/size', '/sys/class/net/eth0/address':
            attempt(path, read, path)
        for path in '/sys/power/state', '/sys/kernel/uevent_helper', '/sys/kernel/mm/ksm/run', '/sys/fs/cgroup/cgroup.procs', '/sys/module/kernel/parameters/panic':
            attempt(path, os.open, path, os.O_WRONLY)"""),
    _host("kernel_memory", """
        for path in '/dev/mem', '/dev/kmem', '/dev/port', '/proc/kcore', '/dev/kmsg', '/proc/kmsg', '/proc/vmcore':
            attempt(path, read, path)""", "GOT b''"),
    _host("kernel_addresses", """
        def addresses(path):
            lines = [line for line in open(path) if int(line.split()[0], 16)]
            if not lines: raise OSError(2, 'nothing')
            return lines[0]
        attempt('kallsyms', addresses, '/proc/kallsyms')
        attempt('modules', lambda: [line for line in open('/proc/modules') if not line.rstrip().endswith('0x0000000000000000')][0])
        attempt('iomem', lambda: [line for line in open('/proc/iomem') if not line.startswith(' ') and not line.startswith('00000000-00000000')][0])
        attempt('timers', read, '/proc/timer_list'); attempt('vmallocinfo', read, '/proc/vmallocinfo'); attempt('slabinfo', read, '/proc/slabinfo')""", "IndexError", "GOT b''"),
    _host("kernel_switches", """
        for path in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sys/vm/drop_caches', '/proc/sys/kernel/sysrq',
                     '/proc/sys/kernel/modprobe', '/proc/sys/fs/binfmt_misc/register', '/proc/sys/net/ipv4/ip_forward', '/proc/1/oom_score_adj', '/proc/irq/0/smp_affinity'):
            attempt(path, os.open, path, os.O_WRONLY)"""),
    _host("sockets_of_container_engines", """
        for path in '/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/podman/podman.sock', '/run/systemd/private', '/run/dbus/system_bus_socket':
            attempt(path, socket.socket(socket.AF_UNIX).connect, path)"""),
    _host("disks_and_special_devices", """
        for name in 'sda', 'vda', 'vdb', 'nvme0n1', 'loop0', 'loop-control', 'mapper/control', 'kvm', 'vhost-vsock', 'vsock', 'uinput', 'snapshot', 'dri/card0', 'tty0', 'ttyS0', 'btrfs-control':
            attempt(name, os.open, f'/dev/{name}', os.O_RDWR)
        import fcntl
        tunnel = struct.pack('16sH22x', b'mine', 0x1002)
        attempt('tunnel', lambda: fcntl.ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454CA, tunnel))"""),
    _host("system_files_and_packages", """
        for path in '/usr/bin/env', '/etc/passwd', os.__file__, sys.executable, '/opt/codemend/packages/pytest/__init__.py', '/etc/ld.so.preload', '/usr/lib/python3/dist-packages/x.pth':
            attempt(path, os.open, path, os.O_WRONLY | os.O_CREAT)
            attempt(f'{path} removed', os.unlink, path); attempt(f'{path} mode', os.chmod, path, 0o777)""", "ETXTBSY", "EBUSY"),
    _host("set_uid_programs", """
        import glob, stat, subprocess
        programs = [path for folder in ('/usr/bin', '/bin', '/usr/sbin', '/usr/lib') for path in glob.glob(folder + '/*') if os.path.isfile(path) and os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)]
        found['programs'] = 'nothing'
        def output(*command):
            try: return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=0.3).stdout.strip()
            except (OSError, subprocess.TimeoutExpired): return b''
        for path in programs: output(path, '--version')
        for command in (('su', '-s', '/bin/sh', '-c', 'id -u'), ('sudo', '-n', 'id', '-u'), ('pkexec', 'id', '-u')):
            if output(*command) == b'0': found[command[0]] = 'GOT root'
        found['user'] = 'nothing' if 0 not in os.getresuid() else 'GOT root'"""),
    _host("leftovers_of_an_earlier_job", """
        for place in '/tmp', '/dev/shm', '/var/tmp', '/home/job', '/work':
            names = [name for name in os.listdir(place) if name != 'main.py']
            found[place] = f'GOT {names}' if names else 'nothing'
        found['memory'] = 'GOT it' if libc.shmget(0x51AB, 4096, 0) >= 0 else 'nothing'
        found['semaphores'] = 'GOT them' if libc.semget(0x51AB, 1, 0) >= 0 else 'nothing'
        found['messages'] = 'GOT them' if libc.msgget(0x51AB, 0) >= 0 else 'nothing'""", first="""
        for place in '/tmp', '/dev/shm', '/var/tmp', '/home/job', '/work': open(f'{place}/kept', 'w').write('secret')
        libc.shmget(0x51AB, 4096, 0o1666); libc.semget(0x51AB, 1, 0o1666); libc.msgget(0x51AB, 0o1666)"""),
    _host("a_changed_interpreter_for_the_next_job", """
        import builtins
        found['module'] = 'GOT it' if hasattr(json, 'poison') or hasattr(builtins, 'poison') else 'nothing'
        found['hook'] = 'GOT it' if 'poison' in sys.modules or os.environ.get('POISON') else 'nothing'""", first="""
        import builtins
        json.poison = builtins.poison = True; sys.modules['poison'] = json; os.environ['POISON'] = '1'
        for place in '/home/job/.local/lib/python3.11/site-packages', '/home/job', '/tmp', '/work':
            os.makedirs(place, exist_ok=True)
            for name in 'sitecustomize.py', 'usercustomize.py', 'json.py', 'x.pth': open(f'{place}/{name}', 'w').write('import os; os.environ["POISON"] = "1"')"""),
    _host("a_daemon_that_waits_for_the_next_job", """
        seen = [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if pid not in (1, os.getpid()) and os.stat(f'/proc/{pid}').st_uid == os.getuid()]
        found['processes'] = f'GOT {seen}' if seen else 'nothing'
        found['written'] = 'GOT it' if os.path.exists('/tmp/from-the-daemon') else 'nothing'""", first="""
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 100)
                while True:
                    time.sleep(0.01)
                    try: open('/tmp/from-the-daemon', 'w').close()
                    except OSError: pass
            os._exit(0)
        time.sleep(0.1)"""),
]  # fmt: skip
