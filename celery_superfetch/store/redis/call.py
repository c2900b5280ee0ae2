"""A script or a command that a class of ``store/`` asks for. Pure data: ``Scripts`` makes the words
of a Redis command of it, and ``Pipeline`` sends them. Any thread may do so; in memory alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One run of a script, or one plain command: its name, keys and arguments."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any]
    #: Send the script's whole text, not its digest. A server that has forgotten the digest would
    #: run the script after the commands that were sent behind it, which rely on it.
    whole: bool = False
    is_plain: bool = False  # a command of Redis's own
