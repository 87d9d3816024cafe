"""Runs in the peers' environment: does jobs with one of them, as its documentation shows, as lines of stdin ask for.

Imports nothing but the standard library, that peer and `bench.jobs`.
"""

# ruff: noqa: BLE001, PLC0415 - only the peer that is asked for is imported, and whatever it raises is its result

import asyncio
import contextlib
import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.jobs import CODE, JOB_SECONDS, PYTEST, SCRIPT, check

Do = Callable[[str], None]
_THREADS = 16


@contextlib.contextmanager
def llm_sandbox_bubblewrap(config: dict[str, str]) -> Iterator[Do]:
    from llm_sandbox import SandboxBackend, SandboxSession
    from llm_sandbox.local.config import DEFAULT_READ_ONLY_PATHS, LocalSandboxConfig

    shown = LocalSandboxConfig(
        read_only_paths=(*DEFAULT_READ_ONLY_PATHS, config["prefix"], config["folder"]),
        python_executable=config["python"],
        env={"PYTHONPATH": config["packages"]},
    )

    def do(job: str) -> None:
        with SandboxSession(
            backend=SandboxBackend.BUBBLEWRAP, lang="python", sandbox_config=shown, skip_environment_setup=True
        ) as session:
            if job == SCRIPT:
                ran = session.run(CODE)
            else:
                ran = session.execute_command(f"cd {config['work']} && {shlex.join([config['python'], *PYTEST])}")
            check(job, ran.exit_code, ran.stdout, ran.stderr)

    yield do


@contextlib.contextmanager
def llm_sandbox_docker(config: dict[str, str]) -> Iterator[Do]:
    import docker
    from llm_sandbox import SandboxBackend, SandboxSession

    images = [tag for image in docker.from_env().images.list(config["images"]) for tag in image.tags]
    if not images:
        raise RuntimeError(f"the engine has no image {config['images']}")
    mounts = {path: {"bind": path, "mode": "ro"} for path in (config["prefix"], config["folder"]) if path != "/usr"}
    session = SandboxSession(
        backend=SandboxBackend.DOCKER, lang="python", image=images[0], keep_template=True, skip_environment_setup=True,
        runtime_configs={
            "init": True, "user": "root", "volumes": mounts, "environment": {"PYTHONPATH": config["packages"]},
            "entrypoint": "", "command": ["sleep", "infinity"],
        },
    )  # fmt: skip
    with session:

        def do(job: str) -> None:
            python = config["python"] if config["prefix"] != "/usr" else "python3"
            if job == SCRIPT:
                ran = session.execute_command(shlex.join([python, "-c", CODE]))
            else:
                ran = session.execute_command(shlex.join([python, *PYTEST]), workdir=config["work"])
            check(job, ran.exit_code, ran.stdout, ran.stderr)

        yield do


@contextlib.contextmanager
def swe_rex_local(config: dict[str, str]) -> Iterator[Do]:
    from swerex.deployment.local import LocalDeployment
    from swerex.runtime.abstract import Command

    deployment = LocalDeployment()
    asyncio.run(deployment.start())

    def do(job: str) -> None:
        argv = [config["python"], "-c", CODE] if job == SCRIPT else [config["python"], *PYTEST]
        command = Command(command=argv, cwd=config["work"], env={"PYTHONPATH": config["packages"]}, timeout=JOB_SECONDS)
        ran = asyncio.run(deployment.runtime.execute(command))
        check(job, ran.exit_code, ran.stdout, ran.stderr)

    yield do
    asyncio.run(deployment.stop())


PEERS = {
    "llm-sandbox, bubblewrap": llm_sandbox_bubblewrap,
    "llm-sandbox, docker": llm_sandbox_docker,
    "swe-rex, local": swe_rex_local,
}


def main() -> None:
    """Answers each line of stdin with a line on stdout."""
    config = json.loads(sys.argv[1])
    answers = sys.stdout
    sys.stdout = sys.stderr  # a peer may print
    writing = threading.Lock()  # guards whole lines on stdout

    def answer(text: str) -> None:
        with writing:
            answers.write(f"{text}\n")
            answers.flush()

    def work(number: str, job: str) -> None:
        try:
            do(job)
        except Exception as error:
            answer(f"{number} {type(error).__name__}: {' '.join(str(error).split())}"[:400])
        else:
            answer(number)

    try:
        with PEERS[config["peer"]](config) as do, ThreadPoolExecutor(_THREADS) as pool:
            do(SCRIPT)
            answer("ready")
            for line in sys.stdin:
                pool.submit(work, *line.split())
    except Exception as error:
        answer(f"{type(error).__name__}: {' '.join(str(error).split())}"[:400])


if __name__ == "__main__":
    main()
