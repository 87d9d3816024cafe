"""Node through the service: programs, `node --test` as a report, limits, and ends that must never be a pass."""

# ruff: noqa: E501 - many lines are whole programs

import re
import shutil
from textwrap import dedent

import grpc
import pytest
from codemend.sandbox.v1 import sandbox_pb2 as pb
from codemend.sandbox.v1 import sessions_pb2, verdicts_pb2
from support.jobs import NO_FILES, Files, client, files, limits, outcome, outcomes
from support.sandbox import sandbox_process

NODE = "const {test, describe, it} = require('node:test'); const assert = require('node:assert');\n"


@pytest.fixture(scope="module", autouse=True)
def node(require) -> None:
    require(shutil.which("node"), "node is not installed: apt-get install nodejs")


@pytest.fixture(scope="module")
async def sandbox():
    async with (
        sandbox_process(SANDBOX_CONCURRENCY="2") as service,
        client(service.address, service.process.pid) as made,
    ):
        yield made


async def run_tests(sandbox, tests: Files | str, code: Files = NO_FILES, **fields) -> pb.RunTestsResponse:
    given = {"a.test.js": NODE + dedent(tests)} if isinstance(tests, str) else tests
    return await sandbox.tests(given, code, language="node", **fields)


async def test_node_is_offered_with_its_version(sandbox):
    reply = await sandbox.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
    assert list(reply.languages) == ["node", "python"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", reply.language_versions["node"])


async def test_a_file_runs_with_arguments_stdin_and_environment(sandbox):
    code = "process.stdin.on('data', (data) => console.log(process.argv.slice(2), String(data), process.env.MINE, process.cwd()));"
    ran = await sandbox.run({"a.js": code}, "a.js", language="node", args=["x", "--y"], stdin=b"in", env={"MINE": "1"})
    assert (ran.status, ran.out) == ("SUCCEEDED", b"[ 'x', '--y' ] in 1 /work\n"), ran.told()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.js", "console.log(require('./lib/b').value, __filename)"),
        ("a.cjs", "console.log(require('./lib/b').value, __filename)"),
        ("a.mjs", "import {value} from './lib/b.js'; console.log(value, new URL(import.meta.url).pathname)"),
    ],
)
async def test_every_kind_of_module_finds_what_lies_beside_it(sandbox, name, code):
    ran = await sandbox.run({name: code, "lib/b.js": "exports.value = 7"}, name, language="node")
    assert (ran.status, ran.out.decode()) == ("SUCCEEDED", f"7 /work/{name}\n"), ran.told()


async def test_exit_code_and_error_are_the_program_s_own(sandbox):
    ran = await sandbox.run({"a.js": "null.x"}, "a.js", language="node")
    assert (ran.status, ran.result.exit_code) == ("FAILED", 1)
    assert "TypeError" in ran.err
    assert "/work/a.js:1" in ran.err
    ran = await sandbox.run({"a.js": "process.exit(7)"}, "a.js", language="node")
    assert (ran.status, ran.result.exit_code) == ("FAILED", 7)


async def test_an_argument_vector_finds_node_by_its_name(sandbox):
    ran = await sandbox.command("node", "-p", "6 * 7", language="node")
    assert (ran.status, ran.out) == ("SUCCEEDED", b"42\n"), ran.told()


@pytest.mark.parametrize(
    ("code", "given", "status"),
    [
        ("for (;;);", {"wall_time": 1}, "TIMED_OUT"),
        ("for (;;);", {"cpu_time": 1}, "CPU_LIMIT"),
        ("const kept = []; for (;;) kept.push(Buffer.alloc(1 << 20, 1));", {"memory_bytes": 200 << 20}, "MEMORY_LIMIT"),
        ("const kept = []; for (;;) kept.push([kept.length]);", {"memory_bytes": 200 << 20}, "MEMORY_LIMIT"),
        ("for (;;) require('fs').writeSync(1, 'x'.repeat(1 << 16));", {"output_bytes": 1 << 20}, "OUTPUT_LIMIT"),
    ],
)
async def test_each_limit_has_the_same_status_as_for_python(sandbox, code, given, status):
    ran = await sandbox.run({"a.js": code}, "a.js", language="node", limits=limits(**given))
    assert ran.status == status, ran.told()


