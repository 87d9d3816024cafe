"""A real PostgreSQL for tests: one server a test session, a fresh database a test, or one to be stopped.

The server's binaries come from the system's package; its own cluster is never touched.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

_START_SECONDS = 60
_USER = "nobody"  # the server refuses to run as root
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_SMALL = {"max_connections": "200", "shared_buffers": "64MB", "autovacuum": "off", "timezone": "UTC"}


def binaries() -> Path | None:
    """The folder of the newest server's programs; None: it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


class PostgresServer:
    """A server of its own in a folder, on a free loopback port.

    Args:
        root: an empty folder that it may have; its parents must be open to all.
        durable: keep what was committed though the server is killed, as a real one does, at a real one's speed.
    """

    def __init__(self, root: Path, *, durable: bool = False) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError("no PostgreSQL server is installed")
        self._bin = found
        self._data = root / "data"
        self.log = root / "log"
        self._databases = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        root.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            shutil.chown(root, _USER)
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        options = _SMALL if durable else _SMALL | _FAST
        lines = [f"{key} = '{value}'\n" for key, value in options.items()]
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.writelines([*lines, "listen_addresses = '127.0.0.1'\n", "unix_socket_directories = ''\n"])

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._run("pg_ctl", "start", "--wait", f"--timeout={_START_SECONDS}", f"--log={self.log}", f"-o-p {self._port}")

    def stop(self, mode: str = "immediate") -> None:
        """Stops it; "immediate" is as if it crashed."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes connections and answers nothing, as a lost machine behind a balancer."""
        pids = [int((self._data / "postmaster.pid").read_text().splitlines()[0])]
        pids += [int(pid) for pid in Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def url(self, database: str) -> str:
        """URL of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def create(self) -> str:
        """URL of a new, empty database."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url(name)

    def drop(self, url: str) -> None:
        """Deletes a database, whoever is still connected."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments, "-D", str(self._data)]
        if os.getuid() == 0:
            command = ["setpriv", f"--reuid={_USER}", "--regid=nogroup", "--clear-groups", *command]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be held by the server
            stderr=subprocess.DEVNULL,
            timeout=_START_SECONDS + 5,
            check=False,
            cwd="/",
        )
        if done.returncode != 0:
            said = self.log.read_text()[-2000:] if self.log.exists() else ""
            raise RuntimeError(f"{program} ended with {done.returncode}: {said}")


@contextlib.contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A server for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="codemend-postgres-") as name:
        os.chmod(name, 0o755)  # noqa: PTH101 - the server's user goes through it
        server = PostgresServer(Path(name) / "server", durable=durable)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):  # a test may have stopped it
                server.stop()
