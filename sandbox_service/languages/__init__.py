"""Languages: one module each, behind one protocol. A new one is a module here and an entry in LANGUAGES."""

from collections.abc import Mapping

from sandbox_service.languages.base import Language, Template
from sandbox_service.languages.python import Python

LANGUAGES: Mapping[str, Language] = {language.name: language for language in (Python(),)}
"""Every language by its name."""
ENVIRONMENTS: tuple[str, ...] = ("base",)
"""Named sets of preinstalled packages. `base` is the standard library and pytest."""

__all__ = ["ENVIRONMENTS", "LANGUAGES", "Language", "Template"]
