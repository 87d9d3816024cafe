"""Cases from lines of JSON that somebody hands in: cut into lines, read, and held against the limits of requests."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from codemend.orchestrator.v1 import runs_pb2 as pb

from orchestrator.api.checks import Checker
from orchestrator.api.regression_messages import spec_message
from orchestrator.api.validation import MAXIMUM_PROMPT_BYTES, MAXIMUM_PROMPTS, Defaults, read_spec
from orchestrator.errors import InvalidRun
from orchestrator.runs.cases import MAXIMUM_LINE_BYTES, CaseLine, case_row, read_line
from orchestrator.runs.store import CaseRow
from orchestrator.workflows import RunSpec

MAXIMUM_CHUNK_BYTES = 1024 * 1024
MAXIMUM_BYTES = 256 * 1024 * 1024
MAXIMUM_CASES = 10_000
MAXIMUM_LINES = 100_000  # the empty ones included: each takes a moment, and a megabyte holds a million of them


class LineCutter:
    """Cuts what comes in pieces into lines, each with its number; empty lines are left out.

    Args:
        at: what errors call the whole, such as "json_lines" or the name of a file.
    """

    def __init__(self, at: str) -> None:
        self._at = at
        self._held = bytearray()  # the line that has not ended yet
        self._size = 0
        self._number = 1
        self._lines = 0

    def feed(self, chunk: bytes) -> Iterable[tuple[str, bytes]]:
        """The lines that end in this piece: what each is called in an error, and its content. Raises InvalidRun."""
        self._size += len(chunk)
        if self._size > MAXIMUM_BYTES:
            raise InvalidRun((self._at, f"must have at most {MAXIMUM_BYTES} bytes in all"))
        if self._number + chunk.count(b"\n") > MAXIMUM_LINES + 1:
            raise InvalidRun((self._at, f"must have at most {MAXIMUM_LINES} lines, empty ones included"))
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield from self._line(piece)
            self._number += 1
        self._hold(rest)

    def end(self) -> Iterable[tuple[str, bytes]]:
        """The last line, where it has no LF. Raises InvalidRun."""
        yield from self._line(b"")

    def _hold(self, piece: bytes) -> None:
        if len(self._held) + len(piece) > MAXIMUM_LINE_BYTES:
            raise InvalidRun((self._called, f"must have at most {MAXIMUM_LINE_BYTES} bytes"))
        self._held += piece

    def _line(self, last: bytes) -> Iterable[tuple[str, bytes]]:
        if not last and not self._held:
            return
        self._hold(last)
        line = bytes(self._held)
        self._held = bytearray()
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


def read_row(at: str, raw: bytes, tenant: str) -> CaseRow:
    """A case of a line as the row of a tenant's new case. Raises InvalidRun, as `read_case`."""
    line = read_case(at, raw)
    try:
        return case_row(line.case, tenant=tenant, name=line.name)
    except InvalidRun as error:
        raise InvalidRun(*((f"{at}.case", text) for _, text in error.violations)) from error


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
        read = reread(bare)
    except InvalidRun as error:
        raise InvalidRun(*((f"{at}.{field}", text) for field, text in error.violations)) from error
    if read != bare:
        raise InvalidRun((f"{at}.spec", "holds values that a request cannot have"))


def reread(spec: RunSpec) -> RunSpec:
    """A kept request as it is read when somebody makes it today, without a tenant.

    Raises:
        InvalidRun: it is over a limit, or its workflow, a role of a model or a prompt is none of today's.
    """
    try:
        message = spec_message(spec)
    except (ValueError, OverflowError) as error:
        raise InvalidRun(("spec", f"holds a value that no request can have: {error}")) from error
    return read_spec(pb.CreateRunRequest(spec=message), Defaults())
