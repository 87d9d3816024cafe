"""Python programs whose behaviour depends on how the interpreter was started, each with what it is given."""

# ruff: noqa: E501 - most lines are whole programs

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent


@dataclass(frozen=True)
class Plain:
    """One program; `more` are files beside main.py."""

    name: str
    code: str | bytes
    args: tuple[str, ...] = ()
    stdin: bytes = b""
    more: Mapping[str, str] = field(default_factory=dict)
    entry: str = "main.py"


def plain(name: str, code: str | bytes, *args: str, stdin: bytes = b"", entry: str = "main.py", **more: str) -> Plain:
    """An entry; the names of `more` get `.py`, with `__` for `/` and INIT for `__init__`."""
    files = {f"{path.replace('__', '/').replace('INIT', '__init__')}.py": content for path, content in more.items()}
    return Plain(name, dedent(code) if isinstance(code, str) else code, args, stdin, files, entry)


SPAWNED = """\
import multiprocessing, sys
def work(n): return n * n
class Error(Exception): pass
if __name__ == '__main__':
    context = multiprocessing.get_context('{method}')
    with context.Pool(2) as pool: print(pool.map(work, range(5)))
    queue = context.Queue()
    child = context.Process(target=queue.put, args=({{'from': 'child'}},))
    child.start()
    print(queue.get(timeout=20), child.join(20), child.exitcode)
"""

