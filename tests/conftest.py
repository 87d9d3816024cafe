"""What tests of every kind share: where real data lies, and prerequisites that only CI insists on."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from support.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
CELL_TESTS = ("support.kinds", "support.pods", "support.engine")
"""Modules of whoever starts containers and pods: those tests stay in one process, one after the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for pytest-xdist: each file is one group, and all that start containers or pods are one together."""
    for item in items:
        starts_cells = "running" in getattr(item, "fixturenames", ()) or _uses_containers(getattr(item, "module", None))
        item.add_marker(pytest.mark.xdist_group("cells" if starts_cells else str(item.path)))


def _uses_containers(module: ModuleType | None) -> bool:
    values = vars(module).values() if module is not None else ()
    names = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") for value in values}
    return not names.isdisjoint(CELL_TESTS)


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """A check of a prerequisite: where it does not hold, the test is skipped, or fails when CI=true."""
    return check_prerequisite


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real task sets: CODEMEND_DATA, by default `shared/data` beside the checkout."""
    folder = Path(os.environ.get("CODEMEND_DATA") or ROOT.parent / "shared" / "data")
    check_prerequisite(folder.is_dir(), f"no task sets at {folder}; CODEMEND_DATA names their folder")
    return folder


@pytest.fixture(scope="session")
def postgres(require) -> Iterator["PostgresServer"]:
    """A real PostgreSQL of the session's own. No test stops it: `running_postgres` gives one that may be."""
    from support.postgres import binaries, running_postgres  # noqa: PLC0415 - few tests need it

    require(binaries(), "no PostgreSQL server: apt-get install --no-install-recommends postgresql")
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres) -> Iterator[str]:
    """URL of an empty Postgres database."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request, tmp_path) -> str:
    """URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.sqlite'}"
    return request.getfixturevalue("postgres_url")


@pytest_asyncio.fixture
async def debug(sandbox, tmp_path) -> AsyncIterator[Callable[..., Any]]:
    """Starts an orchestrator whose model gives some replies, for tests that take runs apart; they have a `sandbox`."""
    from support.debugging import debugging  # noqa: PLC0415 - few tests need it

    async with AsyncExitStack() as stack:

        async def start(*replies: Any, **settings: Any) -> Any:
            return await stack.enter_async_context(debugging(*replies, sandbox=sandbox, data_dir=tmp_path, **settings))

        yield start


def check_prerequisite(condition: object, reason: str) -> None:
    """Skips, or fails in CI, where `condition` is false."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"required in CI: {reason}")
    pytest.skip(reason)
