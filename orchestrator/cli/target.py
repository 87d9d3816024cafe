"""Where runs are sent: an orchestrator that runs already, or one of the command's own with a model made ready first."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer
from codemend.orchestrator.v1 import runs_pb2

from orchestrator.cli import inputs
from orchestrator.cli.errors import UsageFault
from orchestrator.cli.model import fetch_weights, orchestrator_environment, read_settings
from orchestrator.cli.services import with_orchestrator

T = TypeVar("T")

_DECISIVE = {"temperature", "context_tokens", "max_output_tokens", "max_attempts", "timeout"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where runs are sent.

    Attributes:
        address: of an orchestrator that runs already; empty: one is started.
        sandbox_address: of a sandbox for the own orchestrator; empty: one is started.
        environment: settings of the own orchestrator.
        weights: embedded model to fetch first; empty: none.
        model: name of the model to ask for in each run; empty: the orchestrator's own.
        label: what a record of results calls the model.
        settings: those of the own orchestrator that a result depends on; a running one's are unknown.
    """

    address: str = ""
    sandbox_address: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    model: str = ""
    label: str = ""
    settings: dict[str, object] = field(default_factory=dict)

    def apply(self, asked: runs_pb2.RunOptions) -> None:
        """Puts the model's name into a run's options where the orchestrator is not the command's own."""
        if self.model:
            asked.models["coder"].model = self.model


def choose_target(
    context: typer.Context, *, address: str, sandbox_address: str, model_url: str, model: str, embedded_model: str
) -> Target:
    """Decides from the options where runs are sent.

    Raises:
        UsageFault: an address or a setting of the environment cannot be read, or the options contradict each other.
    """
    inputs.check_address("--address", address)
    inputs.check_address("--sandbox-address", sandbox_address)
    if not address:
        environment = orchestrator_environment(model_url=model_url, model=model, embedded_model=embedded_model)
        label = f"{model_url} {model}".strip() or embedded_model
        given = read_settings().model_dump(include=_DECISIVE, mode="json")
        weights = "" if model_url else embedded_model
        return Target("", sandbox_address, environment, weights, label=label, settings=given)
    for name in ("model_url", "embedded_model"):
        if _is_typed(context, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageFault(
                option, f"the orchestrator at {address} has a model endpoint of its own; only --model can be chosen"
            )
    # A name from the environment is meant for an orchestrator of our own.
    asked_model = model if _is_typed(context, "model") else ""
    return Target(address, model=asked_model, label=f"{address} {asked_model}".strip())


async def with_target(target: Target, work: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """Does `work` with the address of the orchestrator, started where it has to be, its weights fetched before.

    Raises:
        CliError: the weights cannot be had, or a service fails.
    """
    if target.weights:
        await fetch_weights(target.weights)
    return await with_orchestrator(target.address, target.sandbox_address, target.environment, work)


def _is_typed(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
