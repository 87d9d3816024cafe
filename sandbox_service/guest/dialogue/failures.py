"""Exceptions that leave the candidate: by class, text and place, never as objects. The judge's half is `rebuilding`."""

from sandbox_service.guest.confinement import rootfs
from sandbox_service.guest.dialogue.plain import Node, NotPlainError, TooLargeError
from sandbox_service.guest.dialogue.plain_writer import Writer

MESSAGE_CHARS = 4096
FIRST_FRAMES, LAST_FRAMES = 8, 24
CHAIN = 3
"""Causes of causes that are told."""
CLASSES = 32


def describe(error: BaseException, writer: Writer) -> Node:
    """An exception as a node: classes, arguments (None: not plain), text, frames in the code under test, cause."""
    return _described(error, writer, CHAIN)


def _described(error: BaseException, writer: Writer, left: int) -> Node:
    try:
        arguments = writer.node(error.args)
    except (NotPlainError, TooLargeError):
        arguments = None
    try:
        text = str(error)[:MESSAGE_CHARS]
    except BaseException as broken:
        text = f"<{type(error).__name__} whose text raises {type(broken).__name__}>"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    told = _described(cause, writer, left - 1) if cause is not None and cause is not error and left else None
    return [describe_class(type(error)), arguments, writer.node(text), _frames(error, caught_here=left == CHAIN), told]


def describe_class(kind: type[BaseException]) -> Node:
    """A class as a list of classes, itself first: module, name, and the places of its bases in the list."""
    known = [base for base in kind.__mro__ if issubclass(base, BaseException)][:CLASSES]
    return [
        [
            str(base.__module__)[:256],
            str(base.__qualname__)[:256].encode("ascii", "replace").decode(),
            [known.index(parent) for parent in base.__bases__ if parent in known],
        ]
        for base in known
    ]


def _frames(error: BaseException, *, caught_here: bool) -> list[Node]:
    found: list[Node] = []
    trace = error.__traceback__
    if trace is not None and caught_here:
        trace = trace.tb_next  # the frame that caught it is none of the code under test
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(f"{rootfs.WORK}/"):
            found.append([code.co_filename[:1024], trace.tb_lineno or 1, code.co_name[:256]])
        trace = trace.tb_next
    if len(found) > FIRST_FRAMES + LAST_FRAMES:
        found[FIRST_FRAMES:-LAST_FRAMES] = []
    return [[path.encode("ascii", "replace").decode(), line, name.encode("ascii", "replace").decode()]
            for path, line, name in found]  # fmt: skip
