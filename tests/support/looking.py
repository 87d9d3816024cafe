"""Programs that look around in their cell and print what they find as JSON; the tests judge it from outside."""

# ruff: noqa: E501 - most lines are whole programs

import json

from support.jobs import Ran, Sandbox

ATTEMPT = """
import ctypes, errno, json, os, socket, sys

def attempt(call, *args):
    '''What a call gives, or the name of its error.'''
    try:
        return repr(call(*args))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error)) if error.errno and error.errno > 0 else type(error).__name__
    except Exception as error:
        return type(error).__name__
"""


async def seen(sandbox: Sandbox, code: str, **fields) -> dict[str, object]:
    """Runs `code`, which leaves its findings in a dict `found`, and returns them."""
    ran: Ran = await sandbox.python(f"{ATTEMPT}\nfound = {{}}\n{code}\nprint(json.dumps(found))", **fields)
    assert ran.status == "SUCCEEDED", ran.told()
    return json.loads(ran.out)


FILES = """
for path in {paths!r}:
    found[path] = attempt(lambda: open(path, 'rb').read(64))
"""

TREE = """
found['root'] = sorted(os.listdir('/'))
found['home'] = os.listdir('/home')
found['etc'] = sorted(os.listdir('/etc'))
found['devices'] = sorted(os.listdir('/dev'))
found['run'] = os.listdir('/run') + os.listdir('/sys')
"""

WRITES = """
import tempfile
places = {'/', *(entry.path for entry in os.scandir('/') if entry.is_dir()), sys.prefix, os.path.dirname(os.__file__),
          '/usr/bin', '/opt/codemend/packages', '/opt/codemend/bin', '/proc/self', '/proc/sys/kernel', '/home'}
for place in sorted(places):
    found[place] = attempt(lambda: open(f'{place}/written', 'w').close())
found['/etc/passwd'] = attempt(lambda: open('/etc/passwd', 'a').write('x'))
found['interpreter'] = attempt(lambda: open(os.__file__, 'a').write('x'))
found['host name'] = attempt(lambda: open('/proc/sys/kernel/hostname', 'w').write('x'))
found['core pattern'] = attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('x'))
"""

POWERS = """
found['setuid'] = attempt(os.setuid, 0)
found['setgroups'] = attempt(os.setgroups, [0])
found['chown'] = attempt(os.chown, 'main.py', 0, 0)
found['mknod'] = attempt(os.mknod, '/tmp/device', 0o20600, os.makedev(1, 1))
found['nice'] = attempt(os.nice, -5)
found['raw socket'] = attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
found['packet socket'] = attempt(socket.socket, 17, socket.SOCK_RAW, 0)
found['signal to process 1'] = attempt(os.kill, 1, 9)
import resource
found['raise open files'] = attempt(resource.setrlimit, resource.RLIMIT_NOFILE, (100_000, 100_000))
"""

FORBIDDEN_POWERS = """
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
    return 'done'
for name, flag in dict(mount=0x20000, cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, pid=0x20000000, net=0x40000000).items():
    found[f'unshare {name}'] = attempt(call, 'unshare', flag)
found['mount tmpfs'] = attempt(call, 'mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)
found['mount proc'] = attempt(call, 'mount', b'proc', b'/tmp', b'proc', 0, None)
found['remount root'] = attempt(call, 'mount', b'none', b'/', None, 32 | 4096, None)
found['umount'] = attempt(call, 'umount2', b'/proc', 2)
found['chroot'] = attempt(call, 'chroot', b'/tmp')
found['sethostname'] = attempt(socket.sethostname, 'mine')
found['ptrace'] = attempt(call, 'ptrace', 16, 1, 0, 0)
"""

INSIDE_A_NEW_USER_NAMESPACE = """
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
    return 'done'
found['user'] = attempt(call, 'unshare', 0x10000000)
found['mount'] = attempt(call, 'mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)
found['remount root'] = attempt(call, 'mount', b'none', b'/', None, 32 | 4096, None)
found['shadow'] = attempt(lambda: open('/etc/shadow').read())
"""

