"""The gRPC surface: requests are checked and translated here, and nothing else happens here."""

from orchestrator.api.errors import ERRORS
from orchestrator.api.run_service import RunServicer
from orchestrator.api.validation import Defaults

__all__ = ["ERRORS", "Defaults", "RunServicer"]
