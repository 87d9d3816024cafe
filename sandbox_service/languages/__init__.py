"""Languages and environments: what jobs can be written in, and which packages they find.

A language is one module with one class of the protocol `Language`. To add one, write that module and name its class in
LANGUAGES: whatever starts by exec needs no more than an argument vector ("exec" of `guest.process.program`), and a test
framework that can be told to report over a descriptor needs that reporter as a folder beside the guest's modules
("runner" of `guest.process.program`). Languages that a machine does not have are not offered there.
"""

from collections.abc import Mapping

from sandbox_service.languages.base import Installed, Language, Template
from sandbox_service.languages.environments import (
    BASE,
    DEFAULT_ENVIRONMENTS,
    Environment,
    EnvironmentFault,
    Packages,
    parse_environments,
    resolve,
)
from sandbox_service.languages.node import Node
from sandbox_service.languages.python import Python

LANGUAGES: Mapping[str, Language] = {language.name: language for language in (Python(), Node())}
"""Every language that the service knows, by its name."""


def installed() -> Mapping[str, Installed]:
    """The languages that this machine has; blocks."""
    found = {name: language.find() for name, language in LANGUAGES.items()}
    return {name: language for name, language in found.items() if language is not None}


__all__ = [
    "BASE",
    "DEFAULT_ENVIRONMENTS",
    "LANGUAGES",
    "Environment",
    "EnvironmentFault",
    "Installed",
    "Language",
    "Packages",
    "Template",
    "installed",
    "parse_environments",
    "resolve",
]
