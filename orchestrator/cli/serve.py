"""`codemend serve`: both services, or one of them, in the foreground until a signal or a death."""

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from orchestrator.cli import inputs, options
from orchestrator.cli.errors import ExitCode, UsageFault
from orchestrator.cli.model import orchestrator_environment
from orchestrator.cli.services import Services, child_services
from orchestrator.cli.terminal import complain, console

_STOP_TIMEOUT = timedelta(minutes=5)  # a backstop; each service bounds its own stop by its grace
_DEFAULT_SANDBOX_ADDRESS = "127.0.0.1:50061"


@dataclass(frozen=True, slots=True)
class _Plan:
    sandbox: bool
    orchestrator: bool
    address: str
    sandbox_address: str
    environment: dict[str, str]


def serve_command(
    *,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Serve the sandbox alone.")] = False,
    orchestrator: Annotated[bool, typer.Option("--orchestrator", help="Serve the orchestrator alone.")] = False,
    address: Annotated[
        str,
        typer.Option(
            envvar="CODEMEND_ADDRESS", metavar="ADDR", help="Where the orchestrator listens: host:port or unix:/path."
        ),
    ] = options.DEFAULT_ADDRESS,
    sandbox_address: Annotated[
        str,
        typer.Option(
            envvar=["SANDBOX_ADDRESS", "CODEMEND_SANDBOX_ADDRESS"],
            metavar="ADDR",
            help="Where the sandbox listens, and where the orchestrator finds it.",
        ),
    ] = _DEFAULT_SANDBOX_ADDRESS,
    model_url: options.ModelUrlOption = "",
    model: options.ModelOption = "",
    embedded_model: options.EmbeddedModelOption = "1.5b",
) -> int:
    """Serve both services, or one of them, until SIGTERM or Ctrl-C.

    Port 0 takes a free port; the addresses are printed once they serve. The first signal lets running work end within
    the services' grace, a second one does not.

    Exit codes:

    - 0: stopped by a signal
    - 3: a service ended by itself, and the other one was stopped too
    """
    inputs.check_address("--address", address)
    inputs.check_address("--sandbox-address", sandbox_address)
    both = sandbox == orchestrator
    if (both or orchestrator) and address == sandbox_address and not address.endswith(":0"):
        raise UsageFault("--address", f"both services cannot listen on {address}")
    environment = orchestrator_environment(model_url=model_url, model=model, embedded_model=embedded_model)
    return asyncio.run(_serve(_Plan(both or sandbox, both or orchestrator, address, sandbox_address, environment)))


async def _serve(plan: _Plan) -> int:
    async with child_services(inherit_output=True) as services:
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set():
                services.kill()
            stop.set()

        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, on_signal)
        await _until(stop, _serve_until_death(services, plan))
        await services.stop(_STOP_TIMEOUT)
        unclean = {name: code for name, code in services.exit_codes.items() if code != 0}
    for name, code in unclean.items():
        complain(f"{name} ended with {f'signal {-code}' if code is not None and code < 0 else f'exit code {code}'}")
    return ExitCode.SERVICE if unclean else ExitCode.OK


async def _serve_until_death(services: Services, plan: _Plan) -> None:
    out = console()
    sandbox_address = plan.sandbox_address
    if plan.sandbox:
        sandbox_address = await services.start_sandbox(plan.sandbox_address)
        out.print(f"sandbox       {sandbox_address}")
    if plan.orchestrator:
        bound = await services.start_orchestrator(sandbox_address, plan.address, environment=plan.environment)
        out.print(f"orchestrator  {bound}")
        if not plan.environment["CODEMEND_MODEL_URL"]:
            name = plan.environment["CODEMEND_EMBEDDED_MODEL"]
            out.print(f"model         embedded, {name}; fetched at its first use where it is not there yet")
    out.file.flush()
    raise await services.first_death()


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Does `work` until it ends or `stop` is set; an error of the work is raised."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
