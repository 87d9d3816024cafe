"""Cells in containers of an engine that speaks Docker's API, behind the protocol of `cells.base`."""

from sandbox_service.cells.docker.cells import DockerCells
from sandbox_service.cells.docker.options import DockerOptions, Reuse

__all__ = ["DockerCells", "DockerOptions", "Reuse"]
