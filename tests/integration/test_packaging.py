"""What others install: the wheel holds the stubs, the typed markers and the prompts, and works where no source lies."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 120
SOURCES = ("protos", "orchestrator", "sandbox_service", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
NEEDED = (
    "codemend/sandbox/v1/sandbox_pb2.py",
    "codemend/sandbox/v1/sandbox_pb2.pyi",
    "codemend/sandbox/v1/sandbox_pb2_grpc.py",
    "codemend/orchestrator/v1/runs_pb2.py",
    "codemend/orchestrator/v1/runs_pb2_grpc.pyi",
    "codemend/rpc/__init__.py",
    "codemend/py.typed",
    "orchestrator/workflows/prompts/repair.md",
    "sandbox_service/guest/template.py",
    "sandbox_service/guest/testing/reporter.py",
    "sandbox_service/guest/node/reporter.cjs",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources that holds no stubs."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=BUILD_SECONDS)
    (built,) = target.glob("*.whl")
    return built


@pytest.mark.parametrize("name", NEEDED)
def test_the_wheel_holds(wheel: Path, name: str) -> None:
    assert name in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_holds_no_tests_and_no_build_script(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [
        name for name in names if name.startswith(("tests/", "protos/", "deploy/")) or name.endswith("build.py")
    ]


def test_the_command_of_the_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from orchestrator.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("codemend ")
