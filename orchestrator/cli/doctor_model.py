"""What `doctor` finds out about the model: the endpoint's list of models, or the embedded model's weights."""

from pathlib import Path

from orchestrator.cli.doctor_checks import Check, State
from orchestrator.cli.terminal import in_bytes
from orchestrator.models import ModelError, ModelGateway, ModelSpec
from orchestrator.models.weights import WHEEL_MODELS

_ROLE = "coder"


async def endpoint_check(model_url: str, model: str, api_key: str) -> Check:
    """Whether the endpoint lists its models to this key."""
    gateway = ModelGateway({_ROLE: ModelSpec(base_url=model_url, model=model, api_key=api_key)})
    try:
        found = await gateway.probe(_ROLE)
    except ModelError as error:
        remedy = "check CODEMEND_MODEL_URL (it ends in /v1 at most servers), CODEMEND_API_KEY, and that the server runs"
        return Check("endpoint", State.FAILED, f"{model_url}: {error}", remedy)
    finally:
        await gateway.aclose()
    return Check("endpoint", State.OK, f"{model_url} serves {found}")


def embedded_check(embedded_model: str, cache_dir: Path) -> Check:
    """Whether the weights are there; missing ones are fetched by the first run."""
    known = WHEEL_MODELS.get(embedded_model)
    if known is None:
        return _local_check(embedded_model)
    path = cache_dir / known.file_name
    if path.is_file() and path.stat().st_size == known.size_bytes:
        return Check("embedded", State.OK, f"{known.label}, {in_bytes(known.size_bytes)} in {path}")
    detail = f"{known.label} is not in {cache_dir} yet; the first run fetches {in_bytes(known.size_bytes)}"
    return Check(
        "embedded", State.WARNING, detail, "start any run once with the network there, or set CODEMEND_MODEL_URL"
    )


def _local_check(embedded_model: str) -> Check:
    if embedded_model.startswith("hf:"):
        return Check("embedded", State.OK, f"{embedded_model}, fetched from its hub where it is not in the cache")
    path = Path(embedded_model).expanduser()
    if path.is_file():
        return Check("embedded", State.OK, f"{path}, {in_bytes(path.stat().st_size)}")
    names = ", ".join(WHEEL_MODELS)
    return Check(
        "embedded",
        State.FAILED,
        f"{path} is no file",
        f"set CODEMEND_EMBEDDED_MODEL to {names} or the path of a .gguf file",
    )
