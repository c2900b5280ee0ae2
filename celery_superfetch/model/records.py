"""Functions that read values from Redis, where any client of the database may have written
nonsense. They return a default instead of raising: one broken value must not stop a reaper's pass
over all owners, `status` or the metrics.

The classes of ``store`` and ``model`` call them. Pure functions: a death loses nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

T = TypeVar("T")

#: The greatest whole number that a script can read exactly: Lua has nothing but doubles.
WHOLE_MAX = 2**53
WHOLE = re.compile(r"-?[0-9]+", re.ASCII)


def read_as(read: Callable[[Any], Any], value: Any, default: T) -> T:
    """Return ``read(value)`` if that is of the type of ``default``; otherwise ``default``."""
    try:
        parsed = read(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return default
    return parsed if isinstance(parsed, type(default)) else default


def whole(value: Any, default: int = 0) -> int:
    """Return a whole number; ``default`` where the value is not one, or further from 0 than
    ``WHOLE_MAX``. A float is cut to its whole part. Scripts read text in the same way (``counter``
    in ``shared.lua``)."""
    if isinstance(value, (str, bytes)) and not WHOLE.fullmatch(_as_text(value)):
        return default
    number = read_as(int, value, default)
    return number if abs(number) <= WHOLE_MAX else default


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def real(value: Any, default: float = 0.0) -> float:
    """Return a finite number; ``default`` where the value is not one, or further from 0 than
    ``WHOLE_MAX``."""
    number = read_as(float, value, default)
    return number if isfinite(number) and abs(number) <= WHOLE_MAX else default


def parsed_json(value: Any, default: T) -> T:
    """Return a JSON document; ``default`` where the value is not one, or is of another type than
    ``default``."""
    return read_as(json.loads, value, default)


def text_of(value: Any) -> str:
    """Return a text from JSON as UTF-8 can encode it (half of a surrogate pair becomes ``?``);
    empty where the value is not text."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
