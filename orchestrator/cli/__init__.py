"""The command line of codemend: a client of both services, which it can also start."""

from orchestrator.cli.app import main

__all__ = ["main"]
