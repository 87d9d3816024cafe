"""Requests with a lone surrogate where the contract has text. A message cannot hold one, so its bytes are changed.

Fields that hold bytes (a file's content, stdin) are no part of this: a surrogate there is three bytes like others.
"""

from collections.abc import Mapping

import grpc
from codemend.sandbox.v1 import sandbox_pb2 as pb
from google.protobuf.message import Message
from support.jobs import files
from support.kinds import Running

_SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"].full_name
_MARK = "@@@"
_SURROGATE = "\ud800".encode("utf-8", "surrogatepass")
_SECONDS = 10
"""Bound of a call that should be refused at once: whoever lets it wait fails here by another status."""


def _program(contents: Mapping[str, str], **fields) -> pb.ExecuteRequest:
    return pb.ExecuteRequest(program=pb.Program(files=files({"main.py": "pass", **contents}), **fields))


def _tests(**fields) -> pb.RunTestsRequest:
    return pb.RunTestsRequest(files=files({"solution.py": "x = 1"}), **fields)


_PASS = {"test_a.py": "def test_a(): pass"}
SURROGATES: Mapping[str, tuple[str, Message]] = {
    "the name of a file": ("Execute", _program({f"{_MARK}.py": "x"}, entry="main.py")),
    "the entry": ("Execute", _program({}, entry=f"{_MARK}.py")),
    "an argument": ("Execute", _program({}, entry="main.py", args=[_MARK])),
    "an argument vector": ("Execute", _program({}, command=pb.Command(argv=["printf", _MARK]))),
    "a variable": ("Execute", _program({}, entry="main.py", env={"A": _MARK})),
    "the name of a variable": ("Execute", _program({}, entry="main.py", env={_MARK: "a"})),
    "what to bring back": ("Execute", _program({}, entry="main.py", collect=[_MARK])),
    "a stream's argument": (
        "ExecuteStream",
        pb.ExecuteStreamRequest(program=_program({}, entry="main.py", args=[_MARK]).program),
    ),
    "the name of a test file": ("RunTests", _tests(tests=files({**_PASS, f"test_{_MARK}.py": ""}))),
    "the id of a test": ("RunTests", _tests(tests=files(_PASS), select=[f"test_a.py::test_{_MARK}"])),
}
"""Method and request, by the place where the mark stands that becomes the surrogate."""


async def sent(running: Running, method: str, request: Message) -> grpc.StatusCode:
    """Sends a request with a surrogate in the mark's place, and says how the call ended."""
    whole = request.SerializeToString()
    assert len(_MARK) == len(_SURROGATE)  # lengths in the message stay true
    assert whole.count(_MARK.encode()) == 1
    payload = whole.replace(_MARK.encode(), _SURROGATE)
    channel = running.sandbox.channel
    kind = channel.unary_stream if method == "ExecuteStream" else channel.unary_unary
    return await kind(f"/{_SERVICE}/{method}")(payload, timeout=_SECONDS).code()
