"""What a service's command line does before and beside serving: explains wrong settings, tells where it listens."""

import os
from pathlib import Path

from pydantic import ValidationError


def describe_settings_error(error: ValidationError, prefix: str) -> str:
    """Each wrong setting on a line, by the name of its variable; never its value, which may be a secret."""
    lines = []
    for fault in error.errors(include_input=False, include_url=False):
        name = f"{prefix}{str(fault['loc'][0]).upper()}: " if fault["loc"] else ""
        lines.append(f"{name}{fault['msg']}")
    return "\n".join(lines)


def write_ready_file(path: Path | None, address: str) -> None:
    """Writes the address, whole or not at all."""
    if path is None:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(address, encoding="utf-8")
    draft.replace(path)