async def test_garbage_within_the_memory_limit_is_collected(sandbox):
    code = "let kept; for (let n = 0; n < 3e6; n++) kept = {n, text: 'x'.repeat(64) + n}; console.log('done')"
    ran = await sandbox.run({"a.js": code}, "a.js", language="node", limits=limits(memory_bytes=128 << 20))
    assert (ran.status, ran.out) == ("SUCCEEDED", b"done\n"), ran.told()


async def test_a_program_may_use_workers_and_child_processes(sandbox):
    code = """
    const {Worker} = require('worker_threads');
    const {fork, execFileSync} = require('child_process');
    if (process.argv[2] === 'child') process.send('child');
    else {
      new Worker("require('worker_threads').parentPort.postMessage('worker')", {eval: true}).on('message', console.log).on('exit', () =>
        fork(__filename, ['child']).on('message', (text) => { console.log(text); console.log(String(execFileSync('echo', ['echo'])).trim()); }));
    }
    """
    ran = await sandbox.run({"a.js": code}, "a.js", language="node")
    assert (ran.status, ran.out) == ("SUCCEEDED", b"worker\nchild\necho\n"), ran.told()


KINDS = {
    "pass": ("test('a', () => assert.equal(1, 1));", "PASSED", {"a": "PASSED"}),
    "fail": ("test('a', () => assert.equal(1, 2)); test('b', () => {});", "FAILED", {"a": "FAILED", "b": "PASSED"}),
    "asynchronous": ("test('a', async () => { await null; throw new Error('x'); });", "FAILED", {"a": "FAILED"}),
    "suite": (
        "describe('s', () => { it('x', () => {}); describe('t', () => { it('y', () => { throw 1; }); }); });",
        "FAILED", {"s > x": "PASSED", "s > t > y": "FAILED"},
    ),
    "subtest": (
        "test('a', async (t) => { await t.test('b', () => {}); await t.test('c', () => { throw 1; }); });",
        "FAILED", {"a > b": "PASSED", "a > c": "FAILED", "a": "FAILED"},
    ),
    "skip": (
        "test('a', {skip: 'why'}, () => {}); test('b', (t) => t.skip('why')); test('c', () => {});",
        "PASSED", {"a": "SKIPPED", "b": "SKIPPED", "c": "PASSED"},
    ),
    "todo": (
        "test.todo('a'); test('b', {todo: 'later'}, () => { throw 1; }); test('c', () => {});",
        "PASSED", {"a": "SKIPPED", "b": "XFAILED", "c": "PASSED"},
    ),
    "all_skipped": ("test.skip('a', () => {});", "NO_TESTS", {"a": "SKIPPED"}),
    "no_tests": ("console.log(1)", "NO_TESTS", {}),
    "same_name": ("for (const n of [1, 2]) test('a', () => assert.equal(n, 1));", "FAILED", {"a": "PASSED", "a (2)": "FAILED"}),
    "hook_before_fails": (
        "const {before} = require('node:test'); describe('s', () => { before(() => { throw 1; }); it('x', () => {}); });",
        "FAILED", {"s > x": "FAILED", "s": "ERROR"},
    ),
    "hook_before_each_fails": (
        "const {beforeEach} = require('node:test'); describe('s', () => { beforeEach(() => { throw 1; }); it('x', () => {}); });",
        "ERROR", {"s > x": "ERROR"},
    ),
    "timeout_of_its_own": ("test('a', {timeout: 30}, () => new Promise((done) => setTimeout(done, 5000)));", "FAILED", {"a": "FAILED"}),
    "never_ends": ("test('a', () => new Promise(() => {}));", "FAILED", {"a": "FAILED"}),
    "unhandled_rejection": (
        "test('a', async () => { Promise.reject(new Error('x')); await new Promise((done) => setTimeout(done, 20)); });",
        "FAILED", {"a": "FAILED"},
    ),
    "mocks": (
        "test('a', (t) => { const o = {f: () => 1}; t.mock.method(o, 'f', () => 2); assert.equal(o.f(), 2); });",
        "PASSED", {"a": "PASSED"},
    ),
    "process_that_it_forks": (
        "test('a', () => new Promise((done) => require('child_process').fork('/work/child.js').on('message', done)));",
        "PASSED", {"a": "PASSED"},
    ),
    "worker": (
        "test('a', () => new Promise((done, fail) => new (require('worker_threads').Worker)('0', {eval: true}).on('error', fail).on('exit', done)));",
        "PASSED", {"a": "PASSED"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_each_end_of_a_test_is_reported_as_what_it_is(sandbox, kind):
    code, verdict, cases = KINDS[kind]
    reply = await run_tests(sandbox, code, {"child.js": "process.send(1)"})
    assert (outcome(reply), outcomes(reply)) == (verdict, cases), reply


async def test_the_report_names_the_runner(sandbox):
    reply = await run_tests(sandbox, "test('a', () => {});")
    assert re.fullmatch(r"node --test \d+\.\d+\.\d+", reply.report.framework)
    assert reply.report.duration.ToTimedelta().total_seconds() > 0


async def test_a_failure_tells_type_message_place_and_the_values_compared(sandbox):
    reply = await run_tests(
        sandbox, "test('a', () => {\n  assert.deepStrictEqual({a: [1]}, {a: [2]}, 'my words');\n});"
    )
    found = reply.report.tests[0].failure
    assert (found.type, found.location) == ("AssertionError", "a.test.js:3")
    assert found.message.startswith("my words")
    compared = found.comparison
    assert (compared.operator, compared.left, compared.right) == ("deepStrictEqual", "{ a: [ 1 ] }", "{ a: [ 2 ] }")
    assert "at " in found.traceback
    assert "node:internal" not in found.traceback


async def test_a_failure_in_the_code_is_located_there_with_its_cause(sandbox):
    code = "exports.f = () => {\n  throw new RangeError('outer', {cause: new TypeError('inner')});\n};"
    reply = await run_tests(sandbox, "test('a', () => require('./solution').f());", {"solution.js": code})
    found = reply.report.tests[0].failure
    assert (found.type, found.message, found.location) == ("RangeError", "outer", "solution.js:2")
    assert "caused by TypeError: inner" in found.traceback


async def test_values_that_fight_being_shown_do_no_harm(sandbox):
    code = """
    const evil = new Proxy({}, {get() { throw new Error('no'); }, ownKeys() { throw new Error('no'); }});
    const error = new Error('x'); Object.defineProperty(error, 'stack', {get() { throw 2; }}); Object.defineProperty(error, 'message', {get() { throw 1; }});
    test('a', () => assert.strictEqual(evil, 1));
    test('b', () => { throw error; });
    test('c', () => { throw Object.create(null); });
    test('d', () => assert.equal('x'.repeat(1e6), 'y\\ud800'.repeat(1e6)));
    """
    reply = await run_tests(sandbox, code)
    assert outcomes(reply) == dict.fromkeys("abcd", "FAILED")
    assert len(reply.report.tests[3].failure.comparison.left.encode()) <= 1024


async def test_what_a_test_prints_is_kept_with_it_and_the_rest_is_the_process_s(sandbox):
    code = "console.log('outside'); test('a', () => { console.log('in a'); console.error('err a'); }); test('b', () => console.log('in b'));"
    reply = await run_tests(sandbox, code)
    assert [(test.stdout, test.stderr) for test in reply.report.tests] == [(b"in a\n", b"err a\n"), (b"in b\n", b"")]
    assert reply.execution.stdout.head == b"outside\n"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a.test.js", NODE + "const {add} = require('./solution'); const {one} = require('./lib/deep/one');"),
        ("t/a.test.js", NODE + "const {add} = require('../solution'); const {one} = require('../lib/deep/one');"),
        ("lib/a.test.js", NODE + "const {add} = require('../solution'); const {one} = require('./deep/one');"),
        (
            "a.test.mjs",
            "import test from 'node:test'; import assert from 'node:assert/strict'; import {add} from './solution.js'; import {one} from './lib/deep/one.js';",
        ),
    ],
)
async def test_the_code_appears_beside_the_tests(sandbox, name, code):
    solution = {"solution.js": "exports.add = (a, b) => a + b", "lib/deep/one.js": "exports.one = 1"}
    reply = await run_tests(sandbox, {name: f"{code}\ntest('a', () => assert.equal(add(one, 1), 2));"}, solution)
    assert outcome(reply) == "PASSED", reply
    assert reply.report.tests[0].node_id == f"{name}::a"


async def test_a_package_of_es_modules_is_tested_as_one(sandbox):
    solution = {"package.json": '{"type": "module"}', "solution.js": "export const add = (a, b) => a + b;"}
    code = "import test from 'node:test'; import assert from 'node:assert'; import {add} from './solution.js'; test('a', () => assert.equal(add(1, 1), 2));"
    assert outcome(await run_tests(sandbox, {"a.test.js": code}, solution)) == "PASSED"


async def test_the_code_can_neither_replace_nor_change_a_test(sandbox):
    test_file = NODE + "test('a', () => assert.equal(require('./solution').f(), 1));"
    solution = {
        "a.test.js": NODE + "test('forged', () => {});",
        "solution.js": "let said = ''; try { require('fs').writeFileSync('/tests/a.test.js', ''); } catch (error) { said = error.code; } exports.f = () => said;",
    }
    reply = await run_tests(sandbox, {"a.test.js": test_file}, solution)
    assert outcomes(reply) == {"a": "FAILED"}
    assert reply.report.tests[0].failure.comparison.left == "'EROFS'"


@pytest.mark.parametrize(
    ("source", "kind", "location"),
    [
        (NODE + "let x = ;", "SyntaxError", "a.test.js:2"),
        (NODE + "test('a', () => {});\nthrow new Error('top');", "Error", "a.test.js:3"),
        (NODE + "require('./solution');", "SyntaxError", "solution.js:1"),
        (NODE + "require('./nowhere');", "Error", "a.test.js:2"),
    ],
)
async def test_a_file_that_cannot_be_loaded_is_a_collection_error(sandbox, source, kind, location):
    other = NODE + "test('other', () => {});"
    reply = await run_tests(sandbox, {"a.test.js": source, "b.test.js": other}, {"solution.js": "function ("})
    assert outcome(reply) == "ERROR", reply
    (error,) = reply.report.collection_errors
    assert (error.path, error.failure.type, error.failure.location) == ("a.test.js", kind, location)
    assert outcomes(reply)["other"] == "PASSED"


async def test_an_es_module_that_cannot_be_loaded_is_a_collection_error(sandbox):
    code = "import test from 'node:test'; import {x} from './nowhere.js'; test('a', () => {});"
    reply = await run_tests(sandbox, {"a.test.mjs": code})
    assert outcome(reply) == "ERROR"
    assert "nowhere.js" in reply.report.collection_errors[0].failure.message


ENDINGS = {
    "exit_at_the_top": "process.exit(0);",
    "exit_in_a_test": "exports.f = () => process.exit(0);",
    "exit_past_the_handlers": "exports.f = () => process.reallyExit(0);",
    "exit_later": "setImmediate(() => process.exit(0));",
    "kill_itself": "exports.f = () => process.kill(process.pid, 'SIGKILL');",
    "kill_its_parent": "exports.f = () => process.kill(process.ppid, 'SIGKILL');",
    "abort": "exports.f = () => process.abort();",
    "close_the_report": "require('fs').closeSync(3);",
    "write_to_the_report": "require('fs').writeSync(3, Buffer.from([0, 0, 0, 2, 123, 125]));",
    "take_the_runner_s_stream": "const {Readable} = require('stream'); const push = Readable.prototype.push; Readable.prototype.push = function (event) { if (event?.type === 'test:fail') event.type = 'test:pass'; return push.call(this, event); };",
    "take_assert": "const assert = require('assert'); for (const name of Object.keys(assert)) try { assert[name] = () => {}; } catch {}",
    "take_later_assert": "const Module = require('module'); const load = Module._load; Module._load = (name, ...rest) => name === 'node:assert' ? new Proxy(() => {}, {get: () => () => {}}) : load(name, ...rest);",
    "take_object_is": "Object.is = () => true; Array.prototype.every = () => true; JSON.stringify = () => '{}';",
    "todo_in_a_hook": "require('node:test').beforeEach((t) => t.todo('later'));",
    "skip_in_a_hook": "require('node:test').beforeEach((t) => t.skip('later'));",
    "todo_without_a_caller": "require('node:test').beforeEach((t) => void setImmediate(t.todo.bind(t)));",
    "todo_by_a_forged_caller": "require('node:test').beforeEach((t) => { Error.prepareStackTrace = () => ['/tests/a.test.js']; t.todo('later'); });",
    "todo_by_the_first_hook": "const {before, beforeEach} = require('node:test'); let todo; before((t) => { todo = t && Object.getPrototypeOf(t).todo; }); beforeEach((t) => todo?.call(t, 'later'));",
    "exit_code": "process.on('exit', () => { process.exitCode = 0; });",
    "plant_to_json": "Object.prototype.toJSON = () => ({kind: 'test', outcome: 'PASSED', id: 'a', duration: 0});",
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_code_that_ends_or_bends_its_tests_never_passes(sandbox, ending):
    code = "const solution = require('./solution'); const late = require('node:assert'); test('a', async () => { await new Promise((done) => setTimeout(done, 20)); solution.f?.(); late.strictEqual(1, 2); });"
    test_file = "const {test} = require('node:test');\n" + code
    reply = await run_tests(sandbox, {"a.test.js": test_file}, {"solution.js": ENDINGS[ending]})
    assert outcome(reply) in ("INCOMPLETE", "TAMPERED", "FAILED"), reply
    assert outcome(reply) == "FAILED" or not all(check.held for check in reply.report.integrity.checks)


async def test_an_early_exit_is_incomplete_and_names_the_tests_that_did_not_report(sandbox):
    reply = await run_tests(sandbox, "test('a', () => process.exit(0)); test('b', () => {});")
    assert outcome(reply) == "INCOMPLETE"
    assert "a.test.js::a" in reply.report.reason
    assert outcomes(reply)["a"] == "UNFINISHED"
    assert "exit code 0" in reply.report.tests[0].failure.message


async def test_the_report_says_that_code_and_tests_share_a_process_and_what_was_checked(sandbox):
    reply = await run_tests(sandbox, "test('a', () => {});")
    integrity = reply.report.integrity
    assert integrity.isolation == verdicts_pb2.TEST_ISOLATION_SHARED
    assert "import the code under test" in integrity.reason
    assert {check.name: check.held for check in integrity.checks} == {
        "read_only_tests": True,
        "expected_tests": True,
        "handshake": True,
    }
    asked = await run_tests(sandbox, "test('a', () => {});", isolation="TEST_ISOLATION_SHARED")
    assert asked.report.integrity.reason == ""


@pytest.mark.parametrize("ending", ["write_to_the_report", "take_the_runner_s_stream"])
async def test_forging_the_report_is_tampering(sandbox, ending):
    tests = "const solution = require('./solution'); test('a', () => assert.equal(1, 2));"
    reply = await run_tests(sandbox, tests, {"solution.js": ENDINGS[ending]})
    assert outcome(reply) == "TAMPERED", reply
    assert not next(check for check in reply.report.integrity.checks if check.name == "canaries").held


async def test_a_test_that_hangs_has_a_name(sandbox):
    reply = await run_tests(
        sandbox, "test('a', () => {}); test('hangs', () => { for (;;); });", limits=limits(wall_time=2)
    )
    assert outcome(reply) == "TIMED_OUT"
    assert outcomes(reply)["hangs"] == "UNFINISHED"


async def test_a_limit_that_ends_the_tests_is_told(sandbox):
    code = "test('a', () => { const kept = []; for (;;) kept.push(Buffer.alloc(1 << 20, 1)); });"
    reply = await run_tests(sandbox, code, limits=limits(memory_bytes=200 << 20))
    assert outcome(reply) == "LIMIT_EXCEEDED"
    assert pb.ExecutionStatus.Name(reply.execution.status) == "EXECUTION_STATUS_MEMORY_LIMIT"


SELECT = {
    "a.test.js": NODE
    + "test('x', () => {}); describe('s', () => { it('y', () => {}); it('z', () => { throw 1; }); });",
    "b.test.js": NODE + "test('x', () => { throw 1; });",
}


@pytest.mark.parametrize(
    ("select", "verdict", "cases"),
    [
        (["a.test.js::x"], "PASSED", ["a.test.js::x"]),
        (["a.test.js::s > y"], "PASSED", ["a.test.js::s > y"]),
        (["a.test.js::s"], "FAILED", ["a.test.js::s > y", "a.test.js::s > z"]),
        (["b.test.js"], "FAILED", ["b.test.js::x"]),
        (["a.test.js::x", "a.test.js::nothing"], "ERROR", ["a.test.js::x"]),
        (["c.test.js::x"], "ERROR", []),
    ],
)
async def test_only_what_is_selected_counts_and_what_is_not_there_is_an_error(sandbox, select, verdict, cases):
    reply = await run_tests(sandbox, SELECT, select=select)
    assert (outcome(reply), [test.node_id for test in reply.report.tests]) == (verdict, cases), reply


async def test_a_thousand_tests_are_counted_and_a_flood_of_output_is_cut(sandbox):
    code = "for (let n = 0; n < 1000; n++) test(`t${n}`, () => { console.log('x'.repeat(1e5)); if (n % 2) throw new Error('y'.repeat(1e5)); });"
    reply = await run_tests(sandbox, code)
    counts = reply.report.counts
    assert (outcome(reply), counts.passed, counts.failed, counts.total) == ("FAILED", 500, 500, 1000)
    assert reply.ByteSize() < 4 << 20
    assert all(len(test.stdout) <= 8192 for test in reply.report.tests)


async def test_files_come_back_from_a_test_run(sandbox):
    reply = await run_tests(
        sandbox, "test('a', () => require('fs').writeFileSync('/work/out.txt', '1'));", collect=["*.txt"]
    )
    assert [(file.path, file.content) for file in reply.execution.files] == [("out.txt", b"1")]


@pytest.mark.parametrize(
    ("fields", "field"), [({"isolation": "TEST_ISOLATION_SEPARATE"}, "isolation"), ({"coverage": True}, "coverage")]
)
async def test_what_node_cannot_give_is_refused_at_the_door(sandbox, fields, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await run_tests(sandbox, "test('a', () => {});", **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in caught.value.details()


async def test_without_node_the_language_is_not_offered_and_named_as_unknown(tmp_path):
    async with sandbox_process(PATH=str(tmp_path)) as service, client(service.address, service.process.pid) as bare:
        reply = await bare.stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=10)
        assert list(reply.languages) == ["python"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bare.run({"a.js": ""}, "a.js", language="node")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "this server has python" in caught.value.details()


async def test_files_of_a_session_are_tested_and_no_link_to_them_stays(sandbox):
    session = (await sandbox.stub.CreateSession(sessions_pb2.CreateSessionRequest(), timeout=10)).session.id
    code = "require('fs').mkdirSync('lib'); require('fs').writeFileSync('lib/made.js', 'exports.x = 1');"
    program = pb.Program(files=files({"make.js": code}), entry="make.js", language="node")
    made = await sandbox.stub.Execute(pb.ExecuteRequest(program=program, session=session), timeout=30)
    assert made.result.status == pb.EXECUTION_STATUS_SUCCEEDED, made
    reply = await run_tests(sandbox, "test('a', () => assert.equal(require('./lib/made').x, 1));", session=session)
    assert outcome(reply) == "PASSED", reply
    listed = pb.Program(command=pb.Command(argv=["find", ".", "-not", "-type", "d"]), language="node")
    found = await sandbox.stub.Execute(pb.ExecuteRequest(program=listed, session=session), timeout=30)
    assert sorted(found.result.stdout.head.split()) == [b"./lib/made.js", b"./make.js"]
