"""Cells: the places where jobs run, one module a kind, behind one protocol."""

from sandbox_service.cells.base import CellKind, OutputSink

__all__ = ["CellKind", "OutputSink"]
