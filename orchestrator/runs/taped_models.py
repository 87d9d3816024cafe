"""A model for replays: called as it was when the original was made, whatever the service calls it with by now."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from orchestrator.models import CallOptions, Message, ModelSpec, Reply
from orchestrator.runs.tape import ReplayTape
from orchestrator.workflows import MODEL_PARAMETERS, Effect, Models


class TapedModels:
    """Models whose parameters come from a tape, for as long as their answers do.

    Args:
        models: for all that does not come from the tape.
        tape: of the replay.
    """

    def __init__(self, models: Models, tape: ReplayTape) -> None:
        self._models = models
        self._tape = tape

    def spec(self, role: str) -> ModelSpec:
        """How the role's model is called."""
        usual, recorded = self._models.spec(role), self._tape.made_with(Effect.MODEL)
        if not isinstance(recorded, Mapping):
            return usual
        return replace(usual, **{name: recorded[name] for name in MODEL_PARAMETERS if name in recorded})

    async def complete(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        options: CallOptions = CallOptions(),  # noqa: B008 - as the protocol has it; it is frozen
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        """A live reply. Raises ModelError."""
        return await self._models.complete(role, messages, options=options, on_delta=on_delta)
