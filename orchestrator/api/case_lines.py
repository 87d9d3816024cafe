"""Cases from lines of JSON that somebody hands in: cut into lines, read, and held against the limits of requests."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from codemend.orchestrator.v1 import runs_pb2 as pb

from orchestrator.api.checks import Checker
from orchestrator.api.regression_messages import spec_message
from orchestrator.api.validation import MAXIMUM_PROMPT_BYTES, MAXIMUM_PROMPTS, Defaults, read_spec
from orchestrator.errors import InvalidRun
from orchestrator.runs.cases import CaseLine, read_line
from orchestrator.workflows import RunSpec

MAXIMUM_CHUNK_BYTES = 1024 * 1024
MAXIMUM_LINE_BYTES = 32 * 1024 * 1024
MAXIMUM_BYTES = 256 * 1024 * 1024
MAXIMUM_CASES = 10_000


class LineCutter:
    """Cuts what comes in pieces into lines, each with its number; empty lines are left out.

    Args:
        at: what errors call the whole, such as "json_lines" or the name of a file.
    """

    def __init__(self, at: str) -> None:
        self._at = at
        self._pieces: list[bytes] = []
        self._held = 0  # bytes of the line that has not ended yet
        self._size = 0
        self._number = 1
        self._lines = 0

    def feed(self, chunk: bytes) -> Iterable[tuple[str, bytes]]:
        """The lines that end in this piece: what each is called in an error, and its content. Raises InvalidRun."""
        self._size += len(chunk)
        if self._size > MAXIMUM_BYTES:
            raise InvalidRun((self._at, f"must have at most {MAXIMUM_BYTES} bytes in all"))
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield from self._line(piece)
            self._number += 1
        self._hold(rest)

    def end(self) -> Iterable[tuple[str, bytes]]:
        """The last line, where it has no LF. Raises InvalidRun."""
        yield from self._line(b"")

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > MAXIMUM_LINE_BYTES:
            raise InvalidRun((self._called, f"must have at most {MAXIMUM_LINE_BYTES} bytes"))
        self._pieces.append(piece)

    def _line(self, last: bytes) -> Iterable[tuple[str, bytes]]:
        self._hold(last)
        line = b"".join(self._pieces)
        self._pieces, self._held = [], 0
        if line.strip():
            self._lines += 1
            if self._lines > MAXIMUM_CASES:
                raise InvalidRun((self._called, f"is one case too many; at most {MAXIMUM_CASES} are taken"))
            yield self._called, line

    @property
    def _called(self) -> str:
        return f"{self._at}: line {self._number}"


async def cut(chunks: AsyncIterator[bytes], at: str) -> AsyncIterator[tuple[str, bytes]]:
    """The lines of what comes in pieces, as `LineCutter`. Raises InvalidRun."""
    cutter = LineCutter(at)
    async for chunk in chunks:
        for line in cutter.feed(chunk):
            yield line
    for line in cutter.end():
        yield line


def read_case(at: str, raw: bytes) -> CaseLine:
    """A case of a line, whose request keeps the limits that any request must keep.

    Raises:
        InvalidRun: it is no case, or its request is over a limit.
    """
    line = read_line(raw, at)
    check_spec(f"{at}.case", line.case.spec)
    return line


def check_spec(at: str, spec: RunSpec) -> None:
    """Holds a recorded request against the limits of requests. Raises InvalidRun.

    Its prompts may lack what today's prompts have: that is for a replay to tell.
    """
    check = Checker()
    prompts = spec.options.prompts
    if len(prompts) > MAXIMUM_PROMPTS:
        check.add(f"{at}.spec.options.prompts", f"must have at most {MAXIMUM_PROMPTS} prompts, not {len(prompts)}")
    for name, text in prompts.items():
        check.text(f"{at}.spec.options.prompts[{name[:80]}]", text, size_bytes=MAXIMUM_PROMPT_BYTES)
    check.raise_if_any()
    bare = replace(spec, options=replace(spec.options, prompts={}))
    try:
        message = spec_message(bare)
    except (ValueError, OverflowError) as error:
        raise InvalidRun((f"{at}.spec", f"holds a value that no request can have: {error}")) from error
    try:
        read = read_spec(pb.CreateRunRequest(spec=message), Defaults())
    except InvalidRun as error:
        raise InvalidRun(*((f"{at}.{field}", text) for field, text in error.violations)) from error
    if read != bare:
        raise InvalidRun((f"{at}.spec", "holds values that a request cannot have"))
