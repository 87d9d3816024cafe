"""Files on their way into sessions and out of them: what is taken, what is refused, and what is left out, by rule."""

import asyncio
import gzip
import io
import os
import subprocess
import tarfile

import grpc
import pytest
from codemend.rpc import error_detail
from codemend.sandbox.v1 import sessions_pb2 as sessions
from google.rpc import error_details_pb2
from support.jobs import limits
from support.sandbox import running_sandbox
from support.sessions import FILES, TAR, archive, chunks, connected, file_parts, member

MIB = 1024 * 1024
ADDED, MODIFIED, DELETED = (
    sessions.CHANGE_KIND_ADDED,
    sessions.CHANGE_KIND_MODIFIED,
    sessions.CHANGE_KIND_DELETED,
)
PLANTS = """
import os, socket
os.symlink('/etc/passwd', 'absolute')
os.symlink('../../etc/passwd', 'upward')
os.symlink('loop2', 'loop1'); os.symlink('loop1', 'loop2')
os.symlink('inside.txt', 'good')
os.makedirs('deep/er')
os.symlink('..', 'deep/er/up')
os.symlink('deep/er/up/../..', 'roundabout')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
open('inside.txt', 'w').write('inside')
open(b'not-\\xff-utf8', 'w').write('raw')
os.link('inside.txt', 'hard')
os.chmod('inside.txt', 0o6755)
os.mkdir('empty')
open('locked', 'w').write('locked'); os.chmod('locked', 0)
os.mkdir('shut'); open('shut/in', 'w').write('x'); os.chmod('shut', 0)
"""


@pytest.fixture(scope="module")
async def address():
    async with running_sandbox(SANDBOX_CONCURRENCY="2") as started:
        yield started


