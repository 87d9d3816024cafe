"""Fetches a GGUF file from a Hugging Face repository, where `huggingface_hub` is installed and reaches one."""

import importlib.util
import re
import sys
from collections import deque
from pathlib import Path

from orchestrator.models.children import run_child
from orchestrator.models.errors import EmbeddedModelFailed

_FETCH_SECONDS = 4 * 3600.0
_SCRIPT = """
import sys
from huggingface_hub import hf_hub_download
print("PATH", hf_hub_download(sys.argv[1], sys.argv[2], cache_dir=sys.argv[3]))
"""


async def fetch_from_hub(reference: str, cache_dir: Path) -> Path:
    """Returns the path of the file that `reference` ("OWNER/NAME/FILE.gguf") names, fetching it where it is not cached.

    Raises:
        EmbeddedModelFailed: the reference is malformed, the library is missing, or the download failed.
    """
    found = re.fullmatch(r"([^/\s]+/[^/\s]+)/(\S+\.gguf)", reference)
    if found is None:
        raise EmbeddedModelFailed(f"model hf:{reference}: must be hf:OWNER/NAME/FILE.gguf")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise EmbeddedModelFailed(
            f"model hf:{reference}: needs the package huggingface_hub (pip install huggingface_hub)"
        )
    lines: deque[str] = deque(maxlen=6)
    argv = [sys.executable, "-c", _SCRIPT, found[1], found[2], str(cache_dir)]
    try:
        code = await run_child(argv, lines.append, _FETCH_SECONDS)
    except TimeoutError as error:
        raise EmbeddedModelFailed(f"model hf:{reference}: did not arrive within {_FETCH_SECONDS:.0f} s") from error
    if code != 0 or not lines or not lines[-1].startswith("PATH "):
        raise EmbeddedModelFailed(f"model hf:{reference}: download failed: {' | '.join(lines)}")
    return Path(lines[-1].removeprefix("PATH "))
