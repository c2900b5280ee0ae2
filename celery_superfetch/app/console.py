"""Loads a part of the console by its entry point: the core never imports the console, and works
without it.

`superfetch status` (``cli/status.py``) calls ``load_part``. Nothing is stored.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from ..errors import ConfigError

PARTS = "celery_superfetch.console"  # group of entry points


def load_part(part: str) -> Any:
    """Return what an entry point of the console names: the function ``judge``.

    Raises:
        ConfigError: the installation has no such entry point.
    """
    for entry in entry_points(group=PARTS, name=part):
        return entry.load()
    raise ConfigError(
        f"celery_superfetch is installed without its entry point {part!r} (group {PARTS}): the "
        "installation is older than the code, so install it again"
    )