@pytest.fixture
async def client(address):
    async with connected(address) as made:
        yield made


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def refused_as_invalid(call, field):
    error = await refused(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    assert [one.field for one in error_detail(error, error_details_pb2.BadRequest).field_violations] == [field]
    return error.details()


async def test_files_come_back_as_they_went_in(client):
    contents = {
        "empty": b"",
        "text.py": "print('ä')\n".encode(),
        "bin/tool": b"\x00\xff\r\n",
        "ünï/cödé.txt": b"x",
        "n" * 255: b"long name",
        "big": os.urandom(3 * MIB + 17),
    }
    async with client.session() as bench:
        reply = await bench.upload(contents, executable=["bin/tool"])
        assert (reply.entries, reply.content_bytes) == (6, sum(map(len, contents.values())))
        found = await bench.download()
        assert found.files == contents
        assert found.executable == {"bin/tool"}
        assert (found.end.files, list(found.end.left_out)) == (6, [])
        code = "import os; print(sorted(os.listdir('.'))[0], os.access('bin/tool', os.X_OK), os.path.getsize('big'))"
        assert (await bench.python(code)).out == f"big True {3 * MIB + 17}\n".encode()


async def test_an_archive_comes_back_as_it_went_in(client):
    data = archive(
        member("./", type=tarfile.DIRTYPE),
        member("./src/main.py", content=b"print(1)\n", mode=0o755),
        member("empty/", type=tarfile.DIRTYPE),
        member("link", type=tarfile.SYMTYPE, linkname="src/main.py"),
        member("src/up", type=tarfile.SYMTYPE, linkname="../empty"),
        member("hard.py", type=tarfile.LNKTYPE, linkname="src/main.py"),
        member("d/" * 200 + "deep", content=b"deep"),
        member("twice", content=b"first"),
        member("twice", content=b"second"),
        member("setuid", content=b"x", mode=0o6755),
    )
    for sent in (data, gzip.compress(data)):
        async with client.session() as bench:
            await bench.unpack(sent)
            ran = await bench.python(
                "import os; print(open('link').read(), os.path.isdir('src/up'), os.stat('hard.py').st_nlink)"
            )
            assert ran.out == b"print(1)\n True 1\n", ran.told()
            with tarfile.open(fileobj=io.BytesIO((await bench.download(form=TAR)).archive)) as tar:
                members = {one.name: one for one in tar}
                assert tar.extractfile("twice").read() == b"second"
                assert tar.extractfile("hard.py").read() == b"print(1)\n"
            assert members["empty"].isdir()
            assert members["link"].linkname == "src/main.py"
            assert members["d/" * 200 + "deep"].size == 4
            assert members["setuid"].mode == 0o755


WITH_LINK = member("in", type=tarfile.SYMTYPE, linkname="sub")
REFUSED = {
    "an absolute path": archive(member("/etc/passwd", content=b"x")),
    "a path upward": archive(member("../x", content=b"x")),
    "a path upward inside": archive(member("a/../../x", content=b"x")),
    "an empty part": archive(member("a//b", content=b"x")),
    "a name of no bytes": archive(member("", content=b"x")),
    "the root as a file": archive(member(".", content=b"x")),
    "a device": archive(member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a block device": archive(member("sda", type=tarfile.BLKTYPE, devmajor=8)),
    "a FIFO": archive(member("fifo", type=tarfile.FIFOTYPE)),
    "an unknown type": archive(member("x", type=b"V")),
    "an absolute link": archive(member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a link upward": archive(member("l", type=tarfile.SYMTYPE, linkname="../x")),
    "a link that leads out through another": archive(
        member("deep/er/x", content=b""),
        member("deep/er/up", type=tarfile.SYMTYPE, linkname=".."),
        member("out", type=tarfile.SYMTYPE, linkname="deep/er/up/../../x"),
    ),
    "links in a circle": archive(
        member("a", type=tarfile.SYMTYPE, linkname="b"), member("b", type=tarfile.SYMTYPE, linkname="a")
    ),
    "a file through a link": archive(member("sub/", type=tarfile.DIRTYPE), WITH_LINK, member("in/x", content=b"x")),
    "a hard link to nothing": archive(member("h", type=tarfile.LNKTYPE, linkname="none")),
    "a hard link to the outside": archive(member("h", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a hard link to a link": archive(
        member("s", type=tarfile.SYMTYPE, linkname="x"), member("h", type=tarfile.LNKTYPE, linkname="s")
    ),
    "a name that is not UTF-8": archive(member("\udcff", content=b"x"), form=tarfile.GNU_FORMAT),
    "a long name that is not UTF-8": archive(member("\udcff" * 150, content=b"x"), form=tarfile.GNU_FORMAT),
    "a name of 256 bytes": archive(member("n" * 256, content=b"x")),
    "a path of more than 1,024 bytes": archive(member("d/" * 512 + "x", content=b"x")),
    "a file in place of a directory": archive(member("d/x", content=b"x"), member("d", content=b"x")),
    "a directory in place of a file": archive(member("f", content=b"x"), member("f/", type=tarfile.DIRTYPE)),
    "a file as a directory": archive(member("f", content=b"x"), member("f/x", content=b"x")),
    "no archive": b"this is no archive" * 100,
    "nothing": b"",
    "half an archive": archive(member("a", content=b"x" * 5000))[:3000],
    "an archive without its end": archive(member("a", content=b"x"))[:1024],
    "half a gzip stream": gzip.compress(archive(member("a", content=os.urandom(5000))))[:2000],
    "a huge header": archive(member("n" * 100_000, content=b"x")),
    "a size of another world": archive(member("a", content=b"x")).replace(b"00000000001\0", b"77777777777\0", 1),
    "a gzip bomb": gzip.compress(archive(member("a", content=bytes(64 * MIB)))),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_archive_is_refused_as_a_whole_for(client, name):
    async with client.session({"kept": "kept"}, disk_bytes=8 * MIB) as bench:
        await refused_as_invalid(bench.unpack(archive(member("first", content=b"x"))[:1024] + REFUSED[name]), "archive")
        await refused_as_invalid(bench.unpack(REFUSED[name]), "archive")
        assert (await bench.download()).files == {"kept": b"kept"}


async def test_files_with_wrong_names_sizes_or_order_are_refused_as_a_whole(client):
    def header(path, size):
        return sessions.UploadFilesRequest(file=sessions.FileHeader(path=path, size=size))

    wrong = [
        ([header("/x", 0)], "file.path"),
        ([header("../x", 0)], "file.path"),
        ([header("", 0)], "file.path"),
        ([header("a", 0), header("a", 0)], "file.path"),
        ([header("kept/x", 0)], "file.path"),
        ([header("a", 5), *chunks(b"1234")], "file.size"),
        ([header("a", 5), *chunks(b"123456")], "chunk"),
        ([header("a", -1)], "file.size"),
        ([header("a", 1 << 60)], "file.size"),
        ([*chunks(b"x")], "chunk"),
        ([header("a", 2 * MIB), *chunks(bytes(2 * MIB), 2 * MIB)], "chunk"),
    ]
    async with client.session({"kept": "kept"}, disk_bytes=8 * MIB) as bench:
        for parts, field in wrong:
            await refused_as_invalid(bench.send([*file_parts({"first": "x"}), *parts]), field)
        start = sessions.UploadFilesRequest(start=sessions.UploadStart(session=bench.id, format=FILES))
        await refused_as_invalid(bench.send([start]), "part")
        await refused_as_invalid(bench.send([], 0), "start.format")
        await refused_as_invalid(bench.stub.UploadFiles(iter(chunks(b"x"))), "start")
        assert (await bench.download()).files == {"kept": b"kept"}


async def test_an_upload_whose_caller_leaves_changes_nothing_and_frees_the_session(client):
    async with client.session({"kept": "kept"}) as bench:
        call = bench.stub.UploadFiles()
        await call.write(sessions.UploadFilesRequest(start=sessions.UploadStart(session=bench.id, format=FILES)))
        for part in file_parts({"new": "x"}):
            await call.write(part)
        call.cancel()
        async with asyncio.timeout(10):
            while True:
                try:
                    found = await bench.download()
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.ABORTED:
                        raise
        assert found.files == {"kept": b"kept"}


async def test_an_upload_replaces_files_of_its_paths_or_everything(client):
    async with client.session({"a": "1", "b/c": "1"}) as bench:
        await bench.upload({"a": "2", "d": "2"})
        assert (await bench.download()).files == {"a": b"2", "b/c": b"1", "d": b"2"}
        await bench.upload({"e": "3"}, replace=True)
        assert (await bench.download()).files == {"e": b"3"}
        await bench.unpack(archive(member("f", content=b"4")), replace=True)
        assert (await bench.download()).files == {"f": b"4"}


async def test_what_a_job_plants_stays_in_cells_and_never_comes_out(client):
    async with client.session() as bench:
        ran = await bench.python(PLANTS)
        assert ran.status == "SUCCEEDED", ran.told()
        assert ran.result.workspace.kept
        assert sorted(ran.result.workspace.left_out) == ["fifo", "socket"]
        plain = await bench.download()
        expected = {"inside.txt": b"inside", "hard": b"inside", "locked": b"locked", "shut/in": b"x"}
        assert plain.files == expected
        links = {"absolute", "deep/er/up", "good", "loop1", "loop2", "roundabout", "upward"}
        assert set(plain.end.left_out) == links | {"not-\\xff-utf8"}
        packed = await bench.download(form=TAR)
        assert set(packed.end.left_out) == {"absolute", "upward", "loop1", "loop2", "roundabout", "not-\\xff-utf8"}
        with tarfile.open(fileobj=io.BytesIO(packed.archive)) as tar:
            names = {one.name: one for one in tar}
        assert set(names) == {*expected, "good", "deep", "deep/er", "deep/er/up", "empty", "shut"}
        assert names["inside.txt"].mode == 0o755
        again = "import os; print(os.readlink('absolute'), os.path.exists('fifo'), open(b'not-\\xff-utf8').read())"
        assert (await bench.python(again)).out == b"/etc/passwd False raw\n"


async def test_a_download_has_what_its_patterns_name(client):
    async with client.session({"a.py": "1", "d/b.py": "2", "d/e/c.py": "3", "d/x.txt": "4"}) as bench:
        assert set((await bench.download("*.py")).files) == {"a.py"}
        assert set((await bench.download("**/*.py")).files) == {"a.py", "d/b.py", "d/e/c.py"}
        assert set((await bench.download("d/*", "a.py")).files) == {"a.py", "d/b.py", "d/x.txt"}
        assert (await bench.download("none")).files == {}
        await refused_as_invalid(bench.download(""), "patterns[0]")
        await refused_as_invalid(bench.download(form=0), "format")


async def test_a_session_holds_no_more_than_its_disk(client):
    async with client.session({"a": "1"}, disk_bytes=2 * MIB) as bench:
        await refused_as_invalid(bench.upload({"b": bytes(2 * MIB)}), "file.size")
        await refused_as_invalid(bench.unpack(archive(member("b", content=bytes(2 * MIB)))), "archive")
        filled = await bench.python("open('b', 'wb').write(bytes(3 * 2**20))")
        assert filled.status == "DISK_LIMIT", filled.told()
        assert filled.result.workspace.kept
        await bench.upload({"a": "1"}, replace=True)
        many = await bench.python("for n in range(600): open(f'f{n}', 'w')")
        assert not many.result.workspace.kept, many.told()
        assert "2097152" in many.result.workspace.reason
        assert (await bench.download()).files == {"a": b"1"}


async def test_a_sparse_file_counts_with_its_whole_size(client):
    async with client.session({"a": "1"}, disk_bytes=32 * MIB) as bench:
        small = await bench.python("open('small', 'wb').truncate(2**20)")
        assert small.result.workspace.kept
        huge = await bench.python("for n in range(50): open(f'huge{n}', 'wb').truncate(60 * 2**20)")
        assert huge.status == "SUCCEEDED", huge.told()
        assert not huge.result.workspace.kept
        assert (await bench.download()).files == {"a": b"1", "small": bytes(MIB)}


async def test_limits_below_what_lies_in_the_workspace_are_refused_by_name(client):
    async with client.session({"big": bytes(4 * MIB)}) as bench:
        for name in ("disk_bytes", "memory_bytes"):
            least = {"disk_bytes": MIB, "memory_bytes": 17 * MIB}[name]
            await refused_as_invalid(bench.python("pass", limits=limits(**{name: least})), f"program.limits.{name}")


async def test_a_job_s_files_never_go_through_what_lies_in_the_workspace(client):
    async with client.session({"dir/x": "1", "file": "1"}) as bench:
        await bench.python("import os; os.symlink('dir', 'link')")
        for path in ("dir", "file/x", "link/x"):
            await refused_as_invalid(bench.python("pass", more={path: "new"}), "program.files")
        ran = await bench.python("print(open('link').read())", more={"link": "a file now"})
        assert ran.out == b"a file now\n"
        assert (await bench.download()).files == {"dir/x": b"1", "file": b"1", "link": b"a file now"}


async def test_names_of_every_kind_survive_a_job(client):
    code = """
import os
for name in (b'a b', b'new\\nline', b'"quoted"', b'\\xff\\xfe', b'n' * 255, 'ü'.encode(), b'-rf', b'.hidden'):
    open(name, 'wb').write(name)
os.makedirs('/'.join(['d' * 200] * 5)); open('/'.join(['d' * 200] * 5) + '/x', 'w').write('deep')
"""
    check = """
import os
names = [name for name in os.listdir(b'.') if os.path.isfile(name)]
print(len(names), all(open(name, 'rb').read() == name for name in names))
print(open('/'.join(['d' * 200] * 5) + '/x').read())
"""
    async with client.session() as bench:
        made = await bench.python(code)
        assert made.result.workspace.kept, made.told()
        assert (await bench.python(check)).out == b"8 True\ndeep\n"


async def test_a_path_that_is_too_long_is_left_out_with_what_lies_below(client):
    code = """
import os
for _ in range(40):
    os.mkdir('d' * 200); os.chdir('d' * 200)
open('bottom', 'w').write('x')
"""
    async with client.session({"a": "1"}) as bench:
        ran = await bench.python(code)
        assert ran.result.workspace.kept, ran.told()
        assert len(ran.result.workspace.left_out) == 1
        assert (await bench.state()).entries == 6
        assert (await bench.python("print(open('a').read())")).out == b"1\n"


async def test_tens_of_thousands_of_files_come_and_go(client):
    number = 30_000
    code = f"""
import os
for n in range({number}):
    if n % 1000 == 0: os.mkdir(f'd{{n // 1000}}')
    open(f'd{{n // 1000}}/{{n}}', 'w').write(str(n))
"""
    async with client.session(disk_bytes=256 * MIB) as bench:
        made = await bench.python(code)
        assert made.result.workspace.written == number + number // 1000, made.told()
        counted = await bench.python("import os; print(sum(len(files) for _, _, files in os.walk('.')))")
        assert counted.out == f"{number}\n".encode(), counted.told()
        assert (counted.result.workspace.written, counted.result.workspace.removed) == (0, 0)
        removed = await bench.python("import shutil; [shutil.rmtree(f'd{n}') for n in range(30)]")
        assert removed.result.workspace.removed == number + number // 1000
        assert (await bench.state()).entries == 0


async def test_the_diff_turns_the_old_tree_into_the_new_one(client, tmp_path):
    before = {
        "keep.txt": "1\n2\n3\n",
        "edit.py": "a = 1\nb = 2\n",
        "gone": "x\n",
        "crlf": "a\r\nb\r\n",
        "raw": b"\xff\n",
    }
    code = """
import os
open('edit.py', 'a').write('c = 3')
os.remove('gone')
open('crlf', 'wb').write(b'a\\r\\nB\\r\\n')
open('raw', 'wb').write(b'\\xfe\\n')
os.mkdir('new dir'); open('new dir/ü "x"\\n.txt', 'w').write('new\\n')
open('tool', 'w').write('#!\\n'); os.chmod('tool', 0o755)
os.chmod('keep.txt', 0o755)
os.symlink('edit.py', 'link')
open('empty', 'w')
open('binary', 'wb').write(bytes(10))
"""
    async with client.session(before) as bench:
        assert not (await bench.diff()).changes
        await bench.python(code)
        found = await bench.diff()
        kinds = {change.path: (change.kind, change.in_diff) for change in found.changes}
        assert kinds == {
            "binary": (ADDED, False),
            "crlf": (MODIFIED, True),
            "edit.py": (MODIFIED, True),
            "empty": (ADDED, True),
            "gone": (DELETED, True),
            "keep.txt": (MODIFIED, True),
            "link": (ADDED, True),
            'new dir/ü "x"\n.txt': (ADDED, True),
            "raw": (MODIFIED, True),
            "tool": (ADDED, True),
        }
        tree = tmp_path / "tree"
        for path, content in before.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content.encode() if isinstance(content, str) else content)
        git = await asyncio.create_subprocess_exec("git", "apply", cwd=tree, stdin=subprocess.PIPE)
        await asyncio.wait_for(git.communicate(found.diff), 30)
        assert git.returncode == 0
        with tarfile.open(fileobj=io.BytesIO((await bench.download(form=TAR)).archive)) as tar:
            tar.extractall(tmp_path / "expected", filter="data")
        (tmp_path / "expected" / "binary").unlink()
        assert listing(tree) == listing(tmp_path / "expected")
        only = await bench.diff("*.py", take_snapshot=True)
        assert [change.path for change in only.changes] == ["edit.py"]
        assert not (await bench.diff()).changes


def listing(root):
    """Paths below a folder with their bytes, targets and execute bits."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found
