"""Environments: named sets of preinstalled python packages, each with templates of its own.

Packages come from beside the service, where pip put them. A job sees those of its own environment and no others, at one
place, whatever the service's own installation holds.
"""

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass

BASE = "base"
_ALWAYS = ("pytest", "pip")
"""What every environment holds: tests can run in each."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment.

    Attributes:
        name: its name in the contract.
        distributions: what it holds beside pytest and pip, by the names that pip knows; what these need comes too.
        preload: modules that its templates import ahead of the jobs, so that an import costs a job nothing.
        extra: the extra of this package that installs it; empty: none does.
    """

    name: str
    distributions: Sequence[str] = ()
    preload: Sequence[str] = ()
    extra: str = ""


_KNOWN = {
    BASE: Environment(BASE),
    "data": Environment("data", ("numpy", "pandas"), preload=("numpy", "pandas"), extra="data"),
}
DEFAULT_ENVIRONMENTS: tuple[Environment, ...] = (_KNOWN[BASE],)


class EnvironmentFault(Exception):  # noqa: N818 - it is the environment that is at fault
    """An environment cannot be offered on this machine; the message says how to mend it."""


@dataclass(frozen=True, slots=True)
class Packages:
    """An environment as this machine has it.

    Attributes:
        paths: files and folders that belong into its cells.
        preload: as of the environment.
    """

    paths: Sequence[str]
    preload: Sequence[str] = ()


def parse_environments(text: str) -> tuple[Environment, ...]:
    """Reads names separated by commas; `name=dist1+dist2` is a set of one's own. `base` is always among them.

    Raises:
        ValueError: a name is not known, is used twice or cannot be one.
    """
    found: dict[str, Environment] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, is_own, listed = part.partition("=")
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = _own(name, listed) if is_own else _known(name)
    return tuple({BASE: _KNOWN[BASE], **found}.values())


def _known(name: str) -> Environment:
    if name not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise ValueError(f"{name!r} is not known; known: {known}, and sets of your own as name=dist1+dist2")
    return _KNOWN[name]


def _own(name: str, listed: str) -> Environment:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a name: lower-case letters, digits, '-' and '_', at most 32")
    if name in _KNOWN:
        raise ValueError(f"{name!r} is an environment that the service brings; choose another name")
    distributions = tuple(part.strip() for part in listed.split("+"))
    for distribution in distributions:
        if not _DISTRIBUTION.fullmatch(distribution):
            raise ValueError(f"{name}: {distribution!r} cannot be the name of a package")
    return Environment(name, distributions)


def resolve(environment: Environment) -> Packages:
    """Finds all that an environment holds, as installed beside the service; reads the disk.

    Raises:
        EnvironmentFault: a package is not installed.
    """
    missing = [name for name in environment.distributions if _distribution(name) is None]
    if missing:
        command = f"codemend[{environment.extra}]" if environment.extra else " ".join(missing)
        listed = ", ".join(missing)
        raise EnvironmentFault(
            f"environment {environment.name}: {listed} not installed; to mend it: pip install '{command}'"
        )
    return Packages(package_paths(*_ALWAYS, *environment.distributions), environment.preload)


def package_paths(*roots: str) -> list[str]:
    """Top-level files and folders of distributions and of all that they need, as installed beside the service."""
    paths: set[str] = set()
    waiting, seen = [*roots], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = _distribution(name)
        if distribution is None:
            continue  # needed on other systems or versions only
        for file in distribution.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                paths.add(str(distribution.locate_file(file.parts[0])))
        needed = [text for text in distribution.requires or () if "extra ==" not in text]
        waiting.extend(found.group() for text in needed if (found := _REQUIREMENT.match(text)))
    return sorted(paths)


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
