"""The gRPC surface: requests are checked and translated here, and nothing else happens here."""

from orchestrator.api.debug_service import DebugServicer
from orchestrator.api.errors import ERRORS
from orchestrator.api.regression_service import RegressionServicer
from orchestrator.api.run_service import RunServicer
from orchestrator.api.validation import Defaults

__all__ = ["ERRORS", "DebugServicer", "Defaults", "RegressionServicer", "RunServicer"]
