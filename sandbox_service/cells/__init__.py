"""Cells: the places where jobs run, one module a kind, behind one protocol."""

from sandbox_service.cells.base import CellKind, OutputSink
from sandbox_service.cells.process import ProcessCells

KINDS: tuple[str, ...] = (ProcessCells.name,)
"""Names of all kinds."""


def create(kind: str, *, require: frozenset[str] = frozenset()) -> CellKind:
    """Makes the kind of cells with this name; `require` names protections without which it does not start.

    Raises:
        ValueError: no kind, or no protection, has such a name.
    """
    if kind != ProcessCells.name:
        raise ValueError(f"unknown kind of cell {kind!r}; known: {', '.join(KINDS)}")
    return ProcessCells(require=require)


__all__ = ["KINDS", "CellKind", "OutputSink", "ProcessCells", "create"]
