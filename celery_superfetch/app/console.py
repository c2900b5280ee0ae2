"""The console, which the core knows by its entry points alone."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from ..errors import ConfigError

PARTS = "celery_superfetch.console"  # group of entry points


def console(part: str) -> Any:
    """``judge``; ConfigError: the installation has no such entry point."""
    for entry in entry_points(group=PARTS, name=part):
        return entry.load()
    raise ConfigError(
        f"celery_superfetch is installed without its entry point {part!r} (group {PARTS}): the "
        "installation is older than the code, so install it again"
    )
