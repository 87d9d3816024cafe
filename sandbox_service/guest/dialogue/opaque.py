"""What stands in the judge for an object of the candidate's that is no plain value. How it gets there is in `judge`."""

import sys
from collections.abc import Callable
from typing import NoReturn

from sandbox_service.guest.confinement import rootfs


class Opaque:
    """Something of the candidate's that is not plain: true or not, and to be handed back, and nothing else.

    It is equal to itself alone: whatever a test could find it to be, a plain value could be as well.

    Args:
        what: the candidate's object, in words.
        on_more: hears what else a test asks of it.
        truth: whether it is true.
    """

    def __init__(self, what: str, on_more: Callable[[str], None], *, truth: bool) -> None:
        self._what, self._on_more, self._truth = what, on_more, truth

    def tell(self, *, truth: bool) -> None:
        """Takes its truth anew: the candidate has given it again."""
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth

    def __repr__(self) -> str:
        return f"<{self._what}, which is no plain value>"

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("__"):
            self._tell_more(f".{name}")
        raise AttributeError(f"the code under test gave {self._what}, which is no plain value: it has no {name!r} here")

    def _has_not(self, *_arguments: object) -> NoReturn:
        __tracebackhide__ = True
        self._tell_more("more than its truth")
        raise TypeError(f"the code under test gave {self._what}, which is no plain value: it can do nothing here")

    def _tell_more(self, asked: str) -> None:
        if sys._getframe(2).f_code.co_filename.startswith(f"{rootfs.TESTS}/"):  # noqa: SLF001 - pytest looks as well
            self._on_more(f"{self._what} for {asked}")

    __len__ = __getitem__ = __setitem__ = __delitem__ = _has_not  # iteration asks for items; `Iterable` sees none of it
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __mul__ = __or__ = __and__ = _has_not
