"""Loads a part of the package ``console`` by its entry point. The console is the commands and the
web page for operators; the rest of the package never imports it, and fetches, recovers and reaps
without it.

`superfetch status` (``cli/status.py``) calls ``load_part``. Nothing is stored.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from ..errors import ConfigError

PARTS = "celery_superfetch.console"  # group of entry points


def load_part(part: str) -> Any:
    """Return the object that an entry point of the console names. There is one today: the function
    ``judge``, which turns the state of the database into findings.

    Raises:
        ConfigError: the installation has no such entry point.
    """
    for entry in entry_points(group=PARTS, name=part):
        return entry.load()
    raise ConfigError(
        f"celery_superfetch is installed without its entry point {part!r} (group {PARTS}): the "
        "installation is older than the code. Install it again"
    )
