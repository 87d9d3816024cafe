"""`codemend session` as a person uses it: a real command, a real sandbox service."""

import json
import subprocess

import pytest
from support.cli import run_cli
from support.sandbox import running_sandbox


@pytest.fixture(scope="module")
async def sandbox():
    async with running_sandbox() as address:
        yield address


@pytest.fixture
def cli(sandbox, tmp_path):
    async def run(*arguments, **options):
        return await run_cli("session", *arguments, cwd=tmp_path, env={"CODEMEND_SANDBOX_ADDRESS": sandbox}, **options)

    return run


@pytest.fixture
async def session(cli):
    made = await cli("create")
    assert made.code == 0, made.err
    return made.out.strip()


async def test_a_session_from_its_files_to_its_diff(cli, session, tmp_path):
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "a.py").write_text("x = 1\n")
    (tmp_path / "src" / "gone.txt").write_text("gone\n")
    assert (await cli("upload", session, "src")).code == 0
    code = "import os, pkg.a; print(pkg.a.x); open('pkg/a.py', 'a').write('y = 2\\n'); os.remove('gone.txt')"
    ran = await cli("exec", session, "--", "python", "-c", code)
    assert (ran.code, ran.out) == (0, "1\n"), ran.err
    changed = await cli("diff", session, "--snapshot")
    assert changed.code == 0
    subprocess.run(["git", "apply"], cwd=tmp_path / "src", input=changed.out.encode(), check=True, timeout=30)  # noqa: ASYNC221
    assert (tmp_path / "src" / "pkg" / "a.py").read_text() == "x = 1\ny = 2\n"
    assert not (tmp_path / "src" / "gone.txt").exists()
    assert (await cli("diff", session)).out == ""
    brought = await cli("download", session, "pkg/*", "--out", "out")
    assert brought.out == "out/pkg/a.py\n" or brought.out.endswith("/out/pkg/a.py\n")
    assert (tmp_path / "out" / "pkg" / "a.py").read_text() == "x = 1\ny = 2\n"
    state = json.loads((await cli("show", session)).out)
    assert (state["id"], state["jobs"], state["entries"]) == (session, 1, 2)
    assert (await cli("delete", session)).code == 0
    gone = await cli("show", session)
    assert (gone.code, gone.out) == (3, "")
    assert "NOT_FOUND" in gone.err


async def test_a_program_s_exit_code_is_the_command_s_and_what_is_not_kept_is_said(cli, sandbox, tmp_path):
    made = await run_cli("session", "create", "--disk", "1MiB", "--sandbox-address", sandbox, cwd=tmp_path)
    session = made.out.strip()
    failed = await cli("exec", session, "--", "python", "-c", "raise SystemExit(7)")
    assert (failed.code, failed.err) == (7, "codemend: FAILED: exit code 7\n")
    many = await cli("exec", session, "--", "python", "-c", "for n in range(300): open(str(n), 'w')")
    assert "the session is as it was before" in many.err
    await cli("delete", session)


async def test_what_a_diff_or_a_download_cannot_have_is_named(cli, session):
    code = "import os; open('bin', 'wb').write(bytes(9)); os.symlink('/etc/passwd', 'link')"
    assert (await cli("exec", session, "--", "python", "-c", code)).code == 0
    assert (await cli("diff", session)).err == "codemend: not shown: bin (added)\n"
    assert "link" in (await cli("download", session, "--out", "out")).err


async def test_a_command_without_a_service_or_with_wrong_terms_says_so(cli, tmp_path):
    alone = await run_cli("session", "create", cwd=tmp_path)
    assert (alone.code, alone.out) == (2, "")
    assert "--sandbox-address" in alone.err
    wrong = await cli("create", "--ttl", "soon")
    assert (wrong.code, "--ttl" in wrong.err) == (2, True)
    refused = await cli("create", "--idle", "24h")
    assert (refused.code, "idle_ttl" in refused.err) == (2, True)