STATUS = """
found['status'] = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status'))
found['uid'], found['gid'], found['groups'] = os.getuid(), os.getgid(), os.getgroups()
found['host'] = socket.gethostname()
found['processes'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
found['environment'] = dict(os.environ)
found['descriptors'] = sorted(int(name) for name in os.listdir('/proc/self/fd'))[:3] + [
    name for name in map(str, range(3, 256)) if attempt(os.fstat, int(name)) != 'EBADF']
found['session'] = os.getsid(0) == os.getpid()
found['parent'] = {name: attempt(lambda: open(f'/proc/1/{name}', 'rb').read(10)) for name in ('environ', 'mem', 'maps')}
found['parent root'] = attempt(os.listdir, '/proc/1/root/')
found['interfaces'] = [name for _, name in socket.if_nameindex()]
"""

NETWORK = """
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as handle:
        handle.settimeout(2)
        handle.connect(address)
        return 'connected'
found['listener'] = attempt(connect, socket.AF_INET, ('127.0.0.1', {port}))
found['abstract'] = attempt(connect, socket.AF_UNIX, '\\0' + {abstract!r})
found['path'] = attempt(connect, socket.AF_UNIX, {path!r})
found['metadata'] = attempt(connect, socket.AF_INET, ('169.254.169.254', 80))
found['internet'] = attempt(connect, socket.AF_INET, ('1.1.1.1', 53))
found['internet 6'] = attempt(connect, socket.AF_INET6, ('2606:4700:4700::1111', 53))
found['host'] = attempt(connect, socket.AF_INET, ({host!r}, {port}))
found['name'] = attempt(socket.getaddrinfo, 'example.com', 80)
found['datagram'] = attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b'x', ('8.8.8.8', 53))
found['localhost'] = attempt(socket.gethostbyname, 'localhost')
server = socket.create_server(('127.0.0.1', 0))
found['own loopback'] = attempt(connect, socket.AF_INET, server.getsockname())
"""

MEMORY_SEARCH = """
marks = [mark[::-1].encode() for mark in {reversed_marks!r}]
hits = dict.fromkeys(range(len(marks)), 0)
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        first, last = (int(part, 16) for part in line.split()[0].split('-'))
        if not line.split()[1].startswith('r') or '[v' in line:
            continue
        try:
            memory.seek(first)
            content = memory.read(last - first)
        except (OSError, ValueError):
            continue
        for number, mark in enumerate(marks):
            hits[number] += content.count(mark)
        del content
found['hits'] = list(hits.values())
"""

KEEP = """
for place in ('/work', '/tmp', '/dev/shm', '/home/job', '/var/tmp'):
    open(f'{place}/kept', 'w').write('secret')
libc = ctypes.CDLL(None, use_errno=True)
found['shared memory'] = libc.shmget(0x51AB, 4096, 0o1600) >= 0
found['semaphores'] = libc.semget(0x51AB, 1, 0o1600) >= 0
found['messages'] = libc.msgget(0x51AB, 0o1600) >= 0
import json, builtins
json.poison = builtins.poison = True
"""

FIND_KEPT = """
for place in ('/work', '/tmp', '/dev/shm', '/home/job', '/var/tmp'):
    found[place] = os.listdir(place)
libc = ctypes.CDLL(None, use_errno=True)
found['shared memory'] = libc.shmget(0x51AB, 4096, 0) >= 0
found['semaphores'] = libc.semget(0x51AB, 1, 0) >= 0
found['messages'] = libc.msgget(0x51AB, 0) >= 0
import builtins
found['poison'] = hasattr(json, 'poison') or hasattr(builtins, 'poison')
"""

FIND_OTHER = """
import pathlib
found['files'] = [str(path) for root in ('/work', '/tmp', '/dev', '/home', '/var', '/run') for path in pathlib.Path(root).rglob('*mark-*')]
found['processes'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid()))
found['killed'] = attempt(os.kill, -1, 9)
"""
