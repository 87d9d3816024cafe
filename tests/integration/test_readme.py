"""What the README promises: its client gets a result, its tables know every setting, its targets exist."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.openai_server import scripted_openai
from support.orchestrator import fence, running_orchestrator
from support.sandbox import running_sandbox

from orchestrator.settings import PREFIX as ORCHESTRATOR
from orchestrator.settings import Settings as OrchestratorSettings
from sandbox_service.settings import PREFIX as SANDBOX
from sandbox_service.settings import Settings as SandboxSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CLIENT_SECONDS = 60


async def test_the_python_client_of_the_readme_gets_code_that_passes(tmp_path: Path) -> None:
    (client,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    async with (
        running_sandbox() as sandbox,
        scripted_openai([fence("def double(number):\n    return 2 * number")]) as model,
        running_orchestrator(sandbox=sandbox, model_url=model.base_url, data_dir=tmp_path) as orchestrator,
    ):
        assert "127.0.0.1:50051" in client
        program = client.replace("127.0.0.1:50051", orchestrator.address)
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=CLIENT_SECONDS
        )
    assert ended.stderr == ""
    assert ended.stdout.startswith("RUN_OUTCOME_PASSED def double(number):")


@pytest.mark.parametrize(
    "variable",
    [
        *(f"{ORCHESTRATOR}{name.upper()}" for name in OrchestratorSettings.model_fields),
        *(f"{SANDBOX}{name.upper()}" for name in SandboxSettings.model_fields),
    ],
)
def test_the_readme_explains_each_setting(variable: str) -> None:
    assert re.search(rf"^\| `{variable}` \| .* \| \S.* \|$", README, re.MULTILINE)


def test_the_readme_explains_no_setting_that_is_not_there() -> None:
    known = {f"{ORCHESTRATOR}{name.upper()}" for name in OrchestratorSettings.model_fields}
    known |= {f"{SANDBOX}{name.upper()}" for name in SandboxSettings.model_fields}
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE)) == known


def test_each_make_target_of_the_readme_exists_and_help_lists_all() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets
    command = ["make", "--no-print-directory", "help"]  # these tests may themselves be run by make
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    assert {line.split()[0] for line in printed.splitlines()} == targets


def test_each_dependency_has_a_line_in_the_readme() -> None:
    listed = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert listed
    names = re.findall(r'"([A-Za-z-]+)', listed[1])
    rows = "".join(re.findall(r"^\| [a-z].* \|$", README, re.MULTILINE))
    assert names
    assert [name for name in names if name not in rows] == []
