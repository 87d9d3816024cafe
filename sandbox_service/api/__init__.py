"""The service's RPCs: translation between the contract's messages and the domain, and nothing else."""

from sandbox_service.api.servicer import SandboxServicer
from sandbox_service.api.sessions import SessionRules
from sandbox_service.api.streams import StreamLimits
from sandbox_service.api.table import ERRORS

__all__ = ["ERRORS", "SandboxServicer", "SessionRules", "StreamLimits"]
