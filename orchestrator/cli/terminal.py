"""The terminal as this program sees it: consoles for both streams, and text made safe to print.

Everything that a model wrote or a program printed passes through `printable`, so that no escape sequence of theirs
reaches the terminal.
"""

import contextlib
import sys
from datetime import timedelta
from typing import TextIO

from rich.console import Console

from orchestrator.cli.errors import OutputClosed

_KEPT = {"\n", "\t"}


class _Console(Console):
    """A console that says by this program's own error that its reader has left."""

    def on_broken_pipe(self) -> None:
        """Raises OutputClosed, where Rich would end the process as if the command had failed."""
        self.quiet = True
        raise OutputClosed("nobody reads the output any more")


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (default: stdout) that reads no markup; NO_COLOR and pipes are honoured."""
    return _Console(file=stream or sys.stdout, markup=False, highlight=False, emoji=False, soft_wrap=True)


def complain(message: str) -> None:
    """Writes one message on stderr; where that cannot be written to, there is nobody to tell."""
    with contextlib.suppress(OutputClosed, OSError):
        console(sys.stderr).print(f"codemend: {printable(message)}")


def printable(text: str) -> str:
    """Shows control characters as escapes instead of sending them; line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in _KEPT or char.isprintable()
        else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text.replace("\r\n", "\n")
    )


def tolerate_any_encoding() -> None:
    """Lets a stream whose encoding lacks a character print a substitute instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def in_seconds(duration: timedelta) -> str:
    """`12 ms`, `1.2 s`, `83 s`, `1 h 02 min`: as exact as a reader needs."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth matters
        return f"{seconds:.1f} s"
    if seconds < 600:  # noqa: PLR2004 - below ten minutes a second matters
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"  # noqa: PLR2004 - an hour


def in_bytes(count: int) -> str:
    """`512 B`, `1.5 MiB`: binary units, one decimal."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":  # noqa: PLR2004 - the binary unit's own step
            break
        value /= 1024
    return f"{int(value)} {unit}" if value.is_integer() else f"{value:.1f} {unit}"
