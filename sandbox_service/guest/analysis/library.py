"""What a name in a module of the standard library stands for: looked up, since the tests import it anyway."""

import importlib

from sandbox_service.guest.dialogue.plain import Memo, NotPlainError, TooLargeError
from sandbox_service.guest.dialogue.plain_writer import Writer


def makes_iterator(module: str, name: str) -> bool:
    """Whether a call of it gives an iterator."""
    return module == "itertools" and not name.startswith("_")


def is_plain(module: str, name: str) -> bool:
    """Whether it is a plain value, or an exception class."""
    try:
        value: object = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, type) and issubclass(value, BaseException):
            return True
        Writer(Memo(), _Nothing(), exact=True).node(value)
    except (ImportError, AttributeError, NotPlainError, TooLargeError):
        return False
    return True


class _Nothing:
    """Nothing stays anywhere."""

    def number(self, value: object) -> None:
        pass

    def is_generator(self, value: object) -> bool:
        raise LookupError(value)

    def opaque(self, value: object) -> None:
        pass

    def found(self, number: int, *, generator: bool) -> object:
        raise LookupError(number, generator)

    def stand_in(self, number: int, *, truth: bool, what: str) -> object:
        raise LookupError(number, truth, what)
