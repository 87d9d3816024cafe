"""The gateway to the model servers: plain messages in; replies, values and code out."""

from orchestrator.models.embedded import EmbeddedModel, EmbeddedSettings
from orchestrator.models.errors import (
    ContextTooLong,
    MalformedReply,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    UnknownRole,
)
from orchestrator.models.extract import Extraction, extract_code
from orchestrator.models.gateway import ModelGateway
from orchestrator.models.messages import Message, Reply, Usage, estimate_tokens
from orchestrator.models.spec import CallOptions, ModelSpec

__all__ = [
    "CallOptions",
    "ContextTooLong",
    "EmbeddedModel",
    "EmbeddedSettings",
    "Extraction",
    "MalformedReply",
    "Message",
    "ModelError",
    "ModelGateway",
    "ModelRejected",
    "ModelSpec",
    "ModelUnavailable",
    "Reply",
    "UnknownRole",
    "Usage",
    "estimate_tokens",
    "extract_code",
]
