"""Cells: the places where jobs run, one module a kind, behind one protocol."""

from collections.abc import Sequence

from sandbox_service.cells.base import CellKind, OutputSink
from sandbox_service.cells.canaries import prove
from sandbox_service.cells.docker import DockerCells, DockerOptions, Reuse
from sandbox_service.cells.process import ProcessCells
from sandbox_service.languages import DEFAULT_ENVIRONMENTS, Environment

KINDS: tuple[str, ...] = (ProcessCells.name, DockerCells.name)
"""Names of all kinds."""


def create(
    kind: str,
    *,
    require: frozenset[str] = frozenset(),
    environments: Sequence[Environment] = DEFAULT_ENVIRONMENTS,
    docker: DockerOptions | None = None,
    ahead: int = 2,
) -> CellKind:
    """Makes the kind of cells with this name.

    Args:
        kind: its name.
        require: protections without which it does not start.
        environments: those that it offers.
        docker: what docker cells are made of; None: the defaults.
        ahead: process cells of each template that are made before their jobs come.

    Raises:
        ValueError: no kind, or no protection, has such a name.
    """
    if kind == DockerCells.name:
        return DockerCells(docker or DockerOptions(), require=require, environments=environments)
    if kind != ProcessCells.name:
        raise ValueError(f"unknown kind of cell {kind!r}; known: {', '.join(KINDS)}")
    return ProcessCells(require=require, environments=environments, ahead=ahead)


__all__ = [
    "KINDS",
    "CellKind",
    "DockerCells",
    "DockerOptions",
    "OutputSink",
    "ProcessCells",
    "Reuse",
    "create",
    "prove",
]
