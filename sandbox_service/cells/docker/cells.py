"""The `docker` cell: a container of its own for each job, or for the jobs of one session or tenant.

Containers come from a warm pool. An engine that is dead or wedged makes jobs fail as unavailable; it never holds one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from sandbox_service.cells import filters
from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.docker.container import PLAIN_RUNTIME, Container, Plan, Size
from sandbox_service.cells.docker.engine import Engine
from sandbox_service.cells.docker.job import carry_out
from sandbox_service.cells.docker.options import DockerOptions
from sandbox_service.cells.docker.owner import Owner, sweep
from sandbox_service.cells.docker.pool import Pool, Slot
from sandbox_service.cells.docker.walls import DOCKER_NAMES, docker_protections
from sandbox_service.cells.expectations import Expectations
from sandbox_service.cells.judging import Part, run_tests
from sandbox_service.cells.protections import without
from sandbox_service.domain import (
    NO_LEASE,
    Isolation,
    Job,
    JobOutcome,
    Lease,
    Limits,
    Protection,
    TestIsolation,
    TestRun,
)
from sandbox_service.errors import CellFailure, CellUnavailable
from sandbox_service.guest.exchange import frames
from sandbox_service.languages import DEFAULT_ENVIRONMENTS, LANGUAGES, Environment, Template

_log = logging.getLogger(__name__)
_SWEEP_S = 60.0
_MOST_KEPT = 32
"""Containers that wait for their leases; the one that has waited longest goes first."""
_EXTRA_INODES = 4096
"""For what a job's caller gives, beside what its program may make."""
_BASE = DEFAULT_ENVIRONMENTS[0].name
_PROOF, _PROVED_AT_ONCE = object(), 2
"""The service's own jobs, before it serves, share containers whatever the policy: a new one for each takes seconds."""
GUEST_LABEL = "codemend.guest"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of container: whose template is warm in it, what its jobs can import, and how large they may be."""

    template: Template
    environment: str
    size: Size


class DockerCells:
    """A CellKind. `require` names protections without which `start` refuses."""

    name = "docker"

    def __init__(
        self,
        options: DockerOptions,
        *,
        require: frozenset[str] = frozenset(),
        environments: Sequence[Environment] = DEFAULT_ENVIRONMENTS,
    ) -> None:
        if unknown := require - set(DOCKER_NAMES):
            raise ValueError(f"unknown protections: {', '.join(sorted(unknown))}; known: {', '.join(DOCKER_NAMES)}")
        self._options, self._require = options, require
        self._image = options.image or f"codemend-sandbox:{version('codemend')}"
        self._owner = Owner.this_process()
        self._engine = Engine(options.host)
        self._filters = ("", "")
        self._versions: dict[str, str] = {}
        self._making: set[asyncio.Task[Container]] = set()
        templates = [template for language in LANGUAGES.values() for template in language.templates]
        self._templates = {template.name: template for template in templates}
        self._environments = {environment.name: environment for environment in environments}
        size = self._size(options.limits)
        kinds = tuple(Kind(template, name, size) for name in self._environments for template in templates)
        self._first_kind = kinds[0]
        self._pool = Pool(self._make, kinds, size=options.warm, most_kept=_MOST_KEPT)
        self._tending: asyncio.Task[None] | None = None
        self._proof: asyncio.Semaphore | None = asyncio.Semaphore(_PROVED_AT_ONCE)  # bounds the start-up proof's jobs
        self._expectations = Expectations(unseen=TestIsolation.SHARED)  # an unused container is dear
        self._protections: tuple[Protection, ...] = ()
        self._isolation = Isolation(self.name, ())

    async def start(self) -> None:
        """Looks at engine and image, removes what dead services left, and warms the pool.

        Raises:
            CellUnavailable: engine, runtime or image is missing or does not fit, or a required protection is absent.
        """
        try:
            built = await asyncio.to_thread(filters.build, memory_counted=False)
            self._filters = (built.listening.hex(), built.killing.hex())
            await self._check_runtime()
            for name in self._environments:
                await self._check_image(self._image_of(name))
            await sweep(self._engine, self._owner, ())
            await self._pool.start()
            slot = await self._pool.claim(self._first_kind)
            self._versions = {name: text for name, text in slot.container.versions.items() if name in LANGUAGES}
            is_plain = self._options.runtime == PLAIN_RUNTIME
            self._state(docker_protections(self._options.runtime, slot.container.have, is_plain=is_plain))
            slot.lease = _PROOF
            self._pool.give_back(slot)
            self._tending = asyncio.create_task(self._tend())
        except BaseException:
            await self.stop()
            raise

    def _image_of(self, environment: str) -> str:
        """The image of an environment: the one that is set for `base`, others by their name behind it."""
        return self._image if environment == _BASE else f"{self._image}-{environment}"

    async def _check_runtime(self) -> None:
        runtimes = (await self._engine.info()).get("Runtimes") or {}
        if self._options.runtime not in runtimes:
            raise CellUnavailable(
                f"the container engine has no runtime {self._options.runtime!r}; it has: "
                f"{', '.join(sorted(runtimes))}. Install gVisor's runsc and name it in /etc/docker/daemon.json, "
                "or set SANDBOX_DOCKER_RUNTIME"
            )

    async def _check_image(self, image: str) -> None:
        """Looks whether an image can be used.

        Raises:
            CellUnavailable: the engine does not have it, or it holds another guest than this service speaks to.
        """
        labels = await self._engine.image_labels(image)
        if labels is None:
            raise CellUnavailable(f"the engine has no image {image}: make sandbox-image builds it")
        if labels.get(GUEST_LABEL) != await asyncio.to_thread(frames.digest):
            raise CellUnavailable(
                f"image {image} was built from another version of the guest: rebuild it with make sandbox-image"
            )

    async def stop(self) -> None:
        """Removes all containers."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait({self._tending})
        await self._pool.stop()
        await self._engine.close()

    def protections(self) -> Sequence[Protection]:
        """Every protection, and whether it is in force."""
        return self._protections

    def degrade(self, missing: Mapping[str, str]) -> None:
        """Takes back protections, and ends the start-up proof. See CellKind.degrade for what it raises."""
        self._proof = None
        self._pool.release(_PROOF)
        self._pool.fill()
        self._state(without(self._protections, missing))

    def _state(self, found: tuple[Protection, ...]) -> None:
        self._protections = found
        self._isolation = Isolation(self.name, tuple(wall.name for wall in found if wall.in_force))
        absent = [wall for wall in found if not wall.in_force and wall.name in self._require]
        if absent:
            listed = "; ".join(f"{wall.name} ({wall.detail})" for wall in absent)
            raise CellUnavailable(f"required, and not in force here: {listed}")

    def forget(self, lease: Lease) -> None:
        """A lease is over: the container that is kept for it goes."""
        if (key := self._options.reuse.key(lease)) is not None:
            self._pool.release(key)

    def language_versions(self) -> dict[str, str]:
        """Version of each language's interpreter in the image."""
        return self._versions

    def health(self) -> Mapping[str, float]:
        """How the pool is."""
        stats = self._pool.stats()
        return {
            "warm_containers": stats.warm,
            "claimed_containers": stats.claimed,
            "kept_containers": stats.kept,
            "containers_being_made": stats.being_made,
            "container_failures": stats.failures,
        }

    async def run(self, job: Job, sink: OutputSink | None = None, *, lease: Lease = NO_LEASE) -> JobOutcome:
        """Runs one job. See CellKind.run for what it raises.

        The job's processes are gone when this returns; its container goes in the background, unless it is kept.
        """
        key = self._options.reuse.key(lease)
        if self._proof is None:
            return await self._run(job, sink, key)
        async with self._proof:
            return await self._run(job, sink, _PROOF)

    async def _run(self, job: Job, sink: OutputSink | None, key: Hashable | None) -> JobOutcome:
        language = LANGUAGES[job.language]
        if isinstance(job, TestRun):
            return await run_tests(job, language, lambda part: self._run_part(part, None, key), self._expectations)
        return await self._run_part(Part(job, *language.start_program(job)), sink, key)

    async def _run_part(self, part: Part, sink: OutputSink | None, key: Hashable | None) -> JobOutcome:
        """Runs a cell's part of a job in a container."""
        job = part.job
        kind = Kind(self._templates[part.template], job.environment, self._size(job.limits))
        try:
            slot = await self._pool.claim(kind, key)
        except BaseException:
            if part.channel is not None:
                part.channel.close()
            raise
        try:
            carried = await carry_out(part, slot.container, self._isolation, sink, keep=key is not None)
        except BaseException:
            await self._gone(slot)
            raise
        if carried.is_clean:
            self._pool.give_back(slot)
        else:
            await self._gone(slot)
        return carried.outcome

    async def _gone(self, slot: Slot) -> None:
        """Waits until a container is removed; a cancellation that comes meanwhile comes out afterwards."""
        removal = self._pool.drop(slot)
        try:
            await asyncio.shield(removal)
        except asyncio.CancelledError:
            await asyncio.wait({removal})
            raise

    def _size(self, limits: Limits) -> Size:
        """The size of container that a job needs: the warm ones' where it fits, since only the disk must be exact."""
        usual = self._options.limits
        fits = limits.memory_bytes <= usual.memory_bytes and limits.processes <= usual.processes
        memory, processes = (usual if fits else limits).memory_bytes, (usual if fits else limits).processes
        return Size(memory, limits.disk_bytes, limits.inodes + _EXTRA_INODES, processes)

    async def _make(self, kind: Hashable) -> Container:
        if not isinstance(kind, Kind):
            raise CellFailure("a kind of container that is none")
        plan = Plan(
            image=self._image_of(kind.environment),
            runtime=self._options.runtime,
            owner=str(self._owner),
            session=kind.template.session,
            preload=tuple(self._environments[kind.environment].preload),
            size=kind.size,
            filters=self._filters,
        )
        return await Container.open(self._engine, plan)

    async def _tend(self) -> None:
        """Now and then: removes what is left of others, and what has died here."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._pool.tend()
            with contextlib.suppress(CellUnavailable):
                await sweep(self._engine, self._owner, self._pool.names())