PROGRAMS = [
    plain("main_module", """\
        import sys
        print(__name__, __file__, __doc__, __package__, __spec__, sorted(k for k in globals() if k != '__cached__'))
        print(type(__loader__).__name__, __annotations__)
        print(sys.modules['__main__'].__dict__ is globals(), __builtins__ is sys.modules['builtins'])"""),
    plain("arguments", "import sys; print(sys.argv, sys.orig_argv[1:], sys.flags.isolated)", "a", "b c", "é", "--x"),
    plain("first_path", "import sys; print(sys.path[0], '' in sys.path)"),
    plain("entry_in_a_folder", "import beside; print(__file__, beside.x)", entry="sub/main.py", sub__beside="x = 'beside'"),
    plain("sibling_module_and_package", """\
        import helper, package.inner
        from package import name
        print(helper.x, package.inner.y, name, helper.__file__, package.__path__)""",
        helper="x = 1", package__INIT="name = __name__", package__inner="from . import name as y"),
    *[plain(f"exit_with_{name}", f"import sys\nprint('before')\nsys.exit({code})") for name, code in {
        "nothing": "", "none": "None", "zero": "0", "five": "5", "big": "1000", "negative": "-1", "true": "True",
        "text": "'a message é'", "list": "[1, 2]", "float": "2.5", "huge": "2**70",
    }.items()],
    plain("exit_builtin", "exit(4)"),
    plain("quit_builtin", "quit('bye')"),
    plain("raise_system_exit", "raise SystemExit"),
    plain("system_exit_in_thread", "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join(); print('on')"),
    plain("os_exit", "import os\nprint('unflushed', end='')\nos._exit(3)"),
    plain("exception", "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)\n"),
    plain("exception_group", "raise ExceptionGroup('several', [ValueError(1), TypeError('two')])"),
    plain("chained_causes", """\
        def inner(): raise KeyError('first')
        def outer():
            try: inner()
            except KeyError as error:
                try: int('x')
                except ValueError as other: raise RuntimeError('third') from other
        outer()"""),
    plain("exception_with_notes", "e = ValueError('x'); e.add_note('a note\\nof two lines'); raise e"),
    plain("exception_without_text", "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E()"),
    plain("syntax_error", "x = 1\nif x\n    print(x)\n"),
    plain("indentation_error", "def f():\nreturn 1\n"),
    plain("declared_encoding", "# -*- coding: latin-1 -*-\nprint('caf\xe9', len('\xe9'))\n".encode("latin-1")),
    plain("byte_order_mark", b"\xef\xbb\xbfprint('bom')\n"),
    plain("windows_line_ends", b"x = '''a\r\nb'''\r\nprint([x])\r\n"),
    plain("error_in_module", "import broken", broken="x = 1\ndef f(:\n"),
    plain("import_error", "import no_such_module_at_all"),
    plain("unicode", "print('żółć 🎉 \\u2028 ' + 'e\\u0301')\nimport sys; print(sys.stdout.encoding, sys.getfilesystemencoding())"),
    plain("keyboard_interrupt", "print('x', flush=True)\nraise KeyboardInterrupt"),
    plain("unflushed_file", "f = open('x', 'w'); f.write('text')\nimport atexit\natexit.register(lambda: print(open('x').read() or 'empty'))"),
    plain("unflushed_output", "import sys\nsys.stdout.write('no newline'); sys.stderr.write('nor here')"),
    plain("atexit_order", """\
        import atexit, sys
        for n in range(3): atexit.register(print, 'handler', n)
        @atexit.register
        def fails(): raise ValueError('in a handler')
        sys.exit(3)"""),
    plain("finalizers", """\
        import weakref
        class A:
            def __del__(self): print('deleted', __name__)
        a = A(); weakref.finalize(a, print, 'finalized')
        cycle = [A()]; cycle.append(cycle)
        print('end')"""),
    plain("thread_that_outlives_main", """\
        import threading, time
        def late(): time.sleep(0.1); print('late')
        threading.Thread(target=late).start()
        print('main ends')"""),
    plain("thread_that_fails", "import threading\nt = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join(); print('on')"),
    plain("daemon_thread", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('main ends')"),
    plain("thread_after_failure", """\
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), print('still'))).start()
        raise ValueError('main fails')"""),
    plain("multiprocessing_spawn", SPAWNED.format(method="spawn")),
    plain("multiprocessing_fork", SPAWNED.format(method="fork")),
    plain("multiprocessing_forkserver", SPAWNED.format(method="forkserver")),
    plain("process_pool", """\
        from concurrent.futures import ProcessPoolExecutor
        def work(n): return n + 1
        if __name__ == '__main__':
            with ProcessPoolExecutor(2) as pool: print(list(pool.map(work, range(4))))"""),
    plain("fork_and_exit", """\
        import os, sys
        if not (pid := os.fork()):
            print('child'); sys.exit(3)
        print('parent saw', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"""),
    plain("subprocess_of_itself", """\
        import subprocess, sys, os
        ran = subprocess.run([sys.executable, '-c', 'import sys; print(sys.version_info[:3], sys.stdin.read())'], input=b'in', stdout=-1)
        print(ran.returncode, ran.stdout, os.path.exists(sys.executable))
        print(subprocess.run([sys.executable, '-m', 'this'], stdout=-1).stdout[:20])"""),
    plain("subprocess_shell", "import subprocess\nprint(subprocess.getstatusoutput('echo a | tr a b; exit 3'))"),
    plain("input", "x = input('name? ')\nprint('hi', x)\nprint(input())", stdin=b"Ada\r\nsecond"),
    plain("input_at_the_end", "input('? ')"),
    plain("stdin_lines", "import sys\nfor line in sys.stdin: print([line])\nprint(sys.stdin.isatty(), sys.stdin.name, sys.stdin.mode)", stdin=b"a\n\xffb\nc"),
    plain("stdin_number", "print(sum(map(int, open(0).read().split())))", stdin=b"1 2\n3\n"),
    plain("streams", "import sys\nfor s in sys.stdin, sys.stdout, sys.stderr: print(s.name, s.mode, s.encoding, s.fileno(), s.isatty(), s.errors, s.closed, type(s.buffer).__name__)"),
    plain("stdout_replaced", "import sys, io\nkept = sys.stdout; sys.stdout = io.StringIO(); print('lost'); sys.stdout = sys.__stdout__; print(sys.stdout is kept)"),
    plain("stdout_reconfigured", "import sys\nsys.stdout.reconfigure(encoding='ascii', errors='backslashreplace')\nprint('é')"),
    plain("stdout_closed", "import sys\nsys.stdout.close()"),
    plain("print_after_close", "import sys\nsys.stdout.close()\nprint('x')"),
    plain("environment", "import os\nprint(sorted(k for k in os.environ if k.startswith('GIVEN')), os.getenv('GIVEN'), os.getenv('HOME') == os.path.expanduser('~'))"),
    plain("recursion_limit", "import sys\nprint(sys.getrecursionlimit())\ndef f(n):\n    return f(n + 1)\ntry: f(0)\nexcept RecursionError as e: print(e)"),
    plain("recursion_depth", "depth = 0\ndef f():\n    global depth\n    depth += 1\n    f()\ntry: f()\nexcept RecursionError: print(depth > 900)"),
    plain("warnings", """\
        import warnings, sys
        warnings.warn('seen once'); warnings.warn('deprecated', DeprecationWarning)
        def f(): warnings.warn('from f', stacklevel=2)
        f()
        print(sys.warnoptions, len(warnings.filters))
        assert 'x' is 'x'"""),
    plain("warning_of_a_module", "import old", old="import warnings\nwarnings.warn('old', DeprecationWarning)\nwarnings.warn('user')"),
    plain("unraisable", "class A:\n    def __del__(self): raise ValueError('in del')\nA()\nprint('on')"),
    plain("asyncio", """\
        import asyncio
        async def work(n): await asyncio.sleep(0.01); return n
        async def main():
            print(await asyncio.gather(*(work(n) for n in range(3))))
            process = await asyncio.create_subprocess_exec('echo', 'child', stdout=-1)
            print((await process.communicate())[0])
        asyncio.run(main())"""),
    plain("asyncio_never_awaited", "import asyncio\nasync def f(): pass\nf()\nprint('end')"),
    plain("pickle_of_main", """\
        import pickle, dataclasses
        @dataclasses.dataclass
        class Point: x: int; y: int = 0
        print(pickle.loads(pickle.dumps(Point(1))), Point.__module__, Point.__qualname__)"""),
    plain("typing_and_enums", """\
        import enum, typing, inspect
        class C(enum.Enum): A = 1
        class N(typing.NamedTuple): x: C
        def f(n: N) -> 'C': ...
        print(typing.get_type_hints(f), N(C.A), inspect.getsource(f), inspect.getmodule(f))"""),
    plain("doctest", '"""\n>>> 1 + 1\n2\n>>> 1 + 2\n4\n"""\nimport doctest\nprint(doctest.testmod())'),
    plain("unittest_main", """\
        import unittest
        class T(unittest.TestCase):
            def test_a(self): self.assertEqual(1, 2)
            def test_b(self): self.skipTest('not here')
        if __name__ == '__main__': unittest.main(verbosity=2)"""),
    plain("tempfile", """\
        import tempfile, os
        with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f: f.write(b'x'); print(os.listdir(d) != [])
        print(tempfile.TemporaryFile().fileno() > 2)"""),
    plain("sqlite", "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t (a)'); c.execute('insert into t values (1)'); c.commit()\nprint(c.execute('select * from t').fetchall())"),
    plain("signal_handlers", """\
        import os, signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM, signal.SIGXFSZ):
            print(number, signal.getsignal(number))
        signal.signal(signal.SIGTERM, lambda n, frame: print('caught', n))
        os.kill(os.getpid(), signal.SIGTERM)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
        signal.setitimer(signal.ITIMER_REAL, 0.05); signal.signal(signal.SIGALRM, lambda *_: print('alarm')); signal.pause()"""),
    plain("alarm_kills", "import signal\nsignal.alarm(1)\nsignal.pause()"),
    plain("faulthandler", "import faulthandler\nprint(faulthandler.is_enabled(), flush=True)\nfaulthandler._sigsegv()"),
    plain("traceback_of_a_callback", "import traceback, sys\ndef f(): print(traceback.extract_stack()[-1])\nf()\nsys.excepthook = lambda *a: print('own hook', a[0])\n1/0"),
    plain("frames", "import sys\nf = sys._getframe()\nprint(f.f_code.co_name, f.f_lineno, f.f_globals is globals())"),
    plain("threads_and_loaded", "import threading, sys\nprint(threading.active_count(), threading.current_thread(), threading.main_thread() is threading.current_thread(), sys.gettrace())"),
    plain("garbage_collector", "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug())"),
    plain("locale", "import locale, time\nprint(locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL), time.tzname)"),
    plain("umask_and_modes", "import os\nopen('x', 'w').close(); os.mkdir('d')\nprint(oct(os.stat('x').st_mode), oct(os.stat('d').st_mode), oct(os.stat('main.py').st_mode))"),
    plain("site_builtins", "print(copyright is not None, [type(n).__name__ for n in (exit, quit, help, license, credits)])"),
    plain("optimisation", "import sys\nassert True\nprint(__debug__, sys.flags.optimize, sys.flags.utf8_mode, sys.dont_write_bytecode, sys.flags.hash_randomization)"),
    plain("future_annotations", "from __future__ import annotations\ndef f(x: undefined): ...\nprint(f.__annotations__)"),
    plain("no_leaked_future", "def f(x: int): ...\nprint(f.__annotations__)"),
    plain("run_module", "import runpy\nprint(sorted(k for k in runpy.run_path('other.py') if not k.startswith('_')))", other="value = 1"),
    plain("zoneinfo_and_mimetypes", "import mimetypes, zoneinfo\nprint(mimetypes.guess_type('a.html'))\nprint(zoneinfo.ZoneInfo('Europe/Vienna').key)"),
    plain("import_everything", """\
        import argparse, base64, bz2, collections, csv, ctypes, datetime, decimal, email, fractions, glob, hashlib, heapq, hmac, html
        import http.client, http.server, itertools, json, logging, lzma, math, queue, random, re, secrets, select, shutil, ssl, statistics
        import string, struct, tarfile, textwrap, timeit, unittest.mock, urllib.request, uuid, xml.etree.ElementTree, zipfile, zlib, readline
        print('all', logging.getLogger('x').getEffectiveLevel()); logging.warning('logged')"""),
    plain("end_of_modules", """\
        import first, second
        class Named:
            def __init__(self, name): self.name = name
            def __del__(self): print('gone', self.name, first is None, second is None, flush=True)
        first.a = Named('of first'); second.b = Named('of second'); second._c = Named('of second, early')
        _x, y, __z__ = Named('underscore'), Named('plain'), Named('dunder')
        class Holder: kept = Named('of a class')
        def default(x=Named('of a default')): ...
        print('end')""", first="x = 1", second="import first"),
    plain("end_inside_a_package", """\
        import package.inner
        class A:
            def __del__(self): print('gone', package is None)
        package.inner.kept = A(); package.kept = package.inner.__dict__""", package__INIT="", package__inner="from .. import package"),
    plain("end_with_imports", """\
        class A:
            def __del__(self):
                import json
                print(json)
        a = A()
        cycle = [A()]; cycle.append(cycle)"""),
    plain("end_knows_that_it_is_the_end", """\
        import sys
        class A:
            def __init__(self, sys): self.sys = sys
            def __del__(self): print(self.sys.is_finalizing(), self.sys.path, self.sys.meta_path, self.sys.argv)
        a = A(sys)
        print(sys.is_finalizing())"""),
    plain("end_with_what_others_hold", """\
        import builtins, sys
        class A:
            def __init__(self, name, out=sys.stdout): self.name, self.out = name, out
            def __del__(self): self.out.write(f'gone {self.name}\\n'); self.out.flush()
        builtins.mine = A('of builtins'); sys.mine = A('of sys'); sys.ps1 = A('prompt'); sys.argv.append(A('argument'))"""),
    plain("end_of_an_open_file", """\
        import sys
        def f():
            out = open('/tmp/end-of-an-open-file', 'w'); out.write('from a frame')
            class Tell:
                def __del__(self, path='/tmp/end-of-an-open-file', open=open, print=print): print(open(path).read())
            tell, out_again = Tell(), out
            raise ValueError('with a frame')
        f()"""),
    plain("end_of_stdout_that_is_a_file", """\
        import sys, atexit
        kept = sys.stdout
        sys.stdout = open('out', 'w'); print('into the file')
        class Tell:
            def __del__(self, open=open, write=kept.write): write(open('out').read())
        tell = Tell()"""),
    plain("end_of_generators", """\
        def g():
            try: yield 1
            finally: print('closed')
        a = g(); next(a)
        async def c():
            try: await b
            finally: print('closed too')
        class B:
            def __await__(self): yield
        b = B(); d = c(); d.send(None)"""),
    plain("end_of_a_failure_in_del", "class A:\n    def __del__(self): raise ValueError('last')\na = A()\nb = [a]; b.append(b)\nraise KeyError('first')"),
    plain("end_with_a_closed_descriptor", "import os\nprint('lost', end='')\nos.close(1)"),
    plain("end_with_a_closed_reader", """\
        import os, signal
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        read, write = os.pipe(); os.dup2(write, 1); os.close(read); os.close(write)
        print('kept back', end='')"""),
    plain("end_with_printf_of_c", "import ctypes\nctypes.CDLL(None).printf(b'from C ')\nprint('from python', flush=True)"),
    plain("end_without_a_collector", "import gc\ngc.disable()\nclass A:\n    def __del__(self): print('gone', __name__)\na = [A()]; a.append(a)\nb = A()"),
    plain("end_with_a_tracer", """\
        import sys
        class A:
            def __del__(self): print('gone')
        a = A()
        sys.settrace(lambda *_: None)"""),
    plain("end_with_a_handler_that_registers", "import atexit\ndef again(n):\n    print('n', n)\n    if n: atexit.register(again, n - 1)\natexit.register(again, 2)"),
    plain("end_in_a_handler", "import atexit, os\natexit.register(os._exit, 4)\nclass A:\n    def __del__(self): print('gone')\na = A()"),
    plain("end_by_exit_in_a_handler", "import atexit, sys\natexit.register(sys.exit, 4)\nprint('x')"),
    plain("end_with_daemons_that_print", """\
        import threading, time
        class A:
            def __del__(self): print('gone', flush=True)
        a = A()
        for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"""),
    plain("end_with_a_timer", "import threading\nthreading.Timer(0.1, print, ['timer']).start()\nprint('main')"),
    plain("end_with_an_executor", """\
        from concurrent.futures import ThreadPoolExecutor
        import time
        pool = ThreadPoolExecutor(2)
        pool.submit(lambda: (time.sleep(0.1), print('late', flush=True)))
        print('main', flush=True)"""),
    plain("end_with_logging", """\
        import logging, logging.handlers
        target = logging.FileHandler('log')
        memory = logging.handlers.MemoryHandler(100, target=target)
        logging.getLogger().addHandler(memory)
        logging.getLogger().error('kept')
        import atexit
        class A:
            def __del__(self, open=open, print=print): print(open('log').read())
        a = A()"""),
    plain("end_with_temporary_files", """\
        import tempfile, weakref, os
        d = tempfile.TemporaryDirectory(); f = tempfile.NamedTemporaryFile()
        class A:
            def __del__(self, exists=os.path.exists, names=(d.name, f.name)): print([exists(name) for name in names])
        a = A()"""),
    plain("end_with_replaced_modules", """\
        import sys, types
        fake = types.ModuleType('fake'); sys.modules['fake'] = fake
        class A:
            def __del__(self): print('gone', self.__class__)
        fake.a = A(); sys.modules['not a module'] = A(); sys.modules.pop('json', None)
        import json; json.mine = A()
        print(sorted(name for name in sys.modules if 'fake' in name))"""),
    plain("end_with_the_last_module_gone", "import sys\nfor name in list(sys.modules)[20:]: del sys.modules[name]\nclass A:\n    def __del__(self): print('gone')\na = A()"),
    plain("end_of_a_fork", """\
        import os, atexit, sys
        class A:
            def __del__(self): print('gone', flush=True)
        a = A(); atexit.register(print, 'handler', flush=True)
        if pid := os.fork(): print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        else: sys.exit(5)"""),
    plain("end_with_a_queue_feeder", """\
        import multiprocessing
        if __name__ == '__main__':
            q = multiprocessing.Queue(); q.put('x'); print(q.get())"""),
    plain("end_with_context_variables", """\
        import contextvars
        class A:
            def __del__(self): print('gone')
        contextvars.ContextVar('v').set(A())
        v = contextvars.ContextVar('v'); v.set(A())"""),
]  # fmt: skip
