"""Programs that do honest work with much of what a system offers; each prints True, or 1, where all of it worked."""

# ruff: noqa: E501 - most lines are whole programs

PYTHON = {
    "threads": """
import threading
done = []
threads = [threading.Thread(target=done.append, args=(1,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(done) == 8)
""",
    "subprocess": """
import subprocess
print(subprocess.run(['sh', '-c', 'echo x | tr x y'], capture_output=True).stdout == b'y\\n')
""",
    "posix_spawn": """
import os
print(os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1] == 0)
""",
    "process pool": """
import concurrent.futures
if __name__ == '__main__':
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(abs, [-1, -2])) == [1, 2])
""",
    "spawned process": """
import multiprocessing
def work(queue): queue.put(7)
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print(queue.get() == 7)
    child.join()
""",
    "shared memory": """
from multiprocessing import shared_memory
made = shared_memory.SharedMemory(create=True, size=64)
made.buf[0] = 1
print(made.buf[0] == 1)
made.close()
made.unlink()
""",
    "asyncio": """
import asyncio
async def main():
    child = await asyncio.create_subprocess_exec('echo', 'x', stdout=asyncio.subprocess.PIPE)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print((await child.communicate())[0] == b'x\\n' and await reader.read() == b'')
asyncio.run(main())
""",
    "sqlite": """
import sqlite3
base = sqlite3.connect('/work/x.db')
base.execute('pragma journal_mode=wal')
base.execute('create table t(a)')
base.execute('insert into t values (1)')
base.commit()
print(base.execute('select a from t').fetchall() == [(1,)])
""",
    "files": """
import os, shutil, tempfile
place = tempfile.mkdtemp()
open(f'{place}/a', 'w').write('x')
os.mkdir(f'{place}/b')
os.rename(f'{place}/a', f'{place}/b/a')
os.link(f'{place}/b/a', f'{place}/c')
os.symlink('c', f'{place}/e')
os.truncate(f'{place}/c', 0)
shutil.copytree(place, '/home/job/copy', symlinks=True)
shutil.move(place, '/var/tmp/moved')
os.mkfifo('/dev/shm/f')
shutil.rmtree('/var/tmp/moved')
print(os.listdir('/home/job/copy/b') == ['a'])
""",
    "signals and timers": """
import signal, time
hit = []
signal.signal(signal.SIGALRM, lambda *_: hit.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not hit: time.sleep(0.001)
print(True)
""",
    "signals to children": """
import os, signal, time
child = os.fork()
if child == 0: time.sleep(60)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1] == signal.SIGTERM)
""",
    "its own abstract sockets": """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind('\\0own')
server.listen()
socket.socket(socket.AF_UNIX).connect('\\0own')
print(True)
""",
    "the machine's figures": """
import os
print(os.cpu_count() > 0 and os.getloadavg()[0] >= 0 and 'MemTotal' in open('/proc/meminfo').read() and 'processor' in open('/proc/cpuinfo').read())
""",
    "devices": """
open('/dev/null', 'w').write('x')
print(len(open('/dev/urandom', 'rb').read(8)) == 8)
""",
    "file descriptors as files": """
print('a', file=open('/dev/stderr', 'w'))
print(open('/proc/self/fd/0').read() == '')
""",
}
"""Name -> program."""

COMMANDS = {
    "git": "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git log --oneline | wc -l",
    "gcc": "printf 'int puts(const char *); int main(void) { puts(\"1\"); return 0; }' > a.c && gcc -O1 -o a a.c && ./a",
    "node": 'node -e \'const {Worker} = require("worker_threads"); new Worker("", {eval: true}).on("exit", () => console.log(1))\'',
    "tar": "mkdir a && touch a/b && tar -czf a.tgz a && tar -tzf a.tgz | grep -c b",
}
"""Program that is needed -> shell command."""
