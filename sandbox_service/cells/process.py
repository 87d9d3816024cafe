"""The `process` cell: a warm template forks, and each job gets walls, a user id and a control group of its own.

It works as root and, with fewer walls, without; `protections` says which are in force. Nothing is shared between two
jobs but the template's read-only memory.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from sandbox_service.cells import cgroups, filters
from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.expectations import Expectations
from sandbox_service.cells.job import Order, carry_out
from sandbox_service.cells.judging import Part, run_tests
from sandbox_service.cells.protections import NAMES, protections, without
from sandbox_service.cells.ready import Claim, LostCell, ReadyCell, ReadyCells
from sandbox_service.cells.template import Contents, TemplateProcess, template_name
from sandbox_service.domain import (
    DEFAULT_LIMITS,
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
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest.confinement.rootfs import JOB_UID
from sandbox_service.languages import (
    DEFAULT_ENVIRONMENTS,
    LANGUAGES,
    Environment,
    EnvironmentFault,
    Installed,
    installed,
    resolve,
)

_log = logging.getLogger(__name__)
_HOST_UID_BASE = 790_000_000
"""First of the host's user ids that jobs get: far above those of people, services and subordinate id ranges. Each job
gets the next one, so that nothing that the kernel keeps for a user (keys, for one) is there for a later job."""
_HOST_UIDS = 100_000_000
_GROUP_GONE_TRIES, _GROUP_GONE_PAUSE_S = 200, 0.01


class ProcessCells:
    """A CellKind.

    `require` names protections without which `start` refuses; `environments` are those offered; `ahead` cells of each
    template are made before their jobs come.
    """

    name = "process"

    def __init__(
        self,
        *,
        require: frozenset[str] = frozenset(),
        environments: Sequence[Environment] = DEFAULT_ENVIRONMENTS,
        ahead: int = 2,
    ) -> None:
        unknown = require - set(NAMES)
        if unknown:
            raise ValueError(f"unknown protections: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
        self._require = require
        self._environments = environments
        self._languages: Mapping[str, Installed] = {}
        self._unprivileged = os.geteuid() != 0
        self._numbers = itertools.count(1)
        self._cgroups: cgroups.Cgroups | None = None
        self._templates: dict[str, TemplateProcess] = {}
        self._ready: dict[str, ReadyCells] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._ahead = ahead
        self._expectations = Expectations(unseen=TestIsolation.SEPARATE)  # such a cell waits already, and costs little
        self._protections: tuple[Protection, ...] = ()
        self._isolation = Isolation(self.name, ())

    async def start(self) -> None:
        """Starts a template of each kind.

        Raises:
            CellUnavailable: a template did not start, or a required protection is not in force.
        """
        self._cgroups = await asyncio.to_thread(cgroups.find)
        counted = self._cgroups is not None and "memory" in self._cgroups.controllers
        built = await asyncio.to_thread(filters.build, memory_counted=counted)
        self._languages = await asyncio.to_thread(installed)
        for contents in await asyncio.to_thread(self._contents):
            for template in (template for name in self._languages for template in LANGUAGES[name].templates):
                made = TemplateProcess(template, contents, built, unprivileged=self._unprivileged)
                self._templates[made.name] = made
        try:
            await asyncio.gather(*(template.start() for template in self._templates.values()))
            for name, started in self._templates.items():
                if started.prepares:
                    self._ready[name] = ReadyCells(started, self._claim, self._forget, size=self._ahead)
            walls = next(iter(self._templates.values())).walls
            self._state(protections(walls, self._cgroups, built, unprivileged=self._unprivileged))
        except BaseException:
            await self.stop()
            raise

    def _contents(self) -> list[Contents]:
        """What the cells of each environment hold; reads the disk."""
        languages = list(self._languages.values())
        try:
            return [Contents(one.name, resolve(one), languages) for one in self._environments]
        except EnvironmentFault as fault:
            raise CellUnavailable(str(fault)) from fault

    def degrade(self, missing: Mapping[str, str]) -> None:
        """Takes back protections. See CellKind.degrade for what it raises."""
        self._state(without(self._protections, missing))

    def _state(self, found: tuple[Protection, ...]) -> None:
        self._protections = found
        self._isolation = Isolation(self.name, tuple(wall.name for wall in found if wall.in_force))
        absent = [wall for wall in found if not wall.in_force and wall.name in self._require]
        if absent:
            listed = "; ".join(f"{wall.name} ({wall.detail})" for wall in absent)
            raise CellUnavailable(f"required, and not in force here: {listed}")

    async def stop(self) -> None:
        """Ends all templates, and with them all jobs; removes the control groups."""
        await asyncio.gather(*(template.stop() for template in self._templates.values()))
        await asyncio.gather(*(pool.close() for pool in self._ready.values()))
        await asyncio.gather(*self._leaving)
        if self._cgroups is not None:
            self._cgroups.close()

    def protections(self) -> Sequence[Protection]:
        """Every protection, and whether it is in force."""
        return self._protections

    def forget(self, lease: Lease) -> None:
        """Nothing is ever kept for a lease."""

    def language_versions(self) -> dict[str, str]:
        """Version of each language's interpreter."""
        return {name: language.version for name, language in self._languages.items()}

    async def run(
        self,
        job: Job,
        sink: OutputSink | None = None,
        *,
        lease: Lease = NO_LEASE,  # noqa: ARG002 - nothing is reused here
    ) -> JobOutcome:
        """Runs one job in a fresh cell. See CellKind.run for what it raises."""
        language = LANGUAGES[job.language]
        if isinstance(job, TestRun):
            return await run_tests(job, language, self._run_cell, self._expectations)
        return await self._run_cell(Part(job, *language.start_program(job)), sink)

    async def _run_cell(self, part: Part, sink: OutputSink | None = None) -> JobOutcome:
        """Runs a part of a job in a fresh cell."""
        name = template_name(part.template, part.job.environment)
        ready = await self._take(name, part.job.limits)
        if ready is not None:
            try:
                return await self._carry_out(part, name, ready.claim, ready, sink)
            except LostCell as error:
                if part.channel is not None:  # it has gone with the cell
                    raise CellUnavailable(str(error)) from error
            finally:
                ready.close()
        return await self._carry_out(part, name, self._claim(part.job.limits), None, sink)

    async def _carry_out(
        self, part: Part, template: str, claim: Claim, ready: ReadyCell | None, sink: OutputSink | None
    ) -> JobOutcome:
        counted = self._cgroups is not None and "memory" in self._cgroups.controllers
        async with self._until_gone(claim.group):
            order = Order(part, claim.uid, claim.group, memory_counted=counted, ready=ready)
            return await carry_out(order, self._templates[template], self._isolation, sink)

    async def _take(self, template: str, limits: Limits) -> ReadyCell | None:
        """A cell that is made already, with the job's limits; None where there is none for them."""
        pool = self._ready.get(template)
        cell = await pool.take() if pool else None
        if cell is None or cell.claim.group is None:
            return cell
        try:
            cell.claim.group.limit(limits)
        except OSError:  # less memory than it uses already: this job is ended in a cell that is made within its limits
            cell.close()
            self._forget(cell.claim)
            return None
        return cell

    def _claim(self, limits: Limits = DEFAULT_LIMITS) -> Claim:
        """The next user id, and a control group with a name that no other has.

        Raises:
            CellUnavailable: the kernel made none.
        """
        number = next(self._numbers)
        uid = JOB_UID if self._unprivileged else _HOST_UID_BASE + number % _HOST_UIDS
        try:
            return Claim(uid, self._cgroups.create(str(number), limits) if self._cgroups else None)
        except OSError as error:
            raise CellUnavailable(f"no control group could be made: {error}") from error

    def _forget(self, claim: Claim) -> None:
        """Removes the group of a cell that never had a job, in the background."""
        task = asyncio.create_task(_removed(claim.group))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    @asynccontextmanager
    async def _until_gone(self, group: cgroups.Group | None) -> AsyncIterator[None]:
        """Removes a group when its job is gone."""
        try:
            yield
        finally:
            await _removed(group)


async def _removed(group: cgroups.Group | None) -> None:
    """Waits until the last process of a group is gone and the group is removed."""
    if group is None:
        return
    for _try in range(_GROUP_GONE_TRIES):
        if group.remove():
            return
        with contextlib.suppress(asyncio.CancelledError):  # a group left behind would be worse than a late cancellation
            await asyncio.sleep(_GROUP_GONE_PAUSE_S)
    _log.error("a control group could not be removed: %s", json.dumps(list(group.directories.values())))
