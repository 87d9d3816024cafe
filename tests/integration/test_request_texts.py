"""Every text of every request: NUL, which Postgres cannot keep, is refused by the field's name on any database."""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio
from codemend.orchestrator.v1 import debug_pb2, regression_pb2, runs_pb2
from codemend.rpc import error_detail, open_channel
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from support.openai_server import scripted_openai
from support.orchestrator import running_orchestrator
from support.scripted_sandbox import scripted_sandbox
from support.staged import Staged, judged, staged_model

BAD = "bad\0text"
TEXT, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
SECONDS = 30


@dataclass(frozen=True)
class Spot:
    """A text in a request: its fields from the outermost on, and which part of it where the last is a map."""

    fields: tuple[str, ...]
    part: str = ""

    @property
    def path(self) -> str:
        return ".".join(self.fields)

    def spoil(self, message: Message) -> None:
        """Puts the bad text there."""
        for name in self.fields[:-1]:
            inner = getattr(message, name)
            if message.DESCRIPTOR.fields_by_name[name].is_repeated:
                inner = inner["coder"] if _is_map(message.DESCRIPTOR.fields_by_name[name]) else inner.add()
            message = inner
        name = self.fields[-1]
        if self.part == "key":
            _set(getattr(message, name), BAD)
        elif self.part == "value":
            getattr(message, name)["key"] = BAD
        elif message.DESCRIPTOR.fields_by_name[name].is_repeated:
            getattr(message, name).append(BAD)
        else:
            setattr(message, name, BAD)


def _set(entries: Any, key: str) -> None:
    try:
        entries[key] = ""
    except (TypeError, ValueError):  # of messages: whoever asks for one makes it
        entries[key].SetInParent()


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == MESSAGE and field.message_type.GetOptions().map_entry


def spots(descriptor: Descriptor, before: tuple[str, ...] = ()) -> Iterator[Spot]:
    for field in descriptor.fields:
        at = (*before, field.name)
        if field.type == TEXT:
            yield Spot(at)
        elif _is_map(field):
            value = field.message_type.fields_by_name["value"]
            yield Spot(at, "key")
            if value.type == TEXT:
                yield Spot(at, "value")
            elif value.type == MESSAGE:
                yield from spots(value.message_type, at)
        elif field.type == MESSAGE:
            yield from spots(field.message_type, at)


def methods() -> Iterator[MethodDescriptor]:
    for module in (runs_pb2, debug_pb2, regression_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


CASES = [
    pytest.param(method, spot, id=f"{method.name}-{spot.path}{'-' * bool(spot.part)}{spot.part}")
    for method in methods()
    for spot in spots(method.input_type)
]


@pytest_asyncio.fixture(scope="module", params=["sqlite", "postgres"])
async def served(request: Any, tmp_path_factory: Any) -> AsyncIterator[tuple[grpc.aio.Channel, str]]:
    """A channel to an orchestrator on either database, and a run that waits there."""
    settings = {"database_url": request.getfixturevalue("postgres").create()} if request.param == "postgres" else {}
    async with (
        scripted_sandbox(judged) as sandbox,
        scripted_openai(staged_model()) as model,
        running_orchestrator(
            sandbox=sandbox.address, model_url=model.base_url, data_dir=tmp_path_factory.mktemp("data"), **settings
        ) as client,
        open_channel(client.address) as channel,
    ):
        run = await client.create(Staged("nul1", stops=("generate",)).spec())
        yield channel, run.run_id


@pytest.mark.parametrize(("method", "spot"), CASES)
async def test_nul_in_any_text_is_refused_by_its_field(
    served: tuple[grpc.aio.Channel, str], method: MethodDescriptor, spot: Spot
) -> None:
    channel, run_id = served
    request = GetMessageClass(method.input_type)()
    for name, value in {"run_id": run_id, "other_run_id": run_id, "checkpoint_id": "any", "name": "any"}.items():
        if name in method.input_type.fields_by_name:
            setattr(request, name, value)
    if "spec" in method.input_type.fields_by_name:
        request.spec.CopyFrom(Staged("nul2").spec())
    spot.spoil(request)

    call = channel.unary_stream(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(request, timeout=SECONDS):
            pass

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    found = error_detail(caught.value, error_details_pb2.BadRequest).field_violations
    assert spot.path in {re.sub(r"\[.*?\]", "", violation.field) for violation in found}


@pytest.mark.parametrize("name", ["run_id", "case_id"])
async def test_an_id_that_is_too_long_is_told_its_limit(served: tuple[grpc.aio.Channel, str], name: str) -> None:
    channel, _ = served
    ask, service = {
        "run_id": (runs_pb2.GetRunRequest, "RunService/GetRun"),
        "case_id": (regression_pb2.DeleteCaseRequest, "RegressionService/DeleteCase"),
    }[name]
    call = channel.unary_unary(f"/codemend.orchestrator.v1.{service}", request_serializer=ask.SerializeToString)
    with pytest.raises(grpc.aio.AioRpcError, match=f"{name}: must have at most 256 characters, not 257"):
        await call(ask(**{name: "a" * 257}), timeout=SECONDS)
