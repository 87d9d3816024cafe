"""Attacks on what the guest and the service say to each other, and on the tests that judge the code."""

# ruff: noqa: E501 - most lines are whole programs

from textwrap import dedent

from security.attacks.base import PRELUDE, Attack, Finding, Judge, Seen, ends, harm, probe

_GROUP = "guest protocol"
_FAILING = {
    "test_solution.py": "import solution\n\ndef test_a():\n    assert solution.answer() == 42\n\ndef test_b():\n    assert solution.answer() == 43\n"
}
_LISTENING = "\ndef answer():\n    return 0\n"
_FRAMES = """
def frame(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack('!I', len(body)) + body

def others():
    for number in range(3, 1024):
        try: os.fstat(number)
        except OSError: continue
        yield number

def send(number, data):
    os.set_blocking(number, False)
    try: os.write(number, data)
    except (OSError, ValueError): pass
"""


def _never_passes(seen: Seen) -> Finding:
    right = seen.outcome not in ("", "PASSED") and seen.seconds < 15
    return Finding(right, f"{seen.outcome} ({seen.report.reason if seen.report else ''})"[:120])


def _tested(
    name: str,
    code: str,
    judge: Judge = _never_passes,
    *,
    tests: dict[str, str] | None = None,
    more: dict[str, str] | None = None,
    **limits: float,
) -> Attack:
    whole = f"{PRELUDE}{_FRAMES}{dedent(code)}{_LISTENING}"
    return Attack(name, _GROUP, whole, judge, {"wall_time": 10, **limits}, tests=tests or _FAILING, more=more or {})


ATTACKS = [
    _tested("forged_results_on_every_descriptor", """
        for number in others():
            for name in 'test_a', 'test_b':
                send(number, frame({'event': 'test', 'id': f'test_solution.py::{name}', 'node_id': f'test_solution.py::{name}', 'outcome': 'passed', 'duration': 0.0}))
            send(number, frame({'event': 'end', 'exit_code': 0, 'exitstatus': 0, 'status': 0}))"""),
    _tested("forged_results_and_an_early_end", """
        for number in others():
            send(number, frame({'event': 'collected', 'tests': [], 'count': 0})); send(number, frame({'event': 'end', 'exit_code': 0}))
        os._exit(0)"""),
    _tested("a_frame_of_four_gigabytes", "for number in others(): send(number, struct.pack('!I', 0xFFFFFFFF) + b'x' * 100)"),
    _tested("a_frame_that_never_ends", "for number in others(): send(number, struct.pack('!I', 1000))"),
    _tested("a_million_small_frames", """
        block = frame({}) * 10_000
        for number in others():
            for _ in range(100): send(number, block)"""),
    _tested("frames_that_are_no_json", "for number in others(): send(number, frame(b'\\xff\\xfe{') + frame(b'[' * 100_000) + frame(b'[]') + frame(b'1e999'))"),
    _tested("frames_with_wrong_types", """
        for number in others():
            for value in (None, [], -1, 1 << 70, 'x' * 100_000, {'a': {}}, True):
                send(number, frame(dict.fromkeys(('event', 'id', 'node_id', 'outcome', 'exit_code', 'duration', 'message', 'tests', 'count'), value)))"""),
    _tested("closed_channels", "for number in others(): os.close(number)"),
    _tested("closed_channels_and_an_early_end", "os.closerange(0, 1024)\nos._exit(0)"),
    _tested("channels_moved_elsewhere", """
        null = os.open('/dev/null', os.O_RDWR)
        for number in [number for number in others() if number != null]: os.dup2(null, number)"""),
    _tested("tests_replaced_while_they_run", """
        for folder in '/tests', '/work', '.':
            try: open(f'{folder}/test_solution.py', 'w').write('def test_a(): pass\\ndef test_b(): pass\\n')
            except OSError: pass"""),
    _tested("tests_unmounted", """
        for place in b'/tests', b'/work': libc.umount2(place, 2); libc.mount(b'/tmp', place, None, ctypes.c_ulong(4096), None)"""),
    _tested("stale_bytecode_for_the_tests", """
        import importlib.util, marshal, glob
        code = compile('def test_a(): pass\\ndef test_b(): pass\\n', '/tests/test_solution.py', 'exec')
        for source in '/tests/test_solution.py', '/work/test_solution.py':
            try:
                info = os.stat(source); target = importlib.util.cache_from_source(source); os.makedirs(os.path.dirname(target), exist_ok=True)
                open(target, 'wb').write(importlib.util.MAGIC_NUMBER + struct.pack('<III', 0, int(info.st_mtime), info.st_size) + marshal.dumps(code))
            except OSError: pass"""),
    _tested("a_conftest_of_the_candidate", "", more={
        "conftest.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    made = yield\n    made.get_result().outcome = 'passed'\n",
        "pytest.ini": "[pytest]\naddopts = -p evil --co\n", "evil.py": "", "sitecustomize.py": "import os; os._exit(0)\n", "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n"}),
    _tested("a_pytest_of_the_candidate", "", more={"pytest.py": "def main(*a): return 0\n", "_pytest/__init__.py": "", "json.py": "def dumps(x): return '{}'\n", "pluggy.py": "", "sandbox_service/__init__.py": ""}),
    _tested("reports_that_are_killed", "os.kill(os.getpid(), 9)"),
    _tested("tests_that_stop_for_ever", "import signal\nos.kill(os.getpid(), signal.SIGSTOP)", wall_time=2),
    harm(_GROUP, "an_end_told_to_every_socket", """
        for number in range(3, 1024):
            try: os.write(number, json.dumps({'status': 0, 'ended': 1}).encode())
            except OSError: pass
        sys.exit(7)""", ends("FAILED", check=lambda seen: seen.result.exit_code == 7)),
    harm(_GROUP, "a_success_told_on_stdout", "os.write(1, json.dumps({'status': 0, 'exit_code': 0, 'cpu': 0}).encode() + struct.pack('!I', 5))\nos._exit(7)", ends("FAILED", check=lambda seen: seen.result.exit_code == 7)),
    harm(_GROUP, "output_closed_and_opened_again", """
        for stream in 1, 2: os.close(stream)
        for path in '/proc/1/fd/1', '/proc/self/fd/1', '/dev/stdout':
            try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'forged')
            except OSError: pass
        os._exit(7)""", ends("FAILED", check=lambda seen: seen.result.exit_code == 7)),
    probe(_GROUP, "packages_of_the_template", """
        for path in '/opt/codemend/packages', '/opt/codemend/packages/pytest', '/opt/codemend/bin', '/opt/codemend':
            attempt(path, os.open, f'{path}/sitecustomize.py', os.O_CREAT | os.O_WRONLY); attempt(f'{path} moved', os.rename, path, '/tmp/moved')""", "EBUSY"),
    probe(_GROUP, "modules_of_the_service", """
        import importlib
        for name in 'sandbox_service', 'sandbox_service.guest', 'sandbox_service.cells', 'grpc', 'codemend':
            try: importlib.import_module(name)
            except ImportError: found[name] = 'nothing'
            else: found[name] = 'GOT it'
        import gc
        kept = [module for module in sys.modules if module.startswith('sandbox_service')]
        found['kept'] = f'GOT {kept}' if kept else 'nothing'"""),
]  # fmt: skip
