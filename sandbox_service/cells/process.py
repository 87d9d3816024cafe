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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sandbox_service.cells import cgroups
from sandbox_service.cells.base import OutputSink
from sandbox_service.cells.job import Order, carry_out
from sandbox_service.cells.protections import NAMES, protections
from sandbox_service.cells.template import TemplateProcess
from sandbox_service.domain import (
    DEFAULT_LIMITS,
    File,
    Isolation,
    Job,
    JobOutcome,
    Program,
    Protection,
    Status,
    TestRun,
)
from sandbox_service.errors import CellUnavailable
from sandbox_service.guest.rootfs import JOB_UID
from sandbox_service.languages import LANGUAGES

_log = logging.getLogger(__name__)
_HOST_UID_BASE = 790_000_000
"""First of the host's user ids that jobs get: far above those of people, services and subordinate id ranges. Each job
gets the next one, so that nothing that the kernel keeps for a user (keys, for one) is there for a later job."""
_HOST_UIDS = 100_000_000
_GROUP_GONE_TRIES, _GROUP_GONE_PAUSE_S = 200, 0.01


class ProcessCells:
    """A CellKind. `require` names protections without which `start` refuses."""

    name = "process"

    def __init__(self, *, require: frozenset[str] = frozenset()) -> None:
        unknown = require - set(NAMES)
        if unknown:
            raise ValueError(f"unknown protections: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
        self._require = require
        self._unprivileged = os.geteuid() != 0
        self._numbers = itertools.count(1)
        self._cgroups: cgroups.Cgroups | None = None
        self._templates: dict[str, TemplateProcess] = {}
        self._protections: tuple[Protection, ...] = ()
        self._isolation = Isolation(self.name, ())

    async def start(self) -> None:
        """Starts a template of each kind and proves it with a job.

        Raises:
            CellUnavailable: a template did not start, a required protection is not in force, or the first job went
                wrong.
        """
        self._cgroups = await asyncio.to_thread(cgroups.find)
        for language in LANGUAGES.values():
            for template in language.templates:
                self._templates[template.name] = TemplateProcess(template, unprivileged=self._unprivileged)
        try:
            await asyncio.gather(*(template.start() for template in self._templates.values()))
            walls = next(iter(self._templates.values())).walls
            self._protections = protections(walls, self._cgroups, unprivileged=self._unprivileged)
            in_force = tuple(wall.name for wall in self._protections if wall.in_force)
            self._isolation = Isolation(self.name, in_force)
            self._check_required()
            await self._prove()
        except BaseException:
            await self.stop()
            raise

    def _check_required(self) -> None:
        absent = [wall for wall in self._protections if not wall.in_force and wall.name in self._require]
        if absent:
            listed = "; ".join(f"{wall.name} ({wall.detail})" for wall in absent)
            raise CellUnavailable(f"required, and not in force here: {listed}")

    async def _prove(self) -> None:
        program = Program(DEFAULT_LIMITS, files=(File("first.py", b"print(6 * 7)"),), entry="first.py")
        outcome = (await self.run(program)).result
        if outcome.status is not Status.SUCCEEDED or outcome.stdout.head != b"42\n":
            words = outcome.stderr.head.decode("utf-8", "replace")[-500:]
            raise CellUnavailable(f"the first job ended with {outcome.status}: {outcome.reason} {words}")

    async def stop(self) -> None:
        """Ends all templates, and with them all jobs; removes the control groups."""
        await asyncio.gather(*(template.stop() for template in self._templates.values()))
        if self._cgroups is not None:
            self._cgroups.close()

    def protections(self) -> Sequence[Protection]:
        """Every protection, and whether it is in force."""
        return self._protections

    def language_versions(self) -> dict[str, str]:
        """Version of each language's interpreter."""
        return {name: self._templates[language.templates[0].name].version for name, language in LANGUAGES.items()}

    async def run(self, job: Job, sink: OutputSink | None = None) -> JobOutcome:
        """Runs one job in a fresh cell. See CellKind.run for what it raises."""
        language = LANGUAGES[job.language]
        name, start = language.start_tests(job) if isinstance(job, TestRun) else language.start_program(job)
        number = next(self._numbers)
        uid = JOB_UID if self._unprivileged else _HOST_UID_BASE + number % _HOST_UIDS
        counted = self._cgroups is not None and "memory" in self._cgroups.controllers
        async with self._group(job, number) as group:
            order = Order(job, start, uid, group, memory_counted=counted)
            return await carry_out(order, self._templates[name], self._isolation, sink)

    @asynccontextmanager
    async def _group(self, job: Job, number: int) -> AsyncIterator[cgroups.Group | None]:
        """A control group for one job, gone when the job is."""
        if self._cgroups is None:
            yield None
            return
        try:
            group = self._cgroups.create(str(number), job.limits)
        except OSError as error:
            raise CellUnavailable(f"no control group could be made: {error}") from error
        try:
            yield group
        finally:
            for _try in range(_GROUP_GONE_TRIES):
                if group.remove():
                    break
                with contextlib.suppress(
                    asyncio.CancelledError
                ):  # a group left behind would be worse than a late cancellation
                    await asyncio.sleep(_GROUP_GONE_PAUSE_S)
            else:
                _log.error(
                    "a control group could not be removed: %s",
                    json.dumps([str(path) for path in group.directories.values()]),
                )
