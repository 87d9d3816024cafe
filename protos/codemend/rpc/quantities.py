"""Times and sizes as operators write them, and addresses, as types of settings.

Times are seconds (`10`) or carry a unit (`500ms`, `10s`, `2m`, `1h`); sizes are bytes (`1048576`) or carry one
(`512MiB`).
"""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from codemend.rpc.addresses import parse_address

_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_QUANTITY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_time(value: object) -> object:
    """A text such as `10`, `10s` or `1.5m` as a timedelta; what is no text is left to pydantic.

    Raises:
        ValueError: the text is no time.
    """
    if not isinstance(value, str):
        return value
    number, unit = _quantity(value, _TIME_UNITS, "10, 10s, 500ms, 2m or 1h")
    return timedelta(seconds=float(number) * _TIME_UNITS[unit])


def parse_size(value: object) -> object:
    """A text such as `1048576`, `512MiB` or `0.5GiB` as bytes; what is no text is left to pydantic.

    Raises:
        ValueError: the text is no size.
    """
    if not isinstance(value, str):
        return value
    number, unit = _quantity(value, _SIZE_UNITS, "1048576, 64KiB, 512MiB or 1GiB")
    return int(float(number) * _SIZE_UNITS[unit])


def _quantity(text: str, units: dict[str, float] | dict[str, int], examples: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"write it as {examples}")
    return match[1], match[2]


def _is_address(value: str) -> str:
    parse_address(value)
    return value


def _is_positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("must be longer than zero")
    return value


AddressText = Annotated[str, AfterValidator(_is_address)]
Time = Annotated[timedelta, BeforeValidator(parse_time), AfterValidator(_is_positive)]
TimeOrNone = Annotated[timedelta, BeforeValidator(parse_time), Field(ge=timedelta())]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
