"""What an operator decides about docker cells."""

from dataclasses import dataclass
from enum import StrEnum

from sandbox_service.domain import DEFAULT_LIMITS, Lease, Limits


class Reuse(StrEnum):
    """Whose jobs may run in one container after another. Files and processes never stay from one to the next."""

    JOB = "job"
    SESSION = "session"
    TENANT = "tenant"

    def key(self, lease: Lease) -> tuple[str, ...] | None:
        """What two jobs must have in common to get the same container; None: nothing is enough."""
        if self is Reuse.TENANT:
            return (lease.tenant,)
        if self is Reuse.SESSION and lease.session:
            return (lease.tenant, lease.session)
        return None


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """All of it.

    Attributes:
        host: where the engine listens: unix:///path or tcp://host:port.
        image: the image of the cells; empty: `codemend-sandbox` in the version of this service.
        runtime: the engine's runtime.
        warm: containers that wait for their first job, of each template.
        reuse: whose jobs share a container.
        limits: those that warm containers are made for.
    """

    host: str = "unix:///var/run/docker.sock"
    image: str = ""
    runtime: str = "runsc"
    warm: int = 2
    reuse: Reuse = Reuse.JOB
    limits: Limits = DEFAULT_LIMITS
